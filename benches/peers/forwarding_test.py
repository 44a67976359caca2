"""Tests what makes a figure of TCP, TLS or UDP invalid, and that the load of `udp` counts what returns and what is lost."""

import socket
import threading
import unittest

import datagrams
import forwarding
from backend import Counts
from figure import Target
from lab import Sample
from load import Outcome


def row(**options) -> forwarding.Load:
    return forwarding.Load("name", "title", lambda *_: None, Target(), **options)


def sample(outcome: Outcome, connections: int = 8, requests: int = 1000) -> Sample:
    return Sample(cpu_ns=1, outcome=outcome, backend=Counts(connections, requests), own_share=1, foreign_share=0, logged=None)


class Faults(unittest.TestCase):
    def test_a_load_that_did_all_of_its_work_is_valid(self):
        self.assertEqual(row().fault(sample(Outcome(1000, 1, ""))), "")

    def test_what_the_load_reports_is_the_fault(self):
        self.assertEqual(row().fault(sample(Outcome(1000, 1, "Socket errors: connect 1"))), "Socket errors: connect 1")

    def test_requests_must_reach_the_backend(self):
        self.assertIn("only 900 of 1000 requests", row().fault(sample(Outcome(1000, 1, ""), requests=900)))

    def test_new_connections_must_reach_the_backend(self):
        self.assertIn("upstream connections", row(connects=True).fault(sample(Outcome(1000, 1, ""), connections=500)))
        self.assertEqual(row(connects=True).fault(sample(Outcome(1000, 1, ""), connections=1000)), "")

    def test_a_load_without_new_connections_must_not_make_any(self):
        self.assertIn("upstream connections", row().fault(sample(Outcome(1000, 1, ""), connections=1000)))

    def test_one_lost_datagram_of_a_hundred_is_tolerated(self):
        self.assertEqual(row(is_udp=True).fault(sample(Outcome(990, 1, "", lost=10))), "")
        self.assertIn("20 datagrams were lost", row(is_udp=True).fault(sample(Outcome(980, 1, "", lost=20))))

    def test_datagrams_that_all_vanish_are_a_fault(self):
        self.assertTrue(row(is_udp=True).fault(sample(Outcome(0, 1, "", lost=64))))


class Datagrams(unittest.TestCase):
    def test_all_of_an_echo_return_whole(self):
        server = datagrams.bound(0)
        self.addCleanup(server.close)
        threading.Thread(target=datagrams.echo, args=(server,), daemon=True).start()
        for size in (64, 1200):
            done = datagrams.load(server.getsockname()[1], 0.2, size, clients=4, window=2)
            self.assertGreater(done["returned"], 0)
            self.assertEqual((done["lost"], done["fault"]), (0, ""))

    def test_datagrams_without_an_answer_are_lost(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            done = datagrams.load(silent.getsockname()[1], 0.1, 64, clients=4, window=2)
        self.assertEqual((done["returned"], done["lost"], done["fault"]), (0, 8, ""))


if __name__ == "__main__":
    unittest.main()
