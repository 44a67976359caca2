"""Requests to two versions of a backend while their weights change."""

from collections import Counter
from contextlib import contextmanager

from api import condition, wait_for
from traffic import Load

# Share of requests by which a version may differ from its weight.
TOLERANCE = 0.1


class Requests:
    """A load on a Gateway, and which pods have responded."""

    def __init__(self, address: str):
        self.load = Load(address, 80, rate=200)

    def shares(self, count: int = 300) -> Counter:
        """Which Deployments get the next requests, by share."""
        before, begin = Counter(self.load.backends), self.load.requests
        wait_for("requests", lambda: self.load.requests >= begin + count, 60)
        found = Counter()
        for pod, number in Counter(self.load.backends).items():
            # Without the suffixes of the pod and its ReplicaSet.
            found[pod.rsplit("-", 2)[0]] += number - before[pod]
        total = sum(found.values())
        return Counter({name: number / total for name, number in found.items() if number})


@contextmanager
def requests(cluster, namespace: str, gateway: str):
    """A load on a Gateway, of which no request may fail."""
    running = Requests(cluster.address(namespace, gateway))
    with running.load:
        yield running
    running.load.verdict()


def expect(shares: Counter, wanted: dict[str, float]) -> None:
    for name in {*shares, *wanted}:
        share, weight = shares[name], wanted.get(name, 0)
        # A weight of 0 permits no request.
        is_right = share == 0 if weight == 0 else abs(share - weight) <= TOLERANCE
        assert is_right, f"{name} has {share:.0%} of the requests instead of {weight:.0%}: {dict(shares)}"


def is_accepted(route: dict) -> bool:
    parents = route.get("status", {}).get("parents", [])
    accepted = [condition(one["conditions"], "Accepted") for one in parents]
    return bool(accepted) and all((one["status"], one["observedGeneration"]) == ("True", route["metadata"]["generation"]) for one in accepted)


def weights(route: dict) -> list[int]:
    return [one["weight"] for one in route["spec"]["rules"][0]["backendRefs"]]
