"""Clients for WebSocket: frames are those of wsproto, over streams of HTTP/3 (RFC 9220, aioquic) and HTTP/2 (RFC 8441, h2), and over HTTP/1.1."""

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
from wsproto import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, Pong, TextMessage

from backend import CLOSED, filled
from objects import WEB
from quic import TIMEOUT, Aioquic

PROTOCOL = "echo.test"
FIELDS = [("sec-websocket-version", "13"), ("sec-websocket-protocol", f"other.test, {PROTOCOL}")]
READ = 1 << 16
LARGE = 1_000_000


@dataclass
class Socket:
    """What a client gets for the request of a WebSocket. `read` returns nothing at the end."""

    status: int
    headers: dict[str, str]
    read: Callable[[], Awaitable[bytes]]
    write: Callable[[bytes], Awaitable[None]]


def connect_lines(path: str) -> list[tuple[str, str]]:
    return [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "https"), (":authority", WEB), (":path", path), *FIELDS]


@contextlib.asynccontextmanager
async def over_h3(aioquic: Aioquic, _port: int, path: str) -> AsyncIterator[Socket]:
    async with aioquic.connect() as client:
        stream, exchange = client.open()
        client.http.send_headers(stream, [(name.encode(), value.encode()) for name, value in connect_lines(path)])
        client.transmit()
        await exchange.until(lambda it: it.answer.status)

        async def read() -> bytes:
            await exchange.until(lambda it: it.data)
            data = bytes(exchange.data)
            exchange.data.clear()
            if not data and exchange.answer.error:
                raise ConnectionResetError(exchange.answer.error)
            return data

        async def write(data: bytes) -> None:
            client.http.send_data(stream, data, False)
            client.transmit()

        yield Socket(exchange.answer.status, dict(exchange.answer.headers), read, write)


@contextlib.asynccontextmanager
async def tls(aioquic: Aioquic, port: int, alpn: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    context = ssl.create_default_context(cafile=aioquic.authority)
    context.set_alpn_protocols([alpn])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=WEB)
    try:
        yield reader, writer
    finally:
        writer.close()


class Http2:
    """One stream of a connection."""

    STREAM = 1

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader, self.writer = reader, writer
        self.connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.headers: dict[str, str] = {}
        self.data, self.is_over = bytearray(), False
        self.connection.initiate_connection()

    async def flush(self) -> None:
        self.writer.write(self.connection.data_to_send())
        await self.writer.drain()

    async def receive(self) -> None:
        data = await self.reader.read(READ)
        if not data:
            raise ConnectionResetError("the end of the connection")
        for event in self.connection.receive_data(data):
            match event:
                case h2.events.ResponseReceived():
                    self.headers = dict(event.headers)
                case h2.events.DataReceived():
                    self.data += event.data
                    self.connection.acknowledge_received_data(event.flow_controlled_length, self.STREAM)
                case h2.events.StreamEnded():
                    self.is_over = True
                case h2.events.StreamReset(error_code=h2.errors.ErrorCodes.NO_ERROR) if self.is_over:
                    # Asks for no more of the request after a whole response (RFC 9113, 8.1).
                    pass
                case h2.events.StreamReset() | h2.events.ConnectionTerminated():
                    raise ConnectionResetError(str(event))
        await self.flush()

    async def open(self, path: str) -> None:
        await self.flush()
        # Before the setting, a client must not send the request (RFC 8441, 3).
        while not self.connection.remote_settings.get(h2.settings.SettingCodes.ENABLE_CONNECT_PROTOCOL):
            await self.receive()
        self.connection.send_headers(self.STREAM, connect_lines(path))
        await self.flush()
        while not self.headers:
            await self.receive()

    async def read(self) -> bytes:
        while not self.data and not self.is_over:
            await self.receive()
        data = bytes(self.data)
        self.data.clear()
        return data

    async def write(self, data: bytes) -> None:
        while data:
            count = min(len(data), self.connection.local_flow_control_window(self.STREAM), self.connection.max_outbound_frame_size)
            if not count:
                await self.receive()
                continue
            self.connection.send_data(self.STREAM, data[:count])
            data = data[count:]
            await self.flush()


