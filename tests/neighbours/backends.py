"""The backends that all clients share: one over HTTP/1.1 and one over HTTP/2 without TLS, each with several endpoints. The path says how to answer."""

import asyncio
import collections
import contextlib
import json
import logging
import struct
import sys

import http2
from http2 import END_HEADERS, END_STREAM, HEADERS, block, frame

ENDPOINTS = 3
SMALL, LARGE, EVENT, EVENTS = b"x" * 1000, b"y" * (1 << 20), b"data: an event 0123\n", {"events": 1500, "many": 12000}
# A response that compresses well, and the fields of an informational response, of which a request gets many.
TEXT, HINTS, LINK = b"a line of a text of 32 characters" * (100 << 15), 100, "</" + "x" * 1000 + ">; rel=preload"
DELAY = 3
# asyncio moves what it has not sent at every write.
PIECE = 1 << 16
OK = block([(":status", "200")])
OK_TEXT = block([(":status", "200"), ("content-type", "text/plain")])
HINT = block([(":status", "103"), ("link", LINK)])


class Backend(http2.Connection):
    """Serves HTTP/2."""

    is_client = False

    def __init__(self):
        super().__init__()
        self.requests, self.unheard = {}, collections.Counter()

    def consume(self, stream: int, count: int) -> None:
        if stream in self.requests and self.requests[stream][0].endswith("/deaf"):
            self.unheard[stream] += count
        else:
            super().consume(stream, count)

    def on_headers(self, stream: int, headers: dict) -> None:
        if stream not in self.requests:
            self.requests[stream] = (headers.get(":path", "/deaf"), bytearray())

    def on_data(self, stream: int, data: bytes) -> None:
        if stream in self.requests and len(self.requests[stream][1]) < len(LARGE):
            self.requests[stream][1].extend(data)

    def on_reset(self, stream: int, _code: int) -> None:
        self.requests.pop(stream, None)
        self.unread += self.unheard.pop(stream, 0)

    def on_lost(self) -> None:
        self.requests.clear()

    def on_end(self, stream: int) -> None:
        if (found := self.requests.pop(stream, None)) is None:
            return
        path, body = found[0].rsplit("/", 1)[-1], bytes(found[1])
        match path:
            case "late":
                asyncio.get_running_loop().call_later(DELAY, self.respond, stream, SMALL)
            case "large":
                self.respond(stream, LARGE)
            case "events" | "many":
                self.respond(stream, EVENT, EVENTS[path])
            case "text":
                self.respond(stream, TEXT, head=OK_TEXT)
            case "informed":
                self.write(frame(HEADERS, END_HEADERS, stream, HINT) * HINTS)
                self.respond(stream, SMALL)
            case "deaf":
                pass
            case "cut":
                self.write(http2.reset(stream, 2))
            case "partial":
                self.write(self.head(stream) + frame(http2.DATA, 0, stream, SMALL) + http2.reset(stream, 2))
            case "empty":
                self.write(self.head(stream) + frame(http2.DATA, 0, stream) * 20 + frame(http2.DATA, END_STREAM, stream))
            case "malformed":
                self.write(frame(HEADERS, END_HEADERS | END_STREAM, stream, block([(":status", "200"), (":path", "/")])))
            case "Call":
                head = frame(HEADERS, END_HEADERS, stream, block([(":status", "200"), ("content-type", "application/grpc")]))
                self.write(head)
                self.send(stream, body, trailers=block([("grpc-status", "0")]))
            case _:
                self.respond(stream, body or SMALL)

    def head(self, stream: int, block: bytes = OK) -> bytes:
        return frame(HEADERS, END_HEADERS, stream, block)

    def respond(self, stream: int, body: bytes, times: int = 1, head: bytes = OK) -> None:
        if stream in self.windows:
            self.write(self.head(stream, head))
            self.send(stream, body, times)

    def write(self, data: bytes) -> None:
        if self.is_open:
            self.transport.write(data)


async def http1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serves HTTP/1.1."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            path = head.split(" ", 2)[1].rsplit("/", 1)[-1]
            if "upgrade: websocket" in head:
                writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n")
                await websocket(reader, writer)
                return
            if path == "deaf":
                await asyncio.sleep(5 * DELAY)
                break
            if not await respond(path, await body(head, reader), writer):
                return
    writer.close()


async def body(head: str, reader: asyncio.StreamReader) -> bytes:
    received = bytearray()
    if "transfer-encoding: chunked" in head:
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            received += (await reader.readexactly(size + 2))[:-2]
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass
    elif "content-length: " in head:
        received += await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
    return bytes(received)


async def respond(path: str, received: bytes, writer: asyncio.StreamWriter) -> bool:
    """Reports whether the connection stays open."""
    if path == "cut":
        writer.close()
        return False
    if path == "partial":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + SMALL)
        writer.close()
        return False
    if path == "malformed":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n")
        return True
    if path in EVENTS:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(EVENTS[path] // 100):
            writer.write(b"%x\r\n%s\r\n" % (len(EVENT), EVENT) * 100)
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")
        return True
    if path == "late":
        await asyncio.sleep(DELAY)
    if path == "informed":
        for _ in range(HINTS):
            writer.write(f"HTTP/1.1 103 Early Hints\r\nLink: {LINK}\r\n\r\n".encode())
            await writer.drain()
    content = {"large": LARGE, "text": TEXT}.get(path, received or SMALL)
    kind = b"Content-Type: text/plain\r\n" if path == "text" else b""
    writer.write(b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n" % (kind, len(content)))
    for at in range(0, len(content), PIECE):
        writer.write(content[at : at + PIECE])
        await writer.drain()
    return True


async def websocket(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Returns each message of a client, whose frames are masked and have a length of 16 bits (RFC 6455, 5.2)."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            _, size, mask = struct.unpack(">HHI", await reader.readexactly(8))
            masked = await reader.readexactly(size)
            plain = int.from_bytes(masked, "big") ^ int.from_bytes((mask.to_bytes(4, "big") * (size // 4 + 1))[:size], "big")
            writer.write(struct.pack(">HH", 0x827E, size) + plain.to_bytes(size, "big"))
            await writer.drain()
    writer.close()


async def main() -> None:
    # Warns of data that is sent on a connection that the peer has closed, as is usual here.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    loop = asyncio.get_running_loop()
    first = [await asyncio.start_server(http1, "127.0.0.1", 0) for _ in range(ENDPOINTS)]
    second = [await loop.create_server(Backend, "127.0.0.1", 0) for _ in range(ENDPOINTS)]
    ports = [[server.sockets[0].getsockname()[1] for server in servers] for servers in (first, second)]
    print(json.dumps(ports), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


asyncio.run(main())
