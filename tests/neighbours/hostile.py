"""The hostile client: attacks in turns, two at a time, or all together, each with a bounded number of connections and calls. A line per attack, and at the end what was sent."""

import asyncio
import contextlib
import json
import logging
import os
import resource
import socket
import ssl
import struct
import sys
import time

import hostile_http3
import http2
from attack import ADDRESS, HOST, SENT, Attack, repeat
from http2 import DATA, END_HEADERS, END_STREAM, HEADERS, frame, reset

PREFACE = http2.PREFACE

BAD_REQUESTS = [
    b"GET /one/x HTTP/1.1\r\n\r\n",
    b"GET /one/x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET /one/x HTTP/9.9\r\nHost: hostile.test\r\n\r\n",
    b"POST /one/x HTTP/1.1\r\nHost: hostile.test\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    b"POST /two/x HTTP/1.1\r\nHost: hostile.test\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /two/x HTTP/1.1\r\nHost: hostile.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloXX5\r\n",
    b"POST /two/x HTTP/1.1\r\nHost: hostile.test\r\nContent-Length: -1\r\n\r\n",
    b"POST /one/x HTTP/1.1\r\nHost: hostile.test\r\nContent-Length: 100000\r\n\r\nnot all of it",
    b"GET /one/x HTTP/1.1\r\nHost: hostile.test\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
    b"GET /one/" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: hostile.test\r\n\r\n",
    b"GET /one/x HTTP/1.1\r\nHost: hostile.test\r\nA: \x00\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100,
    b"CONNECT hostile.test:80 HTTP/1.1\r\nHost: hostile.test\r\n\r\n",
    os.urandom(500),
]
GET = http2.request(HOST, "/one/x")
# Streams of a connection, of which the proxy permits 100.
STREAMS = 95
# How long an attack takes if all come together.
ROUND = 20
HELLO = PREFACE + http2.settings()
# Long beginnings without an end: of a head, of a header block, and of a ClientHello of 65,280 bytes in records of 15 KiB.
HEAD = b"GET /one/x HTTP/1.1\r\nHost: hostile.test\r\nX: " + b"x" * 56_000
BLOCK = HELLO + frame(HEADERS, 0, 1, GET) + frame(http2.CONTINUATION, 0, 1, b"\0\1x\x7f\x80\xff\3" + b"x" * 16_000) + frame(http2.CONTINUATION, 0, 1, b"x" * 16_000)
HANDSHAKE = struct.pack(">BHHI", 22, 0x0301, 15 << 10, 0x0100FF00) + bytes((15 << 10) - 4) + (struct.pack(">BHH", 22, 0x0301, 15 << 10) + bytes(15 << 10)) * 3
BAD_FRAMES = [
    PREFACE + b"GET / HTTP/1.1\r\n\r\n",
    HELLO + frame(DATA, 0, 0, b"x"),
    HELLO + frame(DATA, 0, 5, b"x"),
    HELLO + frame(HEADERS, END_HEADERS | END_STREAM, 2, GET),
    HELLO + frame(HEADERS, END_HEADERS | END_STREAM, 1, http2.block([("UPPER", "x")])),
    HELLO + frame(HEADERS, END_HEADERS | END_STREAM, 1, http2.request(HOST, "/one/x", "GET", ("connection", "close"))),
    HELLO + frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\xff" * 50),
    HELLO + frame(HEADERS, END_STREAM, 1, GET) + frame(http2.PING, 0, 0, b"x" * 8),
    HELLO + frame(HEADERS, 0, 1, GET) + frame(http2.CONTINUATION, 0, 1, b"") * 200,
    HELLO + frame(HEADERS, END_HEADERS, 1, http2.request(HOST, "/two/x", "POST", ("content-length", "3"))) + frame(DATA, END_STREAM, 1, b"too long"),
    HELLO + frame(HEADERS, END_HEADERS, 1, http2.request(HOST, "/two/x", "POST")) + frame(DATA, 0, 1) * 300,
    HELLO + http2.update(0, 0x7FFFFFFF) * 2,
    HELLO + frame(HEADERS, END_HEADERS | END_STREAM, 1, http2.request(HOST, "/one/large")) + http2.update(1, 0x7FFFFFFF) * 2,
    HELLO + http2.settings(_4=0x80000000),
    HELLO + frame(http2.WINDOW_UPDATE, 0, 0, b"\0" * 4),
    HELLO + frame(http2.PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + GET),
    HELLO + b"\xff\xff\xff" + bytes((DATA, 0, 0, 0, 0, 1)),
]


