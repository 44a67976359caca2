"""The polite clients: 200 calls per second over HTTP/1.1 in plain text and TLS, HTTP/2, HTTP/3, gRPC and WebSocket. A line per second says which calls ended, as JSON."""

import asyncio
import json
import os
import ssl
import struct
import sys
import time

import http2
import http3
from http2 import END_HEADERS, END_STREAM, HEADERS, frame

RATE, TIMEOUT = 200, 10
HOST, GRPC_HOST = "polite.test", "grpc.test"
# Turns of the protocols: of 11 calls, so that each of them has all bodies and paths.
TURNS = ["HTTP/1.1", "HTTP/2", "gRPC", "HTTP/1.1", "WebSocket", "HTTP/2", "HTTPS", "gRPC", "HTTP/2", "WebSocket", "HTTP/3"]
# Calls of a TLS connection, over TCP or QUIC: each further one needs a handshake.
CALLS_PER_TLS = 5
HTTP2_CONNECTIONS, HTTP3_CONNECTIONS, WEBSOCKETS, CALLS_PER_WEBSOCKET = 4, 4, 8, 50


class Failed(Exception):
    pass


def check(found, expected) -> None:
    if found != expected:
        raise Failed(f"{str(found)[:100]} instead of {str(expected)[:100]}")


def body(number: int) -> bytes:
    """Nothing for half of the calls, else 4 KB, and at times 64 KiB."""
    if number % 2:
        return b""
    return os.urandom(2048).hex().encode() * (16 if number % 50 == 0 else 1)


