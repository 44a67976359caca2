"""Runs the cases with all clients, and reports them."""

import asyncio
import time
from pathlib import Path

from answer import Answer, differences
from backend import Backend, grpc_server
from cases import Case, Expected, Request, Wire, cases
from launch import running
from objects import Authority, everything, text
from processes import GO_CLIENT, PATIENCE, QUINN_CLIENT, Chromium, ClientProcess, ProcessClient, build, free_ports
from quic import Aioquic
from scenarios import Scene, scenarios

# Cases with connections of their own that run at the same time.
TOGETHER = 8


class Report:
    """A line per case."""

    def __init__(self):
        self.count = self.runs = self.failed = 0
        self.section = None

    def add(self, section: str, name: str, clients: list[str], wrong: list[str], seconds: float) -> None:
        if section != self.section:
            print(section, flush=True)
            self.section = section
        self.count, self.runs, self.failed = self.count + 1, self.runs + len(clients), self.failed + bool(wrong)
        outcome = "FAILED" if wrong else "ok"
        print(f"  {name:48} {outcome:6} {', '.join(clients)} ({seconds:.1f} s)", flush=True)
        for each in wrong:
            print(f"    {each}", flush=True)


async def run(program: Path, chosen: str, folder: Path) -> int:
    """Runs the cases that have a text, and returns an exit code."""
    build()
    servers, clients = Authority("servers"), Authority("clients")
    authority, config = folder / "authority.pem", folder / "config"
    authority.write_bytes(servers.pem())
    certificates = {"client": clients.write(folder, "client"), "stranger": Authority("strangers").write(folder, "stranger")}
    backend, (calls, calls_port) = Backend(), grpc_server()
    web = await backend.start()
    port, guarded, admin = free_ports(3)
    objects = everything((port, guarded), (web, calls_port), servers, clients)
    config.mkdir()
    (config / "objects.yaml").write_text(text(objects))
    aio, report = Aioquic(str(authority), (port, guarded), certificates), Report()
    go, quinn = (ClientProcess(client, (port, guarded), certificates) for client in (GO_CLIENT, QUINN_CLIENT))
    for process in (go, quinn):
        await process.start(str(authority))
    with running(program, config, admin, "--drain-deadline", "1s"):
        chromium = await asyncio.to_thread(Chromium, folder / "chromium", port, servers.pin())
        try:
            everyone = [aio, ProcessClient("quic-go", go), ProcessClient("quinn", quinn), chromium, *(ProcessClient(name, go, name) for name in ("h1", "h2"))]
            await table(chosen, report, everyone, backend, port)
            scene = Scene(program, folder, objects, servers, backend, aio, go, quinn, port)
            await scenarios(chosen, report, scene)
        finally:
            await asyncio.to_thread(chromium.close)
            await aio.close()
            await go.close()
            await quinn.close()
    calls.stop(None)
    print(f"{report.count} cases, {report.runs} with their clients: {report.failed} failed")
    return int(bool(report.failed or not report.count))


async def table(chosen: str, report: Report, everyone: list, backend: Backend, port: int) -> None:
    wanted = [case for case in cases() if chosen in f"{case.section}: {case.name}"]
    while wanted:
        # Bytes of streams and handshakes have connections of their own.
        count = next((at for at, case in enumerate(wanted[:TOGETHER]) if isinstance(case.sent, Request)), TOGETHER) or 1
        some, wanted = wanted[:count], wanted[count:]
        results = await asyncio.gather(*(result(case, everyone, backend, port) for case in some))
        for case, (clients, wrong, seconds) in zip(some, results, strict=True):
            report.add(case.section, case.name, clients, wrong, seconds)


async def result(case: Case, everyone: list, backend: Backend, port: int) -> tuple[list[str], list[str], float]:
    """Runs a case with all clients that can express it. Returns their names, and how they fail."""
    began, clients = time.monotonic(), [client for client in everyone if takes_part(client, case)]
    outcomes = []
    # Not more at the same time than passwords of a client may wait.
    for some in (clients[:3], clients[3:]):
        outcomes += await asyncio.gather(*(attempt(client, case, backend, port) for client in some), return_exceptions=True)
    found, wrong = {}, []
    for client, outcome in zip(clients, outcomes, strict=True):
        if isinstance(outcome, Exception):
            wrong.append(f"{client.name}: {outcome!r}")
            continue
        answer, differs = outcome
        wrong += [f"{client.name}: {each}" for each in differs]
        if answer.can_compare:
            found[client.name] = answer.comparable()
    reference = next((name for name in ("h2", "h1") if name in found), None)
    wrong += [f"{name} differs from {reference}: {unequal(other, found[reference])}" for name, other in found.items() if reference and other != found[reference]]
    return [client.name for client in clients], wrong, time.monotonic() - began


def takes_part(client, case: Case) -> bool:
    is_left_out = client.name in case.lacks or (client.name in ("h1", "h2") and client.name not in case.references)
    return not is_left_out and client.can(case)


def unequal(one: tuple, other: tuple) -> str:
    pairs = [(a, b) for a, b in zip(one, other, strict=False) if a != b]
    return " ".join(f"{str(a)[:300]} instead of {str(b)[:300]};" for a, b in pairs)


async def attempt(client, case: Case, backend: Backend, port: int) -> tuple[Answer, list[str]]:
    """Runs a case with a client. Returns what it got, and what is not as expected."""
    sent, expected = case.sent, case.expected
    if client.name == "chromium" and isinstance(case.browser, Expected):
        expected = case.browser
    if isinstance(sent, Wire):
        answer = await client.wire(sent)
    elif isinstance(sent, Request):
        key = f"{client.name}-{case.name}".replace(" ", "-")
        path = sent.path.replace("KEY", key)
        own = Request(**{**vars(sent), "headers": [(name, value.replace("CLIENT", key)) for name, value in sent.headers]})
        for _ in range(sent.before):
            await client.request(own, path, None)
        answer = await client.request(own, path, backend.begun[key])
        if sent.cancel:
            await asyncio.wait_for(backend.ended[key].wait(), PATIENCE)
    else:
        answer = await client.handshake(sent)
    has_codes = client.name in ("aioquic", "quic-go", "quinn")
    return answer, differences(answer, expected, port, has_codes)
