"""The pods of a Gateway, each from its first moment to its last one, and requests to each of them. Clients of the Gateway's address
would reach one of them only, and none that is starting or ending."""

import http.client
import json
import threading
import time
from collections import Counter

from api import LEAST_SECONDS, Refused, wait_for
from cluster import GATEWAY_LABEL, is_ready

PORT = 8080
# The query of requests that must not pass: a backend can tell them from others.
PROTECTED = "protected"


class Instance:
    """A pod as the API server has last reported it."""

    def __init__(self, pod: dict):
        self.pod, self.was_ready, self.is_gone = pod, False, False

    @property
    def name(self) -> str:
        return self.pod["metadata"]["name"]

    @property
    def address(self) -> str | None:
        return self.pod["status"].get("podIP")

    @property
    def restarts(self) -> int:
        return self._container().get("restartCount", 0)

    @property
    def life(self) -> tuple[str, int]:
        """Tells it from other pods, and from itself after a restart of its container."""
        return self.pod["metadata"]["uid"], self.restarts

    @property
    def is_running(self) -> bool:
        return "running" in self._container().get("state", {})

    @property
    def is_ending(self) -> bool:
        return self.is_gone or "deletionTimestamp" in self.pod["metadata"]

    @property
    def is_ready(self) -> bool:
        return not self.is_ending and is_ready(self.pod)

    def _container(self) -> dict:
        return (self.pod["status"].get("containerStatuses") or [{}])[0]


class Instances:
    """All pods that a Gateway has had since this was made. Follows them until the process ends."""

    def __init__(self, api, namespace: str, gateway: str):
        self._api, self._namespace, self._gateway = api, namespace, gateway
        self._by_uid: dict[str, Instance] = {}
        threading.Thread(target=self._follow, daemon=True).start()

    def all(self) -> list[Instance]:
        return list(self._by_uid.values())

    def present(self) -> list[Instance]:
        return [one for one in self.all() if not one.is_gone]

    def are(self, count: int) -> bool:
        """Whether there are this many pods and no others, and all of them are ready."""
        present = self.present()
        return len(present) == count and all(one.is_ready for one in present)

    def _follow(self) -> None:
        while True:
            try:
                # A watch begins with all that are there, and says nothing of those that ended before.
                present = {pod["metadata"]["uid"] for pod in self._api.list("Pod", self._namespace)}
                for uid, one in list(self._by_uid.items()):
                    one.is_gone |= uid not in present
                for line in self._api.watch_lines("Pod", namespace=self._namespace):
                    self._note(json.loads(line))
            except (OSError, ValueError, Refused, http.client.HTTPException):
                # The API server is away or refuses, or an event has ended within its line.
                time.sleep(0.1)

    def _note(self, event: dict) -> None:
        pod = event["object"]
        if pod["metadata"].get("labels", {}).get(GATEWAY_LABEL) != self._gateway:
            return
        one = self._by_uid.setdefault(pod["metadata"]["uid"], Instance(pod))
        one.pod = pod
        one.was_ready |= one.is_ready
        one.is_gone |= event["type"] == "DELETED"


