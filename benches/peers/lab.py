"""Owns one run's surroundings: folders, ports, certificate, backend, load generator, and the proxies that are up."""

import contextlib
import http.client
import os
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import process
from backend import SMALL, Backend, Collector, Counts, Echo, Ports, echoes
from load import Generator, Outcome
from process import Group, Process
from proxies import ForwardSite, Proxy, Site

# More than all that one load may have in flight: connections times streams.
SPARE_CONNECTIONS = 200
# A core counts as quiet when others take less than this share of it.
QUIET_SHARE = 0.1
QUIET_WINDOW_SECONDS = 0.25
# The share of the requests that reach the backend, and that are logged, at least.
COMPLETE = 0.98
# By then a proxy has written its log: Envoy buffers for 10 s, nginx is configured to buffer for 0.1 s.
LOG_SECONDS = 12.0


@dataclass(frozen=True)
class Options:
    rounds: int
    seconds: float
    idle_connections: int
    idle_wait: float
    routes: int
    hostnames: int
    proxy_core: str
    # One more core for the case of two workers; empty without.
    second_core: str
    load_cores: str
    same_headers: bool
    haproxy_splice: bool
    # How long the whole run may wait for other programs to leave the cores alone.
    patience: float


@dataclass
class Running:
    """A proxy that is up."""

    process: Process
    site: Site | ForwardSite

    def empty_log(self) -> None:
        if self.site.access_log:
            os.truncate(self.site.access_log, 0)

    def logged(self, expected: int) -> int | None:
        """Lines of the access log once there are as many as expected, or after a while; None without a log."""
        if not self.site.access_log:
            return None
        deadline = time.monotonic() + LOG_SECONDS
        while True:
            lines = self.site.access_log.read_bytes().count(b"\n")
            if lines >= expected or time.monotonic() > deadline:
                return lines
            time.sleep(0.1)


@dataclass(frozen=True)
class Sample:
    """One load on one proxy."""

    cpu_ns: int
    outcome: Outcome
    backend: Counts
    # The proxy's share of its core, and what other programs took of its core or of the load's.
    own_share: float
    foreign_share: float
    # Lines of the access log; None without one.
    logged: int | None

    @property
    def fault(self) -> str:
        done, reached = self.outcome.requests, self.backend.requests
        if self.outcome.fault:
            return self.outcome.fault
        if reached < done * COMPLETE:
            return f"only {reached} of {done} requests reached the backend"
        if self.backend.connections > SPARE_CONNECTIONS + done * 0.01:
            return f"{self.backend.connections} upstream connections for {done} requests"
        if self.logged is not None and self.logged < done * COMPLETE:
            return f"only {self.logged} of {done} requests were logged"
        return ""

    def details(self) -> dict:
        return {
            "requests": self.outcome.requests,
            "requests_per_second": round(self.outcome.requests / self.outcome.seconds) if self.outcome.seconds else 0,
            "upstream_connections": self.backend.connections,
            "core_share": round(self.own_share, 3),
            "foreign_share": round(self.foreign_share, 3),
        }


class Span:
    """How much a clock has advanced from the making of the span to its end, which is read once."""

    def __init__(self, clock):
        self._clock, self._start, self._length = clock, clock(), None

    def end(self) -> int:
        if self._length is None:
            self._length = self._clock() - self._start
        return self._length


