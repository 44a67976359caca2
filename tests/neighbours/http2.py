"""HTTP/2 (RFC 9113) for peers that must be cheap and may break the rules: frames as bytes, and connections of clients and servers."""

import asyncio

from hpack import Decoder

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITIZED = 0x1, 0x1, 0x4, 0x8, 0x20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ENABLE_CONNECT, INITIAL_WINDOW = 0x8, 0x4
# What a peer that reads permits: of each stream, and of the connection. An update is sent for every half of it.
WINDOW, CONNECTION_WINDOW = 1 << 20, 1 << 24
MAX_FRAME, DEFAULT_WINDOW = 16384, 65535
# Bytes that a stream sends before others have their turn.
TURN = 1 << 17


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def settings(**values: int) -> bytes:
    """SETTINGS with `_4=65535` for setting 4."""
    return frame(SETTINGS, 0, 0, b"".join(int(key[1:]).to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in values.items()))


def update(stream: int, count: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, count.to_bytes(4, "big"))


def reset(stream: int, code: int = 8) -> bytes:
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def _text(text: str) -> bytes:
    raw = text.encode()
    if len(raw) < 127:
        return bytes((len(raw),)) + raw
    rest, size = len(raw) - 127, bytearray((127,))
    while rest >= 128:
        size.append(rest % 128 + 128)
        rest //= 128
    return bytes((*size, rest)) + raw


