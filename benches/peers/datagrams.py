"""Owns the client of the `udp` cases and the echo that they reach: many datagrams by one system call, so that neither is slower than a proxy.

Usage: datagrams.py echo PORT; datagrams.py load PORT SECONDS SIZE CLIENTS WINDOW, which prints one line of JSON. Each client has a port of its own
and WINDOW datagrams on their way: it sends as many as came back. Python has no sendmmsg and recvmmsg, so they are those of the C library.
"""

import ctypes
import json
import os
import select
import socket
import sys
import time

BATCH = 64
LARGEST = 2048
BUFFER_BYTES = 4 << 20
# What has not come back after this time is lost.
LOST_SECONDS = 0.2


class _Part(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Header(ctypes.Structure):
    _fields_ = (
        *(("name", ctypes.c_void_p), ("name_length", ctypes.c_uint32)),
        *(("parts", ctypes.POINTER(_Part)), ("part_count", ctypes.c_size_t)),
        *(("control", ctypes.c_void_p), ("control_length", ctypes.c_size_t), ("flags", ctypes.c_int)),
    )


class _Message(ctypes.Structure):
    _fields_ = (("header", _Header), ("length", ctypes.c_uint))


_LIBC = ctypes.CDLL(None, use_errno=True)


class Batch:
    """Room for BATCH datagrams of `size` bytes, with their addresses if `named`."""

    def __init__(self, size: int, named: bool):
        self._data = [ctypes.create_string_buffer(size) for _ in range(BATCH)]
        self._names = [ctypes.create_string_buffer(16) for _ in range(BATCH)]
        self._parts = [_Part(ctypes.addressof(one), size) for one in self._data]
        self.messages = (_Message * BATCH)()
        for message, part, address in zip(self.messages, self._parts, self._names, strict=True):
            message.header.parts = ctypes.pointer(part)
            message.header.part_count = 1
            if named:
                message.header.name, message.header.name_length = ctypes.addressof(address), 16

    def set_lengths(self, count: int) -> None:
        """What was received is as long as what is sent next."""
        for part, message in zip(self._parts[:count], self.messages, strict=False):
            part.length = message.length

    def restore_lengths(self, count: int, size: int) -> None:
        for part in self._parts[:count]:
            part.length = size

    def receive(self, descriptor: int, most: int = BATCH) -> int:
        """The number of datagrams that were there; none is not an error."""
        return self._call(_LIBC.recvmmsg(descriptor, self.messages, min(most, BATCH), socket.MSG_DONTWAIT, None))

    def send(self, descriptor: int, count: int) -> int:
        """The number of datagrams that the socket took."""
        return self._call(_LIBC.sendmmsg(descriptor, self.messages, count, socket.MSG_DONTWAIT))

    def _call(self, done: int) -> int:
        if done >= 0:
            return done
        error = ctypes.get_errno()
        if error in (socket.EAGAIN, socket.EWOULDBLOCK):
            return 0
        raise OSError(error, os.strerror(error))


def opened() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    # As much of it as the system permits.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    return made


def bound(port: int) -> socket.socket:
    made = opened()
    made.bind(("127.0.0.1", port))
    return made


def echo(server: socket.socket) -> None:
    """Sends each datagram back, without end."""
    batch = Batch(LARGEST, named=True)
    waiting = select.poll()
    waiting.register(server, select.POLLIN)
    while True:
        waiting.poll()
        count = batch.receive(server.fileno())
        batch.set_lengths(count)
        batch.send(server.fileno(), count)
        batch.restore_lengths(count, LARGEST)


class Load:
    """The clients of a load, and what they have counted."""

    def __init__(self, port: int, size: int, clients: int, window: int):
        self._batch, self._arrivals = Batch(size, named=False), Batch(LARGEST, named=False)
        self._window, self._size = window, size
        self._sockets = [opened() for _ in range(clients)]
        self._waiting = select.epoll()
        self._missing, self._heard = {}, {}
        self.returned = self.lost = 0
        for client in self._sockets:
            client.connect(("127.0.0.1", port))
            self._waiting.register(client, select.EPOLLIN)
            self._missing[client.fileno()] = 0

    def run(self, seconds: float) -> float:
        """Sends for some seconds, and receives until nothing is missing or all of that is lost; returns how long it sent."""
        began = time.monotonic()
        for descriptor in self._missing:
            self._send(descriptor, self._window)
        checked = began
        while (now := time.monotonic()) - began < seconds:
            for descriptor, _ in self._waiting.poll(LOST_SECONDS):
                self._send(descriptor, self._receive(descriptor))
            if now - checked > LOST_SECONDS:
                checked = now
                self._give_up(now)
        while any(self._missing.values()):
            ready = self._waiting.poll(LOST_SECONDS)
            if not ready:
                self.lost += sum(self._missing.values())
                break
            for descriptor, _ in ready:
                self._receive(descriptor)
        return now - began

    def close(self) -> None:
        self._waiting.close()
        for client in self._sockets:
            client.close()

    def _send(self, descriptor: int, count: int) -> None:
        if count:
            self._missing[descriptor] += self._batch.send(descriptor, count)
            self._heard[descriptor] = time.monotonic()

    def _receive(self, descriptor: int) -> int:
        count = self._arrivals.receive(descriptor, self._window)
        if any(self._arrivals.messages[at].length != self._size for at in range(count)):
            raise OSError("a datagram came back with another length")
        self._missing[descriptor] -= count
        self.returned += count
        return count

    def _give_up(self, now: float) -> None:
        for descriptor, missing in self._missing.items():
            if missing and now - self._heard[descriptor] > LOST_SECONDS:
                self.lost += missing
                self._missing[descriptor] = 0
                self._send(descriptor, self._window)


def load(port: int, seconds: float, size: int, clients: int, window: int) -> dict:
    made = Load(port, size, clients, window)
    fault = ""
    began = time.monotonic()
    spent = 0.0
    try:
        spent = made.run(seconds)
    except OSError as error:
        fault, spent = str(error), time.monotonic() - began
    finally:
        made.close()
    return {"returned": made.returned, "lost": made.lost, "seconds": spent, "fault": fault}


if __name__ == "__main__":
    if sys.argv[1] == "echo":
        echo(bound(int(sys.argv[2])))
    else:
        print(json.dumps(load(int(sys.argv[2]), float(sys.argv[3]), *map(int, sys.argv[4:]))))
