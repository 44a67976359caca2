"""What a client gets, and how it is compared with what is expected and with what other clients get."""

import gzip
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import brotli
import pylsqpack
import zstandard
from aioquic.buffer import Buffer

from cases import DATA, HEADERS, Expected, Fields

# These differ by protocol, by time or by request. net/http keeps `Trailer` to itself.
OWN = {"alt-svc", "connection", "date", "keep-alive", "trailer", "transfer-encoding", "x-request-id"}
SHOWN = 200
DECODERS = {"gzip": gzip.decompress, "br": brotli.decompress, "zstd": lambda body: zstandard.ZstdDecompressor().decompressobj().decompress(body)}


@dataclass
class Answer:
    status: int | None = None
    headers: Fields = field(default_factory=list)
    length: int = 0
    digest: str = ""
    body: bytes | None = None
    """None if it is long."""
    trailers: Fields = field(default_factory=list)
    interim: list[tuple[int, Fields]] = field(default_factory=list)
    error: str = ""
    stream: int | None = None
    connection: int | None = None
    alert: int | None = None
    certificate: list[str] | None = None
    can_compare: bool = True

    def contents(self, body: bytes) -> None:
        self.length, self.digest, self.body = len(body), hashlib.sha256(body).hexdigest(), body

    def decode(self) -> None:
        """Decodes the body: its size before depends on the parts in which the proxy receives it."""
        decoder = DECODERS.get(joined(self.headers).get("content-encoding"))
        if decoder and not self.error:
            self.contents(decoder(self.body))

    def frames(self, data: bytes) -> None:
        """Reads the frames of a response."""
        body = b""
        for kind, payload in frames(Buffer(data=data)):
            if kind == HEADERS and self.status is None:
                _, lines = pylsqpack.Decoder(0, 0).feed_header(0, payload)
                self.status = int(dict(lines)[b":status"])
            elif kind == DATA:
                body += payload
        self.contents(body)

    def comparable(self) -> tuple:
        """What is equal over all protocols."""
        # A reset may be faster than what was sent before.
        if self.error:
            return ("error",)
        # HTTP/1.1 needs the length of what is empty.
        headers = sorted((name, value) for name, value in self.headers if name not in OWN and (name, value) != ("content-length", "0"))
        return self.status, headers, self.length, self.digest, sorted(self.trailers), self.interim


def frames(buffer: Buffer) -> Iterator[tuple[int, bytes]]:
    while not buffer.eof():
        kind, size = buffer.pull_uint_var(), buffer.pull_uint_var()
        yield kind, buffer.pull_bytes(size)


def joined(fields: Fields) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in fields:
        values[name] = f"{values[name]}, {value}" if name in values else value
    return values


def differences(found: Answer, expected: Expected, port: int, has_codes: bool) -> list[str]:
    """What is not as expected. Codes of HTTP/3 are compared if the client `has_codes`."""
    wrong = []

    def compare(what: str, is_value, value) -> None:
        if is_value != value:
            wrong.append(f"{what}: {str(is_value)[:SHOWN]} instead of {str(value)[:SHOWN]}")

    if bool(found.error) == expected.is_complete:
        wrong.append(found.error or "no error")
    if expected.status:
        compare("status", found.status, expected.status)
    if has_codes:
        for name in ("stream", "connection", "alert"):
            if getattr(expected, name) is not None:
                compare(f"code of the {name}", getattr(found, name), getattr(expected, name))
    headers, trailers = joined(found.headers), joined(found.trailers)
    for name, value in expected.headers.items():
        compare(name, headers.get(name), value and value.replace("PORT", str(port)))
    for name, value in expected.trailers.items():
        compare(f"trailer {name}", trailers.get(name), value)
    if expected.interim is not None and found.can_compare:
        compare("interim responses", [status for status, _ in found.interim], expected.interim)
    if expected.body is not None:
        compare("body", (found.length, found.digest), (len(expected.body), hashlib.sha256(expected.body).hexdigest()))
    if expected.certificate is not None:
        compare("certificate", found.certificate, expected.certificate)
    if expected.seen and not wrong:
        seen = json.loads(found.body or b"{}")
        received = joined([tuple(pair) for pair in seen.get("headers", [])])
        for name, value in expected.seen.items():
            if name == "headers":
                for header, text in value.items():
                    compare(f"{header} at the backend", received.get(header), text)
            else:
                compare(f"{name} at the backend", seen.get(name), value)
    return wrong
