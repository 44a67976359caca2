"""Owns the cases: what load each one is, what it measures, and its target."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import budgets
import forwarding
import http3
import load
import scrapes
from comparison import WARM_UP_SECONDS, compare, cost, rotated
from figure import Figure, Target
from idle import IdleConnections, add_growth
from lab import Lab, Sample
from load import Generator, Outcome
from proxies import OURS, Portcullis, Site
from proxies.portcullis import hostname, many_hostnames, many_routes, route_path

MB, GB = 1 << 20, 1 << 30
# Portcullis returns the memory that starting needed within two seconds after it has been free for one.
RELEASE_SECONDS = 4.0


@dataclass(frozen=True)
class LoadCase:
    """CPU time per request under one load, all proxies in turn."""

    name: str
    title: str
    run: Callable[[Generator, Site, float], Outcome]
    target: Target = Target()
    unit: str = "µs/request"
    # From nanoseconds per request to the unit.
    scale: float = 1e-3
    # Whether every proxy logs every request.
    logs: bool = False

    def measure(self, lab: Lab, tell) -> list[Figure]:
        figure = Figure(self.name, self.title, self.unit, self.target)
        names = list(lab.proxies)
        for name in names:
            self.run(lab.generator, lab.shared(name, self.logs).site, WARM_UP_SECONDS)
        for turn in range(lab.options.rounds):
            for name in rotated(names, turn):
                add_sample(figure, name, lab.sample(lab.shared(name, self.logs), self.run), self.scale)
            tell(figure, turn)
        return [figure]


@dataclass(frozen=True)
class ScaleCase:
    """Portcullis with many routes, and with many hostnames, against itself with one; the same requests to both."""

    name: str = "scale"
    title: str = "many routes against one"
    limit: float = 1.03

    def measure(self, lab: Lab, tell) -> list[Figure]:
        if OURS not in lab.proxies:
            return []
        path = lab.proxies[OURS].path
        routes, hostnames = lab.options.routes, lab.options.hostnames
        one = lab.start(Portcullis(path), "one route")
        by_path = load.lua_requests([("bench.example", route_path(i)) for i in scattered(routes)])
        by_host = load.lua_requests([(hostname(i), "/") for i in scattered(hostnames)])
        figures = []
        for name, title, documents, script in (
            ("scale-routes", f"CPU with {routes} routes against one", many_routes(routes), by_path),
            ("scale-hostnames", f"CPU with {hostnames} hostnames against one", many_hostnames(hostnames), by_host),
        ):
            many = lab.start(Portcullis(path, documents), name)
            figure = Figure(name, title, "ratio", Target(value=self.limit))
            figures.append(compare(lab, tell, figure, {"one": one, "many": many}, _plain("/", script=script)))
            lab.stop(many)
        lab.stop(one)
        return figures


@dataclass(frozen=True)
class LogCase:
    """Portcullis as `portcullis run` starts it, which logs every request to its output, against itself without that log."""

    name: str = "log-cost"
    title: str = "the default access log against none"
    limit: float = 1.06

    def measure(self, lab: Lab, tell) -> list[Figure]:
        if OURS not in lab.proxies:
            return []
        figures = []
        for name, title, run in (
            ("log-cost-h1", "CPU with the default access log against none, HTTP/1.1", _plain("/")),
            ("log-cost-https-h2", "CPU with the default access log against none, HTTPS HTTP/2", _https_h2),
        ):
            both = {"off": lab.shared(OURS), "on": lab.shared(OURS, logs=True)}
            figures.append(compare(lab, tell, Figure(name, title, "ratio", Target(value=self.limit)), both, run))
        return figures


@dataclass(frozen=True)
class MemoryCase:
    """Resident memory of a fresh proxy that has answered one request, some seconds later."""

    name: str = "rss"
    title: str = "resident memory at start"

    def measure(self, lab: Lab, tell) -> list[Figure]:
        start = Figure("rss-start", "RSS at start", "MB", Target(value=15))
        for name, proxy in lab.proxies.items():
            start.add(name, self._megabytes(lab, proxy))
        tell(start, 0)
        if OURS not in lab.proxies:
            return [start]
        path, options = lab.proxies[OURS].path, lab.options
        routes = Figure("rss-routes", f"RSS with {options.routes} routes", "MB", Target(value=45))
        routes.add(OURS, self._megabytes(lab, Portcullis(path, many_routes(options.routes))))
        tell(routes, 0)
        hostnames = Figure("rss-hostnames", f"RSS with {options.hostnames} hostnames", "MB")
        hostnames.add(OURS, self._megabytes(lab, Portcullis(path, many_hostnames(options.hostnames))))
        tell(hostnames, 0)
        return [start, routes, hostnames]

    def _megabytes(self, lab: Lab, proxy) -> float:
        running = lab.start(proxy, f"{proxy.name} for rss")
        time.sleep(RELEASE_SECONDS)
        resident = running.process.rss_bytes()
        lab.stop(running)
        return resident / MB


@dataclass(frozen=True)
class IdleCase:
    """Growth of resident memory per idle keep-alive connection, each of which has made one request."""

    name: str = "idle"
    title: str = "memory per idle connection"

    def measure(self, lab: Lab, tell) -> list[Figure]:
        count = lab.options.idle_connections
        figures = []
        for name, tls, limit in (("idle-plain", False, 2), ("idle-tls", True, 20)):
            title = f"memory per idle {'TLS ' if tls else ''}connection, of {count}"
            figure = Figure(name, title, "KB", Target(value=limit))
            for proxy_name, proxy in lab.proxies.items():
                running = lab.start(proxy, f"{proxy_name} for {name}")
                connect = partial(IdleConnections, running.site.https if tls else running.site.http, tls)
                add_growth(figure, proxy_name, running.process, count, lab.options.idle_wait, connect)
                lab.stop(running)
            tell(figure, 0)
            figures.append(figure)
        return figures


@dataclass(frozen=True)
class WorkersCase:
    """Requests per second of Portcullis with two workers on two cores, against one worker on one."""

    name: str = "workers"
    title: str = "two workers against one"
    # A limit from below, which `Target` does not have: what one worker does in the time of two.
    limit: float = 2 / 1.9

    def measure(self, lab: Lab, tell) -> list[Figure]:
        if OURS not in lab.proxies:
            return []
        if not lab.options.second_core:
            tell_skipped(self.name, "it needs two cores for the proxy and two for the load: see --second-core")
            return []
        figure = Figure(self.name, "time of two workers against half the time of one", "ratio", Target(value=self.limit))
        path = lab.proxies[OURS].path
        cores = f"{lab.options.proxy_core},{lab.options.second_core}"
        one = lab.start(Portcullis(path), "one worker")
        two = lab.start(Portcullis(path, workers=2), "two workers", cores=cores)
        for turn in range(lab.options.rounds):
            samples = [lab.sample(running, _plain("/", connections=64, threads=2)) for running in (one, two)]
            rates = [sample.details()["requests_per_second"] for sample in samples]
            fault = samples[0].fault or samples[1].fault
            figure.add(OURS, 2 * rates[0] / rates[1] if rates[1] else None, fault, requests_per_second=rates)
            tell(figure, turn)
        lab.stop(two)
        lab.stop(one)
        return [figure]


def tell_skipped(name: str, reason: str) -> None:
    print(f"SKIPPED {name}: {reason}", file=sys.stderr)


def scattered(count: int) -> list[int]:
    """All numbers below `count`, in an order without locality."""
    stride = 7919  # a prime that divides no count used here
    return [i * stride % count for i in range(count)]


def add_sample(figure: Figure, name: str, sample: Sample, scale: float) -> None:
    value = cost(sample, scale)
    figure.add(name, value, sample.fault, **sample.details())


def _plain(path: str, **options) -> Callable[[Generator, Site, float], Outcome]:
    return lambda generator, site, seconds: generator.wrk(f"http://localhost:{site.http}{path}", seconds, **options)


def _tls(path: str, **options) -> Callable[[Generator, Site, float], Outcome]:
    return lambda generator, site, seconds: generator.wrk(f"https://localhost:{site.https}{path}", seconds, **options)


def _https_h2(generator: Generator, site: Site, seconds: float) -> Outcome:
    return generator.h2load(f"https://localhost:{site.https}/", site.https, seconds)


def _h2c(generator: Generator, site: Site, seconds: float) -> Outcome:
    return generator.h2load(f"http://localhost:{site.h2c}/", site.h2c, seconds)


def _handshakes(generator: Generator, site: Site, seconds: float) -> Outcome:
    return generator.handshakes(site.https, seconds)


_PER_GB = {"unit": "ms/GiB", "scale": GB / MB * 1e-6}

_H1, _H1_LARGE = _plain("/"), _plain("/4k", headers=load.LARGE_HEADERS)
_HTTPS_H1, _BODY, _TLS_BODY = _tls("/"), _plain("/1m", connections=8), _tls("/1m", connections=8)

# Beginnings of the names of figures that have tables of their own.
FORWARDING = tuple(name for case in forwarding.ALL for name in (case.name, *(one.name for one in case.loads)))
HTTP3 = tuple(case.name for case in http3.ALL)
BUDGETS = tuple(case.name for case in budgets.ALL)
SCRAPES = tuple(case.name for case in scrapes.ALL)


def is_of(figure: str, names: tuple[str, ...] | None) -> bool:
    """Whether a figure is one of these cases; None stands for those that are in no other table."""
    if names is None:
        return not figure.startswith(FORWARDING + HTTP3 + BUDGETS + SCRAPES)
    return figure.startswith(names)


ALL = [
    LoadCase("h1", "HTTP/1.1 keep-alive, 13 B", _H1, Target(of_lowest=0.95, of_envoy=0.4)),
    LoadCase("h1-large", "HTTP/1.1, 1 KB of headers, 4 KB body", _H1_LARGE, Target(of_lowest=1.0)),
    LoadCase("https-h1", "HTTPS HTTP/1.1 keep-alive, 13 B", _HTTPS_H1, Target(of_lowest=0.85)),
    LoadCase("https-h2", "HTTPS HTTP/2, 16 × 10 streams, 13 B", _https_h2, Target(of_lowest=0.9)),
    LoadCase("h2c", "h2c, 16 × 10 streams, 13 B", _h2c, Target(of_lowest=0.95)),
    LoadCase("tls-new", "new TLS connection and one request", _handshakes, Target(of_lowest=0.65), unit="µs/connection"),
    LoadCase("body-1m", "1 MiB bodies", _BODY, Target(of_lowest=0.7), **_PER_GB),
    LoadCase("body-1m-tls", "1 MiB bodies over TLS", _TLS_BODY, Target(of_lowest=0.7), **_PER_GB),
    LoadCase("h1-log", "as h1, every proxy logs", _H1, Target(of_lowest=0.95), logs=True),
    LoadCase("h1-large-log", "as h1-large, every proxy logs", _H1_LARGE, Target(of_lowest=1.0), logs=True),
    LoadCase("https-h1-log", "as https-h1, every proxy logs", _HTTPS_H1, Target(of_lowest=0.85), logs=True),
    LoadCase("https-h2-log", "as https-h2, every proxy logs", _https_h2, Target(of_lowest=0.9), logs=True),
    LoadCase("h2c-log", "as h2c, every proxy logs", _h2c, Target(of_lowest=0.95), logs=True),
    LogCase(),
    ScaleCase(),
    MemoryCase(),
    IdleCase(),
    WorkersCase(),
    *forwarding.ALL,
    *http3.ALL,
    *budgets.ALL,
    *scrapes.ALL,
]
