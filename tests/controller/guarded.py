"""Routes that nothing may interrupt and policies that nothing may open while pods or controllers are replaced: one route for everybody,
one that asks for a password, and one with a limit in each pod; requests to all of them, and what the statuses say."""

from contextlib import ExitStack

from api import has, wait_for
from instances import Instances, Requests
from objects import access_policy, echo, htpasswd, on_path, rate_limit_policy, to_backend
from rollouts import SANE
from traffic import Load

GUARDED, LIMITED, PLAIN = "guarded", "limited", "plain"
# Of each pod in a day.
LIMIT = 1
PODS = 2
RATE = 500
LOGIN = {"Authorization": "Basic YTph"}
# Pods are replaced one after the other, under load.
SECONDS = 300


def target(route: str) -> dict:
    return {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": route}


def objects(namespace: str, parents: list[str]) -> list[dict]:
    """All objects but the Gateways, policies before their routes."""
    access = access_policy(namespace, GUARDED, "", targetRefs=[target(GUARDED)], basic={"secretRef": {"name": "users"}})
    limit = rate_limit_policy(namespace, LIMITED, "", {"name": "day", "limit": {"requests": LIMIT, "per": "Day"}})
    limit["spec"]["targetRefs"] = [target(LIMITED)]
    backend = echo(namespace, "echo", 2, container=SANE, terminationGracePeriodSeconds=10)
    return [*backend, htpasswd(namespace, "users"), access, limit, *routes(namespace, parents)]


def routes(namespace: str, parents: list[str]) -> list[dict]:
    """The routes. That for everybody has the other paths, too, and comes last."""
    protected = [on_path(to_backend(namespace, name, parents, "echo"), name) for name in (GUARDED, LIMITED)]
    return [*protected, to_backend(namespace, PLAIN, parents, "echo")]


def in_force(cluster, namespace: str, gateways: dict[str, str]) -> None:
    """Waits until the statuses say that the routes and policies are in force on each of these Gateways, by name with its controllerName."""
    for name in gateways:
        cluster.gateway_is(namespace, name, seconds=SECONDS)
    for name in (GUARDED, LIMITED, PLAIN):
        wait_for(f"HTTPRoute {name} is accepted by {gateways}", lambda: _accepted(cluster, namespace, name, gateways), SECONDS)
    for kind, name in (("AccessPolicy", GUARDED), ("RateLimitPolicy", LIMITED)):
        wait_for(f"{kind} {name} is accepted by {gateways}", lambda: _applied(cluster, namespace, kind, name, gateways), SECONDS)


def _accepted(cluster, namespace: str, name: str, gateways: dict[str, str]) -> bool:
    route = cluster.api.get("HTTPRoute", name, namespace)
    parents, generation = route.get("status", {}).get("parents", []), route["metadata"]["generation"]
    found = {one["parentRef"]["name"]: one["controllerName"] for one in parents}
    conditions = ("Accepted", "ResolvedRefs")
    return found == gateways and all(has(one["conditions"], it, "True", generation) for one in parents for it in conditions)


def _applied(cluster, namespace: str, kind: str, name: str, gateways: dict[str, str]) -> bool:
    policy = cluster.api.get(kind, name, namespace)
    ancestors, generation = policy.get("status", {}).get("ancestors", []), policy["metadata"]["generation"]
    found = {one["controllerName"] for one in ancestors}
    return found == set(gateways.values()) and all(has(one["conditions"], "Accepted", "True", generation) for one in ancestors)


class Traffic:
    """Requests of clients of a Gateway while entered: those that must be answered go to its address, with a password where that is
    needed. Those that must be refused go to each of its pods, from the first moment of the pod to its last one."""

    def __init__(self, cluster, namespace: str, gateway: str):
        instances = Instances(cluster.api, namespace, gateway)
        address = cluster.address(namespace, gateway)
        self._loads = [
            Load(address, 8080, rate=RATE * 3 // 5),
            Load(address, 8080, rate=RATE * 2 // 5, prefix=f"/{GUARDED}", headers=LOGIN),
        ]
        self._strangers = Requests(instances, [GUARDED], passes=200)
        self._many = Requests(instances, [LIMITED], passes=200)
        self._stack = ExitStack()

    def __enter__(self):
        with ExitStack() as stack:
            for one in (*self._loads, self._strangers, self._many):
                stack.enter_context(one)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def are_refused(self) -> None:
        """Waits until all pods refuse what they must."""
        self._strangers.all_respond(401, PODS)
        self._many.all_respond(429, PODS)

    def judge(self, when: str) -> None:
        """Fails if a request has failed that must not, or has passed that must not."""
        for load in self._loads:
            assert load.requests and not load.failures, f"{when}: {load.figures()}: {load.failures[:5]}"
        self._strangers.judge(when)
        beyond = {life: count for life, count in dict(self._many.passed).items() if count > LIMIT}
        assert not beyond, f"{when}: pods have passed more than {LIMIT} requests: {beyond}"

    def figures(self) -> str:
        sent = sum(load.requests for load in self._loads)
        return f"{sent} requests, 0 failures; of {self._strangers.sent} without a password, 0 passed"