@contextlib.asynccontextmanager
async def over_h2(aioquic: Aioquic, port: int, path: str) -> AsyncIterator[Socket]:
    async with tls(aioquic, port, "h2") as (reader, writer):
        stream = Http2(reader, writer)
        await stream.open(path)
        yield Socket(int(stream.headers[":status"]), stream.headers, stream.read, stream.write)


@contextlib.asynccontextmanager
async def over_h1(aioquic: Aioquic, port: int, path: str) -> AsyncIterator[Socket]:
    async with tls(aioquic, port, "http/1.1") as (reader, writer):
        key = base64.b64encode(bytes(16)).decode()
        fields = [("host", WEB), ("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-key", key), *FIELDS]
        writer.write("".join([f"GET {path} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in fields), "\r\n"]).encode())
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().removesuffix("\r\n\r\n").split("\r\n")
        headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}

        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        # The status of an open WebSocket is 200 over the other protocols.
        status = int(first.split(" ")[1])
        yield Socket(200 if status == 101 else status, headers, lambda: reader.read(READ), write)


class Talk:
    """The frames of a WebSocket that is open."""

    def __init__(self, socket: Socket):
        self.socket, self.frames, self.parts = socket, Connection(ConnectionType.CLIENT), []

    async def send(self, event: Event) -> None:
        await self.socket.write(self.frames.send(event))

    async def receive(self) -> tuple:
        """The next message, pong or close."""
        while True:
            for event in self.frames.events():
                match event:
                    case Message():
                        self.parts.append(event.data)
                        if event.message_finished:
                            whole, self.parts = self.parts[0][:0].join(self.parts), []
                            return (type(event).__name__, whole if isinstance(whole, str) else bytes(whole))
                    case Pong():
                        return ("Pong", bytes(event.payload))
                    case CloseConnection():
                        return ("Close", event.code, event.reason)
            data = await self.socket.read()
            if not data:
                return ("End",)
            self.frames.receive_data(data)

    async def answer(self, event: Event) -> tuple:
        await self.send(event)
        return await self.receive()


async def messages(talk: Talk) -> None:
    """The client closes."""
    for size in (0, 5, 126, READ, LARGE):
        equal(await talk.answer(TextMessage("x" * size)), ("TextMessage", "x" * size))
        equal(await talk.answer(BytesMessage(filled(size))), ("BytesMessage", filled(size)))
    equal(await talk.answer(TextMessage("\u00e4\u20ac")), ("TextMessage", "\u00e4\u20ac"))
    equal(await talk.answer(Ping(b"ping")), ("Pong", b"ping"))
    await talk.send(TextMessage("in ", message_finished=False))
    equal(await talk.answer(TextMessage("parts")), ("TextMessage", "in parts"))
    equal(await talk.answer(CloseConnection(1000, "done")), ("Close", 1000, "done"))
    equal(await talk.socket.read(), b"")


async def closed(talk: Talk) -> None:
    """The backend closes."""
    equal(await talk.answer(TextMessage("close")), ("Close", *CLOSED))
    await talk.send(CloseConnection(CLOSED[0]))
    equal(await talk.socket.read(), b"")


def equal(found, expected) -> None:
    if found != expected:
        raise AssertionError(f"{str(found)[:200]} instead of {str(expected)[:200]}")


async def over_each(aioquic: Aioquic, port: int, path: str, status: int, talk: Callable[[Talk], Awaitable[None]] | None) -> None:
    """Opens a WebSocket over each protocol, with the same outcome."""
    for name, over in (("h1", over_h1), ("h2", over_h2), ("h3", over_h3)):
        try:
            async with asyncio.timeout(TIMEOUT), over(aioquic, port, path) as socket:
                equal((socket.status, socket.headers.get("sec-websocket-protocol")), (status, PROTOCOL if talk else None))
                if talk:
                    await talk(Talk(socket))
        except Exception as error:
            raise AssertionError(f"{name}: {error!r}") from error
