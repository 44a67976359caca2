"""Owns how a dump of callgrind is read: what it counted in user mode, in system calls, and in locked instructions of x86-64.

Locked instructions are those with a `lock` prefix and exchanges with memory. For them, what was counted at each address
(`--dump-instr=yes`) is joined with the disassembly of the objects.
"""

import functools
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# The kernel answers these in user mode, but valgrind calls it.
NO_SYSTEM_CALLS = ("clock_gettime", "gettimeofday", "time", "getcpu")
LOCKED = r":\s+(lock |xchg\s+.*\()"


@dataclass
class Totals:
    """What the dumps of one load count in all."""

    instructions: int = 0
    system_calls: int = 0
    locked_instructions: int = 0

    def add(self, dump: Path) -> None:
        for line in lines_of(dump):
            self.instructions += line.instructions
            if line.instructions and line.address in locked_addresses(line.program):
                self.locked_instructions += line.instructions
            if not line.function.startswith(NO_SYSTEM_CALLS):
                self.system_calls += line.system_calls


@dataclass(frozen=True)
class Line:
    """What was counted at one address, without what is called from there."""

    program: str
    function: str
    address: int
    instructions: int
    system_calls: int


def lines_of(dump: Path) -> Iterator[Line]:
    names: dict[tuple[str, str], str] = {}
    now = {"ob": "", "fn": ""}
    address, inclusive = 0, False
    with dump.open() as lines:
        for line in lines:
            key, _, value = line.rstrip().partition("=")
            if key in ("ob", "cob", "fn", "cfn"):
                # A name has a number in brackets, and is written out when the number is new.
                number, _, name = value.partition(" ")
                kind = key.removeprefix("c")
                if name:
                    names[kind, number] = name
                if kind == key:
                    now[kind] = names[kind, number]
            elif key == "calls":
                inclusive = True
            elif line[0] in "0+-*":
                place, _line, *costs = line.split()
                address = _moved(address, place)
                # The line behind a call has what was executed in the function that is called.
                if costs and not inclusive:
                    instructions, system_calls, *_ = (*map(int, costs), 0)
                    yield Line(now["ob"], now["fn"], address, instructions, system_calls)
                inclusive = False


@functools.cache
def locked_addresses(program: str) -> frozenset[int]:
    """Where an object has locked instructions."""
    if not Path(program).is_file():
        return frozenset()
    found = subprocess.run(
        ["bash", "-c", 'objdump --disassemble --no-show-raw-insn "$1" | grep -E "$2"', "bash", program, LOCKED],
        capture_output=True,
        text=True,
        timeout=600,
    )
    return frozenset(int(re.split(r"[:\s]+", line.strip(), maxsplit=1)[0], 16) for line in found.stdout.splitlines())


def _moved(address: int, place: str) -> int:
    """A place is an address, a distance from the one before, or `*` for the same."""
    if place == "*":
        return address
    return address + int(place) if place[0] in "+-" else int(place, 0)
