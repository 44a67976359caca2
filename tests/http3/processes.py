"""The processes of the test: the clients of quic-go and quinn, which take commands, and Chromium."""

import asyncio
import base64
import contextlib
import hashlib
import itertools
import json
import socket
import subprocess
from dataclasses import asdict
from pathlib import Path

from answer import Answer
from backend import PATTERN, filled
from browser import Browser
from cases import Case, Handshake, Request, Wire
from objects import OTHER, WEB

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
TARGET = REPOSITORY / "target"
GO_CLIENT = TARGET / "http3-client"
QUINN = "http3-quinn"
QUINN_CLIENT = TARGET / "debug" / "examples" / QUINN
PATIENCE = 20


def free_ports(count: int) -> list[int]:
    """Ports that are free for TCP and UDP."""
    with contextlib.ExitStack() as stack:
        ports = []
        while len(ports) < count:
            tcp = stack.enter_context(socket.socket())
            udp = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            tcp.bind(("127.0.0.1", 0))
            with contextlib.suppress(OSError):
                udp.bind(tcp.getsockname())
                ports.append(tcp.getsockname()[1])
        return ports


def build() -> None:
    command = ["go", "-C", HERE / "go", "build", "-trimpath", "-buildvcs=false", "-o", GO_CLIENT, "."]
    subprocess.run(command, check=True)
    # What `cargo test` has built, if it has run: the same profile with the same features.
    command = ["cargo", "build", "--quiet", "--locked", "--example", QUINN, "--target-dir", TARGET]
    subprocess.run(command, check=True, cwd=REPOSITORY)


class ClientProcess:
    """A program with clients. Takes commands as lines of JSON, and answers so."""

    def __init__(self, program: Path, ports: tuple[int, int], certificates: dict[str, tuple[str, str]]):
        self.program, self.ports, self.certificates, self.waiting, self.ids = program, ports, certificates, {}, itertools.count(1)

    async def start(self, authority: str) -> None:
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(self.program, authority, stdin=pipe, stdout=pipe, limit=1 << 26)
        self.reading = asyncio.create_task(self.read())

    async def read(self) -> None:
        while line := await self.process.stdout.readline():
            found = json.loads(line)
            self.waiting.pop(found["id"]).set_result(found)
        for waiting in self.waiting.values():
            waiting.set_exception(RuntimeError(f"{self.program.name} has ended"))

    async def send(self, begun: asyncio.Event | None = None, **command) -> Answer:
        """Sends a command. When its request has `begun`, it is cancelled."""
        number = next(self.ids)
        waiting = self.waiting[number] = asyncio.get_running_loop().create_future()
        self.process.stdin.write(json.dumps({"id": number, **command}).encode() + b"\n")
        await self.process.stdin.drain()
        if begun:
            await asyncio.wait_for(begun.wait(), PATIENCE)
            await self.send(kind="cancel", target=number)
        found = await asyncio.wait_for(waiting, 2 * PATIENCE)
        answer = Answer(status=found["status"] or None, length=found["length"], digest=found["digest"], error=found["error"])
        answer.body = base64.b64decode(found["body"] or "")
        for name in ("headers", "trailers"):
            setattr(answer, name, [tuple(pair) for pair in found[name] or []])
        answer.interim = [(each["status"], [tuple(pair) for pair in each["headers"]]) for each in found["interim"] or []]
        for name in ("stream", "connection", "alert", "certificate"):
            setattr(answer, name, found[name])
        answer.decode()
        return answer

    async def close(self) -> None:
        self.process.stdin.close()
        await self.process.wait()
        await self.reading


class ProcessClient:
    """A client for one protocol, in such a process."""

    def __init__(self, name: str, process: ClientProcess, protocol: str = "h3", port: int | None = None):
        self.name, self.process, self.protocol, self.port = name, process, protocol, port or process.ports[0]

    def can(self, case: Case) -> bool:
        return self.name not in case.lacks and (self.protocol == "h3" or isinstance(case.sent, Request))

    async def request(self, sent: Request, path: str, begun: asyncio.Event | None) -> Answer:
        command = asdict(sent) | {"path": path, "host": sent.host or sent.name, "body": base64.b64encode(sent.body).decode()}
        command |= {"kind": "request", "protocol": self.protocol, "port": self.port}
        return await self.process.send(begun if sent.cancel == "waiting" else None, **command)

    async def wire(self, sent: Wire) -> Answer:
        streams = [{"uni": each.is_uni, "fin": each.fin, "data": base64.b64encode(each.data).decode()} for each in sent.streams]
        answer = await self.process.send(kind="wire", port=self.port, name=WEB, alpn="h3", streams=streams)
        if not answer.error:
            answer.frames(answer.body)
        return answer

    async def handshake(self, sent: Handshake) -> Answer:
        certificate, key = self.process.certificates.get(sent.certificate, ("", ""))
        port = self.process.ports[sent.is_guarded]
        return await self.process.send(kind="connect", port=port, name=sent.name, alpn=sent.alpn, cert=certificate, key=key)


