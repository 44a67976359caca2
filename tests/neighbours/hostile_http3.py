"""Attacks over QUIC and HTTP/3, which hostile.py carries out beside those over TCP."""

import asyncio
import collections
import contextlib
import os

from aioquic.buffer import Buffer, encode_uint_var
from aioquic.quic.connection import QuicConnection
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import pull_quic_header
from aioquic.tls import Epoch

import http3
from attack import HOST, SENT, Attack, repeat

# First bytes of packets: an Initial with a packet number of two bytes, a Retry, and one with a short header and such a number.
INITIAL, RETRY, LONG_TYPE, SHORT = 0xC1, 0xF0, 0xF0, 0x41
PACKET_NUMBER_SIZE = 2
# A datagram that a server has to look at has at least this size.
DATAGRAM_SIZE = 1200
# The address of a datagram may be forged. These are of this machine, and nobody reads what they get.
FORGED = [f"127.66.0.{at}" for at in range(1, 101)]
CONTROL_STREAM, ENCODER_STREAM, DECODER_STREAM = b"\0\4\0", b"\2", b"\3"
# Streams of a connection, of which the proxy permits 100.
STREAMS = 90


class FirstPackets:
    """Makes the first packets of connections at little cost: of one ClientHello, sealed for the connection ids of others."""

    def __init__(self):
        quic = QuicConnection(configuration=http3.configuration(HOST))
        quic.connect(("127.0.0.1", 1), now=0.0)
        datagram = quic.datagrams_to_send(now=0.0)[0][0]
        buffer = Buffer(data=datagram)
        header = pull_quic_header(buffer)
        crypto = CryptoPair()
        crypto.setup_initial(header.destination_cid, is_client=False, version=header.version)
        self.version, self.source = header.version, header.source_cid
        _, self.payload, _ = crypto.decrypt_packet(datagram[: header.packet_length], buffer.tell(), 0)

    def make(self, destination: bytes, token: bytes = b"") -> bytes:
        SENT["first packets"] += 1
        crypto = CryptoPair()
        crypto.setup_initial(destination, is_client=True, version=self.version)
        length = PACKET_NUMBER_SIZE + len(self.payload) + crypto.aead_tag_size
        ids = b"".join(bytes((len(each),)) + each for each in (destination, self.source))
        header = bytes((INITIAL,)) + self.version.to_bytes(4, "big") + ids + encode_uint_var(len(token)) + token
        return crypto.encrypt_packet(header + encode_uint_var(length) + bytes(PACKET_NUMBER_SIZE), self.payload, 0)


async def quic_first_packets(attack: Attack) -> None:
    """First packets of connections from many addresses, of which nothing follows."""
    packets, clients = FirstPackets(), [attack.datagrams(address) for address in FORGED]

    async def call(number: int) -> None:
        for at in range(20 * number, 20 * number + 20):
            attack.drip(clients[at % len(clients)], packets.make(os.urandom(8)))

    await repeat(50, call)


async def quic_tokens(attack: Attack) -> None:
    """Tokens that nobody has issued, and those of Retry packets: more than once, changed, and from addresses that they were not issued to."""
    packets, clients, reader = FirstPackets(), [attack.datagrams(address) for address in FORGED[:20]], attack.datagrams()
    issued: collections.deque[tuple[bytes, bytes]] = collections.deque(maxlen=4)

    async def call(number: int) -> None:
        other = clients[number % len(clients)]
        for _ in range(4):
            attack.drip(other, packets.make(os.urandom(8), os.urandom(80)))
            # Retry packets are sent while there are many handshakes.
            attack.drip(other, packets.make(os.urandom(8)))
            attack.drip(reader, packets.make(os.urandom(8)))
        with contextlib.suppress(OSError):
            while data := reader.recv(2048):
                if data[0] & LONG_TYPE == RETRY:
                    SENT["tokens"] += 1
                    header = pull_quic_header(Buffer(data=data))
                    issued.append((header.source_cid, header.token))
        for destination, token in issued:
            for client, sent in (other, token), (reader, token), (reader, token[:-1] + bytes((token[-1] ^ 1,))):
                attack.drip(client, packets.make(destination, sent))

    await repeat(30, call)


async def quic_stray_packets(attack: Attack) -> None:
    """Packets of no connection, some of which a server answers: unknown versions, short headers, Retry packets, garbage."""
    clients = [attack.datagrams(address) for address in FORGED[:20]]
    ids = b"\x08" + b"d" * 8 + b"\x08" + b"s" * 8

    async def call(number: int) -> None:
        SENT["stray packets"] += 40
        for at in range(10):
            client, rest = clients[(number + at) % len(clients)], os.urandom(DATAGRAM_SIZE)
            attack.drip(client, bytes((INITIAL,)) + b"\x1a\x2a\x3a\x4a" + ids + rest)
            attack.drip(client, bytes((SHORT,)) + rest[: 30 + 100 * at])
            attack.drip(client, bytes((RETRY,)) + b"\0\0\0\1" + ids + rest[:100])
            attack.drip(client, rest)

    await repeat(50, call)


def sealed(client: http3.Connection, frames: bytes) -> bytes:
    """A packet with these frames, of a connection whose handshake is complete."""
    quic = client._quic
    crypto, number = quic._cryptos[Epoch.ONE_RTT], quic._packet_number
    quic._packet_number += 1
    header = bytes((SHORT | crypto.key_phase << 2,)) + quic._peer_cid.cid + (number & 0xFFFF).to_bytes(PACKET_NUMBER_SIZE, "big")
    return crypto.encrypt_packet(header, frames, number)


