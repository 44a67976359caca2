"""A constant request load on a Gateway, over kept and new connections, and its failures."""

import http.client
import json
import threading
import time

# Such a delay counts as a lost request: longer than any on a busy machine, and shorter than the longest connect timeout, of a minute.
TIMEOUT = 50
BODY = b"x" * 3000


def status_of(address: str, port: int) -> int:
    """Status of one request."""
    connection = http.client.HTTPConnection(address, port, timeout=TIMEOUT)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    finally:
        connection.close()


class Load:
    """Sends `rate` requests a second to `address` while entered, with these methods in turn, for paths below `prefix`."""

    def __init__(
        self,
        address: str,
        port: int,
        rate: int = 300,
        kept: int = 8,
        fresh: int = 2,
        methods: tuple[str, ...] = ("GET", "POST"),
        prefix: str = "",
        headers: dict[str, str] | None = None,
    ):
        self._address, self._port = address, port
        self._prefix, self._headers = prefix, headers or {}
        self._pause = (kept + fresh) / rate
        self._methods = methods
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask_on, args=(number, number < kept)) for number in range(kept + fresh)]
        self.requests, self.connections = 0, 0
        self.failures: list[str] = []
        self.latencies: list[float] = []
        self.backends: dict[str, int] = {}

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def figures(self) -> str:
        return f"{self.requests} requests over {self.connections} connections, {len(self.failures)} failures"

    def verdict(self) -> str:
        """Results; fails if a request has failed."""
        assert self.requests and not self.failures, f"{self.figures()}: {self.failures[:5]}"
        return self.figures()

    def latency(self, share: float) -> float:
        """Latency quantile in milliseconds."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * share))]

    def _ask_on(self, number: int, is_kept: bool) -> None:
        connection, count, due = self._connect(), 0, time.monotonic()
        while not self._ends.is_set():
            count += 1
            method = self._methods[count % len(self._methods)]
            had = count if connection.sock else 0
            began = time.monotonic()
            try:
                backend, is_last = self._exchange(connection, method, f"{self._prefix}/{number}/{count}")
                self._note(backend, time.monotonic() - began)
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                kind = "kept" if had else "new"
                self._fail(f"{time.strftime('%H:%M:%S')} {method} /{number}/{count} on a {kind} connection: {error!r}")
                is_last = True
            if is_last or not is_kept:
                connection.close()
                connection = self._connect()
            due = max(due + self._pause, time.monotonic() - 1)
            self._ends.wait(max(0, due - time.monotonic()))
        connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        with self._lock:
            self.connections += 1
        return http.client.HTTPConnection(self._address, self._port, timeout=TIMEOUT)

    def _exchange(self, connection: http.client.HTTPConnection, method: str, path: str) -> tuple[str, bool]:
        """The pod that responded, and whether the connection closes."""
        connection.request(method, path, BODY if method == "POST" else None, self._headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise ValueError(f"status {answer.status}, {body[:100]!r}")
        echoed = json.loads(body)
        if (echoed["method"], echoed["path"]) != (method, path):
            raise ValueError(f"the response is for {echoed['method']} {echoed['path']}")
        return echoed["pod"], answer.will_close

    def _note(self, backend: str, seconds: float) -> None:
        with self._lock:
            self.requests += 1
            self.latencies.append(seconds)
            self.backends[backend] = self.backends.get(backend, 0) + 1

    def _fail(self, what: str) -> None:
        with self._lock:
            self.requests += 1
            self.failures.append(what)
