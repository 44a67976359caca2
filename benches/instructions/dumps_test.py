"""Tests of what is read from a dump of callgrind."""

import tempfile
import unittest
from pathlib import Path

import dumps

DUMP = """\
positions: instr line
events: Ir sysCount sysTime
summary: 8 2 30

ob=(1) /no/such/program
fl=(1) ???
fn=(1) main
0x1000 10 2
+4 * 1
cob=(2) /no/such/library
cfn=(2) send
calls=1 0x50
* * 4 1 20
-2 +1 1

ob=(2)
fn=(2)
0x50 7 3 1 20

fn=(3) clock_gettime@@GLIBC_2.17
0x80 9 1 1 10
"""


class Reading(unittest.TestCase):
    def setUp(self):
        with tempfile.TemporaryDirectory() as folder:
            self.file = Path(folder, "callgrind.1")
            self.file.write_text(DUMP)
            self.lines = list(dumps.lines_of(self.file))
            self.totals = dumps.Totals()
            self.totals.add(self.file)

    def test_lines_have_object_function_and_address(self):
        self.assertEqual(self.lines[:3], [
            dumps.Line("/no/such/program", "main", 0x1000, 2, 0),
            dumps.Line("/no/such/program", "main", 0x1004, 1, 0),
            dumps.Line("/no/such/program", "main", 0x1002, 1, 0),
        ])
        self.assertEqual(self.lines[3], dumps.Line("/no/such/library", "send", 0x50, 3, 1))

    def test_what_is_called_counts_once(self):
        self.assertEqual(self.totals.instructions, 8)

    def test_clock_is_no_system_call(self):
        self.assertEqual(self.totals.system_calls, 1)


if __name__ == "__main__":
    unittest.main()
