"""Cases of the WebSocket protocol (RFC 6455, RFC 7692), modelled on the sections of the Autobahn testsuite. A case has the bytes
that a client writes, and the frames that an echo server returns."""

import os
import zlib
from dataclasses import dataclass, field

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
PROTOCOL_ERROR, INVALID_DATA = 1002, 1007
RSV1 = 4
FLUSH = b"\x00\x00\xff\xff"


@dataclass
class Case:
    section: str
    name: str
    writes: list[bytes | int]
    """Bytes to write. A number waits for that many replies."""
    replies: list[tuple[int, bytes]]
    code: int | None = 1000
    """Status of the server's Close frame; None if it has no status."""
    extensions: str | None = None
    inflate: bool = False
    fresh: bool = field(default=False)
    """Whether the server compresses each message with a new context."""


def mask(payload: bytes, key: bytes) -> bytes:
    count = len(payload)
    stream = (key * (count // 4 + 1))[:count]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(stream, "big")).to_bytes(count, "big")


def frame(opcode: int, payload: bytes = b"", fin: bool = True, rsv: int = 0) -> bytes:
    """Builds a client frame."""
    size = len(payload)
    head = bytes([fin << 7 | rsv << 4 | opcode])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 65536:
        head += bytes([0x80 | 126]) + size.to_bytes(2, "big")
    else:
        head += bytes([0x80 | 127]) + size.to_bytes(8, "big")
    key = os.urandom(4)
    return head + key + mask(payload, key)


def close(code: int | None = 1000, reason: bytes = b"") -> bytes:
    return frame(CLOSE, b"" if code is None else code.to_bytes(2, "big") + reason)


def chop(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)] or [b""]


def fragments(opcode: int, payload: bytes, size: int) -> list[bytes]:
    pieces = chop(payload, size)
    last = len(pieces) - 1
    return [frame(opcode if not at else CONTINUATION, piece, at == last) for at, piece in enumerate(pieces)]


def framing():
    for opcode, name in (TEXT, "text"), (BINARY, "binary"):
        for size in (0, 125, 126, 127, 128, 65535, 65536):
            payload = b"*" * size
            yield Case("1 framing", f"{name} of {size}", [frame(opcode, payload)], [(opcode, payload)])
        payload = b"*" * 65536
        yield Case("1 framing", f"{name} in pieces", chop(frame(opcode, payload), 997), [(opcode, payload)])


def pings():
    section = "2 pings and pongs"
    for payload in (b"", b"Hello", bytes(range(250, 256)), b"\xfe" * 125):
        yield Case(section, f"ping of {len(payload)}", [frame(PING, payload)], [(PONG, payload)])
    yield Case(section, "ping of 126", [frame(PING, b"x" * 126)], [], PROTOCOL_ERROR)
    yield Case(section, "ping by octets", chop(frame(PING, b"\xfe" * 125), 1), [(PONG, b"\xfe" * 125)])
    yield Case(section, "unsolicited pong", [frame(PONG, b"unasked")], [])
    yield Case(section, "pong and ping", [frame(PONG, b"unasked"), frame(PING, b"x")], [(PONG, b"x")])
    many = [b"payload %d" % index for index in range(10)]
    sent = b"".join(frame(PING, payload) for payload in many)
    yield Case(section, "ten pings", [sent], [(PONG, payload) for payload in many])
    yield Case(section, "ten pings by octets", chop(sent, 1), [(PONG, payload) for payload in many])


def reserved_bits():
    for rsv in range(1, 8):
        writes = [frame(TEXT, b"before"), 1, frame(TEXT, b"small", rsv=rsv), frame(PING)]
        yield Case("3 reserved bits", f"text with {rsv}", writes, [(TEXT, b"before")], PROTOCOL_ERROR)
        writes = [frame(PING, b"small", rsv=rsv)]
        yield Case("3 reserved bits", f"ping with {rsv}", chop(writes[0], 1), [], PROTOCOL_ERROR)


def opcodes():
    for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15):
        for payload in (b"", b"payload"):
            writes = [frame(TEXT, b"before"), 1, frame(opcode, payload), frame(PING)]
            yield Case("4 opcodes", f"{opcode} of {len(payload)}", writes, [(TEXT, b"before")], PROTOCOL_ERROR)


