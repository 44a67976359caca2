"""What one request does not show: tunnels, migration, Retry, drains, and changes under open connections."""

import asyncio
import hashlib
import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicProtocolVersion

import objects
import tunnels
from answer import Answer
from backend import PART, PARTS, Backend, filled
from cases import Request
from launch import running
from objects import WEB, Authority
from processes import PATIENCE, ClientProcess, ProcessClient, free_ports
from quic import CANCELLED, Aioquic, Client

SECTION = "11 connections"
# A version that there is not (RFC 9000, 15).
RESERVED_VERSION = 0x1A2A3A4A
NO_ERROR = 0x100
SLOW = filled(PART) * PARTS


@dataclass
class Scene:
    program: Path
    folder: Path
    objects: list[dict]
    servers: Authority
    backend: Backend
    aioquic: Aioquic
    go: ClientProcess
    quinn: ClientProcess
    port: int
    others: list[int] = field(default_factory=lambda: free_ports(3))

    def clients(self, port: int) -> list[ProcessClient]:
        """The clients beside aioquic."""
        return [ProcessClient("quic-go", self.go, port=port), ProcessClient("quinn", self.quinn, port=port)]

    def replace(self, changed: Callable[[list[dict]], list[dict]]) -> None:
        """Replaces the objects of the proxy, at once."""
        config = self.folder / "config"
        (config / "objects.new").write_text(objects.text(changed(self.objects)))
        os.replace(config / "objects.new", config / "objects.yaml")

    def another(self, name: str, *arguments: str):
        """Another proxy, with one worker and ports of its own."""
        port, guarded, admin = self.others = free_ports(3)
        config = self.folder / name
        config.mkdir()
        numbers = {self.port: port, self.aioquic.ports[1]: guarded}
        text = objects.text(self.objects)
        for old, new in numbers.items():
            text = text.replace(f'"port": {old}', f'"port": {new}')
        (config / "objects.yaml").write_text(text)
        return running(self.program, config, admin, "--workers", "1", *arguments)


def equal(found, expected) -> None:
    if found != expected:
        raise AssertionError(f"{str(found)[:200]} instead of {str(expected)[:200]}")


def complete(answer: Answer, body: bytes) -> None:
    equal((answer.error, answer.status, answer.digest), ("", 200, hashlib.sha256(body).hexdigest()))


async def until(condition, what: str) -> None:
    """Waits until a condition is true."""
    end = time.monotonic() + PATIENCE
    while not await condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {PATIENCE} s: {what}")
        await asyncio.sleep(0.05)


# Tunnels (RFC 9220).


async def tunnel(client: Client, protocol: str = "websocket"):
    stream, exchange = client.open()
    lines = [(":method", "CONNECT"), (":protocol", protocol), (":scheme", "https"), (":authority", WEB), (":path", "/ws"), ("sec-websocket-version", "13")]
    client.http.send_headers(stream, [(name.encode(), value.encode()) for name, value in lines])
    client.transmit()
    await exchange.until(lambda it: it.answer.status)
    return stream, exchange


async def websocket(scene: Scene) -> None:
    async with scene.aioquic.connect() as client:
        equal((await client.get("/echo")).status, 200)
        equal(client.http.received_settings.get(8), 1)
        stream, exchange = await tunnel(client)
        equal(exchange.answer.status, 200)
        for size in (5, 100_000):
            begin = len(exchange.data)
            client.http.send_data(stream, filled(size), False)
            client.transmit()
            await exchange.until(lambda it, begin=begin, size=size: len(it.data) >= begin + size)
        client.http.send_data(stream, b"", True)
        client.transmit()
        complete(await exchange.over(), filled(5) + filled(100_000))


async def websocket_reset(scene: Scene) -> None:
    ended = scene.backend.ended["ws"]
    async with scene.aioquic.connect() as client:
        stream, exchange = await tunnel(client)
        equal(exchange.answer.status, 200)
        ended.clear()
        client._quic.reset_stream(stream, CANCELLED)
        client.transmit()
        await asyncio.wait_for(ended.wait(), PATIENCE)
        equal((await client.get("/echo")).status, 200)


async def websocket_messages(scene: Scene) -> None:
    await tunnels.over_each(scene.aioquic, scene.port, "/chat", 200, tunnels.messages)


async def websocket_closed(scene: Scene) -> None:
    await tunnels.over_each(scene.aioquic, scene.port, "/chat", 200, tunnels.closed)


async def websocket_refused(scene: Scene) -> None:
    for path, status in (("/status/403", 403), ("/status/426", 426), ("/none", 404), ("/absent", 503)):
        await tunnels.over_each(scene.aioquic, scene.port, path, status, None)


async def other_tunnel(scene: Scene) -> None:
    async with scene.aioquic.connect() as client:
        _, exchange = await tunnel(client, "connect-udp")
        equal((await exchange.over()).status, 501)


# Paths.


async def rebinding(scene: Scene) -> None:
    """A NAT gives the client another port. The client does not know."""
    async with scene.aioquic.connect() as client:
        _, exchange = client.begin("GET", WEB, "/slow", [], True)
        for count in range(1, 5):
            await exchange.until(lambda it, count=count: len(it.data) > count * PART * 5)
            await client.move()
        complete(await exchange.over(), SLOW)


