"""Owns the comparison of a data plane with many sets with one that has one set: CPU time per request and per TLS handshake, in rounds that take turns."""

import os
import statistics
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from load import Generator, Outcome, Target, lua_requests
from scene import Program, Scene, host

ROUNDS = 7
SECONDS = 1.0
# As many requests of a script; more would be those of the same sets.
MOST_REQUESTS = 8000
PROXY_CORE = 0


class FaultError(Exception):
    """A load failed, so that its cost says nothing."""


def measured(one: Scene, many: Scene, generator: Generator, rounds: int = ROUNDS) -> dict:
    """CPU per request to one team and to all teams, and TLS handshakes per second of CPU, each against one set, with the ratios of the rounds.

    Requests to all teams also use connections to all of their backends, four for each team, which cost what sockets cost that are rarely used."""
    of_one = _requests(one, generator, [0])
    with pinned(one.program.pid), pinned(many.program.pid):
        found = {
            "cpu_ratio": _ratios(of_one, _requests(many, generator, [many.sets // 2]), rounds),
            "all_cpu_ratio": _ratios(of_one, _requests(many, generator, _scattered(many.sets, MOST_REQUESTS // many.routes)), rounds),
            "handshakes_ratio": [1 / ratio for ratio in _ratios(_handshakes(one, generator), _handshakes(many, generator), rounds)],
        }
    rounded = {name: [round(ratio, 3) for ratio in rounds] for name, rounds in found.items()}
    return {**{name: statistics.median(rounds) for name, rounds in rounded.items()}, "rounds": rounded}


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


def _ratios(first: Callable[[], float], second: Callable[[], float], rounds: int) -> list[float]:
    """The second's cost by the first's in each round, after one that is not counted."""
    ratios = []
    for turn in range(rounds + 1):
        if turn % 2:
            mine, other = second(), first()
        else:
            other, mine = first(), second()
        ratios.append(mine / other)
    return ratios[1:]


def _requests(scene: Scene, generator: Generator, teams: list[int]) -> Callable[[], float]:
    """Requests to all routes of some teams: those that are made at the same time are of different teams."""
    pairs = [(host(index), f"/app-{route}") for route in range(scene.routes) for index in teams]
    # As many for one team, so that the script costs the load the same.
    script = lua_requests((pairs * (MOST_REQUESTS // len(pairs) + 1))[:MOST_REQUESTS])
    url = f"http://{scene.program.address}:{scene.program.http}/"
    return lambda: _cost(scene.program, lambda: generator.wrk(url, SECONDS, script=script))


def _handshakes(scene: Scene, generator: Generator) -> Callable[[], float]:
    """New connections to all teams in turn, with a request that no route has: a backend would add its connections."""
    target = Target(scene.program.address, "/none", [host(index) for index in _scattered(scene.sets, MOST_REQUESTS)], status=404)
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
