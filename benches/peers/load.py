"""Owns the load generators: wrk, h2load, quic-go and our clients of TLS handshakes and datagrams, and what they report.

All of them use only TLS 1.3 with AES-128-GCM and X25519, so that every proxy does the same cryptography.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# What http3.py builds of http3-load.
HTTP3_LOAD = Path(__file__).resolve().parents[2] / "target" / "http3-load"
CIPHER = "TLS_AES_128_GCM_SHA256"
GROUP = "X25519"
OPENSSL_CONFIG = f"""\
openssl_conf = bench
[bench]
ssl_conf = ssl
[ssl]
system_default = defaults
[defaults]
MinProtocol = TLSv1.3
Ciphersuites = {CIPHER}
Groups = {GROUP}
"""

# With the request line and Host, about 1 KB: a browser behind a login.
LARGE_HEADERS = {
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
    "Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8",
    "Accept-Language": "en-GB,en;q=0.9,de;q=0.8,fr;q=0.7",
    "Accept-Encoding": "gzip, deflate, br, zstd",
    "Referer": "https://bench.example/account/orders?page=4&sort=newest",
    "Cache-Control": "no-cache",
    "Sec-Fetch-Dest": "document",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Site": "same-origin",
    "Cookie": "session=" + "0123456789abcdef" * 16 + "; preferences=" + "theme-dark." * 12,
}


@dataclass(frozen=True)
class Outcome:
    """What a load generator did. `fault` is empty when every response was a 2xx and nothing failed."""

    requests: int
    seconds: float
    fault: str
    # Datagrams that did not come back, or of QUIC those that sockets of this machine had no room for.
    lost: int = 0


@dataclass(frozen=True)
class Target:
    """Where new TLS connections go if not to localhost, their server names in turn, and the status of the response to their request."""

    address: str
    path: str
    names: list[str]
    status: int = 200


class Generator:
    """Runs a load generator on the load cores, for a bounded time."""

    def __init__(self, cores: str, folder: Path):
        self._cores = cores
        self._folder = folder
        self._openssl = folder / "openssl.cnf"
        self._openssl.write_text(OPENSSL_CONFIG)

    def wrk(self, url: str, seconds: float, connections: int = 32, headers: dict[str, str] | None = None, script: str = "", threads: int = 1) -> Outcome:
        """wrk counts in whole seconds, so a shorter time is one second."""
        whole = max(1, round(seconds))
        arguments = ["-t", str(threads), "-c", str(connections), "-d", str(whole), "--timeout", "5s"]
        arguments += _header_arguments(headers or {})
        if script:
            path = self._folder / "requests.lua"
            path.write_text(script)
            arguments += ["-s", str(path)]
        return _wrk_outcome(self._run(["wrk", *arguments, url], whole))

    def paced_http1(self, url: str, port: int, seconds: float, rate: float, headers: dict[str, str], connections: int = 32) -> Outcome:
        """Requests of HTTP/1 at a fixed rate per second, of which each connection has its part."""
        paced = ["--h1", "--rps", f"{rate / connections:.1f}", *_header_arguments(headers)]
        return self._h2load(url, port, seconds, connections, paced)

    def h2load(self, url: str, port: int, seconds: float, connections: int = 16, streams: int = 10) -> Outcome:
        return self._h2load(url, port, seconds, connections, ["-m", str(streams), f"--tls13-ciphers={CIPHER}", f"--groups={GROUP}"])

    def _h2load(self, url: str, port: int, seconds: float, connections: int, more: list[str]) -> Outcome:
        arguments = ["-t", "1", "-c", str(connections), "-D", f"{round(seconds * 1000)}ms", f"--connect-to=127.0.0.1:{port}", *more]
        return _h2load_outcome(self._run(["h2load", *arguments, url], seconds))

    def handshakes(self, port: int, seconds: float, connections: int = 16, target: Target | None = None) -> Outcome:
        client = Path(__file__).with_name("handshakes.py")
        arguments = [str(port), str(seconds), str(connections)]
        if target:
            names = self._folder / "names"
            names.write_text("\n".join(target.names))
            arguments += [target.address, target.path, str(target.status), str(names)]
        output = self._run([sys.executable, "-E", "-S", str(client), *arguments], seconds)
        try:
            done = json.loads(output)
        except ValueError:
            return Outcome(0, 0, _last_line(output))
        return Outcome(done["connections"], done["seconds"], done["fault"])

    def datagrams(self, port: int, seconds: float, size: int, clients: int, window: int) -> Outcome:
        """Datagrams to an echo, of which each client has `window` on their way."""
        client = Path(__file__).with_name("datagrams.py")
        numbers = map(str, (port, seconds, size, clients, window))
        output = self._run([sys.executable, "-E", "-S", str(client), "load", *numbers], seconds)
        try:
            done = json.loads(output)
        except ValueError:
            return Outcome(0, 0, _last_line(output))
        return Outcome(done["returned"], done["seconds"], done["fault"], done["lost"])

    def http3(self, mode: str, port: int, seconds: float, *more: object) -> Outcome:
        """`requests` or `handshakes` of http3-load, which says what follows."""
        without_room = datagrams_without_room()
        output = self._run([str(HTTP3_LOAD), mode, str(port), str(seconds), *map(str, more)], seconds)
        try:
            done = json.loads(output)
        except ValueError:
            return Outcome(0, 0, _last_line(output))
        return Outcome(done["requests"], done["seconds"], done["fault"], datagrams_without_room() - without_room)

    def paced(self, port: int, host: str, path: str, rate: float, seconds: float) -> dict:
        """Latencies of requests at a fixed rate, in milliseconds: see paced.py."""
        client = Path(__file__).with_name("paced.py")
        output = self._run([sys.executable, "-E", "-S", str(client), str(port), host, path, str(rate), str(seconds)], seconds)
        try:
            return json.loads(output)
        except ValueError:
            return {"latencies": {}, "responses": {}, "requests": 0, "fault": _last_line(output)}

    def _run(self, argv: list[str], seconds: float) -> str:
        try:
            done = subprocess.run(
                ["taskset", "-c", self._cores, *argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OPENSSL_CONF": str(self._openssl)},
                timeout=seconds + 30,
                text=True,
            )
        except subprocess.TimeoutExpired:
            return f"{argv[0]} did not end in time"
        return done.stdout


def datagrams_without_room() -> int:
    """Datagrams that sockets of this machine had no room for, since its start."""
    names, values = (line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line.startswith("Udp:"))
    return int(values[names.index("RcvbufErrors")])


def _header_arguments(headers: dict[str, str]) -> list[str]:
    return [argument for name, value in headers.items() for argument in ("-H", f"{name}: {value}")]


def _wrk_outcome(output: str) -> Outcome:
    total = re.search(r"(\d+) requests in ([\d.]+)(us|ms|s|m)\b", output)
    if not total or int(total[1]) == 0:
        return Outcome(0, 0, _last_line(output))
    scale = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60}[total[3]]
    faults = re.findall(r"(Socket errors:.*|Non-2xx.*)", output)
    return Outcome(int(total[1]), float(total[2]) * scale, "; ".join(faults))


def _h2load_outcome(output: str) -> Outcome:
    total = re.search(r"requests: .* (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", output)
    time = re.search(r"finished in ([\d.]+)(us|ms|s)\b", output)
    if not total or not time or int(total[1]) == 0:
        return Outcome(0, 0, _last_line(output))
    done, succeeded, failed, errored, timeout = map(int, total.groups())
    scale = {"us": 1e-6, "ms": 1e-3, "s": 1}[time[2]]
    bad = failed or errored or timeout or succeeded != done
    fault = f"{failed} failed, {errored} errored, {timeout} timed out, {done - succeeded} not 2xx" if bad else ""
    return Outcome(done, float(time[1]) * scale, fault)


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return "no request completed: " + (lines[-1] if lines else "no output")


def lua_requests(pairs: list[tuple[str, str]]) -> str:
    """A wrk script that asks for the (host, path) pairs in turn, forever."""
    lines = "\n".join(f'  "GET {path} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n",' for host, path in pairs)
    return f"""\
local requests = {{
{lines}
}}
local next = 0
request = function()
  next = next % #requests + 1
  return requests[next]
end
"""
