"""Owns a data plane whose configuration is a folder of config/examples/many-teams: a change replaces a file, or adds the folder of a team."""

import base64
import urllib.error
import urllib.request
from pathlib import Path

from teams import CERTIFICATE, Teams, name

from process import Group
from scene import Program, Scene
from traffic import Backends, free_port, wait

READY_SECONDS = 120.0


class Folder(Scene):
    """Starts the program when it is made."""

    def __init__(self, group: Group, portcullis: Path, folder: Path, sets: int, routes: int, backends: Backends, cores: str, in_place: bool = False) -> None:
        super().__init__(sets, routes, backends)
        self._group, self._in_place = group, in_place
        self._staging = folder / "staging"
        self._staging.mkdir(parents=True)
        self._teams = Teams(folder / "configuration", routes, free_port(), free_port(), backends.ports["first"])
        self._teams.gateway()
        for index in range(sets):
            self._teams.team(index)
        admin = free_port()
        command = [str(portcullis), "run", "--config-dir", str(self._teams.folder), "--admin", f"127.0.0.1:{admin}"]
        command += ["--drain-delay", "0s", "--access-log", "off", "--log-level", "warn"]
        self._process = group.start(f"portcullis with {sets} sets", command, cores, folder / "log")
        ready = wait("readiness", lambda: self._is_ready(admin), READY_SECONDS)
        self.program = Program(self._process.pid, "127.0.0.1", self._teams.http, self._teams.https, ready)

    def stop(self) -> None:
        self._group.stop(self._process)

    def write_route(self, index: int, version: str) -> None:
        self._replace(index, "routes.yaml", self._teams.http_routes(index, version))

    def prepare_team(self, index: int) -> None:
        self._teams.team(index, self._staging)

    def write_team(self, index: int) -> None:
        (self._staging / name(index)).rename(self._teams.folder / "teams" / name(index))

    def write_certificate(self, index: int, pair: tuple[str, str] | None = None) -> str:
        if pair is None:
            text, pem = self._teams.secret(index)
        else:
            certificate, key = (base64.b64encode(part.encode()).decode() for part in pair)
            text, pem = CERTIFICATE.format(team=name(index), certificate=certificate, key=key), pair[0]
        self._replace(index, "certificate.yaml", text)
        return pem

    def write_endpoint(self, index: int, port: int) -> None:
        self._replace(index, "backends.yaml", self._teams.backends(index, port))

    def _replace(self, index: int, file: str, text: str) -> None:
        path = self._teams.folder / "teams" / name(index) / file
        if self._in_place:
            path.write_text(text)
            return
        new = self._staging / f"{index}-{file}"
        new.write_text(text)
        new.rename(path)

    def _is_ready(self, admin: int) -> bool:
        if not self._process.pids():
            raise SystemExit(f"the program ended:\n{self._process.log_tail()}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=5):
                return True
        except urllib.error.URLError:
            return False