class Lab:
    def __init__(self, group: Group, folder: Path, options: Options, proxies: dict[str, Proxy], nginx: str):
        self.options = options
        self.proxies = proxies
        self._group = group
        self._folder = folder
        self._shared: dict[tuple[str, bool], Running] = {}
        self._forwarding: dict[str, Running] = {}
        self._http3: dict[str, Running] = {}
        self._echo: tuple[Echo, int] | None = None
        self._collector: Collector | None = None
        self._nginx = nginx
        self._started = 0
        self._patience = options.patience
        self.generator = Generator(options.load_cores, folder)
        self._certificate, self._key = _make_certificate(folder)
        self._ports = Ports(*free_ports(3))
        self.backend = Backend(group, nginx, self._new_folder("backend"), options.load_cores, self._ports, (self._certificate, self._key))

    def shared(self, name: str, logs: bool = False) -> Running:
        """The one instance of a proxy, with or without its access log, that all load cases use."""
        if (name, logs) not in self._shared:
            self._shared[name, logs] = self.start(self.proxies[name], f"{name} with a log" if logs else name, logs)
        return self._shared[name, logs]

    def forwarding(self, name: str) -> Running:
        """The one instance of a proxy that forwards TCP, TLS and UDP, which all cases of these use."""
        if name not in self._forwarding:
            self._forwarding[name] = self._start_forwarding(self.proxies[name])
        return self._forwarding[name]

    def http3(self, name: str) -> Running:
        """The one instance of a proxy with HTTP/3, and without an access log, that all cases of HTTP/3 use."""
        if name not in self._http3:
            self._http3[name] = self.start(self.proxies[name], f"{name} with HTTP3", http3=True)
        return self._http3[name]

    def start(self, proxy: Proxy, label: str = "", logs: bool = False, cores: str = "", http3: bool = False) -> Running:
        """A fresh instance, ready: it has answered one request."""
        name = label or proxy.name
        folder = self._new_folder(name)
        http_port, https_port, h2c_port, admin_port = free_ports(4)
        site = Site(
            *(http_port, https_port, h2c_port, admin_port, self._ports.plain),
            *(self._certificate, self._key, self.options.same_headers),
            access_log=folder / "log" if logs else None,
            haproxy_splice=self.options.haproxy_splice,
            http3=http3,
        )
        command = proxy.command(site, folder)
        started = self._group.start(name, command, cores or self.options.proxy_core, folder / "log")

        def is_ready() -> bool:
            ready = proxy.is_ready(site)
            return answers(site.http) and accepts(site.https) and accepts(site.h2c) if ready is None else ready

        started.ready_when(is_ready, seconds=60)
        return Running(started, site)

    def _start_forwarding(self, proxy: Proxy) -> Running:
        if not self._echo:
            port = free_udp_port()
            self._echo = Echo(self._group, self._new_folder("echo"), self.options.load_cores, port), port
        name = f"{proxy.name} for TCP, TLS and UDP"
        folder = self._new_folder(name)
        tcp_port, tls_port, admin_port = free_ports(3)
        site = ForwardSite(
            *(tcp_port, tls_port, free_udp_port(), admin_port),
            *(self._ports.plain, self._ports.tls, self._echo[1], self.options.haproxy_splice),
        )
        started = self._group.start(name, proxy.forward_command(site, folder), self.options.proxy_core, folder / "log")
        started.ready_when(lambda: answers(site.tcp) and accepts(site.tls) and (not proxy.forwards_udp or echoes(site.udp)), seconds=60)
        return Running(started, site)

    @property
    def backend_port(self) -> int:
        return self._ports.plain

    def collector(self) -> int:
        """The port of a collector of traces, which takes all that it gets and keeps nothing."""
        if not self._collector:
            self._collector = Collector(self._group, self._nginx, self._new_folder("collector"), self.options.load_cores, free_ports(1)[0])
        return self._collector.port

    def stop(self, running: Running) -> None:
        self._group.stop(running.process)

    def sample(self, running: Running, load) -> Sample:
        """Runs `load(generator, site, seconds)` on quiet cores; again when others disturbed it, while patience lasts."""
        while True:
            started = time.monotonic()
            self._wait_until_quiet()
            sample = self._sample(running, load)
            if sample.foreign_share < QUIET_SHARE or self._patience <= 0:
                return sample
            self._patience -= time.monotonic() - started

    def _sample(self, running: Running, load) -> Sample:
        proxy_core, load_cores = running.process.cores, self.options.load_cores
        running.empty_log()
        reached = self.backend.counts()
        wall = Span(time.monotonic_ns)
        proxy, around = Span(running.process.cpu_ns), Span(lambda: process.own_cpu_ns() + self._backend_ns())
        proxy_busy, load_busy = Span(lambda: process.busy_ns(proxy_core)), Span(lambda: process.busy_ns(load_cores))
        outcome = load(self.generator, running.site, self.options.seconds)
        foreign = max(proxy_busy.end() - proxy.end(), load_busy.end() - around.end(), 0)
        return Sample(
            cpu_ns=proxy.end(),
            outcome=outcome,
            backend=self.backend.counts().since(reached),
            own_share=proxy.end() / wall.end(),
            foreign_share=foreign / wall.end(),
            logged=running.logged(round(outcome.requests * COMPLETE)),
        )

    def _backend_ns(self) -> int:
        others = [*([self._echo[0].process] if self._echo else []), *([self._collector.process] if self._collector else [])]
        return self.backend.cpu_ns() + sum(other.cpu_ns() for other in others)

    def _wait_until_quiet(self) -> None:
        both = f"{self.options.proxy_core},{self.options.load_cores}"
        while self._patience > 0:
            busy = process.busy_ns(both)
            time.sleep(QUIET_WINDOW_SECONDS)
            if process.busy_ns(both) - busy < QUIET_SHARE * QUIET_WINDOW_SECONDS * 1e9:
                return
            self._patience -= QUIET_WINDOW_SECONDS

    def _new_folder(self, name: str) -> Path:
        self._started += 1
        folder = self._folder / f"{self._started}-{name.replace(' ', '-')}"
        folder.mkdir()
        return folder


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free now, for TCP and UDP: held together, then given back."""
    with contextlib.ExitStack() as held:
        ports = []
        while len(ports) < count:
            tcp = held.enter_context(socket.create_server(("127.0.0.1", 0)))
            udp = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            with contextlib.suppress(OSError):
                udp.bind(tcp.getsockname())
                ports.append(tcp.getsockname()[1])
        return ports


def free_udp_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/team-0/service-0", headers={"Host": "tenant-0.bench.example"})
        first = connection.getresponse()
        if first.status == 200 and first.read() == SMALL:
            return True
        first.read()
        connection.request("GET", "/team-0/service-0", headers={"Host": "bench.example"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        return False
    return True


def _make_certificate(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
        timeout=30,
    )
    return certificate, key
