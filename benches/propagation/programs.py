"""Owns the program that is measured: on its own beside the bench, or as the pod that a controller makes for the Gateway."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "tests" / "controller"))

from api import wait_for  # noqa: E402

QUIET = ["--workers", "1", "--access-log", "off", "--log-level", "warn"]


@dataclass
class Program:
    address: str
    pids: dict[str, int] = field(default_factory=dict)
    has_controller: bool = False

    def wait_until_idle(self, routes: int) -> None:
        """Waits until the controller has written the conditions of all routes, which takes a while after thousands of new ones."""
        if self.has_controller:
            wait_for("all routes have their conditions", lambda: _reported() >= routes, 180, every=2)

    def rss_mb(self) -> str:
        return ", ".join(f"{name} {_rss_bytes(pid) / (1 << 20):.1f}" for name, pid in self.pids.items())


@contextmanager
def on_its_own(portcullis: Path):
    with subprocess.Popen([str(portcullis), "run", "--kubernetes", *QUIET]) as process:
        try:
            yield Program("127.0.0.1", {"run": process.pid})
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def provisioned(_portcullis: Path):
    """The cluster of the kubeconfig runs the program as its image, and ends what runs in it when it ends."""
    _kubectl("apply", "--server-side", "--force-conflicts", "-f", str(REPOSITORY / "deploy" / "install.yaml"))
    _kubectl("-n", "portcullis-system", "rollout", "status", "deployment/portcullis-controller", "--timeout=60s")
    parameters = {
        "apiVersion": "portcullis.dev/v1alpha1",
        "kind": "GatewayParameters",
        "metadata": {"name": "edge", "namespace": "default"},
        "spec": {"workload": {"replicas": 1}, "log": {"accessLog": "off", "level": "warn"}},
    }
    _kubectl("apply", "-f", "-", text=json.dumps(parameters))
    reference = {"group": "portcullis.dev", "kind": "GatewayParameters", "name": "edge"}
    patch = json.dumps({"spec": {"infrastructure": {"parametersRef": reference}}})
    _kubectl("patch", "gateway", "edge", "--type=merge", "-p", patch)

    def look():
        pods = _pods("default", "gateway.networking.k8s.io/gateway-name=edge")
        return len(pods) == 1 and _is_ready(pods[0]) and pods[0]

    pod = wait_for("the Gateway has its pod", look, 60)
    controllers = _pods("portcullis-system", "app.kubernetes.io/component=controller")
    pids = {"pod": _pid(pod), "controller": _pid(controllers[0])}
    yield Program(pod["status"]["podIP"], pids, has_controller=True)


def _kubectl(*arguments: str, text: str = "") -> str:
    done = subprocess.run(["kubectl", *arguments], input=text, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def _reported() -> int:
    """The number of HTTPRoutes with conditions."""
    reasons = _kubectl("get", "httproutes", "-A", "-o", "jsonpath={.items[*].status.parents[*].conditions[0].reason}")
    return len(reasons.split())


def _pods(namespace: str, labels: str) -> list[dict]:
    return json.loads(_kubectl("-n", namespace, "get", "pods", "-l", labels, "-o", "json"))["items"]


def _is_ready(pod: dict) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _pid(pod: dict) -> int:
    """The process of a pod: its id ends with it in this cluster."""
    return int(pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2])


def _rss_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