def block(headers: list[tuple[str, str]]) -> bytes:
    """A header block of literals that are not indexed (RFC 7541, 6.2.2)."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in headers)


def request(host: str, path: str, method: str = "GET", *more: tuple[str, str]) -> bytes:
    return block([(":method", method), (":scheme", "http"), (":path", path), (":authority", host), *more])


class Connection(asyncio.Protocol):
    """A connection that obeys flow control. Subclasses define what they need of `on_…`."""

    is_client = True

    def __init__(self):
        self.transport, self.buffer, self.decoder = None, bytearray(), Decoder()
        self.preface = 0 if self.is_client else len(PREFACE)
        self.window, self.initial, self.windows = DEFAULT_WINDOW, DEFAULT_WINDOW, {}
        self.unread, self.consumed, self.unsent, self.headers = 0, {}, {}, None
        self.is_open, self.is_going, self.is_blocked = False, False, False

    # From asyncio.

    def connection_made(self, transport) -> None:
        self.transport, self.is_open = transport, True
        hello = settings(_1=0, _4=WINDOW, _3=1000) + update(0, CONNECTION_WINDOW - DEFAULT_WINDOW)
        transport.write((PREFACE if self.is_client else b"") + hello)

    def connection_lost(self, _error) -> None:
        self.is_open = False
        self.on_lost()

    def pause_writing(self) -> None:
        self.is_blocked = True

    def resume_writing(self) -> None:
        self.is_blocked = False
        self.flush()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        at = 0
        if self.preface:
            if len(self.buffer) < self.preface:
                return
            at, self.preface = self.preface, 0
        buffer = self.buffer
        while len(buffer) - at >= 9:
            end = at + 9 + int.from_bytes(buffer[at : at + 3], "big")
            if end > len(buffer):
                break
            self.on_frame(buffer[at + 3], buffer[at + 4], int.from_bytes(buffer[at + 5 : at + 9], "big") & 0x7FFFFFFF, bytes(buffer[at + 9 : end]))
            at = end
        del buffer[:at]
        if self.unread > CONNECTION_WINDOW // 2:
            self.transport.write(update(0, self.unread))
            self.unread = 0

    # Frames.

    def on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self.consume(stream, len(payload))
            self.on_data(stream, payload[1 : len(payload) - payload[0]] if flags & PADDED else payload)
            if flags & END_STREAM:
                self.ended(stream)
        elif kind in (HEADERS, CONTINUATION):
            if kind == HEADERS:
                begin = (1 if flags & PADDED else 0) + (5 if flags & PRIORITIZED else 0)
                self.headers = (flags & END_STREAM, payload[begin : len(payload) - payload[0] if flags & PADDED else None])
            else:
                self.headers = (self.headers[0], self.headers[1] + payload)
            if flags & END_HEADERS:
                is_end, encoded = self.headers
                self.windows.setdefault(stream, self.initial)
                # Decoding a long block takes a tenth of a second. Without a dynamic table, later ones do not need it.
                self.on_headers(stream, dict(self.decoder.decode(encoded)) if len(encoded) <= MAX_FRAME else {})
                if is_end:
                    self.ended(stream)
        elif kind == RST_STREAM:
            self.forget(stream)
            self.on_reset(stream, int.from_bytes(payload, "big"))
        elif kind == SETTINGS and not flags & ACK:
            self.apply_settings(payload)
        elif kind == PING and not flags & ACK:
            self.transport.write(frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            self.is_going = True
            self.on_going(int.from_bytes(payload[:4], "big") & 0x7FFFFFFF, int.from_bytes(payload[4:8], "big"))
        elif kind == WINDOW_UPDATE:
            count = int.from_bytes(payload, "big") & 0x7FFFFFFF
            if stream == 0:
                self.window += count
                self.flush()
            elif stream in self.windows:
                self.windows[stream] += count
                self.flush_stream(stream)

    def apply_settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            key, value = int.from_bytes(payload[at : at + 2], "big"), int.from_bytes(payload[at + 2 : at + 6], "big")
            if key == INITIAL_WINDOW:
                for stream in self.windows:
                    self.windows[stream] += value - self.initial
                self.initial = value
        self.transport.write(frame(SETTINGS, ACK, 0))
        self.flush()

    def consume(self, stream: int, count: int) -> None:
        self.unread += count
        consumed = self.consumed.get(stream, 0) + count
        if consumed > WINDOW // 2:
            self.transport.write(update(stream, consumed))
            consumed = 0
        self.consumed[stream] = consumed

    def ended(self, stream: int) -> None:
        self.consumed.pop(stream, None)
        self.on_end(stream)

    def forget(self, stream: int) -> None:
        for each in (self.windows, self.consumed, self.unsent):
            each.pop(stream, None)

    # For subclasses.

    def on_headers(self, stream: int, headers: dict) -> None:
        pass

    def on_data(self, stream: int, data: bytes) -> None:
        pass

    def on_end(self, stream: int) -> None:
        pass

    def on_reset(self, stream: int, code: int) -> None:
        pass

    def on_going(self, last: int, code: int) -> None:
        pass

    def on_lost(self) -> None:
        pass

    # Sending.

    def send(self, stream: int, data: bytes, times: int = 1, trailers: bytes | None = None) -> None:
        """Sends a body as the windows permit, then its trailers: `times` frames of `data`, or `data` in as few frames as possible."""
        self.unsent[stream] = (memoryview(data), times, trailers)
        self.flush_stream(stream)

    def flush(self) -> None:
        for stream in list(self.unsent):
            self.flush_stream(stream)

    def flush_stream(self, stream: int) -> None:
        if stream not in self.unsent or self.is_blocked or not self.is_open or self.window <= 0:
            return
        data, times, trailers = self.unsent[stream]
        window, is_over = min(self.windows.get(stream, 0), self.window, TURN), False
        if times > 1:
            # All frames but the last are equal.
            count = min(times - 1, window // len(data))
            frames, sent, times = frame(DATA, 0, stream, bytes(data)) * count, count * len(data), times - count
        else:
            sent = min(len(data), window)
            is_over = sent == len(data)
            frames = b"".join(frame(DATA, 0, stream, bytes(data[at : min(at + MAX_FRAME, sent)])) for at in range(0, sent, MAX_FRAME))
            data = data[sent:]
        self.window -= sent
        self.windows[stream] = self.windows.get(stream, 0) - sent
        if is_over:
            del self.unsent[stream]
            del self.windows[stream]
            frames += frame(DATA, END_STREAM, stream) if trailers is None else frame(HEADERS, END_HEADERS | END_STREAM, stream, trailers)
        else:
            self.unsent[stream] = (data, times, trailers)
        if frames:
            self.transport.write(frames)
            # Others have their turn before the rest.
            asyncio.get_running_loop().call_soon(self.flush_stream, stream)
