"""What scripts around the program share: free ports, packages in a virtual environment, and the program until it is ready."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def again(environment: Path, *requirements: str) -> int:
    """Runs this program in a virtual environment with packages. Returns only if it runs there already."""
    if Path(sys.prefix) == environment:
        print(f"{' and '.join(requirements)} cannot be imported in {environment}", file=sys.stderr)
        return 1
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements], check=True)
    os.execv(python, [str(python), *sys.argv])


@contextmanager
def running(program: Path, config: Path, admin: int, *arguments: str) -> Iterator[subprocess.Popen]:
    """Runs the program with the objects of a folder."""
    command = [program, "run", "--config-dir", config, "--admin", f"127.0.0.1:{admin}", "--access-log", "off"]
    command += ["--log-level", "warn", "--drain-delay", "0s", *arguments]
    with subprocess.Popen(command) as process:
        try:
            until_ready(process, admin)
            yield process
        finally:
            process.terminate()


def until_ready(process: subprocess.Popen, admin: int, seconds: float = PATIENCE) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        try:
            with opener.open(f"http://127.0.0.1:{admin}/readyz", timeout=5):
                return
        except OSError:
            time.sleep(0.02)
    raise RuntimeError("portcullis did not become ready")


def memory(process: subprocess.Popen, value: str = "VmRSS") -> int:
    """Resident memory in bytes: now, or with `VmHWM` at its peak."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split(f"{value}:")[1].split()[0]) * 1024
