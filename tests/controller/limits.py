"""Limits that the pods of a Gateway share: what two and four pods admit together, that one connection gets the whole limit, and
what changes when a pod is killed and one is added."""

import http.client
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from api import wait_for
from checks import check
from cluster import GATEWAY_LABEL, metrics, send
from objects import gateway, namespace, parameters, parameters_ref, rate_limit_policy, redirect

NS = "limits"
# Ready pods, by Gateway.
PODS = {"edge": 2, "four": 4}
PORT = 8080
# Requests in a second, and at once.
LIMIT, BURST = 100, 50
SECONDS = 4


def prepare(cluster):
    limit = {"requests": LIMIT, "per": "Second", "burst": BURST}
    rule = {"name": "client", "scope": "Gateway", "key": [{"type": "Header", "name": "x-client"}], "limit": limit}
    cluster.apply(namespace(NS), redirect(NS, "web", list(PODS), "web.test"))
    for name, count in PODS.items():
        cluster.apply(parameters(NS, name, workload={"replicas": count}), rate_limit_policy(NS, name, name, rule))
        cluster.apply(gateway(NS, name, parametersRef=parameters_ref(name)))
    for name in PODS:
        cluster.gateway_is(NS, name)
        know_each_other = lambda: all(away(pod) == 0 and others(pod) for pod in pods(cluster, name))  # noqa: E731
        wait_for(f"the pods of {name} know each other", know_each_other, 60)
    # Until each has heard of the others.
    time.sleep(1)


def pods(cluster, name: str = "edge") -> list[dict]:
    return cluster.replicas(NS, name, PODS[name], 60)


def away(pod: dict) -> float:
    return metrics(pod).get("portcullis_limit_peers_away", -1)


def others(pod: dict) -> bool:
    """Whether the pod borrows tokens of some of many keys."""
    for number in range(20):
        status(connection(pod), f"warm-{number}")
    return tokens(pod, "borrowed") > 0


def tokens(pod: dict, what: str) -> float:
    return metrics(pod).get(f'portcullis_limit_lease_tokens_total{{what="{what}"}}', 0)


def connection(pod: dict) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(pod["status"]["podIP"], PORT, timeout=10)


def status(client: http.client.HTTPConnection, key: str) -> int:
    client.request("GET", "/", headers={"Host": "web.test", "x-client": key})
    response = client.getresponse()
    response.read()
    return response.status


def admitted(pod: dict, key: str, rate: int) -> int:
    """Sends requests over one connection for SECONDS. Returns how many are not refused."""
    client, begun, sent, count = connection(pod), time.monotonic(), 0, 0
    while (passed := time.monotonic() - begun) < SECONDS:
        if sent > passed * rate:
            time.sleep(0.001)
            continue
        sent += 1
        answer = status(client, key)
        assert answer in (302, 429), answer
        count += answer == 302
    return count


def all_of_one_connection(pods: list[dict], key: str) -> str:
    """What one connection to each of the pods gets, one after the other."""
    figures = []
    for number, pod in enumerate(pods):
        count = admitted(pod, f"{key}-{number}", 3 * LIMIT)
        assert count >= 0.95 * LIMIT * SECONDS, count
        assert count <= 1.05 * LIMIT * SECONDS + BURST, count
        figures.append(str(count))
    return f"{', '.join(figures)} of {LIMIT * SECONDS} and {BURST} at once"


@check("one connection to either pod gets at least 95 % of a limit of the Gateway, for any key")
def one_connection(cluster):
    return all_of_one_connection(pods(cluster) * 2, "one")


@check("one connection to any of four pods gets at least 95 % of a limit of the Gateway")
def one_connection_of_four(cluster):
    return all_of_one_connection(pods(cluster, "four"), "one")


@check("two pods together admit at most 1.05 of a limit and its burst")
def together(cluster):
    both = pods(cluster)
    with ThreadPoolExecutor() as clients:
        counts = list(clients.map(lambda pod: admitted(pod, "both", 2 * LIMIT), both))
    assert 0.9 * LIMIT * SECONDS <= sum(counts) <= 1.05 * LIMIT * SECONDS + BURST, counts
    assert all(metrics(pod)["portcullis_limit_peer_faults_total"] == 0 for pod in both)
    return f"{counts} of {LIMIT * SECONDS} and {BURST} at once"


@check("a pod is replaced: the pods that are ready share the limit again")
def replaced(cluster):
    before = pods(cluster)
    gone = before[0]["metadata"]["name"]
    cluster.api.delete("Pod", gone, NS)

    def look():
        ready = cluster.ready_pods(NS, f"{GATEWAY_LABEL}=edge")
        names = [pod["metadata"]["name"] for pod in ready]
        return len(names) == 2 and gone not in names and all(away(pod) == 0 for pod in ready) and ready

    after = wait_for("two pods are ready and know each other", look, 60)
    time.sleep(2)
    with ThreadPoolExecutor() as clients:
        counts = list(clients.map(lambda pod: admitted(pod, "after", 2 * LIMIT), after))
    assert 0.9 * LIMIT * SECONDS <= sum(counts) <= 1.05 * LIMIT * SECONDS + BURST, counts
    return f"{counts} of {LIMIT * SECONDS} and {BURST} at once"


