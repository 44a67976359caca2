"""What attacks are made of: an address of their own, connections that are closed at their end, and a count of what was sent."""

import asyncio
import collections
import contextlib
import socket

import http3

HOST = "hostile.test"
# The polite client has another one.
ADDRESS = "127.0.0.2"
SENT = collections.Counter()


class Attack:
    """The connections of an attack, which are closed at its end."""

    def __init__(self, port: int, tls_port: int):
        self.port, self.tls_port, self.sockets, self.writers, self.tasks = port, tls_port, [], [], []
        self.quic: list[http3.Connection] = []

    async def connect(self, data: bytes = b"", reads: bool = False, port: int | None = None) -> socket.socket:
        """Opens a connection that sends `data`. If it does not read, little is received."""
        client = socket.socket()
        client.setblocking(False)
        if not reads:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sockets.append(client)
        client.bind((ADDRESS, 0))
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port or self.port))
        SENT["connections"] += 1
        if data:
            await self.send(client, data)
        if reads:
            self.start(self.discard(client))
        return client

    async def send(self, client: socket.socket, data: bytes) -> None:
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(client, data)

    def drip(self, client: socket.socket, data: bytes) -> None:
        """Sends a little, unless the connection is full."""
        with contextlib.suppress(OSError):
            client.send(data)

    async def discard(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while await asyncio.get_running_loop().sock_recv(client, 65536):
                pass

    def datagrams(self, address: str = ADDRESS) -> socket.socket:
        """Opens a socket for datagrams from this address, which may be any of 127.0.0.0/8."""
        client = socket.socket(type=socket.SOCK_DGRAM)
        client.setblocking(False)
        self.sockets.append(client)
        client.bind((address, 0))
        client.connect(("127.0.0.1", self.tls_port))
        return client

    async def open_quic(self, client: http3.Connection | None = None, is_raw: bool = False, **settings: int) -> http3.Connection:
        """Returns the client, or opens another one if there is none or its connection has ended."""
        while client is None or client.is_over:
            if client is not None:
                self.quic.remove(client)
                client.end()
                client = None
            SENT["connections"] += 1
            with contextlib.suppress(ConnectionError):
                client = await http3.connect(http3.Connection, self.tls_port, HOST, ADDRESS, is_raw, **settings)
                self.quic.append(client)
        return client

    def start(self, coroutine) -> None:
        self.tasks.append(asyncio.create_task(coroutine))

    async def once(self, data: bytes, wait: float = 0.02) -> None:
        """A connection that is closed soon after its data was sent."""
        client = await self.connect(data)
        await asyncio.sleep(wait)
        self.sockets.remove(client)
        client.close()

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for client in self.sockets:
            client.close()
        for writer in self.writers:
            writer.transport.abort()
        for client in self.quic:
            client.end()


async def repeat(per_second: float, call) -> None:
    number = 0
    while True:
        await call(number)
        number += 1
        await asyncio.sleep(1 / per_second)
