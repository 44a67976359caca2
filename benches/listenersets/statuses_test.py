"""Tests what counts as a status write of the controller, and how tables show what was measured."""

import json
import tempfile
import unittest
from pathlib import Path

import tables
from statuses import CONTROLLER, Statuses, summary


def line(user: str = CONTROLLER, resource: str = "httproutes", subresource: str | None = "status", stage: str = "ResponseComplete") -> str:
    target = {"resource": resource, "namespace": "team-0001", "name": "app-0"}
    if subresource:
        target["subresource"] = subresource
    return json.dumps({"stage": stage, "user": {"username": user}, "objectRef": target}, separators=(",", ":"))


class Written(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.log = Path(self.folder.name) / "audit.log"
        self.log.touch()
        self.statuses = Statuses(self.log)

    def add(self, text: str) -> None:
        with self.log.open("a") as log:
            log.write(text)

    def test_only_completed_status_writes_of_the_controller_count(self):
        for other in (line(user="admin"), line(subresource=None), line(stage="RequestReceived"), line()):
            self.add(other + "\n")
        self.assertEqual(self.statuses.written(), [("httproutes", "team-0001", "app-0")])
        self.assertEqual(self.statuses.written(), [])

    def test_a_line_counts_when_its_end_has_been_written(self):
        text = line()
        self.add(text[:30])
        self.assertEqual(self.statuses.written(), [])
        self.add(text[30:] + "\n")
        self.assertEqual(len(self.statuses.written()), 1)

    def test_writes_are_per_change(self):
        written = [("httproutes", "a", "1"), ("httproutes", "a", "2"), ("gateways", "infra", "shared")]
        self.assertEqual(summary(written, 2), {"gateways": 0.5, "httproutes": 1.0})


class Tables(unittest.TestCase):
    def test_statuses_of_other_teams_are_shown(self):
        found = {"route": {"per_change": {"httproutes": 1.0}, "of_others": 0}, "secret": {"per_change": {}, "of_others": 2}}
        shown = tables.statuses([{"sets": 1000, "statuses": found}], ("route", "listener", "secret"))
        self.assertEqual(shown.splitlines()[-1], "| 1,000 | 1 httproutes | none (2 of others) |")

    def test_parts_without_a_controller_have_no_table_of_statuses(self):
        self.assertEqual(tables.statuses([{"sets": 1}], ("route",)), "")


if __name__ == "__main__":
    unittest.main()