class Http1:
    def __init__(self, port: int, tls: ssl.SSLContext | None = None):
        self.port, self.idle = port, []
        self.tls = {"ssl": tls, "server_hostname": HOST} if tls else {}

    async def call(self, number: int) -> None:
        while self.idle and self.idle[-1][0].at_eof():
            self.idle.pop()[1].close()
        reader, writer, calls = self.idle.pop() if self.idle else (*await asyncio.open_connection("127.0.0.1", self.port, **self.tls), 1)
        try:
            content = body(number)
            path = f"/{('one', 'two')[number // 2 % 2]}/call"
            head = f"{'POST' if content else 'GET'} {path} HTTP/1.1\r\nHost: {HOST}\r\n" + (f"Content-Length: {len(content)}\r\n" if content else "")
            writer.write(head.encode() + b"\r\n" + content)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            check(head[:13], "http/1.1 200 ")
            received = await self.read(head, reader)
            check(received, content or b"x" * 1000)
        except BaseException:
            writer.close()
            raise
        if self.tls and calls == CALLS_PER_TLS:
            writer.close()
        else:
            self.idle.append((reader, writer, calls + 1))

    async def read(self, head: str, reader) -> bytes:
        if "content-length: " in head:
            return await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
        received = bytearray()
        while size := int(await reader.readuntil(b"\r\n"), 16):
            received += (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
        return bytes(received)


class Call:
    def __init__(self):
        self.heads, self.data, self.done = [], bytearray(), asyncio.get_running_loop().create_future()

    def end(self, error: str | None = None) -> None:
        if not self.done.done():
            self.done.set_result(error)


class Calls:
    """The calls of a connection, by their streams."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.calls: dict[int, Call] = {}

    def on_headers(self, stream: int, headers: dict) -> None:
        if stream in self.calls:
            self.calls[stream].heads.append(headers)

    def on_data(self, stream: int, data: bytes) -> None:
        if stream in self.calls:
            self.calls[stream].data += data

    def on_end(self, stream: int) -> None:
        if stream in self.calls:
            self.calls[stream].end()

    def on_reset(self, stream: int, code: int) -> None:
        if stream in self.calls:
            self.calls[stream].end(f"the stream was reset: {code:#x}")

    def on_lost(self) -> None:
        for call in self.calls.values():
            call.end("the connection was closed")


class Client(Calls, http2.Connection):
    def __init__(self):
        super().__init__()
        self.next = 1

    async def call(self, host: str, path: str, content: bytes, *headers) -> Call:
        stream, call = self.next, Call()
        self.next += 2
        self.calls[stream], self.windows[stream] = call, self.initial
        encoded = http2.request(host, path, "POST" if content else "GET", *headers)
        self.transport.write(frame(HEADERS, END_HEADERS | (0 if content else END_STREAM), stream, encoded))
        if content:
            self.send(stream, content)
        try:
            if error := await call.done:
                raise Failed(error)
        finally:
            del self.calls[stream]
            self.forget(stream)
        return call

    def on_going(self, last: int, code: int) -> None:
        for stream, call in self.calls.items():
            if stream > last:
                call.end(f"GOAWAY {code}")


class Http2:
    def __init__(self, port: int):
        self.port, self.connections = port, [None] * HTTP2_CONNECTIONS

    async def connection(self, number: int) -> Client:
        at = number % HTTP2_CONNECTIONS
        found = self.connections[at]
        if found is None or not found.is_open or found.is_going:
            # Calls that arrive during the connect have connections of their own.
            _, found = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", self.port)
            self.connections[at] = found
        return found

    async def call(self, number: int) -> None:
        content = body(number)
        client = await self.connection(number)
        call = await client.call(HOST, f"/{('one', 'two')[number // 2 % 2]}/call", content)
        check(call.heads[0].get(":status"), "200")
        check(bytes(call.data), content or b"x" * 1000)

    async def grpc(self, number: int) -> None:
        message = os.urandom(100)
        content = struct.pack(">BI", 0, len(message)) + message
        client = await self.connection(number)
        call = await client.call(GRPC_HOST, "/neighbours.Echo/Call", content, ("content-type", "application/grpc"), ("te", "trailers"))
        check((call.heads[0].get(":status"), call.heads[-1].get("grpc-status")), ("200", "0"))
        check(bytes(call.data), content)


class QuicClient(Calls, http3.Connection):
    async def call(self, path: str, content: bytes) -> Call:
        stream, call = self.request(HOST, path, content), Call()
        self.calls[stream] = call
        self.transmit()
        try:
            if error := await call.done:
                raise Failed(error)
        finally:
            del self.calls[stream]
        return call


class Http3:
    """Connections with a call at a time, which are replaced from time to time."""

    def __init__(self, port: int):
        self.port, self.idle = port, []

    async def call(self, number: int) -> None:
        while self.idle and self.idle[0][0].is_over:
            self.idle.pop(0)[0].end()
        # The one that has waited longest, so that all are used.
        is_reused = len(self.idle) >= HTTP3_CONNECTIONS
        client, left = self.idle.pop(0) if is_reused else (await http3.connect(QuicClient, self.port, HOST), CALLS_PER_TLS)
        try:
            content = body(number)
            call = await client.call(f"/{('one', 'two')[number // 2 % 2]}/call", content)
            check(call.heads[0].get(":status"), "200")
            check(bytes(call.data), content or b"x" * 1000)
        except BaseException:
            client.end()
            raise
        if left > 1:
            self.idle.append((client, left - 1))
        else:
            client.end()


class WebSockets:
    """Connections that are replaced from time to time."""

    def __init__(self, port: int):
        self.port, self.idle = port, []

    async def open(self):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = f"GET /one/websocket HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        writer.write(head.encode() + b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
        check((await reader.readuntil(b"\r\n\r\n"))[:13], b"HTTP/1.1 101 ")
        return reader, writer, CALLS_PER_WEBSOCKET

    async def call(self, _number: int) -> None:
        # The one that has waited longest, so that all are used.
        reader, writer, left = self.idle.pop(0) if len(self.idle) >= WEBSOCKETS else await self.open()
        message = os.urandom(200)
        writer.write(struct.pack(">HHI", 0x82FE, len(message), 0) + message)
        check(await reader.readexactly(4 + len(message)), struct.pack(">HH", 0x827E, len(message)) + message)
        if left > 1:
            self.idle.append((reader, writer, left - 1))
        else:
            writer.close()


class Load:
    def __init__(self, port: int, tls_port: int):
        second, tls = Http2(port), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # The certificate is the proxy's own.
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        self.protocols = {"HTTP/1.1": Http1(port).call, "HTTPS": Http1(tls_port, tls).call, "HTTP/2": second.call, "gRPC": second.grpc}
        self.protocols |= {"HTTP/3": Http3(tls_port).call, "WebSocket": WebSockets(port).call}
        self.ended, self.running = [], set()

    async def call(self, protocol: str, number: int) -> None:
        begin, failure = time.monotonic(), None
        try:
            await asyncio.wait_for(self.protocols[protocol](number), TIMEOUT)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        self.ended.append((protocol, begin, (time.monotonic() - begin) * 1000, failure))

    async def run(self, until: float) -> None:
        start = reported = time.monotonic()
        number = 0
        while (now := time.monotonic()) < until:
            # What is late is sent at once: a slow answer delays no call.
            while number < (now - start) * RATE:
                task = asyncio.create_task(self.call(TURNS[number % len(TURNS)], number))
                self.running.add(task)
                task.add_done_callback(self.running.discard)
                number += 1
            if now - reported >= 1:
                self.report()
                reported = now
            await asyncio.sleep(max(0, start + number / RATE - time.monotonic()))
        if self.running:
            await asyncio.wait(self.running)
        self.report()

    def report(self) -> None:
        print(json.dumps(self.ended), flush=True)
        self.ended = []


asyncio.run(Load(int(sys.argv[1]), int(sys.argv[2])).run(time.monotonic() + float(sys.argv[3])))
