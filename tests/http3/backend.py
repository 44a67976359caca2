"""A backend of HTTP/1.1 that does what the path of a request says, and a gRPC server that sends messages back."""

import asyncio
import base64
import contextlib
import hashlib
import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import grpc
from wsproto import ConnectionState, ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Message, Ping
from wsproto.events import Request as Upgrade

PATTERN = b"0123456789abcdef"
PAGE = b"<!doctype html><title>page</title><script>performance.mark('shown')</script>"
# Of a body that is sent slowly: parts, their size, and the seconds between them.
PARTS, PART, PAUSE = 40, 16 << 10, 0.01
# Code and reason with which a WebSocket is closed on request.
CLOSED = (4001, "asked for")
# Differs from request to request.
RANDOM = "x-request-id"
# Of a request without content, which is one with an empty body if its end does not come with its head.
FRAMING = ("content-length", "transfer-encoding")


def filled(size: int) -> bytes:
    return (PATTERN * (size // len(PATTERN) + 1))[:size]


class Request:
    def __init__(self, head: bytes):
        first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        self.method, self.target, _ = first.split(" ")
        self.headers = [(name.lower(), value.strip()) for name, value in (line.split(":", 1) for line in lines)]
        self.trailers: list[tuple[str, str]] = []

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


class Backend:
    """Its connections end with it. `ended` has an event for each key of `/hang/KEY` and `/endless/KEY`: the proxy has ended the request."""

    def __init__(self):
        self.ended, self.begun = defaultdict(asyncio.Event), defaultdict(asyncio.Event)

    async def start(self) -> int:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0, limit=1 << 20)
        return self.server.sockets[0].getsockname()[1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self.respond(Request(await reader.readuntil(b"\r\n\r\n")), reader, writer):
                await writer.drain()
        writer.close()

    async def body(self, request: Request, reader: asyncio.StreamReader):
        """The parts of a body. Trailers are those of the request after the last one."""
        if request.header("transfer-encoding") == "chunked":
            while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
                yield (await reader.readexactly(size + 2))[:-2]
            while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
                name, value = line.decode("latin-1").split(":", 1)
                request.trailers.append((name.lower(), value.strip()))
        left = int(request.header("content-length") or 0)
        while left:
            part = await reader.read(min(left, 1 << 16))
            if not part:
                raise ConnectionResetError
            left -= len(part)
            yield part

    async def respond(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Responds. False if the connection ends."""
        _, kind, *more = request.target.split("?")[0].split("/")
        handler = getattr(self, f"on_{kind.replace('-', '_')}", None)
        if handler:
            return await handler(request, reader, writer, *more)
        if request.header("expect"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = b"".join([part async for part in self.body(request, reader)])
        return self.send(request, writer, *self.plain(kind, more, request, body))

    def send(self, request: Request, writer: asyncio.StreamWriter, status: int, headers: list[tuple[str, str]], body: bytes) -> bool:
        headers = headers if status in (204, 304) else [*headers, ("content-length", str(len(body)))]
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        writer.write(f"HTTP/1.1 {status} x\r\n{lines}\r\n".encode() + (b"" if request.method == "HEAD" else body))
        return True

    def plain(self, kind: str, more: list[str], request: Request, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        match kind:
            case "bytes":
                return 200, [], filled(int(more[0]))
            case "text":
                return 200, [("content-type", "text/plain")], filled(int(more[0]))
            case "status":
                return int(more[0]), [], b""
            case "cookies":
                return 200, [("set-cookie", "a=1"), ("set-cookie", "b=2; Path=/")], b""
            case "large-head":
                return 200, [("x-large", "x" * int(more[0]))], b""
            case "page":
                return 200, [("content-type", "text/html")], PAGE
        headers = sorted(pair for pair in request.headers if pair[0] != RANDOM and (body or pair[0] not in FRAMING))
        seen = {"method": request.method, "target": request.target, "headers": headers, "trailers": sorted(request.trailers)}
        seen |= {"length": len(body), "digest": hashlib.sha256(body).hexdigest()}
        return 200, [("content-type", "application/json")], json.dumps(seen).encode()

    def chunked(self, writer: asyncio.StreamWriter, *headers: str) -> None:
        writer.write("\r\n".join(["HTTP/1.1 200 OK", "Transfer-Encoding: chunked", *headers, "\r\n"]).encode())

    def chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def on_chunked(self, request, reader, writer, size: str) -> bool:
        self.chunked(writer)
        self.chunk(writer, filled(int(size)))
        writer.write(b"0\r\n\r\n")
        return True

    async def on_mirror(self, request, reader, writer) -> bool:
        self.chunked(writer)
        async for part in self.body(request, reader):
            self.chunk(writer, part)
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        return True

    async def on_slow(self, request, reader, writer) -> bool:
        self.chunked(writer)
        for _ in range(PARTS):
            self.chunk(writer, filled(PART))
            await writer.drain()
            await asyncio.sleep(PAUSE)
        writer.write(b"0\r\n\r\n")
        return True

    async def on_trailers(self, request, reader, writer) -> bool:
        body = b"".join([part async for part in self.body(request, reader)])
        self.chunked(writer, "Trailer: x-sum, x-seen")
        self.chunk(writer, body or b"body")
        seen = ",".join(f"{name}={value}" for name, value in sorted(request.trailers))
        writer.write(f"0\r\nx-sum: 1\r\nx-seen: {seen}\r\n\r\n".encode())
        return True

    async def on_early(self, request, reader, writer) -> bool:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n")
        return self.send(request, writer, 200, [], b"after hints")

    async def on_refuse(self, request, reader, writer) -> bool:
        """Responds before it has read the body, and ends."""
        self.send(request, writer, 409, [("connection", "close")], b"refused")
        await writer.drain()
        return False

    async def on_broken(self, request, reader, writer) -> bool:
        return False

    async def on_cut(self, request, reader, writer) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n0123456789")
        await writer.drain()
        return False

    async def on_hang(self, request, reader, writer, key: str) -> bool:
        self.begun[key].set()
        try:
            await reader.read()
        finally:
            self.ended[key].set()
        return False

    async def on_endless(self, request, reader, writer, key: str) -> bool:
        self.chunked(writer)
        self.chunk(writer, PATTERN)
        await writer.drain()
        return await self.on_hang(request, reader, writer, key)

    async def on_ws(self, request, reader, writer) -> bool:
        """Sends the bytes of a WebSocket back."""
        accept = hashlib.sha1((request.header("sec-websocket-key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
        lines = ["HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", "Upgrade: websocket", f"Sec-WebSocket-Accept: {base64.b64encode(accept).decode()}"]
        writer.write("\r\n".join([*lines, "\r\n"]).encode())
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        finally:
            self.ended["ws"].set()
        return False

    async def on_chat(self, request, reader, writer) -> bool:
        """Sends the messages of a WebSocket back, or closes it for the message `close`. Takes the last subprotocol."""
        websocket, parts = WSConnection(ConnectionType.SERVER), []
        websocket.initiate_upgrade_connection([(name.encode(), value.encode()) for name, value in request.headers], request.target)
        while websocket.state is not ConnectionState.CLOSED:
            for event in websocket.events():
                match event:
                    case Upgrade():
                        writer.write(websocket.send(AcceptConnection(subprotocol=event.subprotocols[-1])))
                    case Message():
                        parts.append(event.data)
                        if event.message_finished:
                            whole, parts = parts[0][:0].join(parts), []
                            writer.write(websocket.send(CloseConnection(*CLOSED) if whole == "close" else type(event)(whole)))
                    case Ping():
                        writer.write(websocket.send(event.response()))
                    case CloseConnection() if websocket.state is ConnectionState.REMOTE_CLOSING:
                        writer.write(websocket.send(event.response()))
            await writer.drain()
            if websocket.state is not ConnectionState.CLOSED:
                websocket.receive_data(await reader.read(1 << 16) or None)
        return False


class Echo(grpc.GenericRpcHandler):
    def service(self, call):
        if call.method.endswith("/Echo"):
            return grpc.stream_stream_rpc_method_handler(lambda messages, _: messages)
        return None


def grpc_server() -> tuple[grpc.Server, int]:
    server = grpc.server(ThreadPoolExecutor(4), handlers=[Echo()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port
