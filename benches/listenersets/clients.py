"""Owns the clients of the renewal of certificates: some open TLS connections at a rate, others stay connected.

Usage: clients.py ADDRESS PORT RATE KEPT SECONDS NAMES; prints one line of JSON. NAMES is a file with a server name on each line.
"""

import asyncio
import json
import ssl
import sys
import time
from pathlib import Path

CONNECTION_SECONDS = 10.0


class Clients:
    """What connects, and what it has counted."""

    def __init__(self, address: str, port: int, names: list[str]) -> None:
        self._address, self._port, self._names = address, port, names
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE
        self.handshakes, self.failed, self.cut, self.kept_requests = 0, 0, 0, 0
        self.faults: list[str] = []
        self.seconds: list[float] = []

    async def run(self, rate: int, kept: int, seconds: float) -> None:
        end = time.monotonic() + seconds
        staying = [asyncio.create_task(self._stay(number, end)) for number in range(kept)]
        began, tasks = time.monotonic(), set()
        for number in range(round(rate * seconds)):
            await asyncio.sleep(max(0, number / rate - (time.monotonic() - began)))
            task = asyncio.create_task(self._once(number))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*staying, *tasks)

    async def _once(self, number: int) -> None:
        """A new connection with one request."""
        name, began = self._names[number % len(self._names)], time.monotonic()
        try:
            async with asyncio.timeout(CONNECTION_SECONDS):
                reader, writer = await self._open(name)
                self.seconds.append(time.monotonic() - began)
                await self._ask(reader, writer, name)
                writer.close()
                self.handshakes += 1
        except (OSError, ssl.SSLError, EOFError, TimeoutError, ValueError) as error:
            self.failed += 1
            self.faults.append(f"{name}: {error!r}")

    async def _stay(self, number: int, end: float) -> None:
        """A connection that makes a request each second until the end."""
        name = self._names[number % len(self._names)]
        try:
            reader, writer = await self._open(name)
            while time.monotonic() < end:
                async with asyncio.timeout(CONNECTION_SECONDS):
                    await self._ask(reader, writer, name)
                self.kept_requests += 1
                await asyncio.sleep(1)
            writer.close()
        except (OSError, ssl.SSLError, EOFError, TimeoutError, ValueError) as error:
            self.cut += 1
            self.faults.append(f"kept connection to {name}: {error!r}")

    async def _open(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._address, self._port, ssl=self._context, server_hostname=name)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
        writer.write(f"GET /app-0 HTTP/1.1\r\nhost: {name}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise ValueError(f"unexpected response {head[:40]!r}")
        length = next(int(line.partition(b":")[2]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)

    def result(self) -> dict:
        self.seconds.sort()
        return {
            "handshakes": self.handshakes,
            "failed": self.failed,
            "kept": f"{self.kept_requests} requests",
            "cut": self.cut,
            "handshake_p99_ms": round(1000 * self.seconds[len(self.seconds) * 99 // 100], 1) if self.seconds else None,
            "faults": self.faults[:5],
        }


def main() -> None:
    address, port, rate, kept, seconds, names = sys.argv[1:]
    clients = Clients(address, int(port), Path(names).read_text().split())
    asyncio.run(clients.run(int(rate), int(kept), float(seconds)))
    print(json.dumps(clients.result()))


if __name__ == "__main__":
    main()