def http1(path: str, method: str = "GET", more: str = "") -> bytes:
    SENT["requests"] += 1
    return f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\n{more}\r\n".encode()


def streams(paths: list[str], *more: tuple[str, str]) -> bytes:
    SENT["requests"] += len(paths)
    return b"".join(frame(HEADERS, END_HEADERS | END_STREAM, 2 * at + 1, http2.request(HOST, path, "GET", *more)) for at, path in enumerate(paths))


async def unread_responses(attack: Attack) -> None:
    """Large responses over HTTP/1.1 that are not read."""
    for at in range(30):
        await attack.connect(http1(f"/{('one', 'two')[at % 2]}/large"))


async def unread_streams(attack: Attack) -> None:
    """Large responses within windows of which none grows, and behind closed windows."""
    for at in range(8):
        window = (0, 0x7FFFFFFF, 65535, 1)[at % 4]
        await attack.connect(PREFACE + http2.settings(_4=window) + streams([f"/{('two', 'one')[at // 4]}/large"] * (40 if at < 4 else 10)))


async def unread_events(attack: Attack) -> None:
    """Many small frames of responses that are not read: of the connection, or of its streams."""
    for at in range(6):
        hello = PREFACE + http2.settings(_4=(65535, 0)[at % 2])
        await attack.connect(hello + streams([f"/{('two', 'one')[at // 4]}/events"] * STREAMS), reads=at % 2 == 1)


async def many_events(attack: Attack) -> None:
    """Many small frames of responses, read at once."""

    async def call(number: int) -> None:
        await attack.connect(http1(f"/{('one', 'two')[number % 2]}/many"), reads=True)

    await repeat(2, call)


class Uploader(http2.Connection):
    """Sends bodies in equal frames."""

    def __init__(self):
        super().__init__()
        self.next = 1

    def begin(self, path: str, data: bytes, times: int) -> None:
        SENT["requests"] += 1
        SENT["parts of bodies"] += times
        stream, self.next = self.next, self.next + 2
        self.windows[stream] = self.initial
        self.transport.write(frame(HEADERS, END_HEADERS, stream, http2.request(HOST, path, "POST")))
        self.send(stream, data, times)


@contextlib.asynccontextmanager
async def uploaders(port: int, count: int):
    loop, clients = asyncio.get_running_loop(), []
    try:
        for _ in range(count):
            clients.append((await loop.create_connection(Uploader, "127.0.0.1", port, local_addr=(ADDRESS, 0)))[1])
        yield clients
    finally:
        for client in clients:
            client.transport.abort()


async def small_frames(attack: Attack) -> None:
    """Uploads in frames of 20 bytes."""
    async with uploaders(attack.port, 4) as clients:

        async def call(number: int) -> None:
            client = clients[number % len(clients)]
            if client.is_open and not client.is_going and len(client.unsent) < 50:
                client.begin(f"/{('two', 'one')[number // 4 % 2]}/call", b"z" * 20, 400)

        await repeat(10, call)


async def unread_uploads(attack: Attack) -> None:
    """Bodies that backends do not read."""
    async with uploaders(attack.port, 4) as clients:
        for at, client in enumerate(clients * 24):
            client.begin(f"/{('two', 'one')[at % 2]}/deaf", b"u" * http2.MAX_FRAME, 64)
        await asyncio.Event().wait()


async def long_heads(attack: Attack) -> None:
    """Long heads of requests that wait."""
    long = [(f"x-{at}", "x" * 10000) for at in range(5)]
    parts = [http2.request(HOST, "/two/deaf"), *(http2.block([each]) for each in long)]
    for _ in range(20):
        SENT["requests"] += STREAMS
        heads = (frame(HEADERS if at == 0 else http2.CONTINUATION, (END_STREAM if at == 0 else 0) | (END_HEADERS if at == 5 else 0), 2 * stream + 1, part) for stream in range(STREAMS) for at, part in enumerate(parts))
        await attack.connect(HELLO + b"".join(heads), reads=True)


async def informational_responses(attack: Attack) -> None:
    """Many informational responses that are not read."""
    for at in range(30):
        path = f"/{('one', 'two')[at % 2]}/informed"
        await attack.connect(http1(path) if at < 24 else HELLO + streams([path] * STREAMS))


