"""Owns the count of status writes, from the audit log of the API server."""

import json
import time
from collections import Counter
from pathlib import Path

CONTROLLER = "system:serviceaccount:portcullis-system:portcullis-controller"
# The controller writes within this time after a change, also if it waits for a data plane.
QUIET_SECONDS = 3.0


class Statuses:
    """Reads what has been added to the audit log since the last look."""

    def __init__(self, audit_log: Path) -> None:
        self._log = audit_log.open("rb")
        self._rest = b""

    def skip(self) -> None:
        self._log.seek(0, 2)
        self._rest = b""

    def written(self) -> list[tuple[str, str, str]]:
        """Resource, namespace and name of each status that the controller has written; one that was refused counts too."""
        *lines, self._rest = (self._rest + self._log.read()).split(b"\n")
        # Most lines are of others: those are not parsed.
        events = [json.loads(line) for line in lines if b'"subresource":"status"' in line and CONTROLLER.encode() in line]
        targets = [event["objectRef"] for event in events if event["stage"] == "ResponseComplete" and event["user"]["username"] == CONTROLLER]
        return [(one["resource"], one.get("namespace", ""), one["name"]) for one in targets if one.get("subresource") == "status"]

    def until_quiet(self, limit: float, quiet: float = QUIET_SECONDS) -> list[tuple[str, str, str]]:
        """Waits until nothing has been written for a while, and returns all that has been."""
        found: list[tuple[str, str, str]] = []
        end = time.monotonic() + limit
        latest = time.monotonic()
        while time.monotonic() - latest < quiet:
            new = self.written()
            found += new
            if new:
                latest = time.monotonic()
            if latest > end:
                raise SystemExit(f"the controller still writes statuses after {limit:.0f} s")
            time.sleep(0.2)
        return found


def summary(written: list[tuple[str, str, str]], changes: int) -> dict[str, float]:
    """Writes per change, by resource."""
    counts = Counter(resource for resource, _, _ in written)
    return {resource: round(count / changes, 2) for resource, count in sorted(counts.items())}
