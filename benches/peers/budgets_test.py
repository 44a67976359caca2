"""Tests what a budget is judged by, that the objects of features have no networks that become one, and what a paced client reports."""

import base64
import ipaddress
import json
import socket
import threading
import unittest

import budgets
import cases
import features
import issuer
import paced
from figure import Figure, Target
from proxies import OURS


class Budgets(unittest.TestCase):
    def test_a_budget_is_judged_by_the_median_of_its_rounds(self):
        figure = Figure("budget-x", "x", "ratio", Target(value=1.02))
        for sample in (0.9, 1.01, 1.015, 1.3, 1.019):
            figure.add(OURS, sample)
        rows = budgets.table([figure])
        self.assertEqual(rows[1][1:2] + rows[1][3:], ["1.015", "≤ 1.02", "pass"])
        figure.add(OURS, None, "4 of 5 policies are in service")
        self.assertEqual(budgets.table([figure])[1][1], "invalid")

    def test_each_figure_is_in_one_table(self):
        tables = (None, cases.FORWARDING, cases.BUDGETS, cases.SCRAPES)
        for name, expected in (("h1", None), ("tcp-bulk-8", cases.FORWARDING), ("budget-jwt", cases.BUDGETS), ("scrape-time", cases.SCRAPES)):
            self.assertEqual([table for table in tables if cases.is_of(name, table)], [expected])


class Objects(unittest.TestCase):
    def test_networks_stay_as_many(self):
        networks = [ipaddress.ip_network(cidr) for first in (64, 128) for cidr in features.cidrs(features.CIDRS // 2 - 1, first)]
        self.assertEqual(len(list(ipaddress.collapse_addresses(networks))), features.CIDRS - 2)

    def test_the_key_set_has_the_key_that_a_token_names(self):
        token = issuer.token(issuer.claims("https://login.example.com", "shop"))
        self.assertEqual(token.count("."), 2)
        header = json.loads(base64.urlsafe_b64decode(token.partition(".")[0] + "=="))
        [key] = json.loads(issuer.key_set())["keys"]
        self.assertEqual((header["kid"], key["kty"]), (key["kid"], "RSA"))


class PacedClient(unittest.TestCase):
    def test_a_request_that_waits_for_others_counts_with_its_wait(self):
        response = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
        with socket.create_server(("127.0.0.1", 0)) as server:
            stalled = threading.Event()

            def serve() -> None:
                connection, _ = server.accept()
                with connection:
                    while connection.recv(4096):
                        if not stalled.is_set():
                            stalled.set()
                            stalled_for.wait(0.2)
                        connection.sendall(response)

            stalled_for = threading.Event()
            threading.Thread(target=serve, daemon=True).start()
            found = paced.paced(server.getsockname()[1], ("a.com", "/"), 100, 0.3)
        self.assertEqual((found["requests"], found["fault"]), (30, ""))
        # The stall of 200 ms delays the next 19 requests, too.
        self.assertGreater(found["latencies"]["max"], 190)
        self.assertGreater(found["latencies"]["p50"], 30)

    def test_the_slowest_are_those_of_the_order(self):
        found = paced.summary([float(number) for number in range(1000)])
        self.assertEqual(found, {"p50": 500, "p99": 990, "p999": 999, "max": 999})
        self.assertEqual(paced.summary([]), {})


if __name__ == "__main__":
    unittest.main()
