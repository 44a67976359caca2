"""Owns the comparison of a data plane with many sets with one that has one set: CPU time per request and per TLS handshake, in rounds that take turns."""

import os
import statistics
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from scene import Program, Scene, host

from load import Generator, Outcome, lua_requests

ROUNDS = 7
SECONDS = 1.0
# As many requests of a script; more would be those of the same sets.
MOST_REQUESTS = 8000
PROXY_CORE = 0


class FaultError(Exception):
    """A load failed, so that its cost says nothing."""


def measured(one: Scene, many: Scene, generator: Generator, rounds: int = ROUNDS) -> dict[str, float]:
    """CPU per request against one set, and TLS handshakes per second of CPU against one certificate."""
    with pinned(one.program.pid), pinned(many.program.pid):
        cpu = _ratio(_requests(one, generator), _requests(many, generator), rounds)
        handshakes = 1 / _ratio(_handshakes(one, generator), _handshakes(many, generator), rounds)
    return {"cpu_ratio": round(cpu, 3), "handshakes_ratio": round(handshakes, 3)}


@contextmanager
def pinned(pid: int):
    """All threads of a process run on one core; the load runs on another."""
    before = os.sched_getaffinity(pid)
    _move(pid, {PROXY_CORE})
    try:
        yield
    finally:
        _move(pid, before)


def _move(pid: int, cores: set[int]) -> None:
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cores)


def _ratio(first: Callable[[], float], second: Callable[[], float], rounds: int) -> float:
    """The median of the ratios of the second's cost to the first's, after a round that is not counted."""
    ratios = []
    for turn in range(rounds + 1):
        if turn % 2:
            mine, other = second(), first()
        else:
            other, mine = first(), second()
        ratios.append(mine / other)
    return statistics.median(ratios[1:])


def _requests(scene: Scene, generator: Generator) -> Callable[[], float]:
    pairs = [(host(index), f"/app-{route}") for index in _scattered(scene.sets, MOST_REQUESTS // scene.routes) for route in range(scene.routes)]
    # As many for one set, so that the script costs the load the same.
    script = lua_requests((pairs * (MOST_REQUESTS // len(pairs) + 1))[:MOST_REQUESTS])
    url = f"http://{scene.program.address}:{scene.program.http}/"
    return lambda: _cost(scene.program, lambda: generator.wrk(url, SECONDS, script=script))


def _handshakes(scene: Scene, generator: Generator) -> Callable[[], float]:
    target = (scene.program.address, "/app-0", [host(index) for index in _scattered(scene.sets, MOST_REQUESTS)])
    return lambda: _cost(scene.program, lambda: generator.handshakes(scene.program.https, SECONDS, target=target))


def _cost(program: Program, load: Callable[[], Outcome]) -> float:
    """Nanoseconds of CPU time per request of a load."""
    before = _cpu_ns(program.pid)
    outcome = load()
    if outcome.fault or not outcome.requests:
        raise FaultError(outcome.fault or "no request completed")
    return (_cpu_ns(program.pid) - before) / outcome.requests


def _scattered(count: int, most: int) -> list[int]:
    """Numbers below `count`, at most so many, in an order without locality."""
    stride = 7919  # a prime that divides no count used here
    return [i * stride % count for i in range(min(count, most))]


def _cpu_ns(pid: int) -> int:
    # Linux builds the id of a process's CPU clock from its pid (man clock_getcpuclockid).
    return time.clock_gettime_ns(~pid << 3 | 2)


def rss_mb(pid: int) -> int:
    """Resident memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return round(kib * 1024 / 1e6)


def control_seconds(pid: int) -> float:
    """CPU time of the thread that reads and translates."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    control = [thread for thread in threads if (thread / "comm").read_text().strip() == "control"]
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in control) / 1e9