class Requests:
    """Requests to each pod of a Gateway, also to those that come, for each of these paths in turn, while entered. One that gets
    the status `passes` is a fault: with `protected` from the first moment of every pod, and otherwise once `protect` has been called
    for its path, of pods that are or have been ready. The controller does not wait for pods that end or have just become ready:
    then, requests may pass until the first one that does not, but there must be such a one."""

    def __init__(self, instances: Instances, names: list[str], passes: int, protected: bool = True):
        self._instances, self._names, self._passes = instances, names, passes
        self._protected, self._from_the_start = set(names if protected else ()), protected
        # By path, the pods that had just become ready when it was protected.
        self._joining: dict[str, list[Instance]] = {}
        self._ends, self._lock = threading.Event(), threading.Lock()
        self._senders: list[tuple[Instance, threading.Thread]] = []
        self._starter = threading.Thread(target=self._start_senders)
        # By life of a pod and path, the last status.
        self._last: dict[tuple[tuple[str, int], str], int] = {}
        self._passed: list[str] = []
        # By life of a pod that is not waited for, and path, the requests that have passed since this was protected.
        self._behind: dict[tuple[tuple[str, int], str], list[str]] = {}
        # By life of a pod and path, the requests that have passed although they must not.
        self.passed: Counter[tuple[tuple[str, int], str]] = Counter()
        self.sent = 0

    def __enter__(self):
        self._starter.start()
        return self

    def __exit__(self, kind, error, _):
        self._ends.set()
        self._starter.join()
        for instance, sender in self._senders:
            # The address of a pod that is gone may never respond.
            while sender.is_alive() and not instance.is_gone:
                sender.join(0.1)
        # Where requests pass for good, the wait for another status fails first.
        if kind is AssertionError and self._faults():
            raise AssertionError(f"{error}; {self._describe()}") from None

    def protect(self, name: str, known: list[Instance]) -> None:
        """Says that requests to a path must not pass any more. `known` are the ready pods that the controller must have waited for."""
        self._joining[name] = [one for one in self._instances.present() if one.was_ready and one not in known]
        self._protected.add(name)

    def all_respond(self, wanted: int, pods: int) -> None:
        """Waits until there are this many pods and no others, all ready, and each has last responded with this status for each path."""

        def look():
            lives = [one.life for one in self._instances.present()]
            return self._instances.are(pods) and all(self._last.get((life, name)) == wanted for life in lives for name in self._names)

        try:
            wait_for(f"{pods} pods respond with {wanted}", look, every=0.01)
        except AssertionError as error:
            found = {one.name: (one.is_ready, [self._last.get((one.life, name)) for name in self._names]) for one in self._instances.present()}
            raise AssertionError(f"{error}; by pod, whether it is ready, and its responses: {found}") from None

    def one_responds(self, name: str, wanted: int) -> None:
        """Waits until a pod has last responded with this status."""
        responds = lambda: any(self._last.get((one.life, name)) == wanted for one in self._instances.present())  # noqa: E731
        wait_for(f"a pod responds with {wanted} for /{name}", responds, every=0.002)

    def judge(self, where: str) -> None:
        """Fails if a request has passed that must not."""
        assert not self._faults(), f"{where}: {self._describe()}"

    def _faults(self) -> list[str]:
        with self._lock:
            # A single one: the pod ended before the next request, and may have followed.
            behind = [where for those in self._behind.values() if len(those) > 1 for where in those]
            return self._passed + behind

    def _describe(self) -> str:
        faults = self._faults()
        return f"{len(faults)} of {self.sent} requests passed: {faults[:3]}"

    def _start_senders(self) -> None:
        begun = set()
        while not self._ends.wait(0.005):
            for one in self._instances.present():
                if one.address and one not in begun:
                    begun.add(one)
                    # A connection to a pod that is gone must not keep the process.
                    sender = threading.Thread(target=self._send, args=(one,), daemon=True)
                    sender.start()
                    self._senders.append((one, sender))

    def _send(self, instance: Instance) -> None:
        while not (self._ends.is_set() or instance.is_gone):
            for name in self._names:
                self._exchange(instance, name)
                # Leaves the machine to what is tested.
                self._ends.wait(0.003)

    def _exchange(self, instance: Instance, name: str) -> None:
        # Read before the request is sent: what begins later promises nothing about it.
        is_protected = name in self._protected and (self._from_the_start or instance.was_ready)
        key, state = (instance.life, name), "ready" if instance.is_ready else "ending" if instance.is_ending else "not ready"
        is_awaited = self._from_the_start or (state == "ready" and instance not in self._joining.get(name, ()))
        may_pass = not is_protected or (not is_awaited and self._last.get(key) == self._passes)
        found = status(instance.address, f"/{name}" if may_pass else f"/{name}?{PROTECTED}")
        if found is None:
            return
        where = f"/{name} at {instance.name}, which was {state}"
        with self._lock:
            self.sent += 1
            self._last[key] = found
            if found != self._passes:
                self._behind.pop(key, None)
            elif not may_pass:
                self.passed[key] += 1
                self._passed.append(where)
            elif is_protected:
                self._behind.setdefault(key, []).append(where)


def status(address: str, path: str) -> int | None:
    """The status of a request on a new connection; None without a response."""
    connection = http.client.HTTPConnection(address, PORT, timeout=LEAST_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
