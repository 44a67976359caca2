"""Registers, selects, runs and reports checks: one line each, with its duration."""

import os
import time
import traceback

_SUBJECTS: dict[str, list] = {}


def scaled(usual: int) -> int:
    """A number of rounds or requests, multiplied by the variable TEST_SCALE, which is 1 where it is not set. `.ci/long` sets it."""
    return usual * int(os.environ.get("TEST_SCALE", "1"))


def check(promise: str, open_because: str | None = None):
    """Registers a function as a check of its module's subject, in file order.

    With `open_because` the check is known to fail: it runs, and it is an error if it passes.
    """

    def register(function):
        function.promise, function.open_because = promise, open_because
        _SUBJECTS.setdefault(function.__module__, []).append(function)
        return function

    return register


class Tally:
    """Results of the checks so far."""

    def __init__(self, only: str | None):
        self._only = only
        self.passed, self.failed, self.open = 0, [], 0

    def run(self, subject, cluster) -> None:
        """Prepares a subject and runs its selected checks."""
        chosen = [check for check in _SUBJECTS[subject.__name__] if self._is_chosen(subject.__name__, check.promise)]
        if not chosen:
            return
        if hasattr(subject, "prepare") and not self._attempt(f"{subject.__name__}: is prepared", subject.prepare, cluster, False):
            return
        for one in chosen:
            self._attempt(f"{subject.__name__}: {one.promise}", one, cluster, True)

    def _is_chosen(self, subject: str, promise: str) -> bool:
        is_part = self._only not in _SUBJECTS and self._only in promise if self._only else True
        return is_part or self._only == subject

    def _attempt(self, name: str, function, cluster, is_reported: bool) -> bool:
        """Runs a function; reports it if requested or if it fails."""
        began = time.monotonic()
        fault, trace, figures = None, "", None
        try:
            figures = function(cluster)
        except AssertionError as error:
            fault = str(error) or traceback.format_exc().strip().splitlines()[-2].strip()
        except Exception as error:
            fault, trace = f"{type(error).__name__}: {error}", traceback.format_exc()
        seconds = time.monotonic() - began
        open_because = getattr(function, "open_because", None)
        if open_because and fault is None:
            fault = "the check passes: remove `open_because`"
        elif open_because:
            self.open += 1
            print(f"OPEN {seconds:6.1f} s  {name} ({open_because})", flush=True)
            return True
        if fault is not None:
            self.failed.append(name)
            print(f"FAIL {seconds:6.1f} s  {name}\n               {fault}", flush=True)
            print(trace, end="", flush=True)
        elif is_reported:
            self.passed += 1
            print(f"PASS {seconds:6.1f} s  {name}" + (f" ({figures})" if isinstance(figures, str) else ""), flush=True)
        return fault is None
