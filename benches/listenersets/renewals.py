"""Owns the renewal of many certificates while clients connect and others stay connected, and what fails meanwhile."""

import json
import subprocess
import sys
import time
from pathlib import Path

from certificates import der, self_signed
from scene import Scene, host

from traffic import wait

RATE, CONNECTIONS_PER_SECOND, SECONDS, KEPT = 50, 200, 60.0, 50
# More sets than these are not renewed: a team's certificate changes again and again.
MOST_SETS, PER_SET = 100, 4
# Time that the clients have to start and to end, beside that of the run.
SPARE_SECONDS = 60.0


def measured(scene: Scene, seconds: float, tmp: Path) -> dict:
    """Replaces certificates while clients connect, and compares at the end what is served with what was written last."""
    sets = min(scene.sets, MOST_SETS)
    print(f"  renewals: making {sets * PER_SET} certificates", file=sys.stderr, flush=True)
    pairs = [[self_signed(host(index)) for _ in range(PER_SET)] for index in range(sets)]
    names = tmp / "renewed"
    names.write_text("\n".join(host(index) for index in range(sets)))
    program = scene.program
    numbers = map(str, (program.address, program.https, CONNECTIONS_PER_SECOND, KEPT, seconds, names))
    with subprocess.Popen([sys.executable, "-E", "-S", Path(__file__).with_name("clients.py"), *numbers], stdout=subprocess.PIPE, text=True) as clients:
        try:
            written, began = 0, time.monotonic()
            last: dict[int, str] = {}
            while (spent := time.monotonic() - began) < seconds:
                ahead = written / RATE - spent
                if ahead > 0:
                    time.sleep(ahead)
                index, turn = written % sets, written // sets
                last[index] = scene.write_certificate(index, pairs[index][turn % PER_SET])
                written += 1
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
