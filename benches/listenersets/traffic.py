"""Owns the backends, which name themselves, and clients that wait until responses or handshakes change."""

import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from process import Group
from proxies import nginx

TIMEOUT_SECONDS = 30.0
# Between two requests of a client that waits: less than a tenth of what is measured.
POLL_SECONDS = 0.0005
# Data planes keep connections to the backends of thousands of teams.
CONNECTIONS = 60_000
FIRST, OTHER = "first", "other"


class Backends:
    """An nginx with two ports, whose responses have the name of the port in the header x-backend."""

    def __init__(self, group: Group, program: str, folder: Path, cores: str, address: str):
        self.ports = {FIRST: free_port(), OTHER: free_port()}
        folder.mkdir()
        servers = "\n".join(
            f'    server {{ listen {address}:{port} backlog=4096; add_header x-backend {name}; location / {{ return 200 "hello, world\\n"; }} }}'
            for name, port in self.ports.items()
        )
        self.process = group.start("backend", nginx.start(program, folder, servers, connections=CONNECTIONS), cores, folder / "log")
        self.process.ready_when(lambda: all(accepts("127.0.0.1", port) for port in self.ports.values()))


class Client:
    """A connection that is kept alive."""

    def __init__(self, address: str, port: int) -> None:
        self._socket = socket.create_connection((address, port), timeout=TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def get(self, host: str, path: str) -> tuple[int, dict[str, str]]:
        """Status and headers of a response."""
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._part()
        head, _, body = data.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        missing = int(headers.get("content-length", 0)) - len(body)
        while missing > 0:
            missing -= len(self._part())
        return int(status.split()[1]), headers

    def _part(self) -> bytes:
        part = self._socket.recv(65536)
        if not part:
            raise ConnectionError("closed")
        return part


def certificate(address: str, port: int, host: str) -> bytes | None:
    """The certificate that a server presents for a name; `None` if it refuses the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((address, port), timeout=TIMEOUT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as connection,
        ):
            return connection.getpeercert(binary_form=True)
    except (ssl.SSLError, ConnectionError):
        return None


def wait(what: str, holds: Callable[[], bool], timeout: float = TIMEOUT_SECONDS, every: float = POLL_SECONDS) -> float:
    """Seconds until something holds."""
    begin = time.monotonic()
    while True:
        try:
            if holds():
                return time.monotonic() - begin
        except OSError:
            pass
        if time.monotonic() - begin > timeout:
            raise SystemExit(f"timeout after {timeout:.0f} s: {what}")
        time.sleep(every)


def accepts(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=2).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