def fragmentation():
    section = "5 fragmentation"
    first, last = frame(TEXT, b"first ", fin=False), frame(CONTINUATION, b"last")
    whole = [(TEXT, b"first last")]
    yield Case(section, "fragmented ping", [frame(PING, b"a", fin=False), frame(CONTINUATION, b"b")], [], PROTOCOL_ERROR)
    yield Case(section, "fragmented pong", [frame(PONG, b"a", fin=False), frame(CONTINUATION, b"b")], [], PROTOCOL_ERROR)
    for size in (1000, 7, 1):
        yield Case(section, f"two frames in pieces of {size}", chop(first + last, size), whole)
        between = first + frame(PING, b"between") + last
        yield Case(section, f"ping between in pieces of {size}", chop(between, size), [(PONG, b"between"), *whole])
    for fin in (True, False):
        stray = frame(CONTINUATION, b"stray", fin)
        yield Case(section, f"stray continuation, fin {fin}", [stray, frame(TEXT, b"x")], [], PROTOCOL_ERROR)
        after = [frame(TEXT, b"x"), 1, stray, frame(TEXT, b"y")]
        yield Case(section, f"stray continuation after text, fin {fin}", after, [(TEXT, b"x")], PROTOCOL_ERROR)
    yield Case(section, "text within a message", [first, frame(TEXT, b"other")], [], PROTOCOL_ERROR)
    yield Case(section, "five frames with pings", [
        frame(TEXT, b"1", fin=False), frame(CONTINUATION, b"2", fin=False), frame(PING, b"p1"), frame(CONTINUATION, b"3", fin=False),
        frame(CONTINUATION, b"4", fin=False), frame(PING, b"p2"), frame(CONTINUATION, b"5"),
    ], [(PONG, b"p1"), (PONG, b"p2"), (TEXT, b"12345")])  # fmt: skip
    empty = frame(TEXT, fin=False) + frame(CONTINUATION, fin=False) + frame(CONTINUATION)
    yield Case(section, "three empty frames", [empty], [(TEXT, b"")])


VALID = (
    "", "Hello-µ@ßöäüàá-UTF-8!!", "κόσμε", "\x00", "\x7f", "\u0080", "\u07ff", "\u0800", "\uffff", "\U00010000", "\U0010ffff", "\ud7ff", "\ue000",
    "\ufffd", "\ufffe", "\U0001fffe", "\U0002ffff",
)  # fmt: skip
INVALID = (
    b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited", b"\xf8\x88\x80\x80\x80", b"\xfc\x84\x80\x80\x80\x80", b"\xf7\xbf\xbf\xbf", b"\xfb\xbf\xbf\xbf\xbf",
    b"\xf4\x90\x80\x80", b"\x80", b"\xbf", b"\x80\xbf\x80", b"\xc0 \xc1 ", b"\xe0 \xe1 ", b"\xf0 \xf1 ", b"\xc0", b"\xe0\x80", b"\xf0\x80\x80", b"\xdf", b"\xef\xbf",
    b"\xfe", b"\xff", b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xf0\x8f\xbf\xbf", b"\xc0\x80", b"\xed\xa0\x80", b"\xed\xbf\xbf",
    b"\xed\xa0\x80\xed\xb0\x80", b"\xed\xaf\xbf\xed\xbf\xbf",
)  # fmt: skip


def utf8():
    section = "6 UTF-8"
    for index, text in enumerate(VALID):
        payload = text.encode()
        yield Case(section, f"valid {index}", [frame(TEXT, payload)], [(TEXT, payload)])
        if payload:
            yield Case(section, f"valid {index} by octets", fragments(TEXT, payload, 1), [(TEXT, payload)])
    for index, payload in enumerate(INVALID):
        yield Case(section, f"invalid {index}", [frame(TEXT, payload)], [], INVALID_DATA)
        yield Case(section, f"invalid {index} by octets", fragments(TEXT, payload, 1), [], INVALID_DATA)


