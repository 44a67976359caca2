"""Owns the client of the `tls-new` case: new TLS 1.3 connections without resumption, one request on each.

wrk is of no use here: it resumes sessions. Usage: handshakes.py PORT SECONDS CONCURRENCY [ADDRESS PATH STATUS NAMES]; prints one line of JSON. NAMES is a file
with a server name on each line, which connections use in turn.
"""

import itertools
import json
import selectors
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WANTS = {ssl.SSLWantReadError: selectors.EVENT_READ, ssl.SSLWantWriteError: selectors.EVENT_WRITE}


@dataclass(frozen=True)
class Target:
    """Where connections go, and what they ask for."""

    port: int
    address: str = "127.0.0.1"
    path: str = "/"
    status: int = 200
    names: tuple[str, ...] = ("localhost",)


def connection(target: Target, name: str, context: ssl.SSLContext):
    """One connection from start to end, as a generator that yields what it waits for; returns a fault, or ''."""
    plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    plain.setblocking(False)
    # The request goes out right behind the handshake's last message; Nagle's algorithm would hold it for 40 ms.
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.connect_ex((target.address, target.port))
    yield plain, selectors.EVENT_WRITE
    tls = context.wrap_socket(plain, server_hostname=name, do_handshake_on_connect=False)
    request = f"GET {target.path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode()
    try:
        yield from patiently(tls, tls.do_handshake)
        if tls.session_reused:
            return "a session was resumed"
        yield from patiently(tls, lambda: tls.send(request))
        answer = b""
        while piece := (yield from patiently(tls, lambda: tls.recv(4096))):
            answer += piece
        return "" if answer.startswith(b"HTTP/1.1 %d " % target.status) else f"unexpected answer {answer[:40]!r}"
    except (OSError, ssl.SSLError) as error:
        return str(error)
    finally:
        tls.close()


def patiently(tls: ssl.SSLSocket, operation):
    """Retries a non-blocking operation each time it can go on."""
    while True:
        try:
            return operation()
        except tuple(WANTS) as wait:
            yield tls, WANTS[type(wait)]


def context() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.set_alpn_protocols(["http/1.1"])
    return made


def run(target: Target, seconds: float, concurrency: int) -> dict:
    selector = selectors.DefaultSelector()
    tls = context()
    names: Iterator[str] = itertools.cycle(target.names)
    started = time.monotonic()
    done, faults, active = 0, [], 0

    def advance(client) -> bool:
        nonlocal done
        try:
            waits_for, events = next(client)
        except StopIteration as end:
            done += 1
            faults.extend([end.value] if end.value else [])
            return False
        selector.register(waits_for, events, client)
        return True

    def begin() -> None:
        nonlocal active
        if time.monotonic() - started < seconds:
            active += advance(connection(target, next(names), tls))

    for _ in range(concurrency):
        begin()
    while active and time.monotonic() - started < seconds + 5:
        for key, _ in selector.select(timeout=1):
            selector.unregister(key.fileobj)
            if not advance(key.data):
                active -= 1
                begin()
    if active:
        faults.append(f"{active} connections did not end")
    fault = f"{len(faults)} faults, the first: {faults[0]}" if faults else ""
    return {"connections": done, "seconds": time.monotonic() - started, "fault": fault}


if __name__ == "__main__":
    port, seconds, concurrency, *more = sys.argv[1:]
    target = Target(int(port), more[0], more[1], int(more[2]), tuple(Path(more[3]).read_text().split())) if more else Target(int(port))
    print(json.dumps(run(target, float(seconds), int(concurrency))))
