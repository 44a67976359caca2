"""Limits that the pods of a Gateway share: what two and four pods admit together, that one connection gets the whole limit, and
what changes when a pod is killed and one is added."""

import http.client
import signal
import threading
import time

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
# Pods that can own a key after its owner is killed, of four. All pods rank the others for a key in the same way: the second one
# comes next, the one that is added may rank before it, and the third one is asked by pods that do not know the second as ready.
NEXT_OWNERS = 3
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
    return http.client.HTTPConnection(pod["status"]["podIP"], PORT, timeout=60)


def status(client: http.client.HTTPConnection, key: str) -> int:
    client.request("GET", "/", headers={"Host": "web.test", "x-client": key})
    response = client.getresponse()
    response.read()
    return response.status


class Clients:
    """Clients with the same key, each with one connection to a pod, which send requests while entered. One whose pod does not
    exist any more goes to `refuge`."""

    def __init__(self, key: str, refuge: dict | None = None):
        self._key, self._refuge = key, refuge
        self._ends, self._lock = threading.Event(), threading.Lock()
        self._threads: list[threading.Thread] = []
        # Of each request: when it was sent, when the response was there, and its status.
        self._exchanges: list[tuple[float, float, int]] = []
        # By pod, the connections that ended with a request.
        self.lost: dict[str, int] = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def add(self, pod: dict, rate: float) -> None:
        """Adds a client that sends up to `rate` requests a second to a pod."""
        self._threads.append(threading.Thread(target=self._send, args=(pod, rate)))
        self._threads[-1].start()

    def _send(self, pod: dict, rate: float) -> None:
        client, began, sent = connection(pod), time.monotonic(), 0
        while not self._ends.is_set():
            at = time.monotonic()
            if sent > (at - began) * rate:
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
                self._exchanges.append((at, time.monotonic(), answer))

    def admitted(self) -> int:
        """How many requests are not refused. Fails if one has neither been admitted nor refused."""
        statuses = [answer for _, _, answer in self._exchanges]
        assert set(statuses) <= {302, 429}, set(statuses)
        return statuses.count(302)

    def most(self, bursts: int = 1) -> float:
        """The most that a limit and its bursts admit from the first request to the last response."""
        sent, responses, _ = zip(*self._exchanges, strict=True)
        return 1.05 * LIMIT * (max(responses) - min(sent)) + BURST * bursts

    def admitted_by_one(self) -> int:
        """How many of these requests one limiter admits whose burst is full, however unevenly a busy machine has sent them."""
        admitted, tokens = 0, float(BURST)
        times = sorted(sent for sent, _, _ in self._exchanges)
        for before, at in zip([times[0], *times], times, strict=False):
            tokens = min(tokens + (at - before) * LIMIT, BURST)
            if tokens >= 1:
                admitted, tokens = admitted + 1, tokens - 1
        return admitted

    def judge(self, part: float) -> str:
        """Fails unless at least this part of what one limiter admits was admitted, and at most the limit and a burst."""
        assert not self.lost, self.lost
        count, one, most = self.admitted(), self.admitted_by_one(), self.most()
        # Requests before these may have used up the burst.
        least = part * (one - BURST)
        assert least <= count <= most, f"{count}, not from {least:.0f} to {most:.0f}"
        return f"{count} of {one}"


def sent(key: str, rates: list[tuple[dict, float]]) -> Clients:
    """Clients that have sent requests with a key to pods at these rates, for SECONDS."""
    with Clients(key) as clients:
        for pod, rate in rates:
            clients.add(pod, rate)
        # The rate of a while is the subject of the test.
        time.sleep(SECONDS)
    return clients


def all_of_one_connection(pods: list[dict], key: str) -> str:
    """What one connection to each of the pods gets, one after the other."""
    figures = [sent(f"{key}-{number}", [(pod, 3 * LIMIT)]).judge(0.95) for number, pod in enumerate(pods)]
    return ", ".join(figures)


@check("one connection to either pod gets at least 95 % of a limit of the Gateway, for any key")
def one_connection(cluster):
    return all_of_one_connection(pods(cluster) * 2, "one")


@check("one connection to any of four pods gets at least 95 % of a limit of the Gateway")
def one_connection_of_four(cluster):
    return all_of_one_connection(pods(cluster, "four"), "one")


@check("two pods together admit at most 1.05 of a limit and its burst")
def together(cluster):
    both = pods(cluster)
    figure = sent("both", [(pod, 2 * LIMIT) for pod in both]).judge(0.9)
    assert all(metrics(pod)["portcullis_limit_peer_faults_total"] == 0 for pod in both)
    return figure


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
    # No metric tells that the others know it too.
    time.sleep(2)
    return sent("after", [(pod, 2 * LIMIT) for pod in after]).judge(0.9)


@check("four pods together admit at most 1.05 of a limit and its burst, of clients that are spread unevenly")
def four_together(cluster):
    four = pods(cluster, "four")
    figures = []
    for heavy in four:
        rates = [(pod, 2 * LIMIT if pod is heavy else LIMIT / 4) for pod in four]
        figures.append(sent(f"skewed-{heavy['metadata']['name']}", rates).judge(0.95))
    assert all(metrics(pod)["portcullis_limit_peer_faults_total"] == 0 for pod in four)
    return ", ".join(figures)


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
        wait_for("a pod grants tokens of the key", lambda: granted(four) != before, 60)
    granting = [pod for pod, had, has in zip(four, before, granted(four), strict=True) if has > had]
    assert len(granting) == 1, f"{len(granting)} pods grant tokens of one key"
    return granting[0]


@check("the owner of a key is killed and a pod is added, of four: at most one burst more each time that the key moves, and no request of the others fails")
def owner_is_killed(cluster):
    four, key = pods(cluster, "four"), "doomed"
    victim = owner(four, key)
    gone, rest = victim["metadata"]["name"], [pod for pod in four if pod is not victim]
    before = granted(rest)
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
    # The counts are those of all keys: pods that become owners of earlier ones grant tokens, too.
    granting = [has > had for had, has in zip([*before, 0], granted([*rest, added]), strict=True)]
    moves = min(max(1, sum(granting)), NEXT_OWNERS)
    count, most = clients.admitted(), clients.most(1 + moves)
    assert set(clients.lost) <= {gone}, clients.lost
    assert clients.lost.get(gone, 0) <= 1, clients.lost
    assert count <= most, f"{count}, more than {most:.0f}, with {moves} moves"
    assert all(metrics(pod)["portcullis_limit_peer_faults_total"] == 0 for pod in ready)
    return f"{count} of at most {most:.0f}, {moves} moves"