async def compressed_responses(attack: Attack) -> None:
    """Long responses that are compressed: read, not read, and behind closed windows."""
    for at in range(12):
        path, encoding = f"/{('one', 'two')[at % 2]}/text", ("gzip", "br", "zstd")[at // 4]
        if at % 4 < 3:
            await attack.connect(http1(path, more=f"Accept-Encoding: {encoding}\r\n"), reads=at % 4 == 0)
        else:
            await attack.connect(PREFACE + http2.settings(_4=0) + streams([path] * STREAMS, ("accept-encoding", encoding)))


async def pipelines(attack: Attack, request) -> None:
    """Sends what `request` returns on connections that are read."""
    clients = [await attack.connect(reads=True) for _ in range(4)]

    async def call(number: int) -> None:
        await attack.send(clients[number % len(clients)], b"".join(request() for _ in range(20)))

    await repeat(20, call)


async def limited_requests(attack: Attack) -> None:
    """Requests over limits, each with another key."""
    await pipelines(attack, lambda: http1("/limited", more=f"X-Key: {os.urandom(100).hex()}\r\n"))


async def long_lines(attack: Attack) -> None:
    """Requests with much to tell in logs and traces."""
    await pipelines(attack, lambda: http1(f"/one/{'x' * 2000}/x", more=f"User-Agent: {'a' * 1000}\r\n"))


async def single_bytes(attack: Attack) -> None:
    """Chunks of one byte each, without end."""
    head = "Transfer-Encoding: chunked\r\n"
    clients = [await attack.connect(http1(f"/{('one', 'two')[at % 2]}/late", "POST", head)) for at in range(50)]

    async def call(_number: int) -> None:
        SENT["small parts"] += len(clients)
        for client in clients:
            attack.drip(client, b"1\r\nx\r\n")

    await repeat(40, call)


async def slow_uploads(attack: Attack) -> None:
    """Heads and bodies that take their time."""
    begun = [b"GET /one/x HTTP/1.1\r\nHost: hostile.test\r\nX: "] * 20 + [http1("/one/call", "POST", "Content-Length: 1000000\r\n")] * 30
    clients = [(await attack.connect(data), b"x") for data in begun]
    for _ in range(5):
        head = b"".join(frame(HEADERS, END_HEADERS, at, http2.request(HOST, "/two/call", "POST")) for at in range(1, 40, 2))
        clients.append((await attack.connect(HELLO + head), b"".join(frame(DATA, 0, at, b"x") for at in range(1, 40, 2))))

    async def call(_number: int) -> None:
        for client, data in clients:
            attack.drip(client, data)

    await repeat(5, call)


async def bad_requests(attack: Attack) -> None:
    """Requests that no server accepts."""

    async def call(number: int) -> None:
        SENT["bad requests"] += 1
        await attack.once(BAD_REQUESTS[number % len(BAD_REQUESTS)])

    await repeat(100, call)


async def bad_frames(attack: Attack) -> None:
    """Frames that violate HTTP/2."""

    async def call(number: int) -> None:
        SENT["bad requests"] += 1
        await attack.once(BAD_FRAMES[number % len(BAD_FRAMES)])

    await repeat(60, call)


async def cancelled_calls(attack: Attack) -> None:
    """Calls that are cancelled when a backend has them."""

    async def call(number: int) -> None:
        SENT["requests"] += 20
        path = f"/{('one', 'two')[number % 2]}/late"
        calls = b"".join(frame(HEADERS, END_HEADERS | END_STREAM, at, http2.request(HOST, path)) + reset(at) for at in range(1, 20, 2))
        late = b"".join(frame(HEADERS, END_HEADERS | END_STREAM, at, http2.request(HOST, path)) for at in range(21, 40, 2))
        client = await attack.connect(HELLO + calls + late)
        await asyncio.sleep(0.02)
        await attack.send(client, b"".join(reset(at) for at in range(21, 40, 2)))
        await attack.once(http1(path))
        client.close()
        attack.sockets.remove(client)

    await repeat(10, call)


async def failing_backends(attack: Attack) -> None:
    """Requests that make backends fail, all of them at the endpoints of the others."""

    async def call(number: int) -> None:
        path = f"/{('one', 'two')[number % 2]}/{('cut', 'partial', 'malformed', 'empty')[number // 2 % 4]}"
        await attack.once(http1(path) if number // 8 % 2 else HELLO + streams([path]))

    await repeat(40, call)


async def floods(attack: Attack) -> None:
    """Frames that need an answer each, which is not read."""
    clients = [await attack.connect(HELLO) for _ in range(3)]
    flood = [frame(http2.PING, 0, 0, b"x" * 8) * 100, http2.settings(_4=100) * 100, frame(http2.PRIORITY, 0, 1, b"\0\0\0\0\1") * 100]

    async def call(_number: int) -> None:
        SENT["small parts"] += 300
        for client, data in zip(clients, flood, strict=True):
            attack.drip(client, data)

    await repeat(20, call)


async def unread_websockets(attack: Attack) -> None:
    """Tunnels whose client sends and does not read."""
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    clients = [await attack.connect(http1("/one/websocket", more=upgrade)) for _ in range(20)]
    message = struct.pack(">HHI", 0x82FE, 4000, 0) + b"w" * 4000
    await asyncio.sleep(0.2)

    async def flood(client: socket.socket) -> None:
        for _ in range(500):
            await attack.send(client, message)
            await asyncio.sleep(0.05)

    for client in clients:
        attack.start(flood(client))


async def idle_connections(attack: Attack) -> None:
    """A hundred connections on which nothing happens, of each port."""
    for at in range(200):
        await attack.connect(port=(attack.port, attack.tls_port)[at % 2])


async def unfinished_heads(attack: Attack) -> None:
    """Long heads and header blocks without an end."""
    for at in range(200):
        await attack.connect((HEAD, BLOCK)[at % 2])


async def unfinished_handshakes(attack: Attack) -> None:
    """Long handshakes without an end."""
    for _ in range(200):
        await attack.connect(HANDSHAKE, port=attack.tls_port)


async def unread_tls(attack: Attack) -> None:
    """Large responses over TLS that are not read."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    for at in range(30):
        # Beyond its limit, a reader reads no more.
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", attack.tls_port, ssl=tls, server_hostname=HOST, local_addr=(ADDRESS, 0), limit=1024)
            attack.writers.append(writer)
            SENT["connections"] += 1
            writer.write(http1(f"/{('one', 'two')[at % 2]}/large"))


ATTACKS = [
    unread_streams, small_frames, bad_requests, unread_events, cancelled_calls, slow_uploads, many_events, failing_backends, unread_responses,
    single_bytes, bad_frames, unread_websockets, idle_connections, floods, unread_uploads, long_heads, informational_responses, compressed_responses,
    limited_requests, long_lines, unfinished_heads, unfinished_handshakes, unread_tls, *hostile_http3.ATTACKS,
]  # fmt: skip


async def carry_out(attack_of, ports: tuple[int, int], seconds: float) -> None:
    attack = Attack(*ports)
    try:
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError):
                await attack_of(attack)
            await asyncio.sleep(seconds)
    except TimeoutError:
        pass
    finally:
        await attack.end()


async def in_turns(attacks: list, ports: tuple[int, int], seconds: float) -> None:
    slot = max(1, min(5, seconds / len(attacks)))
    until, running, at = time.monotonic() + seconds, [], 0
    while (left := until - time.monotonic()) > 0.1:
        attack = attacks[at % len(attacks)]
        print("next: " + attack.__name__.replace("_", " "), flush=True)
        running.append(asyncio.create_task(carry_out(attack, ports, min(2 * slot, left))))
        at += 1
        await asyncio.sleep(min(slot, left))
    await asyncio.gather(*running)


async def together(attacks: list, ports: tuple[int, int], seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0.1:
        print(f"next: all {len(attacks)} attacks", flush=True)
        await asyncio.gather(*(carry_out(attack, ports, min(ROUND, left)) for attack in attacks))


async def main(ports: tuple[int, int], seconds: float, only: str, order: str) -> None:
    # They warn of data that is sent on a connection that the peer has closed, as is usual here.
    for logger in "asyncio", "quic":
        logging.getLogger(logger).setLevel(logging.ERROR)
    os.nice(5)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    attacks = [attack for attack in ATTACKS if only in attack.__name__]
    await (together if order == "together" else in_turns)(attacks, ports, seconds)
    print(json.dumps(SENT), flush=True)


asyncio.run(main((int(sys.argv[1]), int(sys.argv[2])), float(sys.argv[3]), *sys.argv[4:]))
