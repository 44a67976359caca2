"""Owns the renewal of many certificates while clients connect and others stay connected, and what fails meanwhile."""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from certificates import der, self_signed

from scene import Scene, host
from traffic import wait

RATE, CONNECTIONS_PER_SECOND, SECONDS, KEPT = 50, 200, 60.0, 50
# More sets than these are not renewed: a team's certificate changes again and again.
MOST_SETS, PER_SET = 100, 4
WRITERS = 4
# The share of the rate that must be reached.
MOST_LATE = 0.95
# Time that the clients have to start and to end, beside that of the run.
SPARE_SECONDS = 60.0


def measured(scene: Scene, seconds: float, tmp: Path) -> dict:
    """Replaces certificates while clients connect, and compares at the end what is served with what was written last."""
    sets = min(scene.sets, MOST_SETS)
    sets -= sets % WRITERS if sets >= WRITERS else 0
    print(f"  renewals: making {sets * PER_SET} certificates", file=sys.stderr, flush=True)
    pairs = [[self_signed(host(index)) for _ in range(PER_SET)] for index in range(sets)]
    names = tmp / "renewed"
    names.write_text("\n".join(host(index) for index in range(sets)))
    program = scene.program
    numbers = map(str, (program.address, program.https, CONNECTIONS_PER_SECOND, KEPT, seconds, names))
    with subprocess.Popen([sys.executable, "-E", "-S", Path(__file__).with_name("clients.py"), *numbers], stdout=subprocess.PIPE, text=True) as clients:
        try:
            last, written = _write(scene, pairs, seconds)
            output, _ = clients.communicate(timeout=SPARE_SECONDS)
        finally:
            clients.kill()
    stale: set[int] = set()

    def all_are_served() -> bool:
        stale.clear()
        stale.update(index for index, pem in last.items() if scene.presented(index) != der(pem))
        return not stale

    caught_up = wait("the last certificate of every set is served", all_are_served)
    return {"renewals": written, "renewals_per_second": round(written / seconds, 1), "caught_up_s": round(caught_up, 2), **json.loads(output)}


def fault(found: dict) -> str:
    """Why renewals were not what they should be; empty if they were."""
    if found["failed"] or found["cut"]:
        return f"renewals: {found['failed']} new connections failed, and {found['cut']} were cut: {found['faults']}"
    if found["renewals_per_second"] < RATE * MOST_LATE:
        return f"renewals: only {found['renewals_per_second']} per second were written, of {RATE}"
    return ""


def _write(scene: Scene, pairs: list[list[tuple[str, str]]], seconds: float) -> tuple[dict[int, str], int]:
    """Writes at the rate, several at a time but those of one set in their order; returns the last certificate of each set, and their number."""
    sets = len(pairs)
    writers = WRITERS if sets % WRITERS == 0 else 1
    last: dict[int, str] = {}
    began = time.monotonic()

    def write(first: int) -> int:
        count = 0
        for number in range(first, round(RATE * seconds), writers):
            spent = time.monotonic() - began
            if spent > seconds:
                break
            time.sleep(max(0, number / RATE - spent))
            index, turn = number % sets, number // sets
            last[index] = scene.write_certificate(index, pairs[index][turn % PER_SET])
            count += 1
        return count

    with ThreadPoolExecutor(writers) as pool:
        return last, sum(pool.map(write, range(writers)))
