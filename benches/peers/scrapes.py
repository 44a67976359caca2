"""Owns the cases of scrapes of /metrics: their time, their size, the number of series, and what other clients notice of them."""

import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

import admin
from figure import Figure, Target
from lab import Lab, Running
from paced import whole
from proxies import OURS, Portcullis, Proxy
from proxies.portcullis import ManyTeams, hostname, many_rules

RULES, BACKENDS = 16, 50
# The last scrapes of a fresh process are measured; the first one has memory to get.
SCRAPES = 10
RATE, SECONDS = 1000, 10
MB = 1e6
# An answer of the backend, nginx, whose response has no entity tag.
SECOND_STATUS = 'If-Match: "none"'


@dataclass(frozen=True)
class ScrapeCase:
    """Portcullis with many routes, each of which has had responses with two statuses, and each of whose rules has had one."""

    name: str
    title: str
    # Whether the budget is for this configuration.
    has_budget: bool

    def measure(self, lab: Lab, tell) -> list[Figure]:
        if OURS not in lab.proxies:
            return []
        proxy, targets = self._scene(lab)
        running = lab.start(proxy, self.name)
        touch(running.site.http, targets)
        first = targets[0][0]
        figures = [*self._scrapes(running, tell), *self._latencies(lab, running, (first, targets[0][1][0]), tell)]
        lab.stop(running)
        return figures

    def _scene(self, lab: Lab) -> tuple[Proxy, list[tuple[str, list[str]]]]:
        """A proxy, and the hosts that it serves, each with its paths."""
        path, count = lab.proxies[OURS].path, lab.options.routes // 2
        if self.has_budget:
            rules = [f"/team-{rule}" for rule in range(RULES)]
            proxy = Portcullis(path, many_rules(count, RULES, BACKENDS, lab.backend_port))
            return proxy, [(hostname(route), rules) for route in range(count)]
        apps = [f"/app-{route}" for route in range(RULES)]
        return ManyTeams(path, count, RULES), [(f"team-{team:04}.example.com", apps) for team in range(count)]

    def _scrapes(self, running: Running, tell) -> list[Figure]:
        port = running.site.admin
        times = Figure(f"{self.name}-time", f"a scrape: {self.title}", "ms", self._target(150))
        for turn in range(SCRAPES):
            begin = time.monotonic()
            text = admin.get(port, "/metrics")
            times.add(OURS, (time.monotonic() - begin) * 1000)
            tell(times, turn)
        size = Figure(f"{self.name}-size", f"size of a scrape: {self.title}", "MB")
        size.add(OURS, len(text) / MB)
        series = Figure(f"{self.name}-series", f"series: {self.title}", "series", self._target(60_000))
        series.add(OURS, sum(1 for line in text.splitlines() if line and not line.startswith(b"#")))
        return [times, series, size]

    def _latencies(self, lab: Lab, running: Running, target: tuple[str, str], tell) -> list[Figure]:
        """What a client notices: the slowest of its responses, and the slowest of its requests with their wait for those before."""
        figures = []
        for name, when in (("alone", "without scrapes"), ("meanwhile", "during scrapes")):
            done = threading.Event()
            scraper = threading.Thread(target=scrape_each_second, args=(running.site.admin, done))
            if name == "meanwhile":
                scraper.start()
            found = lab.generator.paced(running.site.http, *target, RATE, SECONDS)
            done.set()
            if name == "meanwhile":
                scraper.join()
            for kind, what in (("responses", "response"), ("latencies", "request with its wait")):
                figure = Figure(f"{self.name}-{what.partition(' ')[0]}-{name}", f"slowest {what} of 1,000 per second {when}: {self.title}", "ms")
                figure.add(OURS, found[kind].get("max"), found["fault"], **found[kind])
                tell(figure, 0)
                figures.append(figure)
        return figures

    def _target(self, value: float) -> Target:
        return Target(value=value) if self.has_budget else Target()


def scrape_each_second(port: int, done: threading.Event) -> None:
    while not done.wait(SECONDS / SCRAPES):
        admin.get(port, "/metrics")


def touch(port: int, targets: Iterable[tuple[str, list[str]]]) -> None:
    """Requests every path of every host once, and one of them for a second status."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for host, paths in targets:
            for path in paths:
                connection.sendall(f"GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
                expect(b"200", whole(connection))
            connection.sendall(f"GET {paths[0]} HTTP/1.1\r\nhost: {host}\r\n{SECOND_STATUS}\r\n\r\n".encode())
            expect(b"412", whole(connection))


def expect(status: bytes, response: bytes) -> None:
    if response[9:12] != status:
        raise SystemExit(f"a response is {response[9:12].decode()} instead of {status.decode()}")


ALL = [
    ScrapeCase("scrape", f"2,500 routes of {RULES} rules", has_budget=True),
    ScrapeCase("scrape-teams", f"2,500 ListenerSets with {RULES} routes each", has_budget=False),
]
