"""Owns the processes of a run: start pinned to cores, wait until ready, read CPU time and memory, end.

Every process leads a session of its own, so that a proxy is counted with all of its workers and ended with them.
Knows nothing of proxies, loads or cases.
"""

import contextlib
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

STOP_SECONDS = 5.0


class StartError(Exception):
    """A process did not come up; the message says how its log ends."""

    def __init__(self, name: str, message: str):
        super().__init__(message)
        self.name = name


class Process:
    """A program that runs pinned to `cores`, with everything it forks."""

    def __init__(self, name: str, argv: list[str], cores: str, log: Path):
        self.name = name
        self.cores = cores
        self.log = log
        # For appending, so that the file can be emptied while the program runs.
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                ["taskset", "-c", cores, *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.pid = self._child.pid

    def pids(self) -> list[int]:
        """The process and its descendants: all that share its session."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit() and _session_of(entry) == self.pid:
                found.append(int(entry))
        return found

    def cpu_ns(self) -> int:
        """User and system time of all threads, ended ones included."""
        return sum(_cpu_ns(pid) for pid in self.pids())

    def rss_bytes(self) -> int:
        """Resident memory; a page that master and worker share counts twice."""
        return sum(_rss_bytes(pid) for pid in self.pids())

    def ready_when(self, probe, seconds: float = 30.0) -> None:
        """Waits until `probe()` is true; the process ending first, or the time running out, is an error."""
        deadline = time.monotonic() + seconds
        while not probe():
            if self._child.poll() is not None:
                raise StartError(self.name, f"ended with code {self._child.returncode}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise StartError(self.name, f"was not ready after {seconds:.0f} s:\n{self.log_tail()}")
            time.sleep(0.02)
        self._check_pinned()

    def log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join("  " + line for line in lines[-15:]) or "  (no output)"

    def stop(self) -> None:
        """Ends the process and all of its session, politely first."""
        if self._child.poll() is None:
            self._child.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            self._child.poll()
            if not self.pids():
                break
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._child.wait()

    def _check_pinned(self) -> None:
        wanted = core_set(self.cores)
        for pid in self.pids():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    if not os.sched_getaffinity(int(thread)) <= wanted:
                        raise StartError(self.name, f"a thread left core {self.cores}")


class Group:
    """The processes of a run, ended in reverse order whatever happens."""

    def __init__(self):
        self._running: list[Process] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        while self._running:
            self._running.pop().stop()

    def start(self, *args, **kwargs) -> Process:
        process = Process(*args, **kwargs)
        self._running.append(process)
        return process

    def stop(self, process: Process) -> None:
        self._running.remove(process)
        process.stop()


def own_cpu_ns() -> int:
    """What this program and the load generators that it has run took."""
    kinds = (resource.getrusage(kind) for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return round(sum(used.ru_utime + used.ru_stime for used in kinds) * 1e9)


def busy_ns(cores: str) -> int:
    """Time that the cores were not idle, whoever used them (10 ms steps)."""
    names = {f"cpu{core}" for core in core_set(cores)}
    busy = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name in names:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
            busy += user + nice + system + irq + softirq + steal
    return busy * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def core_set(cores: str) -> set[int]:
    """The cores of a list as taskset takes it, such as `0` or `1,4-7`."""
    found = set()
    for part in cores.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _session_of(pid: str) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    state, _parent, _group, session = stat.rpartition(")")[2].split()[:4]
    return -1 if state == "Z" else int(session)


def _cpu_ns(pid: int) -> int:
    # Linux builds the id of a process's CPU clock from its pid (man clock_getcpuclockid); it counts in nanoseconds.
    try:
        return time.clock_gettime_ns(~pid << 3 | 2)
    except OSError:
        return 0


def _rss_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss:")), 0)
