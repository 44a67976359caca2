"""Owns the cases of HTTP/3: CPU time per request, handshake and GiB, memory per idle connection, and what the switch costs requests over TCP."""

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import idle
from comparison import WARM_UP_SECONDS, compare, cost, rotated
from figure import Figure, Target
from lab import Lab
from load import HTTP3_LOAD, Generator, Outcome
from proxies import OURS, Site

SOURCE = Path(__file__).with_name("http3-load")
MEBIBYTES_PER_GIBIBYTE = 1024
# By then the load has closed its connections.
CLOSE_SECONDS = 30.0


@functools.cache
def build_load() -> str:
    """Builds the load, the first time. Returns why that cannot be done, or nothing."""
    if not shutil.which("go"):
        return "go is not installed"
    HTTP3_LOAD.parent.mkdir(exist_ok=True)
    command = ["go", "-C", SOURCE, "build", "-trimpath", "-buildvcs=false", "-o", HTTP3_LOAD, "."]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return done.stderr.strip()[-500:] if done.returncode else ""


def able(lab: Lab, case: str) -> list[str]:
    """The proxies that have HTTP/3: none without a load."""
    if missing := build_load():
        print(f"SKIPPED {case}: there is no load for HTTP/3: {missing}", file=sys.stderr)
        return []
    return [name for name, proxy in lab.proxies.items() if proxy.has_http3]


@dataclass(frozen=True)
class Http3Case:
    """CPU time under one load over HTTP/3, of all proxies in turn that have it."""

    name: str
    title: str
    run: Callable[[Generator, Site, float], Outcome]
    target: Target
    unit: str = "µs/request"
    # From nanoseconds per request of the load to the unit.
    scale: float = 1e-3

    def measure(self, lab: Lab, tell) -> list[Figure]:
        names = able(lab, self.name)
        if not names:
            return []
        figure = Figure(self.name, self.title, self.unit, self.target)
        for name in names:
            self.run(lab.generator, lab.http3(name).site, WARM_UP_SECONDS)
        for turn in range(lab.options.rounds):
            for name in rotated(names, turn):
                sample = lab.sample(lab.http3(name), self.run)
                figure.add(name, cost(sample, self.scale), sample.fault, datagrams_without_room=sample.outcome.lost, **sample.details())
            tell(figure, turn)
        return [figure]


class Connections:
    """Connections of the load to a port, opened one after another. Each makes one request."""

    def __init__(self, port: int, cores: str):
        self._command = ["taskset", "-c", cores, str(HTTP3_LOAD), "idle", str(port)]

    def __enter__(self):
        self._load = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_):
        self._load.stdin.close()
        try:
            self._load.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._load.kill()
            self._load.wait()
        self._load.stdout.close()

    def open(self, count: int) -> None:
        self._tell(f"open {count}")

    def check_open(self) -> None:
        """Another request on one connection in ten."""
        self._tell("check")

    def _tell(self, command: str) -> None:
        self._load.stdin.write(command + "\n")
        self._load.stdin.flush()
        line = self._load.stdout.readline()
        fault = json.loads(line)["fault"] if line else "the load has ended"
        if fault:
            raise idle.IdleError(fault)


@dataclass(frozen=True)
class Http3IdleCase:
    """Growth of resident memory per idle connection of QUIC, each of which has made one request."""

    name: str = "h3-idle"
    title: str = "memory per idle connection of HTTP/3"

    def measure(self, lab: Lab, tell) -> list[Figure]:
        names = able(lab, self.name)
        if not names:
            return []
        options = lab.options
        figure = Figure(self.name, f"{self.title}, of {options.idle_connections}", "KB", Target(value=12))
        for name in names:
            running = lab.start(lab.proxies[name], f"{name} for {self.name}", http3=True)
            connect = functools.partial(Connections, running.site.https, options.load_cores)
            idle.add_growth(figure, name, running.process, options.idle_connections, options.idle_wait, connect)
            lab.stop(running)
        tell(figure, 0)
        return [figure]


@dataclass(frozen=True)
class BesideCase:
    """Requests over TCP to Portcullis with HTTP/3 on their port, against itself without."""

    name: str = "h3-beside"
    title: str = "requests over TCP beside HTTP/3"
    limit: float = 1.03

    def measure(self, lab: Lab, tell) -> list[Figure]:
        if OURS not in lab.proxies:
            return []
        both = {"off": lab.shared(OURS), "on": lab.http3(OURS)}
        figures = []
        for protocol, run in ("https-h1", _https_h1), ("https-h2", _https_h2):
            figure = Figure(f"{self.name}-{protocol}", f"CPU of {protocol} with HTTP/3 on against off", "ratio", Target(value=self.limit))
            figures.append(compare(lab, tell, figure, both, run))
        return figures


def _https_h1(generator: Generator, site: Site, seconds: float) -> Outcome:
    return generator.wrk(f"https://localhost:{site.https}/", seconds)


def _https_h2(generator: Generator, site: Site, seconds: float) -> Outcome:
    return generator.h2load(f"https://localhost:{site.https}/", site.https, seconds)


def _requests(path: str, connections: int, streams: int) -> Callable[[Generator, Site, float], Outcome]:
    return lambda generator, site, seconds: generator.http3("requests", site.https, seconds, connections, streams, path)


def _handshakes(generator: Generator, site: Site, seconds: float) -> Outcome:
    return generator.http3("handshakes", site.https, seconds, 16)


ALL = [
    Http3Case("h3", "HTTP/3, 16 × 10 streams, 13 B", _requests("/", 16, 10), Target(of_envoy=0.6)),
    Http3Case("h3-new", "new QUIC connection and one request", _handshakes, Target(of_envoy=0.6), unit="µs/connection"),
    Http3Case("h3-body-1m", "1 MiB bodies over HTTP/3", _requests("/1m", 8, 1), Target(of_envoy=0.8), unit="ms/GiB", scale=MEBIBYTES_PER_GIBIBYTE * 1e-6),
    Http3IdleCase(),
    BesideCase(),
]
