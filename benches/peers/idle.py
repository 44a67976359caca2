"""Owns the idle clients: many keep-alive connections that make one request each and then stay silent."""

import socket
import ssl

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
END_OF_ANSWER = b"hello, world\n"


class IdleError(Exception):
    """A connection was refused, answered wrongly, or did not stay open."""


class IdleConnections:
    """`count` connections to a proxy, opened one after another."""

    def __init__(self, port: int, tls: bool):
        self._port = port
        self._context = _context() if tls else None
        self._open: list[socket.socket] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def open(self, count: int) -> None:
        for _ in range(count):
            plain = socket.create_connection(("127.0.0.1", self._port), timeout=10)
            connection = self._context.wrap_socket(plain, server_hostname="localhost") if self._context else plain
            self._open.append(connection)
            _ask(connection)

    def check_open(self) -> None:
        """Another request on one connection in ten: whoever closed or lost them is not idle but gone."""
        for connection in self._open[::10]:
            _ask(connection)

    def close(self) -> None:
        while self._open:
            self._open.pop().close()


def _ask(connection: socket.socket) -> None:
    try:
        connection.sendall(REQUEST)
        answer = b""
        while not answer.endswith(END_OF_ANSWER):
            piece = connection.recv(4096)
            if not piece:
                raise IdleError("a connection was closed")
            answer += piece
    except OSError as error:
        raise IdleError(str(error)) from error
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise IdleError(f"unexpected answer {answer[:40]!r}")


def _context() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    return made
