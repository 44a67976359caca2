"""Owns the client of the `tls-new` case: new TLS 1.3 connections without resumption, one request on each.

wrk is of no use here: it resumes sessions. Usage: handshakes.py PORT SECONDS CONCURRENCY; prints one line of JSON.
"""

import json
import selectors
import socket
import ssl
import sys
import time

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
WANTS = {ssl.SSLWantReadError: selectors.EVENT_READ, ssl.SSLWantWriteError: selectors.EVENT_WRITE}


def connection(port: int, context: ssl.SSLContext):
    """One connection from start to end, as a generator that yields what it waits for; returns a fault, or ''."""
    plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    plain.setblocking(False)
    # The request goes out right behind the handshake's last message; Nagle's algorithm would hold it for 40 ms.
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.connect_ex(("127.0.0.1", port))
    yield plain, selectors.EVENT_WRITE
    tls = context.wrap_socket(plain, server_hostname="localhost", do_handshake_on_connect=False)
    try:
        yield from patiently(tls, tls.do_handshake)
        if tls.session_reused:
            return "a session was resumed"
        yield from patiently(tls, lambda: tls.send(REQUEST))
        answer = b""
        while piece := (yield from patiently(tls, lambda: tls.recv(4096))):
            answer += piece
        return "" if answer.startswith(b"HTTP/1.1 200 ") else f"unexpected answer {answer[:40]!r}"
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


def run(port: int, seconds: float, concurrency: int) -> dict:
    selector = selectors.DefaultSelector()
    tls = context()
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
            active += advance(connection(port, tls))

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
    print(json.dumps(run(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))))
