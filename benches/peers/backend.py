"""Owns the backends behind every proxy, on the load core: one nginx, which also counts what reaches it, and an echo of datagrams."""

import re
import socket
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from process import Group, Process
from proxies import nginx

SMALL = b"hello, world\n"
BODIES = {"/4k": 4096, "/1m": 1 << 20}
# A proxy keeps connections to the 10,000 backends of the case scrape-teams.
CONNECTIONS = 30_000


@dataclass(frozen=True)
class Counts:
    """What the backend has seen since its start."""

    connections: int
    requests: int

    def since(self, earlier: "Counts") -> "Counts":
        return Counts(self.connections - earlier.connections, self.requests - earlier.requests)


@dataclass(frozen=True)
class Ports:
    plain: int
    tls: int
    status: int


class Backend:
    """Answers 13 bytes at any path, and files of 4 KB and 1 MiB at /4k and /1m. Reads all of what is PUT below /put."""

    def __init__(self, group: Group, program: str, folder: Path, cores: str, ports: Ports, certificate: tuple[Path, Path]):
        files = folder / "files"
        files.mkdir()
        for path, size in BODIES.items():
            (files / path.strip("/")).write_bytes(b"x" * size)
        self._asked = 0
        self._status = f"http://127.0.0.1:{ports.status}/"
        self._process = group.start("backend", nginx.start(program, folder, _http(files, ports, certificate), connections=CONNECTIONS), cores, folder / "log")
        self._process.ready_when(self._answers)

    def counts(self) -> Counts:
        """Asking makes one connection and one request, which are left out of the later count."""
        with urllib.request.urlopen(self._status, timeout=5) as answer:
            accepted, _handled, requests = re.search(rb"(\d+) (\d+) (\d+)", answer.read()).groups()
        self._asked += 1
        return Counts(int(accepted) - self._asked, int(requests) - self._asked)

    def cpu_ns(self) -> int:
        return self._process.cpu_ns()

    def _answers(self) -> bool:
        try:
            self.counts()
        except OSError:
            return False
        return True


class Collector:
    """Stands in for a collector of traces: an nginx that answers every message as OTLP over HTTP wants it, and drops it."""

    def __init__(self, group: Group, program: str, folder: Path, cores: str, port: int):
        self.port = port
        http = f"""\
    server {{
        listen 127.0.0.1:{port};
        keepalive_requests 1000000;
        client_max_body_size 16m;
        client_body_buffer_size 1m;
        location / {{ default_type application/x-protobuf; return 200 ""; }}
    }}"""
        self.process: Process = group.start("collector", nginx.start(program, folder, http), cores, folder / "log")
        self.process.ready_when(self._answers)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False


class Echo:
    """Sends each datagram back to where it came from."""

    def __init__(self, group: Group, folder: Path, cores: str, port: int):
        program = Path(__file__).with_name("datagrams.py")
        self.process: Process = group.start("echo", [sys.executable, "-E", "-S", str(program), "echo", str(port)], cores, folder / "log")
        self.process.ready_when(lambda: echoes(port))


def echoes(port: int) -> bool:
    """Whether a datagram to this port comes back within a moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(0.2)
        try:
            client.connect(("127.0.0.1", port))
            client.send(SMALL)
            return client.recv(100) == SMALL
        except OSError:
            return False


def _http(files: Path, ports: Ports, certificate: tuple[Path, Path]) -> str:
    bodies = "\n".join(f"        location = {path} {{ root {files}; }}" for path in BODIES)
    return f"""\
    sendfile on;
    open_file_cache max=16;
    open_file_cache_valid 1h;
    server {{
        listen 127.0.0.1:{ports.plain} backlog=4096;
        listen 127.0.0.1:{ports.tls} ssl backlog=4096;
        ssl_certificate {certificate[0]};
        ssl_certificate_key {certificate[1]};
        ssl_protocols TLSv1.3;
        client_max_body_size 2m;
{bodies}
        location = /put {{ root {files}; dav_methods PUT; }}
        location / {{ return 200 "hello, world\\n"; }}
    }}
    server {{
        listen 127.0.0.1:{ports.status};
        location / {{ stub_status; }}
    }}"""
