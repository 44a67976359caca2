"""Owns the cases of TCP, TLS passthrough and UDP: what proxies spend that forward without a look at the content."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

from figure import Figure, Target
from lab import COMPLETE, SPARE_CONNECTIONS, Lab, Sample
from load import Generator, Outcome
from proxies import SERVER_NAME, ForwardSite, Proxy

MEBIBYTES_PER_GIBIBYTE = 1024
WARM_UP_SECONDS = 0.3
# A body of 1 MiB that is PUT; wrk builds the request once.
UPLOAD = 'wrk.method = "PUT"\nwrk.body = string.rep("x", 1048576)\n'
CLOSE = {"Connection": "close"}
# All datagrams that are on their way fit into one socket with the buffer that Linux gives by default, so that a proxy that is late loses none.
CLIENTS, WINDOW = 32, 2
MOST_LOST = 0.01
# A datagram passes the proxy twice: to the echo, and back.
PASSES = 2


@dataclass(frozen=True)
class Load:
    """One row: a load, and what its cost is divided by."""

    name: str
    title: str
    run: Callable[[Generator, ForwardSite, float], Outcome]
    target: Target
    unit: str = "ms/GiB"
    # From nanoseconds per request of the load to the unit.
    scale: float = MEBIBYTES_PER_GIBIBYTE * 1e-6
    # Whether each request has a connection of its own, to the backend too.
    connects: bool = False
    is_udp: bool = False

    def fault(self, sample: Sample) -> str:
        """Why a sample says nothing about the cost of its load; empty if it does."""
        outcome, backend = sample.outcome, sample.backend
        done = outcome.requests
        if outcome.fault or not done:
            return outcome.fault or "nothing came back"
        if self.is_udp:
            lost = outcome.lost / (done + outcome.lost)
            return f"{outcome.lost} datagrams were lost, {lost:.1%}" if lost > MOST_LOST else ""
        if backend.requests < done * COMPLETE:
            return f"only {backend.requests} of {done} requests reached the backend"
        if self.connects and backend.connections < done * COMPLETE:
            return f"only {backend.connections} upstream connections for {done} connections"
        if not self.connects and backend.connections > SPARE_CONNECTIONS:
            return f"{backend.connections} upstream connections for a few kept connections"
        return ""

    def details(self, sample: Sample) -> dict:
        if not self.is_udp:
            return sample.details()
        rate = sample.outcome.requests * PASSES / sample.outcome.seconds if sample.outcome.seconds else 0
        return {
            "datagrams": sample.outcome.requests * PASSES,
            "lost": sample.outcome.lost,
            "datagrams_per_second": round(rate),
            "core_share": round(sample.own_share, 3),
            "foreign_share": round(sample.foreign_share, 3),
        }


@dataclass(frozen=True)
class ForwardCase:
    """CPU time under some loads, of all proxies in turn that can forward them."""

    name: str
    title: str
    loads: tuple[Load, ...]

    def measure(self, lab: Lab, tell) -> list[Figure]:
        able = [name for name, proxy in lab.proxies.items() if can_forward(proxy, self.name)]
        return [self._figure(lab, tell, load, able) for load in self.loads]

    def _figure(self, lab: Lab, tell, load: Load, able: list[str]) -> Figure:
        figure = Figure(load.name, load.title, load.unit, load.target)
        names = [name for name in able if lab.proxies[name].forwards_udp or not load.is_udp]
        for name in names:
            load.run(lab.generator, lab.forwarding(name).site, WARM_UP_SECONDS)
        for turn in range(lab.options.rounds):
            start = turn % len(names) if names else 0
            for name in names[start:] + names[:start]:
                sample = lab.sample(lab.forwarding(name), load.run)
                done = sample.outcome.requests
                figure.add(name, sample.cpu_ns / done * load.scale if done else None, load.fault(sample), **load.details(sample))
            tell(figure, turn)
        return figure


def can_forward(proxy: Proxy, case: str) -> bool:
    missing = proxy.missing_to_forward()
    if missing:
        print(f"SKIPPED {proxy.name} in {case}: it lacks a module; get it with: {missing}", file=sys.stderr)
    return not missing


def _plain(path: str, **options) -> Callable[[Generator, ForwardSite, float], Outcome]:
    return lambda generator, site, seconds: generator.wrk(f"http://localhost:{site.tcp}{path}", seconds, **options)


def _tls_body(generator: Generator, site: ForwardSite, seconds: float) -> Outcome:
    return generator.wrk(f"https://{SERVER_NAME}:{site.tls}/1m", seconds, connections=8)


def _handshakes(generator: Generator, site: ForwardSite, seconds: float) -> Outcome:
    return generator.handshakes(site.tls, seconds)


def _datagrams(size: int) -> Callable[[Generator, ForwardSite, float], Outcome]:
    return lambda generator, site, seconds: generator.datagrams(site.udp, seconds, size, CLIENTS, WINDOW)


_OF_TCP = Target(of_lowest=1.1)
_PER_CONNECTION = {"target": _OF_TCP, "unit": "µs/connection", "scale": 1e-3, "connects": True}
_PER_DATAGRAM = {"target": Target(of_lowest=1.0), "unit": "ns/datagram", "scale": 1 / PASSES, "is_udp": True}

ALL = [
    ForwardCase("tcp-bulk", "bodies of 1 MiB through a TCP proxy", (
        Load("tcp-bulk-1", "1 MiB bodies over TCP, one connection", _plain("/1m", connections=1), _OF_TCP),
        Load("tcp-bulk-8", "1 MiB bodies over TCP, eight connections", _plain("/1m", connections=8), _OF_TCP),
        Load("tcp-bulk-upload", "1 MiB bodies over TCP to the backend, eight connections", _plain("/put", connections=8, script=UPLOAD), _OF_TCP),
    )),
    ForwardCase("tcp-new", "new TCP connections", (
        Load("tcp-new", "new TCP connection, 13 B", _plain("/", headers=CLOSE), **_PER_CONNECTION),
    )),
    ForwardCase("tls-passthrough", "TLS that the backend terminates", (
        Load("tls-passthrough", "1 MiB bodies in passed TLS, eight connections", _tls_body, _OF_TCP),
        Load("tls-passthrough-new", "new connection with passed TLS and one request", _handshakes, **_PER_CONNECTION),
    )),
    ForwardCase("udp", "datagrams to an echo and back", (
        Load("udp-64", f"datagrams of 64 B of {CLIENTS} clients", _datagrams(64), **_PER_DATAGRAM),
        Load("udp-1200", f"datagrams of 1,200 B of {CLIENTS} clients", _datagrams(1200), **_PER_DATAGRAM),
    )),
]
