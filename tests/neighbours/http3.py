"""HTTP/3 (RFC 9114) over aioquic: connections of clients, also such that do not read or that break the rules."""

import asyncio
import ssl

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, StreamReset

NO_ERROR, REQUEST_CANCELLED = 0x100, 0x10C


def configuration(host: str, **settings: int) -> QuicConfiguration:
    # The certificate is the proxy's own.
    return QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name=host, verify_mode=ssl.CERT_NONE, **settings)


class Connection(QuicConnectionProtocol):
    """A connection with HTTP/3, or a raw one with bytes on its streams. Subclasses define what they need of `on_…`."""

    def __init__(self, quic: QuicConnection, is_raw: bool = False):
        super().__init__(quic)
        self.http = None if is_raw else H3Connection(quic)
        self.is_deaf = False

    @property
    def is_over(self) -> bool:
        """Whether one side has closed it, which ends it soon."""
        return self._quic._close_event is not None

    # From aioquic.

    def datagram_received(self, data: bytes, addr) -> None:
        if not self.is_deaf:
            super().datagram_received(data, addr)

    def quic_event_received(self, event) -> None:
        if isinstance(event, ConnectionTerminated):
            self.on_lost()
        elif isinstance(event, StreamReset):
            self.on_reset(event.stream_id, event.error_code)
        for each in self.http.handle_event(event) if self.http else ():
            if isinstance(each, HeadersReceived):
                self.on_headers(each.stream_id, {name.decode(): value.decode("latin-1") for name, value in each.headers})
            elif isinstance(each, DataReceived):
                self.on_data(each.stream_id, each.data)
            else:
                continue
            if each.stream_ended:
                self.on_end(each.stream_id)

    # For subclasses.

    def on_headers(self, stream: int, headers: dict) -> None:
        pass

    def on_data(self, stream: int, data: bytes) -> None:
        pass

    def on_end(self, stream: int) -> None:
        pass

    def on_reset(self, stream: int, code: int) -> None:
        pass

    def on_lost(self) -> None:
        pass

    # Sending, which `transmit` completes.

    def request(self, host: str, path: str, content: bytes = b"") -> int:
        """Begins a stream, which it returns."""
        stream = self._quic.get_next_available_stream_id()
        fields = {":method": "POST" if content else "GET", ":scheme": "https", ":authority": host, ":path": path}
        self.http.send_headers(stream, [(name.encode(), value.encode()) for name, value in fields.items()], end_stream=not content)
        if content:
            self.http.send_data(stream, content, end_stream=True)
        return stream

    def open(self, data: bytes, is_uni: bool = False, ends: bool = False) -> None:
        """Begins a stream with bytes."""
        self._quic.send_stream_data(self._quic.get_next_available_stream_id(is_unidirectional=is_uni), data, ends)

    def is_blocked(self) -> bool:
        """Whether streams wait until there may be more of them."""
        return bool(self._quic._streams_blocked_bidi)

    def cancel(self, stream: int) -> None:
        """Resets a stream, and asks the peer to do the same, unless it has ended."""
        if stream in self._quic._streams:
            self._quic.reset_stream(stream, REQUEST_CANCELLED)
            self._quic.stop_stream(stream, REQUEST_CANCELLED)

    def close_windows(self) -> None:
        """Permits no more data than until now, of the connection and of each stream."""
        self._quic._write_connection_limits = self._quic._write_stream_limits = lambda **_: None

    def end(self) -> None:
        self.close(NO_ERROR)
        self._transport.close()


async def connect(kind: type[Connection], port: int, host: str, address: str = "127.0.0.1", is_raw: bool = False, **settings: int) -> Connection:
    """Opens a connection from an address. Raises ConnectionError if it ends before that."""
    quic = QuicConnection(configuration=configuration(host, **settings))
    loop = asyncio.get_running_loop()
    _, client = await loop.create_datagram_endpoint(lambda: kind(quic, is_raw), local_addr=(address, 0))
    try:
        client.connect(("127.0.0.1", port))
        await client.wait_connected()
    except BaseException:
        client.end()
        raise
    return client
