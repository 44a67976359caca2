#!/usr/bin/env python3
"""Compares a conformance report with an earlier one: prints what was lost, by name. Exit code 1 when something was.

usage: tests/conformance/compare.py EARLIER LATER    (needs PyYAML)
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import yaml


def lost(earlier: dict, later: dict) -> Iterator[str]:
    """What the earlier report has and the later one has not."""
    profiles = {profile["name"]: profile for profile in later.get("profiles", [])}
    for before in earlier["profiles"]:
        name = before["name"]
        if name not in profiles:
            yield f"{name}: the profile is gone"
            continue
        for part in "core", "extended":
            for loss in lost_of_part(before.get(part, {}), profiles[name].get(part, {})):
                yield f"{name}, {part}: {loss}"
    later_tests = later.get("succeededProvisionalTests", [])
    for test in earlier.get("succeededProvisionalTests", []):
        if test not in later_tests:
            yield f"provisional: {test} does not succeed"


def lost_of_part(before: dict, after: dict) -> Iterator[str]:
    """The same of the core or extended tests of a profile."""
    for feature in before.get("supportedFeatures", []):
        if feature not in after.get("supportedFeatures", []):
            yield f"the feature {feature} is gone"
    for tests, what in ("failedTests", "fails"), ("skippedTests", "is skipped"):
        for test in after.get(tests, []):
            if test not in before.get(tests, []):
                yield f"{test} {what}"
    passed = [part.get("statistics", {}).get("Passed", 0) for part in (before, after)]
    if passed[1] < passed[0]:
        yield f"{passed[1]} tests pass, {passed[0]} did"


def main(earlier: str, later: str) -> int:
    reports = [yaml.safe_load(Path(path).read_text()) for path in (earlier, later)]
    losses = list(lost(*reports))
    for loss in losses:
        print(f"lost: {loss}")
    return 1 if losses else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
