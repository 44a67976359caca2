"""Fake pods: connections to a controller's configuration stream with any token, and the received lines."""

import base64
import json
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from api import wait_for
from cluster import SYSTEM

CLUSTER = Path(__file__).resolve().parents[2] / "target" / "cluster" / "bin" / "testcluster"
AUDIENCE = "portcullis.dev/controller"
URL = f"https://portcullis-controller-stream.{SYSTEM}.svc:19443"
PORT = 19443
SOURCES = "10.201.0.0/16"


class FakePods:
    """Pods that connect to the controller at an address: `status`, `lines` and `ends` by the name of a pod.

    With `brief` lines of objects have only their kind and name; with `silent` pods report nothing. With `sources` each comes
    from an address of its own."""

    def __init__(self, cluster, address: str, brief: bool = False, silent: bool = False, sources: bool = False):
        self.status: dict[str, int] = {}
        self.refusals: dict[str, str] = {}
        self.lines: dict[str, list[tuple[int, dict]]] = {}
        self.ends: dict[str, str] = {}
        self._ca = tempfile.NamedTemporaryFile()  # noqa: SIM115 -- closed with the pods
        self._ca.write(authority(cluster))
        self._ca.flush()
        command = [CLUSTER, "fakepods", "--url", URL, "--ca", self._ca.name, "--connect", f"{address}:{PORT}"]
        command += ["--brief"] * brief + ["--silent"] * silent
        if sources:
            subprocess.run(["ip", "route", "replace", "local", SOURCES, "dev", "lo"], check=True)
            command += ["--sources", SOURCES]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._thread.join()
        self._process.wait()

    def connect(self, name: str, gateway: str, token: str, position: str = "") -> None:
        """Connects a pod as one of Gateway NAMESPACE/NAME; does not wait."""
        self.lines[name] = []
        line = json.dumps({"name": name, "gateway": gateway, "token": token, "position": position})
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def answer(self, name: str, gateway: str, token: str) -> tuple[int, str]:
        """Status of a pod's request, and the reason if it is rejected."""
        self.connect(name, gateway, token)
        status = wait_for(f"{name} gets an answer", lambda: self.status.get(name) or self.ends.get(name), 15, every=0.005)
        assert isinstance(status, int), f"{name}: {status}"
        return status, self.refusals.get(name, "")

    def commits(self, name: str) -> list[tuple[int, int]]:
        """Times and revisions of the commits to a pod."""
        return [(at, line["commit"]["revision"]) for at, line in self.lines[name] if "commit" in line]

    def committed(self, name: str, after: int = 0) -> tuple[int, int]:
        """Waits for the next commit after a number of others."""
        return wait_for(f"{name} gets a commit", lambda: self.commits(name)[after:], 15, every=0.002)[0]

    def text(self, name: str) -> str:
        """Everything that a pod received."""
        return "\n".join(json.dumps(line) for _, line in self.lines[name])

    def puts(self, name: str) -> set[tuple[str, str, str]]:
        """Kind, namespace and name of the objects that a pod received."""
        objects = [line["put"] for _, line in self.lines[name] if "put" in line]
        return {(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]) for one in objects}

    def deletes(self, name: str) -> set[tuple[str, str, str]]:
        gone = [line["delete"] for _, line in self.lines[name] if "delete" in line]
        return {(one["kind"], one["namespace"], one["name"]) for one in gone}

    def _read(self) -> None:
        for text in self._process.stdout:
            event = json.loads(text)
            name = event["pod"]
            if "line" in event:
                self.lines[name].append((event["at"], event["line"]))
            elif "end" in event:
                self.ends[name] = event["end"]
            else:
                self.refusals[name] = event.get("error", "")
                self.status[name] = event["status"]


def authority(cluster) -> bytes:
    """CA bundle of the controller for pods."""
    look = lambda: cluster.api.get("Secret", "portcullis-controller-ca", SYSTEM)  # noqa: E731
    return base64.b64decode(wait_for("the controller has made its CA", look, 20)["data"]["ca.crt"])


def token_of(cluster, pod: dict, audience: str = AUDIENCE) -> str:
    """A projected token of a pod, like the kubelet's."""
    metadata = pod["metadata"]
    return cluster.api.token(metadata["namespace"], pod["spec"]["serviceAccountName"], audience, pod)


def claims(token: str) -> dict:
    return json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))


def with_claims(token: str, **changes) -> str:
    """A token with changed claims and thus an invalid signature."""
    changed = json.dumps({**claims(token), **changes}).encode()
    head, _, signature = token.split(".")
    return ".".join([head, base64.urlsafe_b64encode(changed).decode().rstrip("="), signature])


def now() -> int:
    return time.time_ns()
