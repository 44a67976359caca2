"""Owns the order of functions in the program: what a start executes, then what loads execute, then the rest.

The kernel maps 64 KiB around each page of the program that is used, so functions that are used together take less memory
beside each other than among those that are not used.
"""

import re
import subprocess
from pathlib import Path

NAME = re.compile(r"^  (\S.*):$")
COUNTS = re.compile(r"^    Block counts: \[(.*)\]$")


def of_profiles(profdata: Path, start: Path, loads: Path) -> list[str]:
    """Symbols in their order, of two merged profiles."""
    return merged(executed(shown(profdata, start)), executed(shown(profdata, loads)))


def merged(start: dict[str, int], loads: dict[str, int]) -> list[str]:
    others = loads.keys() - start.keys()
    return [*sorted(start), *sorted(others, key=lambda symbol: (-loads[symbol], symbol))]


def shown(profdata: Path, profile: Path) -> str:
    command = [profdata, "show", "--all-functions", "--counts", profile]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def executed(text: str) -> dict[str, int]:
    """The functions that were executed, with the count of their hottest block."""
    counts: dict[str, int] = {}
    symbol = ""
    for line in text.splitlines():
        if name := NAME.match(line):
            # A symbol that only its object sees is behind the name of that.
            symbol = name[1].rpartition(";")[2]
        elif blocks := COUNTS.match(line):
            hottest = max((int(count) for count in blocks[1].split(", ") if count), default=0)
            if hottest:
                counts[symbol] = max(hottest, counts.get(symbol, 0))
    return counts