async def migration(scene: Scene) -> None:
    """The client changes its port and takes another connection id."""
    async with scene.aioquic.connect() as client:
        _, exchange = client.begin("GET", WEB, "/slow", [], True)
        await exchange.until(lambda it: len(it.data) > PART)
        client.change_connection_id()
        await client.move()
        complete(await exchange.over(), SLOW)


async def migration_of_upload(scene: Scene) -> None:
    body = filled(1_000_000)
    async with scene.aioquic.connect() as client:
        stream, exchange = client.begin("POST", WEB, "/mirror", [], False)
        for begin in range(0, len(body), 100_000):
            client.http.send_data(stream, body[begin : begin + 100_000], False)
            client.transmit()
            await exchange.until(lambda it, begin=begin: len(it.data) > begin)
            client.change_connection_id()
            await client.move()
        client.http.send_data(stream, b"", True)
        client.transmit()
        complete(await exchange.over(), body)


async def idle_rebinding(scene: Scene) -> None:
    async with scene.aioquic.connect() as client:
        for _ in range(3):
            equal((await client.get("/echo")).status, 200)
            await client.move()
        equal((await client.get("/echo")).status, 200)


# QUIC itself.


async def version_negotiation(scene: Scene) -> None:
    """A client that begins with an unknown version goes on with version 1."""
    versions = [RESERVED_VERSION, QuicProtocolVersion.VERSION_1]
    async with scene.aioquic.connect(supported_versions=versions, original_version=RESERVED_VERSION) as client:
        equal((await client.get("/echo")).status, 200)
        equal(client._quic._version, QuicProtocolVersion.VERSION_1)


async def versions(scene: Scene) -> None:
    """The packet of Version Negotiation (RFC 9000, 17.2.1), also for versions that are to come. Small datagrams get none."""
    ids = bytes([8]) + b"12345678" + bytes([4]) + b"abcd"
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        sender.connect(("127.0.0.1", scene.port))
        sender.settimeout(PATIENCE)
        packet = bytes([0xC0]) + struct.pack(">I", RESERVED_VERSION) + ids
        sender.send(packet)
        sender.send(packet.ljust(1200, b"\0"))
        answer = await asyncio.to_thread(sender.recv, 2000)
        equal((answer[0] & 0x80, answer[1:5]), (0x80, bytes(4)))
        # Ids change places.
        equal(answer[5:19], bytes([4]) + b"abcd" + bytes([8]) + b"12345678")
        supported = {answer[at : at + 4] for at in range(19, len(answer), 4)}
        equal(struct.pack(">I", QuicProtocolVersion.VERSION_1) in supported, True)
        sender.setblocking(False)
        try:
            raise AssertionError(f"a second answer: {sender.recv(2000)[:20]}")
        except BlockingIOError:
            pass


async def large_client_hello(scene: Scene) -> None:
    """The ClientHello takes two packets."""
    async with scene.aioquic.connect(quantum_readiness_test=True) as client:
        equal((await client.get("/echo")).status, 200)


async def resumption(scene: Scene) -> None:
    """A session is resumed, without early data."""
    tickets = []
    async with scene.aioquic.connect(ticket=tickets.append) as client:
        equal((await client.get("/echo")).status, 200)
    equal(bool(tickets), True)
    equal(tickets[0].max_early_data_size or 0, 0)
    async with scene.aioquic.connect(session_ticket=tickets[0]) as client:
        equal((await client.get("/echo")).status, 200)
        equal(client._quic.tls.session_resumed, True)


async def key_update(scene: Scene) -> None:
    async with scene.aioquic.connect() as client:
        _, exchange = client.begin("GET", WEB, "/slow", [], True)
        await exchange.until(lambda it: it.data)
        client.request_key_update()
        complete(await exchange.over(), SLOW)
        equal((await client.get("/echo")).status, 200)


async def end_of_connection(scene: Scene) -> None:
    """The backend learns that the connection of its client has ended."""
    async with scene.aioquic.connect() as client:
        client.begin("GET", WEB, "/hang/closed", [], True)
        await asyncio.wait_for(scene.backend.begun["closed"].wait(), PATIENCE)
    await asyncio.wait_for(scene.backend.ended["closed"].wait(), PATIENCE)


async def retry(scene: Scene) -> None:
    """While handshakes wait, clients have to prove their addresses (RFC 9000, 8.1.2)."""
    with scene.another("retry", "--max-handshakes", "8", "--drain-deadline", "1s"):
        port = scene.others[0]
        async with scene.aioquic.connect(port=port) as client:
            equal((await client.get("/echo")).status, 200)
            equal(client._quic._retry_count, 0)
        with socket.socket(type=socket.SOCK_DGRAM) as sender:
            # A client that says nothing more.
            silent = QuicConnection(configuration=QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name=WEB))
            silent.connect(("127.0.0.1", port), now=time.monotonic())
            sender.connect(("127.0.0.1", port))
            for data, _ in silent.datagrams_to_send(now=time.monotonic()):
                sender.send(data)
            sender.settimeout(PATIENCE)
            await asyncio.to_thread(sender.recv, 2000)
            async with scene.aioquic.connect(port=port) as client:
                equal((await client.get("/echo")).status, 200)
                equal(client._quic._retry_count, 1)
            for client in scene.clients(port):
                equal((await client.request(Request(), "/echo", None)).status, 200)