class Clients:
    """Clients with the same key, each with one connection to a pod, which send requests while entered. One whose pod does not
    exist any more goes to `refuge`."""

    def __init__(self, key: str, refuge: dict | None = None):
        self._key, self._refuge = key, refuge
        self._ends, self._lock = threading.Event(), threading.Lock()
        self._threads: list[threading.Thread] = []
        self._began = time.monotonic()
        self.seconds = 0.0
        self.statuses: dict[int, int] = {}
        # By pod, the connections that ended with a request.
        self.lost: dict[str, int] = {}

    def __enter__(self):
        self._began = time.monotonic()
        return self

    def __exit__(self, *_):
        self._ends.set()
        for thread in self._threads:
            thread.join()
        self.seconds = time.monotonic() - self._began

    def add(self, pod: dict, rate: float) -> None:
        """Adds a client that sends up to `rate` requests a second to a pod."""
        self._threads.append(threading.Thread(target=self._send, args=(pod, rate)))
        self._threads[-1].start()

    def _send(self, pod: dict, rate: float) -> None:
        client, began, sent = connection(pod), time.monotonic(), 0
        while not self._ends.is_set():
            if sent > (time.monotonic() - began) * rate:
                time.sleep(0.001)
                continue
            sent += 1
            try:
                answer = status(client, self._key)
            except (OSError, http.client.HTTPException):
                name = pod["metadata"]["name"]
                with self._lock:
                    self.lost[name] = self.lost.get(name, 0) + 1
                pod = self._refuge or pod
                client = connection(pod)
                continue
            with self._lock:
                self.statuses[answer] = self.statuses.get(answer, 0) + 1

    def admitted(self) -> int:
        """How many requests are not refused. Fails if one has neither been admitted nor refused."""
        assert set(self.statuses) <= {302, 429}, self.statuses
        return self.statuses.get(302, 0)


@check("four pods together admit at most 1.05 of a limit and its burst, of clients that are spread unevenly")
def four_together(cluster):
    four = pods(cluster, "four")
    figures = []
    for heavy in range(len(four)):
        with Clients(f"skewed-{heavy}") as clients:
            for number, pod in enumerate(four):
                clients.add(pod, 2 * LIMIT if number == heavy else LIMIT / 4)
            time.sleep(SECONDS)
        count, most = clients.admitted(), LIMIT * clients.seconds
        assert not clients.lost, clients.lost
        assert 0.95 * most <= count <= 1.05 * most + BURST, f"{count} of {most:.0f}"
        figures.append(f"{count} of {most:.0f}")
    assert all(metrics(pod)["portcullis_limit_peer_faults_total"] == 0 for pod in four)
    return f"{', '.join(figures)}, and {BURST} at once"


def granted(four: list[dict]) -> list[float]:
    return [tokens(pod, "granted") for pod in four]


def is_granting(four: list[dict]) -> bool:
    """Whether a pod grants tokens without requests: pods ask for what they have used until they get it, at least once in a second."""
    before = granted(four)
    time.sleep(1.2)
    return granted(four) != before


def owner(four: list[dict], key: str) -> dict:
    """The pod that grants the others tokens of a key."""
    wait_for("the tokens of earlier keys are replaced", lambda: not is_granting(four), 30)
    before = granted(four)
    with Clients(key) as clients:
        for pod in four:
            clients.add(pod, LIMIT / 4)
        time.sleep(1)
    granting = [pod for pod, had, has in zip(four, before, granted(four), strict=True) if has > had]
    assert len(granting) == 1, f"{len(granting)} pods grant tokens of one key"
    return granting[0]


@check("the owner of a key is killed and a pod is added, of four: at most one burst more each time that the key moves, and no request of the others fails")
def owner_is_killed(cluster):
    four, key = pods(cluster, "four"), "doomed"
    victim = owner(four, key)
    gone, rest = victim["metadata"]["name"], [pod for pod in four if pod is not victim]
    # The burst is there again.
    time.sleep(1)
    with Clients(key, refuge=rest[0]) as clients:
        for pod, rate in zip([victim, *rest], (LIMIT, 2 * LIMIT, LIMIT / 2, LIMIT / 2), strict=True):
            clients.add(pod, rate)
        time.sleep(2)
        send(victim, signal.SIGKILL)
        cluster.api.delete("Pod", gone, NS, grace=0)

        def look():
            ready = cluster.ready_pods(NS, f"{GATEWAY_LABEL}=four")
            names = [pod["metadata"]["name"] for pod in ready]
            return len(names) == len(four) and gone not in names and all(away(pod) == 0 for pod in ready) and ready

        ready = wait_for("four pods are ready and know each other", look, 60)
        added = next(pod for pod in ready if pod["metadata"]["name"] not in {one["metadata"]["name"] for one in four})
        clients.add(added, LIMIT)
        time.sleep(3)
    # To another pod, and maybe to the one that is added.
    moves = 1 + (tokens(added, "granted") > 0)
    count, most = clients.admitted(), LIMIT * clients.seconds
    assert set(clients.lost) <= {gone}, clients.lost
    assert clients.lost.get(gone, 0) <= 1, clients.lost
    assert count <= 1.05 * most + BURST * (1 + moves), f"{count} of {most:.0f} with {moves} moves"
    assert all(metrics(pod)["portcullis_limit_peer_faults_total"] == 0 for pod in ready)
    return f"{count} of {most:.0f} and {BURST} at once, {moves} moves"
