#!/usr/bin/env python3
"""A client that sends requests at a fixed rate on one connection, and reports how long responses took: from the time at which each request was
due, so that one that waits for others counts with its wait, and from the time at which it was sent.

    paced.py PORT HOST PATH RATE SECONDS
"""

import json
import socket
import sys
import time


def main() -> int:
    port, host, path, rate, seconds = sys.argv[1:]
    print(json.dumps(paced(int(port), (host, path), float(rate), float(seconds))))
    return 0


def paced(port: int, target: tuple[str, str], rate: float, seconds: float) -> dict:
    """Latencies of requests to a host and a path, in milliseconds."""
    host, path = target
    request = f"GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode()
    latencies, responses, fault = [], [], ""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start = time.monotonic()
        for number in range(round(rate * seconds)):
            due = start + number / rate
            wait = due - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            sent = time.monotonic()
            try:
                connection.sendall(request)
                response = whole(connection)
            except OSError as error:
                fault = str(error)
                break
            if not response.startswith(b"HTTP/1.1 200"):
                fault = "a response was " + response.partition(b"\r\n")[0].decode()
                break
            received = time.monotonic()
            latencies.append((received - due) * 1000)
            responses.append((received - sent) * 1000)
    return {"latencies": summary(latencies), "responses": summary(responses), "requests": len(latencies), "fault": fault}


def whole(connection: socket.socket) -> bytes:
    """A response with a content length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += part(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length:
        body += part(connection)
    return data


def part(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("the connection was closed")
    return data


def summary(latencies: list[float]) -> dict[str, float]:
    """The median, the slowest of a hundred and of a thousand, and the slowest."""
    ordered = sorted(latencies)
    at = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    found = {name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] for name, share in at.items()} if ordered else {}
    return {name: round(value, 3) for name, value in {**found, **({"max": ordered[-1]} if ordered else {})}.items()}


if __name__ == "__main__":
    sys.exit(main())