# Runs a request in a page. Scripts cannot see trailers and interim responses.
FETCH = """(async (sent) => {
    performance.clearResourceTimings();
    const bytes = new TextEncoder().encode(sent.unit.repeat(sent.size / sent.unit.length + 1).slice(0, sent.size));
    const hex = (buffer) => [...new Uint8Array(buffer)].map((it) => it.toString(16).padStart(2, "0")).join("");
    const one = async () => {
        const abort = new AbortController();
        const found = {error: "", headers: [], length: 0, digest: ""};
        try {
            window.abort = () => abort.abort();
            const body = ["POST", "PUT"].includes(sent.method) ? bytes : undefined;
            const response = await fetch(sent.url, {method: sent.method, headers: sent.headers, body, signal: abort.signal, credentials: "omit"});
            Object.assign(found, {status: response.status, headers: [...response.headers]});
            if (sent.cancel === "reading") {
                await response.body.getReader().read();
                abort.abort();
                throw new Error("cancelled");
            }
            const content = await response.arrayBuffer();
            found.length = content.byteLength;
            found.digest = hex(await crypto.subtle.digest("SHA-256", content));
            if (content.byteLength < 65536) found.text = new TextDecoder("latin1").decode(content);
        } catch (error) {
            found.error = String(error);
        }
        return found;
    };
    const all = await Promise.all(Array.from({length: sent.together}, one));
    const protocols = performance.getEntriesByType("resource").map((it) => it.nextHopProtocol).filter((it) => it);
    return {...all[0], are_equal: new Set(all.map((it) => it.status + it.digest + it.error)).size === 1, protocols};
})"""
# Scripts cannot set these.
FORBIDDEN = {"cookie", "expect", "host", "origin", "te", "accept-encoding"}


class Chromium:
    """A page of Chromium, which uses HTTP/3 at once."""

    name = "chromium"

    def __init__(self, folder: Path, port: int, pin: str):
        origins = ",".join(f"{name}:{port}" for name in (WEB, OTHER))
        flags = [f"--origin-to-force-quic-on={origins}", "--host-resolver-rules=MAP *.test 127.0.0.1", f"--ignore-certificate-errors-spki-list={pin}"]
        self.port, self.browser = port, Browser(folder, *flags)
        # Events of requests have their bodies, and DevTools is slow with long texts.
        self.browser.send("Network.disable")
        self.browser.open(f"https://{WEB}:{port}/page")

    def can(self, case: Case) -> bool:
        sent = case.sent
        if case.browser is False or self.name in case.lacks or not isinstance(sent, Request):
            return False
        is_forbidden = any(name in FORBIDDEN for name, _ in sent.headers)
        return not (is_forbidden or sent.trailers or sent.host or not sent.sized or sent.method == "TRACE")

    async def request(self, sent: Request, path: str, begun: asyncio.Event | None) -> Answer:
        size = len(sent.body)
        unit = PATTERN if sent.body == filled(size) else sent.body
        wanted = {"url": f"https://{sent.name}:{self.port}{path}", "method": sent.method, "headers": sent.headers, "unit": unit.decode("latin-1"), "size": size}
        wanted |= {"cancel": sent.cancel, "together": sent.together}
        fetching = asyncio.create_task(asyncio.to_thread(self.browser.value, f"{FETCH}({json.dumps(wanted)})"))
        if sent.cancel == "waiting":
            await asyncio.wait_for(begun.wait(), PATIENCE)
            await asyncio.to_thread(self.browser.value, "window.abort()")
        found = await fetching
        if not found["are_equal"] or set(found["protocols"]) - {"h3"}:
            raise AssertionError(f"several answers, or other protocols: {found['protocols']}")
        answer = Answer(status=found.get("status"), headers=[tuple(pair) for pair in found["headers"]], length=found["length"], digest=found["digest"])
        answer.error, answer.can_compare = found["error"], False
        if "text" in found:
            answer.body = found["text"].encode("latin-1")
            assert hashlib.sha256(answer.body).hexdigest() == answer.digest
        return answer

    def close(self) -> None:
        self.browser.stop()
