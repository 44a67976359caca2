"""Owns how figures are shown: the table, the JSON file and the README's results."""

import json
from pathlib import Path

from figure import Figure

MARKS = {True: "pass", False: "FAIL", None: "–"}


def table(figures: list[Figure], names: list[str], ours: str) -> list[list[str]]:
    """The rows of the table, the headline first."""
    rows = [["case", "unit", *names, "of lowest", "of envoy", "target", ""]]
    for figure in figures:
        lowest = figure.lowest(ours)
        compares = figure.target.value is None
        rows.append(
            [
                figure.name,
                figure.unit,
                *(_cell(figure, name) for name in names),
                _ratio(figure.ratio(ours, lowest)) if compares else "",
                _ratio(figure.ratio(ours, "envoy")) if compares else "",
                str(figure.target),
                MARKS[figure.passes(ours)],
            ]
        )
    return rows


def as_text(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(w) if i in (0, 1) or i >= len(row) - 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def as_markdown(rows: list[list[str]]) -> str:
    head, *body = rows
    rule = ["---" if i in (0, 1) or i >= len(head) - 2 else "---:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *body])


def faults(figures: list[Figure]) -> list[str]:
    return [f"{figure.name}, {name}: {fault}" for figure in figures for name, fault in figure.faults.items()]


def write_json(path: Path, surroundings: dict, figures: list[Figure], ours: str) -> None:
    document = {**surroundings, "figures": [figure.as_json(ours) for figure in figures]}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def update_readme(path: Path, mark: str, surroundings: dict, figures: list[Figure], rows: list[list[str]]) -> None:
    """Replaces what stands between the comments `mark` and `/mark`, and nothing else."""
    text = path.read_text()
    first, last = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    before, start, rest = text.partition(first)
    _old, end, after = rest.partition(last)
    if not start or not end:
        raise ValueError(f"{path} has no {first} … {last}")
    versions = ", ".join(f"{name} {version}" for name, version in surroundings["versions"].items())
    said = "".join(f"\n- {line}" for line in faults(figures))
    section = f"""
{surroundings["date"]}, {surroundings["cpu"]}, Linux {surroundings["kernel"]}; {versions}.
Median of {surroundings["rounds"]} rounds of {surroundings["seconds"]:g} s. Other programs took up to \
{surroundings["foreign_share"]:.0%} of a core meanwhile.

{as_markdown(rows)}
{f"{chr(10)}Invalid:{said}{chr(10)}" if said else ""}
"""
    path.write_text(before + start + "\n" + section.strip() + "\n" + end + after)


def _cell(figure: Figure, name: str) -> str:
    value = figure.median(name)
    if value is None:
        return "invalid" if name in figure.faults else ""
    shown = f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 3 else f"{value:.2f}"
    if figure.unit == "ratio":
        shown = f"{value:.3f}"
    return f"{shown} (invalid)" if name in figure.faults else shown


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"
