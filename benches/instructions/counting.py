"""Owns the cases, and how a proxy is counted under callgrind: what it executes in user mode, and its system calls."""

import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import load
import process
import proxies
from baseline import Count
from dumps import Totals
from lab import Lab, Options

WARM_UP_REQUESTS = 1000
# Many times what a run of the slowest proxy takes.
LOAD_SECONDS = 600
HEADERS_22 = {f"X-Header-{number}": f"value-of-header-{number}" for number in range(22)}


@dataclass(frozen=True)
class Case:
    """One load of h2load: the arguments, and the port that they go to."""

    name: str
    arguments: tuple[str, ...]
    port: str
    headers: dict[str, str] | None = None
    logs: bool = False

    def command(self, site: proxies.Site, requests: int) -> list[str]:
        scheme = "https" if self.port == "https" else "http"
        port = getattr(site, self.port)
        headers = [word for name, value in (self.headers or {}).items() for word in ("-H", f"{name}: {value}")]
        return [
            *("h2load", "-t", "1", "-n", str(requests), *self.arguments, *headers),
            *(f"--connect-to=127.0.0.1:{port}", f"--tls13-ciphers={load.CIPHER}", f"--groups={load.GROUP}"),
            f"{scheme}://localhost:{port}/",
        ]


H1, H2 = ("--h1", "-c", "32"), ("-c", "16", "-m", "10")
CASES = [
    Case("h1", H1, "http"),
    Case("h1-22-headers", H1, "http", HEADERS_22),
    Case("h1-log", H1, "http", logs=True),
    Case("https-h1", H1, "https"),
    Case("https-h2", H2, "https"),
    Case("h2c", H2, "h2c"),
]


class CountError(Exception):
    """A load failed, so that there is nothing to count."""


class Counted(proxies.Proxy):
    """A proxy under callgrind, which writes what it counted to a new file of `folder` at each request for a dump."""

    def __init__(self, proxy: proxies.Proxy):
        self.name, self.path, self._proxy, self.folder = proxy.name, proxy.path, proxy, None

    def command(self, site: proxies.Site, folder: Path) -> list[str]:
        self.folder = folder
        return [
            *("valgrind", "--quiet", "--tool=callgrind", "--trace-children=yes", "--collect-systime=yes", "--dump-instr=yes"),
            *(f"--callgrind-out-file={folder}/callgrind.%p", *self._proxy.command(site, folder)),
        ]

    def is_ready(self, site: proxies.Site) -> bool | None:
        return self._proxy.is_ready(site)


def options() -> Options:
    return Options(
        rounds=1, seconds=1, idle_connections=0, idle_wait=0, routes=0, hostnames=0,
        proxy_core="0", second_core="", load_cores="1", same_headers=True, haproxy_splice=False, patience=0,
    )


def count(
    lab: Lab,
    proxy: Counted,
    case: Case,
    requests: int,
    around: Callable[[proxies.Site], AbstractContextManager] = lambda _: nullcontext(),
) -> Count:
    """Counts the load after a warm-up. The connections of the load, and their handshakes, are part of it. What is open `around` it is so
    before the count begins."""
    running = lab.start(proxy, f"{proxy.name} {case.name}", case.logs)
    run_load(case, running.site, WARM_UP_REQUESTS)
    with around(running.site):
        dump(running.process, proxy.folder)
        run_load(case, running.site, requests)
        totals = counted_since(running.process, proxy.folder)
    lab.stop(running)
    return Count(
        round(totals.instructions / requests),
        round(totals.system_calls / requests, 2),
        round(totals.locked_instructions / requests, 1),
    )


def counted_since(running: process.Process, folder: Path) -> Totals:
    """What was counted since the last dump."""
    totals = Totals()
    for file in dump(running, folder):
        totals.add(file)
    return totals


def run_load(case: Case, site: proxies.Site, requests: int) -> None:
    done = subprocess.run(case.command(site, requests), capture_output=True, text=True, timeout=LOAD_SECONDS)
    if f" {requests} succeeded" not in done.stdout:
        raise CountError(f"{case.name}: not every request succeeded:\n{done.stdout}{done.stderr}")


def dump(running: process.Process, folder: Path) -> set[Path]:
    """The files that have what was counted since the last dump."""
    before = set(folder.glob("callgrind.*"))
    for pid in running.pids():
        subprocess.run(["callgrind_control", "--dump", str(pid)], check=True, capture_output=True, timeout=60)
    return set(folder.glob("callgrind.*")) - before
