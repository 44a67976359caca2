"""Owns data planes in a cluster of tests/cluster: one that reads the API server itself, and a Gateway's pod that gets its configuration from a
controller over its stream."""

import contextlib
import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from certificates import self_signed
from teams import name

import team_objects
from api import Api
from process import Group
from scene import Program, Scene, host
from statuses import Statuses
from team_objects import HTTP, HTTPS, INFRA
from traffic import Backends, wait

REPOSITORY = Path(__file__).resolve().parents[2]
# Where pods reach what runs beside the cluster.
NODE = "172.31.255.1"
SYSTEM = "portcullis-system"
GATEWAY_PODS = f"gateway.networking.k8s.io/gateway-name={team_objects.GATEWAY}"
CONTROLLER_PODS = "app.kubernetes.io/component=controller"
WRITERS = 8
# Limits of waits: some seconds, and as many for each object.
READY_SECONDS, SECONDS_PER_SET = 60.0, 0.4
POLL_SECONDS = 0.02
# With thousands of new objects, the controller may pause for seconds between statuses.
LONG_QUIET_SECONDS = 8.0


class Cluster(Scene):
    """Objects in the API server of the kubeconfig."""

    def __init__(self, routes: int, backends: Backends) -> None:
        super().__init__(0, routes, backends)
        self.api = Api()
        for one in (team_objects.namespace(INFRA), team_objects.gateway_class(), *self.gateway()):
            self.api.apply(one)

    def gateway(self) -> list[dict]:
        return [team_objects.gateway()]

    def change(self, kind: str, number: int) -> float:
        self.wake()
        return super().change(kind, number)

    def wake(self) -> None:
        """Replaces the connection to the API server if that has closed it, as it does after 90 s without a request."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.api.get("Namespace", INFRA)

    def grow(self, sets: int) -> None:
        """Adds teams until there are so many sets."""
        began = time.monotonic()
        with ThreadPoolExecutor(WRITERS) as writers:
            for done, _ in enumerate(writers.map(self._create_team, range(self.sets, sets)), 1):
                if done % 100 == 0:
                    print(f"  {self.sets + done} sets are in the API server after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        self.sets = max(self.sets, sets)

    def write_route(self, index: int, version: str) -> None:
        self.api.patch("HTTPRoute", "app-0", name(index), {"spec": team_objects.http_route(index, 0, version)["spec"]})

    def prepare_team(self, index: int) -> None:
        for one in team_objects.before_listeners(index, self.routes, NODE, self.backends.ports["first"]):
            self.api.create(one)

    def write_team(self, index: int) -> None:
        self.api.create(team_objects.listener_set(index))

    def write_certificate(self, index: int, pair: tuple[str, str] | None = None) -> str:
        pair = pair or self_signed(host(index))
        self.api.patch("Secret", "certificate", name(index), {"data": team_objects.secret(index, pair)["data"]})
        return pair[0]

    def write_endpoint(self, index: int, port: int) -> None:
        self.api.patch("EndpointSlice", "service-0", name(index), {"ports": [{"port": port, "protocol": "TCP"}]})

    def serves_all(self, samples: int = 5) -> bool:
        """Whether the first and the last set and some between are served; one table has all or none of them at a start."""
        return all(self.serves(index) for index in {at * (self.sets - 1) // (samples - 1) for at in range(samples)})

    def limit(self) -> float:
        return READY_SECONDS + self.sets * SECONDS_PER_SET

    def _create_team(self, index: int) -> None:
        self.prepare_team(index)
        self.write_team(index)


class Direct(Cluster):
    """`portcullis run --kubernetes` beside the cluster, which reads the API server itself."""

    def __init__(self, group: Group, portcullis: Path, folder: Path, routes: int, backends: Backends, cores: str) -> None:
        super().__init__(routes, backends)
        self._group, self._folder, self._cores = group, folder, cores
        self._command = [str(portcullis), "run", "--kubernetes", "--drain-delay", "0s", "--access-log", "off", "--log-level", "warn"]
        self._process = None

    def restart(self) -> None:
        """A fresh process, measured from its start until it serves all sets."""
        self.stop()
        self._process = self._group.start("portcullis", self._command, self._cores, self._folder / "portcullis.log")
        self.program = Program(self._process.pid, "127.0.0.1", HTTP, HTTPS, 0)
        self.program.ready_s = wait("all sets are served", self.serves_all, self.limit(), POLL_SECONDS)

    def stop(self) -> None:
        if self._process:
            self._group.stop(self._process)
            self._process = None


class Streamed(Cluster):
    """The pod of a Gateway, which the controller of deploy/install.yaml feeds over its stream."""

    def __init__(self, routes: int, backends: Backends, audit_log: Path) -> None:
        subprocess.run(["kubectl", "apply", "--server-side", "-f", REPOSITORY / "deploy" / "install.yaml"], check=True, stdout=subprocess.DEVNULL)
        self.statuses = Statuses(audit_log)
        super().__init__(routes, backends)
        self.api.patch("Deployment", "portcullis-controller", SYSTEM, {"spec": {"replicas": 1}})
        self._controller_pid = 0
        self.controller_ready_s = 0.0

    def gateway(self) -> list[dict]:
        return [team_objects.parameters("quiet"), team_objects.gateway("quiet")]

    def grow(self, sets: int) -> None:
        super().grow(sets)
        print("  waiting until the controller has written all statuses", file=sys.stderr, flush=True)
        self.statuses.until_quiet(3 * self.limit(), LONG_QUIET_SECONDS)

    def restart(self) -> None:
        """A fresh controller, and then a fresh pod, each measured from the start of its process."""
        pod = self._replaced(SYSTEM, CONTROLLER_PODS)
        self._controller_pid = _pid(pod)
        wait("the controller is ready", lambda: _is_ready(pod["status"]["podIP"]), self.limit(), POLL_SECONDS)
        self.controller_ready_s = _age(self._controller_pid)
        self.statuses.until_quiet(3 * self.limit(), LONG_QUIET_SECONDS)
        pod = self._replaced(INFRA, GATEWAY_PODS)
        self.program = Program(_pid(pod), pod["status"]["podIP"], HTTP, HTTPS, 0)
        wait("all sets are served", self.serves_all, self.limit(), POLL_SECONDS)
        self.program.ready_s = _age(self.program.pid)
        self.statuses.until_quiet(3 * self.limit(), LONG_QUIET_SECONDS)

    def controllers_pid(self) -> int | None:
        return self._controller_pid

    def stop(self) -> None:
        """The cluster ends what runs in it."""

    def _replaced(self, namespace: str, labels: str) -> dict:
        """Deletes the pods with these labels, and returns the one that replaces them as soon as its process runs."""
        self.wake()
        old = {pod["metadata"]["name"] for pod in self._pods(namespace, labels)}
        for title in old:
            self.api.delete("Pod", title, namespace, grace=0)
        found: list[dict] = []

        def runs() -> bool:
            found[:] = [pod for pod in self._pods(namespace, labels) if pod["metadata"]["name"] not in old and _runs(pod)]
            return bool(found) and len(self._pods(namespace, labels)) == 1

        wait(f"a new pod of {labels} runs", runs, READY_SECONDS, POLL_SECONDS)
        return found[0]

    def _pods(self, namespace: str, labels: str) -> list[dict]:
        return self.api.list("Pod", namespace, labels)


def _runs(pod: dict) -> bool:
    statuses: Iterable[dict] = pod["status"].get("containerStatuses", [])
    return bool(pod["status"].get("podIP")) and any("running" in one.get("state", {}) for one in statuses)


def _pid(pod: dict) -> int:
    """The process of a pod: its id ends with it in this cluster."""
    return int(pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2])


def _age(pid: int) -> float:
    """Seconds since the start of a process."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _is_ready(address: str) -> bool:
    connection = http.client.HTTPConnection(address, 19000, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    finally:
        connection.close()
