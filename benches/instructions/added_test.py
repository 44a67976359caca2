"""Tests what a feature adds to a request, and what that is of its CPU time."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "peers"))

from added import REQUESTS_PER_SECOND, Added
from baseline import Count


def counts(*pairs: tuple[int, float]) -> list[Count]:
    return [Count(instructions, calls, 0.0) for instructions, calls in pairs]


class AddedByAFeature(unittest.TestCase):
    def test_the_difference_is_that_of_the_medians(self):
        added = Added.between(counts((1000, 4.0), (1010, 4.1), (5000, 4.2)), counts((1110, 5.1), (900, 9.0), (1120, 5.0)))
        self.assertEqual((added.instructions, added.more_instructions), (1010, 100))
        self.assertAlmostEqual(added.more_system_calls, 1.0)

    def test_the_kernel_has_its_share_of_the_time(self):
        added = Added(instructions=1000, system_calls=4, more_instructions=100, more_system_calls=0)
        self.assertAlmostEqual(added.share_of_cpu(user_share=0.2), 0.02)
        added = Added(instructions=1000, system_calls=4, more_instructions=100, more_system_calls=1)
        self.assertAlmostEqual(added.share_of_cpu(user_share=0.2), 0.02 + 0.8 * 0.25)

    def test_a_small_difference_of_system_calls_is_noise(self):
        added = Added(instructions=1000, system_calls=4, more_instructions=0, more_system_calls=0.05)
        self.assertEqual(added.share_of_cpu(user_share=0.2), 0)

    def test_a_budget_has_room_for_noise_of_the_cpu_time_and_none_of_instructions(self):
        added = Added(instructions=10_000, system_calls=4, more_instructions=51, more_system_calls=0)
        self.assertTrue(added.is_within(0.002, None, user_share=0.4))
        self.assertTrue(added.is_within(0.0011, None, user_share=0.4))
        self.assertFalse(added.is_within(0.001, None, user_share=0.4))
        self.assertTrue(added.is_within(0.002, 0.006, user_share=0.4))
        self.assertFalse(added.is_within(0.002, 0.005, user_share=0.4))

    def test_what_costs_every_few_seconds_is_shared_by_the_requests_of_that_time(self):
        added = Added.periodic(counts((1000, 4.0)), 10.0 * REQUESTS_PER_SECOND)
        self.assertEqual(added.more_instructions, 10)


if __name__ == "__main__":
    unittest.main()
