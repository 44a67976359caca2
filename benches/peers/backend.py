"""Owns the backend behind every proxy: one nginx on the load core, which also counts what reaches it."""

import re
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from process import Group
from proxies import nginx

SMALL = b"hello, world\n"
BODIES = {"/4k": 4096, "/1m": 1 << 20}


@dataclass(frozen=True)
class Counts:
    """What the backend has seen since its start."""

    connections: int
    requests: int

    def since(self, earlier: "Counts") -> "Counts":
        return Counts(self.connections - earlier.connections, self.requests - earlier.requests)


class Backend:
    """Answers 13 bytes at any path, and files of 4 KB and 1 MiB at /4k and /1m."""

    def __init__(self, group: Group, program: str, folder: Path, cores: str, port: int, status_port: int):
        files = folder / "files"
        files.mkdir()
        for path, size in BODIES.items():
            (files / path.strip("/")).write_bytes(b"x" * size)
        self._asked = 0
        self._status = f"http://127.0.0.1:{status_port}/"
        self._process = group.start("backend", nginx.start(program, folder, _http(files, port, status_port)), cores, folder / "log")
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


def _http(files: Path, port: int, status_port: int) -> str:
    bodies = "\n".join(f"        location = {path} {{ root {files}; }}" for path in BODIES)
    return f"""\
    sendfile on;
    open_file_cache max=16;
    open_file_cache_valid 1h;
    server {{
        listen 127.0.0.1:{port} backlog=4096;
{bodies}
        location / {{ return 200 "hello, world\\n"; }}
    }}
    server {{
        listen 127.0.0.1:{status_port};
        location / {{ stub_status; }}
    }}"""