async def quic_path_challenges(attack: Attack) -> None:
    """Challenges of paths, a hundred in a packet: on the path of the connection, and from other ports."""
    clients: list[http3.Connection | None] = [None] * 4
    paths = [attack.datagrams() for _ in range(20)]

    async def call(number: int) -> None:
        at = number % len(clients)
        client = clients[at] = await attack.open_quic(clients[at])
        SENT["path challenges"] += 500
        for turn in range(5):
            packet = sealed(client, b"".join(b"\x1a" + os.urandom(8) for _ in range(100)).ljust(DATAGRAM_SIZE, b"\0"))
            if turn % 2:
                attack.drip(paths[(number + turn) % len(paths)], packet)
            else:
                client._transport.sendto(packet, ("127.0.0.1", attack.tls_port))

    await repeat(40, call)


async def quic_resets(attack: Attack) -> None:
    """Requests that are cancelled at once, or when a backend has them."""
    clients: list[http3.Connection | None] = [None] * 4

    async def call(number: int) -> None:
        at = number % len(clients)
        client = clients[at] = await attack.open_quic(clients[at])
        if client.is_blocked():
            return
        SENT["requests"] += 20
        streams = [client.request(HOST, f"/{('one', 'two')[each % 2]}/late") for each in range(20)]
        client.transmit()
        if at % 2:
            await asyncio.sleep(0.02)
        for stream in streams:
            client.cancel(stream)
        client.transmit()

    await repeat(40, call)


def literal(data: bytes, flags: int, bits: int) -> bytes:
    """A string with its length in so many bits of the first byte (RFC 9204, 4.1.1)."""
    most, rest = (1 << bits) - 1, len(data) - (1 << bits) + 1
    if rest < 0:
        return bytes((flags | len(data),)) + data
    size = bytearray((flags | most,))
    while rest >= 128:
        size.append(rest % 128 + 128)
        rest //= 128
    return bytes((*size, rest)) + data


def headers(section: bytes) -> bytes:
    """A HEADERS frame."""
    return b"\1" + encode_uint_var(len(section)) + section


def get(path: str) -> bytes:
    """A section without a dynamic table: GET and https of the static one, an authority and a path."""
    return b"\0\0\xd1\xd7\x50" + literal(HOST.encode(), 0, 7) + b"\x51" + literal(path.encode(), 0, 7)


# The longest line of the static table, strict-transport-security, in one byte.
LINE = b"\xfa"
# A zero has five bits in Huffman's code, all of them 0.
ZEROS = b"\x21x" + literal(bytes(15_000), 0x80, 7)
INSERT = b"\x41x" + literal(b"x" * 3000, 0, 7)
# Of requests: sections that are longer when they are decoded, or that need a dynamic table.
SECTIONS = [
    get("/one/x") + LINE * 16_000,
    get("/two/x") + ZEROS,
    get("/one/x") + b"\x21x\x01x" * 4000,
    get("/two/deaf") + LINE * 500,
    b"\2\0" + get("/one/x")[2:] + b"\x80" * 1000,
]
# Of the streams of QPACK: a table with lines in it, and what concerns sections that nobody has sent.
INSTRUCTIONS = [
    ENCODER_STREAM + b"\x3f\xe1\x1f" + INSERT * 4,
    ENCODER_STREAM + INSERT * 4,
    DECODER_STREAM + b"\x40" * 16_000,
    DECODER_STREAM + b"\x80" * 1000,
]


async def quic_field_sections(attack: Attack) -> None:
    """Field sections that are long when they are decoded or need a table that does not exist, and instructions for such a table."""
    clients: list[http3.Connection | None] = [None] * (len(SECTIONS) + len(INSTRUCTIONS))

    async def call(number: int) -> None:
        at = number % len(clients)
        is_new = clients[at] is None or clients[at].is_over
        client = clients[at] = await attack.open_quic(clients[at], is_raw=True)
        if is_new:
            client.open(CONTROL_STREAM, is_uni=True)
        if at < len(SECTIONS) and not client.is_blocked():
            SENT["field sections"] += 4
            for _ in range(4):
                client.open(headers(SECTIONS[at]), ends=True)
        elif at >= len(SECTIONS):
            SENT["instructions"] += 1
            client.open(INSTRUCTIONS[at - len(SECTIONS)], is_uni=True)
        client.transmit()

    await repeat(20, call)


async def quic_slow_reads(attack: Attack) -> None:
    """Responses that are not read: behind the windows of their streams, behind that of the connection, and without acknowledgements."""
    for at in range(24):
        client = await attack.open_quic(**({"max_stream_data": 2048}, {"max_data": 1 << 17}, {})[at % 3])
        client.close_windows()
        SENT["requests"] += STREAMS
        for each in range(STREAMS):
            client.request(HOST, f"/{('one', 'two')[each % 2]}/{('large', 'events')[at // 3 % 2]}")
        client.transmit()
        client.is_deaf = at % 3 == 2


ATTACKS = [quic_first_packets, quic_tokens, quic_stray_packets, quic_path_challenges, quic_resets, quic_field_sections, quic_slow_reads]
