"""Backends that name themselves, and clients that wait until responses or handshakes change."""

import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable

BACKEND = """
import asyncio, sys

async def serve(reader, writer):
    try:
        while True:
            await reader.readuntil(b"\\r\\n\\r\\n")
            writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: 0\\r\\nx-backend: " + sys.argv[2].encode() + b"\\r\\n\\r\\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()

asyncio.run(main())
"""
TIMEOUT_SECONDS = 30.0
# Between two requests of a client that waits: less than a tenth of what is measured.
POLL_SECONDS = 0.0005


class Backend:
    """A server that responds with its name in the header x-backend."""

    def __init__(self, name: str) -> None:
        self.port = free_port()
        self._process = subprocess.Popen([sys.executable, "-c", BACKEND, str(self.port), name])

    def __enter__(self) -> "Backend":
        wait("a backend listens", lambda: socket.create_connection(("127.0.0.1", self.port)).close() is None)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


class Client:
    """A connection that is kept alive."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get(self, host: str, path: str) -> tuple[int, dict[str, str]]:
        """Status and headers of a response."""
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        data = b""
        while b"\r\n\r\n" not in data:
            part = self._socket.recv(65536)
            if not part:
                raise ConnectionError("closed")
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        missing = int(headers.get("content-length", 0)) - len(body)
        while missing > 0:
            missing -= len(self._socket.recv(missing))
        return int(status.split()[1]), headers


def certificate(port: int, host: str) -> bytes | None:
    """The certificate that a server presents for a name; `None` if it refuses the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as connection,
        ):
            return connection.getpeercert(binary_form=True)
    except (ssl.SSLError, ConnectionError):
        return None


def wait(what: str, holds: Callable[[], bool], timeout: float = TIMEOUT_SECONDS) -> float:
    """Seconds until something holds."""
    begin = time.monotonic()
    while True:
        try:
            if holds():
                return time.monotonic() - begin
        except ConnectionError:
            pass
        if time.monotonic() - begin > timeout:
            raise SystemExit(f"timeout: {what}")
        time.sleep(POLL_SECONDS)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