async def drain(scene: Scene) -> None:
    """Clients get GOAWAY, and what has begun is completed."""
    with scene.another("drain", "--drain-deadline", "20s") as process:
        port = scene.others[0]
        others = [asyncio.create_task(client.request(Request(), "/slow", None)) for client in scene.clients(port)]
        async with scene.aioquic.connect(port=port) as client:
            _, exchange = client.begin("GET", WEB, "/slow", [], True)
            await exchange.until(lambda it: it.data)
            process.send_signal(signal.SIGTERM)

            async def has_goaway() -> bool:
                return bool(client.goaways())

            await until(has_goaway, "a GOAWAY")
            complete(await exchange.over(), SLOW)
            for other in others:
                complete(await other, SLOW)
            ended = await client.connection.over()
            equal(ended.connection, NO_ERROR)
            equal(client.goaways(), [(1 << 62) - 4, 4])
        equal(await asyncio.to_thread(process.wait, PATIENCE), 0)


# Changes under open connections.


async def routes_change(scene: Scene) -> None:
    added = objects.route("later", ["/later"])
    async with scene.aioquic.connect() as client:
        equal((await client.get("/later")).status, 404)
        _, exchange = client.begin("GET", WEB, "/slow", [], True)
        scene.replace(lambda old: [*old, added])

        async def is_served() -> bool:
            return (await client.get("/later")).status == 200

        await until(is_served, "the route is served")
        complete(await exchange.over(), SLOW)
        scene.replace(lambda old: old)

        async def is_gone() -> bool:
            return (await client.get("/later")).status == 404

        await until(is_gone, "the route is not served")


def serial(client: Client) -> int:
    return client._quic.tls._peer_certificate.serial_number


async def certificates_change(scene: Scene) -> None:
    renewed = objects.secret("web", scene.servers.issue(WEB), scene.servers.key_pem())
    async with scene.aioquic.connect() as client:
        first = serial(client)
        _, exchange = client.begin("GET", WEB, "/slow", [], True)
        scene.replace(lambda old: [renewed if each["kind"] == "Secret" and each["metadata"]["name"] == "web" else each for each in old])

        async def is_renewed() -> bool:
            async with scene.aioquic.connect() as other:
                return serial(other) != first

        await until(is_renewed, "the certificate is another one")
        complete(await exchange.over(), SLOW)
        equal((await client.get("/echo")).status, 200)


async def switched_off(scene: Scene) -> None:
    """Without the section, connections drain, TCP goes on without Alt-Svc, and the port is free."""

    def without(old: list[dict]) -> list[dict]:
        return [each for each in old if each["kind"] != "ClientPolicy"]

    async with scene.aioquic.connect() as client:
        _, exchange = client.begin("GET", WEB, "/slow", [], True)
        await exchange.until(lambda it: it.data)
        scene.replace(without)
        complete(await exchange.over(), SLOW)
        equal((await client.connection.over()).connection, NO_ERROR)
    found = await ProcessClient("h2", scene.go, "h2").request(Request(), "/echo", None)
    equal((found.status, dict(found.headers).get("alt-svc")), (200, None))

    async def is_free() -> bool:
        with socket.socket(type=socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("127.0.0.1", scene.port))
            except OSError:
                return False
            return True

    await until(is_free, "the port is free")


SCENARIOS = {
    "a WebSocket": websocket,
    "a WebSocket that is reset": websocket_reset,
    "messages of a WebSocket, as over h1 and h2": websocket_messages,
    "a WebSocket that the backend closes": websocket_closed,
    "a WebSocket that is refused": websocket_refused,
    "a tunnel of another protocol": other_tunnel,
    "a NAT that rebinds during a download": rebinding,
    "a NAT that rebinds between requests": idle_rebinding,
    "a client that migrates during a download": migration,
    "a client that migrates during an upload": migration_of_upload,
    "an unknown version": version_negotiation,
    "versions": versions,
    "a ClientHello of two packets": large_client_hello,
    "a session that is resumed": resumption,
    "an update of keys": key_update,
    "the end of a connection": end_of_connection,
    "Retry": retry,
    "a drain": drain,
    "routes change": routes_change,
    "certificates change": certificates_change,
    "HTTP/3 is switched off": switched_off,
}


async def scenarios(chosen: str, report, scene: Scene) -> None:
    for name, scenario in SCENARIOS.items():
        if chosen not in f"{SECTION}: {name}":
            continue
        began, wrong = time.monotonic(), []
        try:
            async with asyncio.timeout(3 * PATIENCE):
                await scenario(scene)
        except Exception as error:
            wrong.append(repr(error))
        clients = ["aioquic", "quic-go", "quinn"] if scenario in (retry, drain) else ["aioquic"]
        report.add(SECTION, name, clients, wrong, time.monotonic() - began)
