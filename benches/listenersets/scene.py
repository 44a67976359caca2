"""Owns the changes that are measured: each is written to where the configuration comes from, and waited for on the wire.

Must not know where that is: a folder, an API server, or a controller.
"""

import abc
import random
from dataclasses import dataclass

from certificates import der
from teams import name

from traffic import FIRST, OTHER, Backends, Client, certificate, wait

GATEWAY_NAMESPACE = "infra"
KINDS = ("route", "listener", "secret", "endpoint")


@dataclass
class Program:
    """A data plane that is up: its process, where clients reach it, and seconds from its start to the first complete table."""

    pid: int
    address: str
    http: int
    https: int
    ready_s: float


class Scene(abc.ABC):
    """ListenerSets in a source of configuration, and a data plane that serves them."""

    program: Program

    def __init__(self, sets: int, routes: int, backends: Backends) -> None:
        # Including those that changes have added.
        self.sets, self.routes, self.backends = sets, routes, backends
        self._changed = 0
        self._on_other: set[int] = set()

    @abc.abstractmethod
    def write_route(self, index: int, version: str) -> None:
        """Changes the first route of a team so that its responses have the version in x-version."""

    @abc.abstractmethod
    def prepare_team(self, index: int) -> None:
        """Does what can be done before the team's ListenerSet exists."""

    @abc.abstractmethod
    def write_team(self, index: int) -> None:
        """Adds the team that was prepared."""

    @abc.abstractmethod
    def write_certificate(self, index: int, pair: tuple[str, str] | None = None) -> str:
        """Replaces the certificate of a team by this one and its key, or by a new one, and returns it in PEM."""

    @abc.abstractmethod
    def write_endpoint(self, index: int, port: int) -> None:
        """Sends requests of the first route of a team to this port of the backends."""

    def controllers_pid(self) -> int | None:
        """The controller that feeds the data plane."""
        return None

    def change(self, kind: str, number: int) -> float:
        """Makes a change, and returns the seconds from the end of its write to its effect."""
        self._changed = self.sets if kind == "listener" else random.randrange(self.sets)
        return getattr(self, f"_{kind}")(self._changed, number)

    def concerns_last_change(self, namespace: str) -> bool:
        """Whether an object in this namespace may have another status because of the last change: of the team, or the Gateway."""
        return namespace in (name(self._changed), GATEWAY_NAMESPACE)

    def _route(self, index: int, number: int) -> float:
        version = f"v{number}-{random.randrange(1 << 30)}"
        with self.client() as client:
            self.write_route(index, version)
            return wait("a route", lambda: response(client, index)[1].get("x-version") == version)

    def _listener(self, index: int, _: int) -> float:
        self.prepare_team(index)
        with self.client() as client:
            if response(client, index)[0] != 404:
                raise SystemExit(f"{name(index)} is served before it exists")
            self.write_team(index)
            self.sets += 1
            return wait("a new set", lambda: response(client, index)[0] == 200)

    def _secret(self, index: int, _: int) -> float:
        expected = der(self.write_certificate(index))
        return wait("a certificate", lambda: self.presented(index) == expected)

    def _endpoint(self, index: int, _: int) -> float:
        self._on_other ^= {index}
        expected = OTHER if index in self._on_other else FIRST
        with self.client() as client:
            self.write_endpoint(index, self.backends.ports[expected])
            return wait("an endpoint", lambda: response(client, index)[1].get("x-backend") == expected)

    def client(self) -> Client:
        return Client(self.program.address, self.program.http)

    def presented(self, index: int) -> bytes | None:
        """The certificate of a team on the wire."""
        return certificate(self.program.address, self.program.https, host(index))

    def serves(self, index: int) -> bool:
        with self.client() as client:
            return response(client, index)[0] == 200


def response(client: Client, index: int) -> tuple[int, dict[str, str]]:
    return client.get(host(index), "/app-0")


def host(index: int) -> str:
    return f"{name(index)}.example.com"
