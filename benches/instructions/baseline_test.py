"""Tests of what the gate lets pass, and of what an update writes."""

import datetime
import tempfile
import unittest
from pathlib import Path

import baseline
from baseline import Baseline, Count

SURROUNDINGS = {"rustc": "1.95.0"}


def counts(requests: int = 5000, **cases: Count) -> Baseline:
    return Baseline(SURROUNDINGS, requests, cases)


class Gate(unittest.TestCase):
    def test_growth_within_the_margin_passes(self):
        before = counts(h1=Count(20_000, 4.0, 60.0))
        self.assertEqual(baseline.growths(before, counts(h1=Count(20_400, 4.2, 60.0))), [])

    def test_growth_beyond_the_margin_names_case_and_share(self):
        before = counts(h1=Count(20_000, 4.0, 60.0), h2c=Count(30_000, 2.0, 60.0))
        lines = baseline.growths(before, counts(h1=Count(20_401, 4.0, 60.0), h2c=Count(30_000, 2.0, 60.0)))
        self.assertEqual(lines, ["h1: 20,401 instructions per request, +2.0% on the baseline of 20,000; 2% is allowed"])

    def test_more_system_calls_fail(self):
        lines = baseline.growths(counts(h1=Count(20_000, 4.0, 60.0)), counts(h1=Count(20_000, 5.0, 60.0)))
        self.assertEqual(lines, ["h1: 5.0 system calls per request, +25.0% on the baseline of 4.0; 15% is allowed"])

    def test_case_without_baseline_fails(self):
        self.assertEqual(baseline.growths(counts(), counts(h1=Count(1, 1.0, 60.0))), ["h1: has no baseline"])

    def test_cases_that_grow_are_named_and_the_least_figures_stand(self):
        before = counts(h1=Count(20_000, 4.0, 60.0), h2c=Count(30_000, 2.0, 60.0))
        self.assertEqual(baseline.grown(before, counts(h1=Count(20_401, 5.0, 60.0), h2c=Count(30_000, 2.0, 60.0))), {"h1"})
        self.assertEqual(baseline.least(Count(20_401, 4.0, 61.0), Count(20_100, 5.0, 60.0)), Count(20_100, 4.0, 60.0))

    def test_gains_are_told(self):
        self.assertEqual(baseline.gains(counts(h1=Count(20_000, 4.0, 60.0)), counts(h1=Count(19_000, 4.0, 60.0))), ["h1: 20,000 → 19,000 (-5.0%)"])

    def test_committed_baseline_is_read(self):
        self.assertTrue(Baseline.load().cases)


class Update(unittest.TestCase):
    DAY = datetime.date(2026, 1, 31)

    def test_entry_has_the_cases_that_change(self):
        before, now = counts(h1=Count(20_000, 4.0, 60.0), h2c=Count(30_000, 2.0, 60.0)), counts(h1=Count(21_000, 4.0, 60.0), h2c=Count(30_000, 2.0, 60.0))
        self.assertEqual(baseline.entry(before, now, "a field more", self.DAY), "- 2026-01-31: a field more: h1 20,000 → 21,000 (+5.0%).")

    def test_entry_has_what_else_changed(self):
        now = Baseline({"rustc": "1.96.0"}, 5000, {})
        self.assertEqual(baseline.entry(counts(), now, "Rust", self.DAY), "- 2026-01-31: Rust: rustc 1.95.0 → 1.96.0.")

    def test_cases_that_were_not_counted_stay(self):
        both = baseline.updated(counts(h1=Count(1, 1.0, 60.0)), counts(h2c=Count(2, 2.0, 60.0)))
        self.assertEqual(set(both.cases), {"h1", "h2c"})

    def test_files_keep_what_was_written(self):
        with tempfile.TemporaryDirectory() as folder:
            file, changelog = Path(folder, "baseline.json"), Path(folder, "CHANGELOG.md")
            counts(h1=Count(20_000, 4.09, 60.0)).save(file)
            self.assertEqual(Baseline.load(file), counts(h1=Count(20_000, 4.09, 60.0)))
            changelog.write_text("# Title\n\nText.\n")
            baseline.log("- first", changelog)
            baseline.log("- second", changelog)
            self.assertEqual(changelog.read_text(), "# Title\n\nText.\n\n- second\n- first\n")


if __name__ == "__main__":
    unittest.main()
