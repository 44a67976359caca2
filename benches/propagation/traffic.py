"""Owns the clients: one that waits until a response shows a change, and one that asks all the time and counts errors."""

import http.client
import time

# Below this a sleep is late more often than not.
SHORTEST_SLEEP = 0.001
# A client that asks without a pause takes the CPU that the change needs. Every figure is up to this much too long.
POLL_SECONDS = 0.0005


class Watcher:
    """Asks about 1,500 times a second on one connection."""

    def __init__(self, address: str):
        self._connection = http.client.HTTPConnection(address, 8080, timeout=10)

    def wait_for(self, path: str, header: str, value: str, limit: float) -> float:
        """Seconds until a response to `path` has this header."""
        began = time.monotonic()
        while True:
            try:
                self._connection.request("GET", path)
                answer = self._connection.getresponse()
                answer.read()
                if answer.status == 200 and answer.getheader(header) == value:
                    return time.monotonic() - began
            except OSError:
                # Before the first configuration no port is open.
                self._connection.close()
                time.sleep(0.05)
            time.sleep(POLL_SECONDS)
            if time.monotonic() - began > limit:
                raise RuntimeError(f"{path} does not show {header}: {value} after {limit} s")


class Steady:
    """Asks `rate` times a second, and catches up when it is late."""

    def __init__(self, address: str, rate: int):
        self.requests = 0
        self.errors = 0
        self._connection = http.client.HTTPConnection(address, 8080, timeout=10)
        self._rate = rate
        self._running = True

    def run(self) -> None:
        began = time.monotonic()
        while self._running:
            ahead = self.requests / self._rate - (time.monotonic() - began)
            if ahead > SHORTEST_SLEEP:
                time.sleep(ahead)
            self.requests += 1
            try:
                self._connection.request("GET", "/route-0/")
                answer = self._connection.getresponse()
                answer.read()
                self.errors += answer.status != 200
            except (OSError, http.client.HTTPException):
                self.errors += 1
                self._connection.close()

    def stop(self) -> None:
        self._running = False
