"""Owns what a proxy under test must tell the bench: where its program is, and how it is started for a `Site`."""

import abc
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Site:
    """What every proxy is given: ports to listen on, the backend to send to, and the certificate."""

    http: int
    https: int
    h2c: int
    admin: int
    backend: int
    certificate: Path
    key: Path
    # Whether peers add X-Forwarded-For, -Proto, -Host and X-Request-Id, which Portcullis always does.
    same_headers: bool = False
    # Where the proxy logs every request; None when it does not.
    access_log: Path | None = None
    # Whether HAProxy moves plain-text bodies inside the kernel, which is off unless asked for.
    haproxy_splice: bool = False
    # Whether there is HTTP/3 on the UDP port with the number of `https`.
    http3: bool = False


@dataclass(frozen=True)
class ForwardSite:
    """What a proxy is given that forwards TCP, TLS and UDP: ports of 127.0.0.1 to listen on, and those of the backends."""

    tcp: int
    tls: int
    udp: int
    admin: int
    tcp_backend: int
    tls_backend: int
    udp_backend: int
    # Whether HAProxy moves data inside the kernel, which is off unless asked for.
    haproxy_splice: bool = False
    # There is no access log in these cases.
    access_log: None = None


# What a connection to `ForwardSite.tls` asks for; others have no backend.
SERVER_NAME = "localhost"


class Proxy(abc.ABC):
    """A proxy with one worker: HTTP/1.1 and h2c in plain text, HTTP/1.1 and HTTP/2 over TLS 1.3, one backend."""

    name: str
    program: str
    install: str
    forwards_udp = True
    # Whether the program, as it is installed, has HTTP/3.
    has_http3 = False

    def __init__(self, program: str | None = None):
        self.path = program or self.find()

    def find(self) -> str | None:
        return shutil.which(self.program) or shutil.which(self.program, path="/usr/sbin:/sbin")

    def version(self) -> str:
        output = subprocess.run([self.path, *self.version_arguments()], capture_output=True, text=True, timeout=20)
        match = re.search(r"\d+\.\d+\.\d+", output.stdout + output.stderr)
        return match.group() if match else "unknown"

    def version_arguments(self) -> list[str]:
        return ["--version"]

    @abc.abstractmethod
    def command(self, site: Site, folder: Path) -> list[str]:
        """Writes the configuration for `site` into `folder`; returns the command that stays in the foreground."""

    def is_ready(self, site: Site) -> bool | None:
        """Whether it serves its configuration; None where its responses show that."""
        return None

    def missing_to_forward(self) -> str:
        """How to install what the program lacks to forward TCP, TLS and UDP; empty if nothing."""
        return ""

    def forward_command(self, site: ForwardSite, folder: Path) -> list[str]:
        """The same for a proxy that forwards connections, those over TLS by server name, and datagrams if `forwards_udp`."""
        raise NotImplementedError
