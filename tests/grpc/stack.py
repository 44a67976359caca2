"""What the programs of this folder and of tests/http3 share: grpcio in an environment of its own, request streams, and the proxy with its objects."""

import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
VENV = REPOSITORY / "target" / "grpc-venv"
REQUIREMENT = "grpcio==1.85.1"
HOST = "grpc.test"
PATIENCE = 20

try:
    import grpc
except ImportError:
    grpc = None


def is_installed() -> bool:
    return grpc is not None and f"grpcio=={grpc.__version__}" == REQUIREMENT


def again() -> int:
    """Runs this program in a virtual environment with grpcio."""
    if Path(sys.prefix) == VENV:
        print(f"{REQUIREMENT} is not installed in {VENV}", file=sys.stderr)
        return 1
    python = VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", REQUIREMENT], check=True)
    os.execv(python, [str(python), *sys.argv])


class Messages:
    """The request stream of a call, to which messages are added one by one."""

    def __init__(self):
        self.ready, self.waiting, self.ended = threading.Condition(), [], False

    def send(self, message: bytes) -> None:
        with self.ready:
            self.waiting.append(message)
            self.ready.notify()

    def end(self) -> None:
        with self.ready:
            self.ended = True
            self.ready.notify()

    def __iter__(self):
        return self

    def __next__(self) -> bytes:
        with self.ready:
            self.ready.wait_for(lambda: self.waiting or self.ended)
            if not self.waiting:
                raise StopIteration
            return self.waiting.pop(0)


def equal(found, expected) -> None:
    if found != expected:
        raise AssertionError(f"{str(found)[:200]!r} instead of {str(expected)[:200]!r}")


def outcome(case, *arguments) -> str:
    """Runs a case and says how it has ended: `ok`, and what it returns, or how it has failed."""
    try:
        return " ".join(filter(None, ["ok", case(*arguments)]))
    except grpc.RpcError as error:
        return f"FAILED: {error.code()}: {error.details()}"
    except Exception as error:
        return f"FAILED: {error!r}"


def gateway(*listeners: str) -> str:
    """A Gateway `edge` with these listeners, and its class."""
    lines = "".join(f"  - {{{listener}}}\n" for listener in listeners)
    return f"""\
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {{name: portcullis}}
spec: {{controllerName: portcullis.dev/gateway-controller}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge}}
spec:
  gatewayClassName: portcullis
  listeners:
{lines}---
"""


def service(name: str, port: int = 1, *addresses: str) -> str:
    """A Service whose endpoints have these addresses."""
    endpoints = ", ".join(f"{{addresses: [{address}]}}" for address in addresses)
    return f"""\
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec: {{ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{port: {port}}}]
endpoints: [{endpoints}]
---
"""


def route(name: str, listener: str, backends: dict[str, str]) -> str:
    """A GRPCRoute of a listener, with the backend of each gRPC service."""
    rule = "  - {{matches: [{{method: {{service: {}}}}}], backendRefs: [{{name: {}, port: 80}}]}}\n".format
    rules = "".join(rule(service, backend) for service, backend in backends.items())
    return f"""\
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {{name: {name}}}
spec:
  parentRefs: [{{name: edge, sectionName: {listener}}}]
  hostnames: [{HOST}]
  rules:
{rules}---
"""


@contextmanager
def proxy(program: Path, folder: Path, objects: str, admin: int, *arguments: str) -> Iterator[None]:
    """Runs the proxy with these objects, which it reads from the folder."""
    config = folder / "config"
    config.mkdir()
    (config / "objects.yaml").write_text(objects)
    with running(program, config, admin, "--drain-deadline", "1s", *arguments):
        yield


@contextmanager
def running(program: Path, config: Path, admin: int, *arguments: str) -> Iterator[subprocess.Popen]:
    """Runs the proxy with the objects of a folder."""
    command = [program, "run", "--config-dir", config, "--admin", f"127.0.0.1:{admin}", "--access-log", "off"]
    command += ["--log-level", "warn", "--drain-delay", "0s", *arguments]
    with subprocess.Popen(command) as process:
        try:
            until_ready(process, admin)
            yield process
        finally:
            process.terminate()


def until_ready(process: subprocess.Popen, admin: int) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:
        try:
            opener.open(f"http://127.0.0.1:{admin}/readyz", timeout=1)
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("portcullis did not become ready")
