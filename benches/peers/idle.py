"""Owns the idle clients: many keep-alive connections that make one request each and then stay silent, and the memory that they take."""

import socket
import ssl
import time
from collections.abc import Callable

from figure import Figure
from process import Process

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
END_OF_ANSWER = b"hello, world\n"
# Connections before those that are counted, and how long the memory may become stable after them.
WARM_UP_CONNECTIONS, STABLE_SECONDS = 16, 1.0
KB = 1 << 10


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


def add_growth(figure: Figure, name: str, process: Process, count: int, wait: float, connect: Callable) -> None:
    """Adds by how much the resident memory of a proxy has grown per connection, when `count` of them have been silent for a time.
    `connect()` is a client like `IdleConnections`."""
    try:
        with connect() as warm_up:
            warm_up.open(WARM_UP_CONNECTIONS)
        time.sleep(STABLE_SECONDS)
        before = process.rss_bytes()
        with connect() as idle:
            idle.open(count)
            opened = process.rss_bytes()
            time.sleep(wait)
            grown = process.rss_bytes() - before
            idle.check_open()
    except (IdleError, OSError) as error:
        figure.add(name, None, fault=str(error))
        return
    figure.add(name, grown / KB / count, at_once_kb=round((opened - before) / KB / count, 2))


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