def closing():
    section = "7 close"
    yield Case(section, "after a message", [frame(TEXT, b"Hello"), 1, close()], [(TEXT, b"Hello")])
    yield Case(section, "ping after close", [close() + frame(PING, b"late")], [])
    yield Case(section, "text after close", [close() + frame(TEXT, b"late")], [])
    # The RFC permits it, but the server treats it as an error.
    yield Case(section, "close within a message", [frame(TEXT, b"first", fin=False), close()], [], PROTOCOL_ERROR)
    yield Case(section, "two", [close() + close()], [])
    yield Case(section, "without a status", [close(None)], [], None)
    yield Case(section, "of one octet", [frame(CLOSE, b"a")], [], PROTOCOL_ERROR)
    yield Case(section, "with a reason", [close(reason=b"Hello")], [])
    yield Case(section, "of 125 octets", [close(reason=b"*" * 123)], [])
    yield Case(section, "of 126 octets", [close(reason=b"*" * 124)], [], PROTOCOL_ERROR)
    for code in (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999):
        yield Case(section, f"status {code}", [close(code)], [], code)
    for code in (0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999, 5000, 65535):
        yield Case(section, f"status {code}", [close(code)], [], PROTOCOL_ERROR)


def limits():
    section = "9 limits"
    for opcode, name in (TEXT, "text"), (BINARY, "binary"):
        for size in (64, 256, 1024, 4096):
            payload = b"*" * (size * 1024)
            yield Case(section, f"{name} of {size} KiB", [frame(opcode, payload)], [(opcode, payload)])
        payload = b"*" * (1024 * 1024)
        for size in (256, 4096, 65536):
            yield Case(section, f"{name} in frames of {size}", [b"".join(fragments(opcode, payload, size))], [(opcode, payload)])
        for size in (512, 2048):
            yield Case(section, f"{name} in pieces of {size}", chop(frame(opcode, payload), size), [(opcode, payload)])
        for size in (0, 16, 256, 4096):
            payload = b"*" * size
            yield Case(section, f"500 {name} of {size}", [frame(opcode, payload) for _ in range(500)], [(opcode, payload)] * 500)


def automatic_fragmentation():
    for size in (1300, 65535):
        payload = b"*" * 65536
        yield Case("10 frames of a message", f"frames of {size}", fragments(TEXT, payload, size), [(TEXT, payload)])


def compression():
    offers = {
        "12 compression": ("permessage-deflate", 15, False),
        "13 compression parameters: no context": ("permessage-deflate; client_no_context_takeover; server_no_context_takeover", 15, True),
        "13 compression parameters: window": ("permessage-deflate; client_max_window_bits=9; server_max_window_bits=9", 9, False),
    }
    for section, (extensions, bits, fresh) in offers.items():
        for size in (0, 16, 64, 1024, 16384, 131072):
            payload = (b'{"line": %d, "text": "lorem ipsum"}' * (size // 32 + 1))[:size].replace(b"%d", b"42")
            packer, writes = None, []
            for _ in range(20):
                packer = packer if packer and not fresh else zlib.compressobj(wbits=-bits)
                packed = (packer.compress(payload) + packer.flush(zlib.Z_SYNC_FLUSH)).removesuffix(FLUSH)
                writes.append(frame(BINARY, packed, rsv=RSV1))
            yield Case(section, f"20 of {size}", writes, [(BINARY, payload)] * 20, extensions=extensions, inflate=True, fresh=fresh)
    extensions = "permessage-deflate"
    packer = zlib.compressobj(wbits=-15)
    packed = (packer.compress(b"fragmented" * 100) + packer.flush(zlib.Z_SYNC_FLUSH)).removesuffix(FLUSH)
    half = len(packed) // 2
    writes = [frame(TEXT, packed[:half], fin=False, rsv=RSV1), frame(PING, b"p"), frame(CONTINUATION, packed[half:])]
    replies = [(PONG, b"p"), (TEXT, b"fragmented" * 100)]
    yield Case("12 compression", "fragmented", writes, replies, extensions=extensions, inflate=True)
    yield Case("12 compression", "a message without", [frame(TEXT, b"plain")], [(TEXT, b"plain")], extensions=extensions, inflate=True)
    broken = [frame(CONTINUATION, b"x", rsv=RSV1)]
    yield Case("12 compression", "bit on a continuation", broken, [], PROTOCOL_ERROR, extensions=extensions, inflate=True)


def cases() -> list[Case]:
    """All cases. A case without an error closes the connection itself."""
    sections = (framing, pings, reserved_bits, opcodes, fragmentation, utf8, closing, limits, automatic_fragmentation, compression)
    every = [case for section in sections for case in section()]
    for case in every:
        if case.code == 1000 and case.section != "7 close":
            case.writes += [len(case.replies), close()]
    return every
