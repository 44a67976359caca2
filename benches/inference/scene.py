"""Owns what surrounds the proxies: pickers and model servers, and the objects that Portcullis serves. Knows nothing of loads."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

from launch import free_port
from process import Group, Process

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAM = ROOT / "target" / "inference-bench"
GROUP = "inference.networking.k8s.io"
# The addresses of model servers, which all have one port. Those of the pool `two` are the first two.
MODELS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


def build() -> None:
    subprocess.run(["go", "-C", HERE, "build", "-trimpath", "-buildvcs=false", "-o", PROGRAM, "."], check=True)


def accepts(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True


def kill(process: Process) -> None:
    os.killpg(process.pid, signal.SIGKILL)


class Scene:
    """Model servers and pickers on cores, and a folder of objects with a Gateway at a port."""

    def __init__(self, group: Group, folder: Path, cores: str):
        self._group, self._folder, self._cores = group, folder, cores
        self.config, self._staging = folder / "config", folder / "staging"
        self.config.mkdir()
        self._staging.mkdir()
        self.gateway, self.model_port = free_port(), free_port()
        self.models = [self._start("model", f"--listen={address}:{self.model_port}", at=(address, self.model_port)) for address in MODELS]
        one, two, other = (f"{address}:{self.model_port}" for address in MODELS)
        self.pickers = {}
        for name, chosen in {"echo": one, "two": f"{one},{two}", "other": other}.items():
            self.pickers[name] = free_port()
            self.start_picker(self.pickers[name], chosen)
        # The picker of the pools that fail, whose process and port change.
        self.failing = free_port()
        self.failing_process = self.start_failing(self.failing)
        self._write("objects", self._objects())
        self.write_pods(MODELS[:2])
        self.write_failing(self.failing)

    def start_picker(self, port: int, chosen: str, *flags: str) -> Process:
        """One that responds."""
        return self._start("picker", f"--listen=127.0.0.1:{port}", f"--endpoints={chosen}", *flags, at=("127.0.0.1", port))

    def start_failing(self, port: int) -> Process:
        """One that answers once it has the whole request, as pickers of models do."""
        return self.start_picker(port, f"{MODELS[0]}:{self.model_port}", "--hold")

    def write_failing(self, port: int) -> None:
        """Makes the picker at this port the ready one of its Service."""
        self._write("failing", _service("failing", port))

    def write_pods(self, addresses: tuple[str, ...]) -> None:
        """Makes these the pods of the pool `two`."""
        self._write("pods", [_pod("two", address) for address in addresses])

    def _start(self, role: str, *flags: str, at: tuple[str, int]) -> Process:
        process = self._group.start(role, [str(PROGRAM), role, *flags], self._cores, self._folder / "log")
        process.ready_when(lambda: accepts(*at))
        return process

    def _write(self, name: str, objects: list[dict]) -> None:
        """Replaces a file at once. JSON is YAML."""
        new = self._staging / f"{name}.yaml"
        new.write_text("\n---\n".join(json.dumps(one) for one in objects) + "\n")
        new.rename(self.config / f"{name}.yaml")

    def _objects(self) -> list[dict]:
        listener = {"name": "http", "port": self.gateway, "protocol": "HTTP"}
        spec = {"gatewayClassName": "portcullis", "addresses": [{"value": "127.0.0.1"}], "listeners": [listener]}
        one, port = MODELS[0], self.model_port
        return [
            _object("gateway.networking.k8s.io/v1", "GatewayClass", "portcullis", {"controllerName": "portcullis.dev/gateway-controller"}),
            _object("gateway.networking.k8s.io/v1", "Gateway", "edge", spec),
            _object("gateway.networking.k8s.io/v1", "HTTPRoute", "models", {"parentRefs": [{"name": "edge"}], "rules": _rules()}),
            _pod("one", one),
            _pod("other", MODELS[2]),
            _pool("plain", "one", port),
            _pool("echo", "one", port, "echo"),
            _pool("open", "one", port, "failing", "FailOpen"),
            _pool("close", "one", port, "failing"),
            _pool("two", "two", port, "two"),
            _pool("other", "other", port, "other"),
            *(one for name, at in self.pickers.items() for one in _service(name, at)),
        ]


def _rules() -> list[dict]:
    def rule(path: str, *backends: dict, **more: dict) -> dict:
        return {"matches": [{"path": {"type": "PathPrefix", "value": f"/{path}"}}], "backendRefs": list(backends), **more}

    retry = {"attempts": 2, "codes": [502, 503], "backoff": "1ms"}
    alone = [rule(name, _reference(name)) for name in ("plain", "echo", "open", "close")]
    return [*alone, rule("two", _reference("two"), retry=retry), rule("shares", _reference("echo", 90), _reference("other", 10))]


def _reference(pool: str, weight: int = 1) -> dict:
    return {"group": GROUP, "kind": "InferencePool", "name": pool, "weight": weight}


def _object(version: str, kind: str, name: str, spec: dict) -> dict:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _pool(name: str, app: str, port: int, picker: str = "", mode: str = "FailClose") -> dict:
    spec = {"selector": {"matchLabels": {"app": app}}, "targetPorts": [{"number": port}]}
    if picker:
        spec["endpointPickerRef"] = {"name": f"epp-{picker}", "port": {"number": 80}, "failureMode": mode}
    return _object(f"{GROUP}/v1", "InferencePool", name, spec)


def _pod(app: str, address: str) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{app}-{address.replace('.', '-')}", "labels": {"app": app}},
        "status": {"podIP": address, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def _service(picker: str, port: int) -> list[dict]:
    name = f"epp-{picker}"
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"port": port}],
        "endpoints": [{"addresses": ["127.0.0.1"]}],
    }
    return [_object("v1", "Service", name, {"ports": [{"port": 80, "appProtocol": "kubernetes.io/h2c"}]}), endpoints]
