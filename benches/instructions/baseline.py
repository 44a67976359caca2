"""Owns the baseline: the committed count of each case, what may grow by how much, and the log of its changes.

Plain data and text; knows nothing of proxies or callgrind.
"""

import datetime
import json
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
FILE, CHANGELOG = HERE / "baseline.json", HERE / "CHANGELOG.md"
UPDATE = 'benches/instructions/run --update "the reason"'
MARGIN = 0.02
# For system calls and locked instructions: how many requests one read, write or wait serves depends on when they arrive.
CALL_MARGIN = 0.15
# A change below this is not worth words.
NOTABLE = 0.005


@dataclass(frozen=True)
class Count:
    """What a proxy does for one request, in all of its processes."""

    instructions: int
    system_calls: float
    # Those that take a cache line for the core: part of `instructions`.
    locked_instructions: float


@dataclass(frozen=True)
class Baseline:
    """Counts by case, and what they depend on besides the sources."""

    surroundings: dict[str, str]
    requests: int
    cases: dict[str, Count]

    @staticmethod
    def load(file: Path = FILE) -> "Baseline":
        document = json.loads(file.read_text())
        cases = {name: Count(**counts) for name, counts in document["cases"].items()}
        return Baseline(document["surroundings"], document["requests"], cases)

    def save(self, file: Path = FILE) -> None:
        file.write_text(json.dumps(asdict(self), indent=2) + "\n")


def growths(before: Baseline, now: Baseline) -> list[str]:
    """One line for each case that costs more than it may."""
    lines = []
    for name, count in now.cases.items():
        known = before.cases.get(name)
        if known is None:
            lines.append(f"{name}: has no baseline")
            continue
        for what, old, new, margin in (
            ("instructions", known.instructions, count.instructions, MARGIN),
            ("system calls", known.system_calls, count.system_calls, CALL_MARGIN),
            ("locked instructions", known.locked_instructions, count.locked_instructions, CALL_MARGIN),
        ):
            if new > old * (1 + margin):
                lines.append(f"{name}: {new:,} {what} per request, {new / old - 1:+.1%} on the baseline of {old:,}; {margin:.0%} is allowed")
    return lines


def grown(before: Baseline, now: Baseline) -> set[str]:
    """The names of the cases that cost more than they may."""
    return {line.partition(":")[0] for line in growths(before, now)}


def least(one: Count, other: Count) -> Count:
    """The least of two counts of a case, each figure by itself."""
    return Count(**{name: min(figure, asdict(other)[name]) for name, figure in asdict(one).items()})


def gains(before: Baseline, now: Baseline) -> list[str]:
    """The cases that cost so much less that the baseline no longer holds what was gained."""
    shared = [(name, before.cases[name].instructions, count.instructions) for name, count in now.cases.items() if name in before.cases]
    return [f"{name}: {_change(old, new)}" for name, old, new in shared if new < old * (1 - MARGIN)]


def differences(before: Baseline, surroundings: dict[str, str]) -> list[str]:
    """What differs of that which counts depend on besides the sources."""
    return [f"{name} {before.surroundings.get(name)} → {value}" for name, value in surroundings.items() if before.surroundings.get(name) != value]


def updated(before: Baseline | None, now: Baseline) -> Baseline:
    """`now`, with the cases of `before` that were not counted."""
    return Baseline(now.surroundings, now.requests, {**(before.cases if before else {}), **now.cases})


def entry(before: Baseline | None, now: Baseline, reason: str, day: datetime.date) -> str:
    """The line of the changelog."""
    changes = []
    for name, count in now.cases.items():
        known = before.cases.get(name) if before else None
        if known is None:
            changes.append(f"{name} {count.instructions:,}")
        elif abs(count.instructions / known.instructions - 1) >= NOTABLE:
            changes.append(f"{name} {_change(known.instructions, count.instructions)}")
    said = [*changes, *(differences(before, now.surroundings) if before else [])]
    return f"- {day.isoformat()}: {reason.strip()}: {', '.join(said) or 'no case changes'}."


def log(line: str, file: Path = CHANGELOG) -> None:
    """The newest entry is the first of the list."""
    head, mark, entries = file.read_text().partition("\n- ")
    file.write_text(f"{head.rstrip()}\n\n{line}\n{'- ' if mark else ''}{entries}")


def _change(old: int, new: int) -> str:
    return f"{old:,} → {new:,} ({new / old - 1:+.1%})"
