"""Owns what a bench asks the admin address of Portcullis, and what it keeps open there: a tap, or the page."""

import contextlib
import json
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator

TIMEOUT_SECONDS = 60.0
# More than the time in which the exporter gathers spans.
STABLE_SECONDS = 0.5
EVENTS = "/api/v1/events"
# What the page gets again with every second event while it shows problems, as it does when it is opened.
VIEW = ("ports?limit=5", "backends?limit=5", "certificates?limit=5", "status?limit=50", "routes?sort=requests&limit=10")
EVENTS_PER_VIEW = 2


def get(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=TIMEOUT_SECONDS) as response:
        return response.read()


def document(port: int, name: str) -> dict:
    return json.loads(get(port, f"/api/v1/{name}"))


def counter(port: int, name: str) -> int:
    """A counter, or the sum of its series if it has labels."""
    found = re.findall(rf"^{name}(?:\{{.*\}})? (\d+)$", get(port, "/metrics").decode(), re.MULTILINE)
    return sum(map(int, found))


def stable(read: Callable[[], int], seconds: float) -> int:
    """What is read once it stays the same for a moment, or after a while."""
    deadline = time.monotonic() + seconds
    value = read()
    while True:
        time.sleep(STABLE_SECONDS)
        before, value = value, read()
        if value == before or time.monotonic() > deadline:
            return value


class Reader(threading.Thread):
    """Reads a stream of the admin address until it is closed."""

    def __init__(self, port: int, path: str):
        super().__init__(daemon=True)
        self._port = port
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost:{port}\r\n\r\n".encode())
        self.head = self._socket.recv(65536)
        self.events = 0
        self._changed = threading.Condition()
        self.start()

    def run(self) -> None:
        # The end of the stream, and a socket that is closed meanwhile, end the thread.
        with contextlib.suppress(OSError):
            while part := self._socket.recv(65536):
                self.read(part)

    def read(self, part: bytes) -> None:
        """What a client does with a part of the stream."""

    def wait_for(self, events: int) -> None:
        """Waits until so many events have come, and what the client does with each is done."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.events >= events, TIMEOUT_SECONDS):
                raise TimeoutError(f"{self.events} events instead of {events}")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.join(TIMEOUT_SECONDS)
        self._socket.close()


class Page(Reader):
    """An open page: it reads the events, and gets its view again with every second one."""

    def __init__(self, port: int):
        super().__init__(port, EVENTS)

    def read(self, part: bytes) -> None:
        for _ in range(part.count(b"event: totals")):
            if (self.events + 1) % EVENTS_PER_VIEW == 0:
                for name in VIEW:
                    get(self._port, f"/api/v1/{name}")
            with self._changed:
                self.events += 1
                self._changed.notify_all()


@contextlib.contextmanager
def tap(port: int, route: str) -> Iterator[Reader]:
    """A tap of one route, as `portcullis tap --route` opens it."""
    reader = Reader(port, f"/api/v1/tap?route={route}")
    try:
        yield reader
    finally:
        reader.close()


@contextlib.contextmanager
def page(port: int) -> Iterator[Reader]:
    """The page, as a browser has it open."""
    get(port, "/")
    for name in VIEW:
        get(port, f"/api/v1/{name}")
    reader = Page(port)
    try:
        yield reader
    finally:
        reader.close()
