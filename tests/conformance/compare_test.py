"""Tests of `compare.py`, with changed copies of the committed report."""

import copy
import unittest
from pathlib import Path

import yaml

from compare import lost

REPORT = yaml.safe_load((Path(__file__).resolve().parent / "report.yaml").read_text())


def grpc(report: dict) -> dict:
    """The profile GATEWAY-GRPC. The suite writes profiles in any order."""
    return next(profile for profile in report["profiles"] if profile["name"] == "GATEWAY-GRPC")


class Lost(unittest.TestCase):
    def setUp(self):
        self.later = copy.deepcopy(REPORT)
        self.profile = grpc(self.later)

    def check(self, *losses: str):
        self.assertEqual(list(lost(REPORT, self.later)), list(losses))

    def test_equal_reports_lose_nothing(self):
        self.check()

    def test_gains_are_no_loss(self):
        self.profile["extended"]["supportedFeatures"].append("New")
        self.profile["core"]["statistics"]["Passed"] += 1
        self.check()

    def test_names_failed_and_skipped_tests(self):
        core = self.profile["core"]
        core.update(failedTests=["GRPCRouteWeight"], skippedTests=["GRPCRouteListenerHostnameMatching"])
        core["statistics"]["Passed"] -= 2
        passed = grpc(REPORT)["core"]["statistics"]["Passed"]
        self.check(
            "GATEWAY-GRPC, core: GRPCRouteWeight fails",
            "GATEWAY-GRPC, core: GRPCRouteListenerHostnameMatching is skipped",
            f"GATEWAY-GRPC, core: {passed - 2} tests pass, {passed} did",
        )

    def test_names_feature_that_is_gone(self):
        self.profile["extended"]["supportedFeatures"].remove("ListenerSet")
        self.check("GATEWAY-GRPC, extended: the feature ListenerSet is gone")

    def test_names_provisional_test_that_is_gone(self):
        self.later["succeededProvisionalTests"].remove("HTTPRouteNamedRule")
        self.check("provisional: HTTPRouteNamedRule does not succeed")

    def test_profile_that_is_gone_is_a_loss(self):
        self.later["profiles"].remove(self.profile)
        self.check("GATEWAY-GRPC: the profile is gone")

    def test_empty_report_loses_all(self):
        self.later = {}
        self.assertGreater(len(list(lost(REPORT, self.later))), len(REPORT["profiles"]))
