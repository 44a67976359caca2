"""A client of aioquic."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.buffer import Buffer
from aioquic.h3.connection import H3Connection, H3Stream
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, StopSendingReceived, StreamDataReceived, StreamReset
from cryptography import x509

from answer import Answer, frames
from cases import CONTROL, GOAWAY, Fields, Handshake, Request, Wire
from objects import WEB

TIMEOUT = 20
CANCELLED = 0x10C
# Above this, the code of a connection is an alert of TLS if QUIC itself has closed it (RFC 9001, 4.8).
CRYPTO_ERROR = 0x100


class Http3(H3Connection):
    """Knows that responses to HEAD have a length and no content."""

    def __init__(self, quic: QuicConnection):
        self.heads: set[int] = set()
        super().__init__(quic)

    def _check_content_length(self, stream: H3Stream) -> None:
        if stream.stream_id not in self.heads:
            super()._check_content_length(stream)


class Exchange:
    """A stream."""

    def __init__(self):
        self.answer, self.data, self.is_over, self.changed = Answer(), bytearray(), False, asyncio.Event()

    def end(self, error: str = "", **codes: int) -> None:
        if not self.is_over:
            self.answer.contents(bytes(self.data))
            self.answer.error, self.is_over = error, True
            self.answer.decode()
            for name, code in codes.items():
                setattr(self.answer, name, code)
        self.changed.set()

    def on(self, event: HeadersReceived | DataReceived) -> None:
        if isinstance(event, DataReceived):
            self.data += event.data
        else:
            fields = [(name.decode(), value.decode("latin-1")) for name, value in event.headers]
            status, fields = dict(fields).get(":status"), [pair for pair in fields if pair[0] != ":status"]
            if self.answer.status:
                self.answer.trailers = fields
            elif status and status.startswith("1"):
                self.answer.interim.append((int(status), fields))
            else:
                self.answer.status, self.answer.headers = int(status or 0), fields
        if event.stream_ended:
            self.end()
        self.changed.set()

    async def until(self, condition) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not condition(self) and not self.is_over:
                self.changed.clear()
                await self.changed.wait()

    async def over(self) -> Answer:
        await self.until(lambda _: False)
        return self.answer


class Client(QuicConnectionProtocol):
    """A connection, with HTTP/3 or with bytes on its streams."""

    def __init__(self, quic: QuicConnection, is_raw: bool):
        super().__init__(quic)
        self.exchanges: dict[int, Exchange] = {}
        self.http = None if is_raw else Http3(quic)
        self.connection, self.ready = Exchange(), asyncio.Event()
        self.from_server: defaultdict[int, bytes] = defaultdict(bytes)

    def quic_event_received(self, event) -> None:
        match event:
            case ConnectionTerminated():
                is_own = event.frame_type is None
                code = {"connection": event.error_code} if is_own else {"alert": event.error_code - CRYPTO_ERROR}
                for exchange in [*self.exchanges.values(), self.connection]:
                    exchange.end(f"the connection ends: {event.error_code:#x} {event.reason_phrase}", **code)
                self.ready.set()
            case StreamDataReceived() if event.stream_id % 4 == 3:
                self.from_server[event.stream_id] += event.data
                self.ready.set()
            case StreamReset() | StopSendingReceived() if event.stream_id in self.exchanges:
                exchange = self.exchanges[event.stream_id]
                # A server that needs no more of a request stops it with H3_NO_ERROR, and responds.
                if isinstance(event, StreamReset) or event.stream_id % 4 == 2:
                    exchange.end(f"the stream ends: {event.error_code:#x}", stream=event.error_code)
            case StreamDataReceived() if self.http is None and event.stream_id in self.exchanges:
                exchange = self.exchanges[event.stream_id]
                exchange.data += event.data
                if event.end_stream:
                    exchange.end()
                    exchange.answer.frames(bytes(exchange.data))
        if self.http is None or isinstance(event, HandshakeCompleted):
            return
        for each in self.http.handle_event(event):
            if isinstance(each, HeadersReceived | DataReceived) and each.stream_id in self.exchanges:
                self.exchanges[each.stream_id].on(each)

    def goaways(self) -> list[int]:
        """The ids of GOAWAY, which aioquic ignores."""
        streams = [Buffer(data=data) for data in self.from_server.values()]
        control = next(stream for stream in streams if stream.pull_uint_var() == CONTROL)
        return [Buffer(data=payload).pull_uint_var() for kind, payload in frames(control) if kind == GOAWAY]

    def open(self, is_uni: bool = False) -> tuple[int, Exchange]:
        stream = self._quic.get_next_available_stream_id(is_unidirectional=is_uni)
        exchange = self.exchanges[stream] = Exchange()
        if self.connection.is_over:
            exchange.end(self.connection.answer.error)
        return stream, exchange

    def begin(self, method: str, host: str, path: str, fields: Fields, end: bool) -> tuple[int, Exchange]:
        """Sends the head of a request."""
        stream, exchange = self.open()
        lines = [(":method", method), (":scheme", "https"), (":authority", host), (":path", path), ("user-agent", "test"), *fields]
        if method == "HEAD":
            self.http.heads.add(stream)
        self.http.send_headers(stream, [(name.encode(), value.encode("latin-1")) for name, value in lines], end)
        self.transmit()
        return stream, exchange

    async def get(self, path: str, host: str = WEB) -> Answer:
        return await self.begin("GET", host, path, [], True)[1].over()

    async def request(self, sent: Request, path: str, begun: asyncio.Event | None) -> Answer:
        fields = list(sent.headers)
        has_body = bool(sent.body) or not sent.sized or bool(sent.trailers)
        if sent.trailers:
            fields.append(("trailer", ",".join(sorted(name for name, _ in sent.trailers))))
        if (sent.body and sent.sized) or (sent.sized and sent.method in ("POST", "PUT", "PATCH")):
            fields.append(("content-length", str(len(sent.body))))
        stream, exchange = self.begin(sent.method, sent.host or sent.name, path, fields, not has_body)
        if ("expect", "100-continue") in sent.headers:
            await exchange.until(lambda it: it.answer.interim or it.answer.status)
        if has_body:
            self.http.send_data(stream, sent.body, end_stream=not sent.trailers)
        if sent.trailers:
            self.http.send_headers(stream, [(name.encode(), value.encode()) for name, value in sent.trailers], True)
        self.transmit()
        if sent.cancel:
            await (asyncio.wait_for(begun.wait(), TIMEOUT) if sent.cancel == "waiting" else exchange.until(lambda it: it.data))
            self._quic.stop_stream(stream, CANCELLED)
            with contextlib.suppress(AssertionError):
                self._quic.reset_stream(stream, CANCELLED)
            self.transmit()
            exchange.end("cancelled")
        return await exchange.over()

    async def move(self) -> None:
        """Goes on from another port."""
        old = self._transport
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        old.close()
        self.transmit()


class Aioquic:
    """Its requests share connections."""

    name = "aioquic"

    def __init__(self, authority: str, ports: tuple[int, int], certificates: dict[str, tuple[str, str]]):
        self.authority, self.ports, self.certificates = authority, ports, certificates
        self.connections: dict[str, Client] = {}
        self.stack = contextlib.AsyncExitStack()

    @contextlib.asynccontextmanager
    async def connect(self, name: str = WEB, is_raw: bool = False, port: int | None = None, ticket=None, **settings) -> AsyncIterator[Client]:
        configuration = QuicConfiguration(is_client=True, server_name=name, cafile=self.authority, **{"alpn_protocols": ["h3"], **settings})
        certificate = settings.get("certificate")
        if isinstance(certificate, str):
            configuration.load_cert_chain(*self.certificates[certificate])
        quic = QuicConnection(configuration=configuration, session_ticket_handler=ticket)
        loop = asyncio.get_running_loop()
        _, client = await loop.create_datagram_endpoint(lambda: Client(quic, is_raw), local_addr=("127.0.0.1", 0))
        client.connect(("127.0.0.1", port or self.ports[0]))
        try:
            async with asyncio.timeout(TIMEOUT):
                with contextlib.suppress(ConnectionError):
                    await client.wait_connected()
            yield client
        finally:
            client.close(0x100)
            client._transport.close()

    def can(self, _case) -> bool:
        return True

    async def shared(self, name: str) -> Client:
        client = self.connections.get(name)
        if client is None or client.connection.is_over:
            client = self.connections[name] = await self.stack.enter_async_context(self.connect(name))
        return client

    async def request(self, sent: Request, path: str, begun: asyncio.Event | None) -> Answer:
        client = await self.shared(sent.name)
        answers = await asyncio.gather(*(client.request(sent, path, begun) for _ in range(sent.together)))
        if len({(each.status, each.digest, each.error) for each in answers}) > 1:
            raise AssertionError("several answers")
        return answers[0]

    async def wire(self, sent: Wire) -> Answer:
        async with self.connect(is_raw=True) as client:
            exchange = client.connection
            for each in sent.streams:
                stream, exchange = client.open(each.is_uni)
                client._quic.send_stream_data(stream, each.data, each.fin)
                client.transmit()
                if each.is_uni and each.fin:
                    # Ends with the connection.
                    exchange = client.connection
            return await exchange.over()

    async def handshake(self, sent: Handshake) -> Answer:
        settings = {"certificate": sent.certificate} if sent.certificate else {}
        async with self.connect(sent.name, True, self.ports[sent.is_guarded], alpn_protocols=[sent.alpn], **settings) as client:
            # Whether the server accepts the certificate of the client is known when it sends something.
            async with asyncio.timeout(TIMEOUT):
                await client.ready.wait()
            answer = client.connection.answer
            certificate = client._quic.tls._peer_certificate
            if certificate:
                names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
                answer.certificate = names.get_values_for_type(x509.DNSName)
            return answer

    async def close(self) -> None:
        await self.stack.aclose()
