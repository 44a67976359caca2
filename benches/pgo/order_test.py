"""Tests of the order of functions."""

import unittest

import order

SHOWN = """\
Counters:
  _ZN10portcullis4main17h0E:
    Hash: 0x0a4d0ad3efffffff
    Counters: 2
    Block counts: [1, 0]
  portcullis.e2f3-cgu.0;_ZN10portcullis3hot17h0E:
    Hash: 0x0f9bab18231589a7
    Counters: 3
    Block counts: [1000, 334, 1]
  _ZN10portcullis5never17h0E:
    Hash: 0x025f5c817fffffff
    Counters: 1
    Block counts: [0]
Instrumentation level: IR  entry_first = 0  instrument_loop_entries = 0
Functions shown: 3
"""


class Order(unittest.TestCase):
    def test_only_executed_functions_without_the_names_of_objects(self):
        self.assertEqual(order.executed(SHOWN), {"_ZN10portcullis4main17h0E": 1, "_ZN10portcullis3hot17h0E": 1000})

    def test_start_is_before_loads_and_loads_are_hottest_first(self):
        start, loads = {"main": 1, "shared": 5}, {"main": 2, "shared": 900, "warm": 10, "hot": 1000}
        self.assertEqual(order.merged(start, loads), ["main", "shared", "hot", "warm"])


if __name__ == "__main__":
    unittest.main()
