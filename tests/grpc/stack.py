"""What the programs of this folder share: grpcio in an environment of its own, request streams, and the proxy with its objects."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "harness"))
from launch import again, free_port, running  # noqa: E402, F401
from manifests import CLASS, service  # noqa: E402, F401

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
{CLASS}apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge}}
spec:
  gatewayClassName: portcullis
  listeners:
{lines}---
"""


def route(name: str, listener: str, backends: dict[str, str]) -> str:
    """A GRPCRoute of a listener, with the backend of each gRPC service."""
    rule = "  - {{matches: [{{method: {{service: {}}}}}], backendRefs: [{{name: {}, port: 80}}]}}\n".format
    rules = "".join(rule(called, backend) for called, backend in backends.items())
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
