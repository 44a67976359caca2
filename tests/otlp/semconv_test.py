"""Tests of the checker: spans as the conventions want them pass, and each fault is found."""

import copy
import unittest

import semconv


def text(key: str, value: str) -> dict:
    return {"key": key, "value": {"stringValue": value}}


def number(key: str, value: int) -> dict:
    return {"key": key, "value": {"intValue": str(value)}}


def spans() -> list[dict]:
    common = {"traceId": "a" * 32, "startTimeUnixNano": "10", "endTimeUnixNano": "20", "name": "GET /a/*", "status": {}}
    server = {
        **common,
        "spanId": "1" * 16,
        "parentSpanId": "f" * 16,
        "kind": semconv.SERVER,
        "attributes": [
            text("http.request.method", "GET"),
            text("url.path", "/a/b"),
            text("url.scheme", "http"),
            text("http.route", "/a/*"),
            number("http.response.status_code", 200),
        ],
    }
    client = {
        **common,
        "spanId": "2" * 16,
        "parentSpanId": "1" * 16,
        "kind": semconv.CLIENT,
        "attributes": [
            text("http.request.method", "GET"),
            text("server.address", "127.0.0.1"),
            number("server.port", 80),
            text("url.full", "http://127.0.0.1/a/b"),
            text("url.template", "/a/*"),
            number("http.response.status_code", 200),
        ],
    }
    return copy.deepcopy([server, client])


def replaced(span: dict, *changed: dict, without: str = "") -> None:
    keys = [it["key"] for it in changed] + [without]
    span["attributes"] = [it for it in span["attributes"] if it["key"] not in keys] + list(changed)


class Checker(unittest.TestCase):
    def test_spans_of_the_conventions_pass(self):
        self.assertEqual(semconv.trace_problems(spans(), "f" * 16), [])

    def test_refused_request_is_no_error_of_the_server_but_one_of_the_client(self):
        server, client = spans()
        replaced(server, number("http.response.status_code", 404))
        self.assertEqual(semconv.problems(server), [])
        replaced(client, number("http.response.status_code", 404))
        self.assertIn("status 404 is no error", semconv.problems(client))
        client["status"] = {"code": semconv.ERROR}
        replaced(client, text("error.type", "404"))
        self.assertEqual(semconv.problems(client), [])

    def test_each_fault_is_found(self):
        faults = [
            (lambda one, two: replaced(one, without="url.path"), "url.path is missing"),
            (lambda one, two: replaced(two, without="url.full"), "url.full is missing"),
            (lambda one, two: replaced(two, without="server.port"), "server.port is missing beside server.address"),
            (lambda one, two: replaced(one, text("http.request.method", "BREW")), "http.request.method BREW is not known"),
            (lambda one, two: replaced(one, text("http.request.method", "_OTHER")), "http.request.method_original is not"),
            (lambda one, two: replaced(one, text("url.path", "/a?b=c")), "url.path has more than the path"),
            (lambda one, two: replaced(two, text("url.full", "http://a:b@c/")), "url.full is"),
            (lambda one, two: replaced(one, text("http.response.status_code", "200")), "http.response.status_code is no number"),
            (lambda one, two: replaced(one, number("http.response.status_code", 503)), "status 503 is no error"),
            (lambda one, two: replaced(one, without="http.response.status_code"), "no response, and no error"),
            (lambda one, two: replaced(one, text("rpc.response.status_code", "UNAVAILABLE")), "gRPC status UNAVAILABLE is no error"),
            (lambda one, two: one.update(status={"code": 2}), "error.type is None"),
            (lambda one, two: one.update(status={"code": 1}), "only applications set the status Ok"),
            (lambda one, two: one.update(name="GET /a/b"), "name is 'GET /a/b'"),
            (lambda one, two: one.update(parentSpanId="e" * 16), "the parent of SERVER"),
            (lambda one, two: two.update(parentSpanId="f" * 16), "the parent of CLIENT"),
            (lambda one, two: two.update(traceId="b" * 32), "trace ids differ"),
            (lambda one, two: two.update(spanId="1" * 16), "span ids are not unique"),
            (lambda one, two: two.update(kind=semconv.SERVER), "2 SERVER spans"),
            (lambda one, two: two.update(kind=1), "kind is 1"),
            (lambda one, two: one.update(endTimeUnixNano="9"), "it begins at 10 and ends at 9"),
            (lambda one, two: one.update(events=[{"name": "e", "timeUnixNano": "21"}]), "event e is outside"),
            (lambda one, two: one["attributes"].append(text("url.path", "/a")), "url.path is there twice"),
        ]
        for fault, message in faults:
            with self.subTest(message):
                server, client = spans()
                fault(server, client)
                try:
                    found = semconv.trace_problems([server, client], "f" * 16)
                except (KeyError, ValueError) as error:
                    found = [str(error)]
                self.assertTrue(any(message in problem for problem in found), found)

    def test_attempts_are_counted_in_order_of_time(self):
        server, client = spans()
        second = copy.deepcopy(client)
        second.update(spanId="3" * 16, startTimeUnixNano="15")
        second["attributes"].append(number("http.request.resend_count", 1))
        self.assertEqual(semconv.resends([server, second, client]), [0, 1])


if __name__ == "__main__":
    unittest.main()
