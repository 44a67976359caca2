"""The status writer: keeps entries of other controllers, writes only differences, repairs changed entries, and never
overwrites a status of a later generation."""

import threading
import time

from api import Refused, condition, has, wait_for
from checks import check
from cluster import SYSTEM
from objects import CONTROLLER, gateway, namespace, redirect

NS = "writer"
OTHER = "example.com/other"
SINCE = "2026-01-01T00:00:00Z"
QUIET_SECONDS = 10
WRITTEN = ["GatewayClass", "Gateway", "ListenerSet", "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"]


def prepare(cluster):
    cluster.apply(namespace(NS), gateway(NS, "edge"), gateway(NS, "second", (8081,)))
    for name in "edge", "second":
        cluster.gateway_is(NS, name)


def stranger(message: str) -> dict:
    one = {"type": "Accepted", "status": "False", "reason": "Other", "message": message, "lastTransitionTime": SINCE}
    parent = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "elsewhere"}
    return {"controllerName": OTHER, "parentRef": parent, "conditions": [one]}


def parents(cluster, name: str, controller: str = CONTROLLER) -> list[dict]:
    """Entries of a controller in a route's status."""
    found = cluster.api.get("HTTPRoute", name, NS).get("status", {}).get("parents", [])
    return [parent for parent in found if parent["controllerName"] == controller]


def made_route(cluster, name: str, mark: str = "first.test", to: tuple[str, ...] = ("edge",)) -> int:
    """Creates or changes a route and waits until all its parents have its generation. Returns the generation."""
    cluster.apply(redirect(NS, name, list(to), mark))
    generation = cluster.api.get("HTTPRoute", name, NS)["metadata"]["generation"]

    def look():
        ours = parents(cluster, name)
        return len(ours) == len(to) and all(has(one["conditions"], "Accepted", "True", generation) for one in ours)

    wait_for(f"route {name} is accepted in generation {generation}", look, 10)
    return generation


def write(cluster, change) -> None:
    """Changes a status like another controller: read, replace, and retry on a conflict."""
    while True:
        obj = change()
        try:
            cluster.api.put_status(obj)
            return
        except Refused as error:
            if error.code != 409:
                raise


def add_stranger(cluster, name: str, message: str) -> None:
    def change():
        route = cluster.api.get("HTTPRoute", name, NS)
        listed = route.setdefault("status", {}).setdefault("parents", [])
        listed[:] = [one for one in listed if one["controllerName"] != OTHER] + [stranger(message)]
        return route

    write(cluster, change)


@check("entries of another controller do not change over 20 writes of ours, and when our entry is removed")
def foreign_entries(cluster):
    made_route(cluster, "shared", to=("edge", "second"))
    add_stranger(cluster, "shared", "hands off")
    for number in range(20):
        made_route(cluster, "shared", f"v{number}.test", to=("edge", "second"))
        assert parents(cluster, "shared", OTHER) == [stranger("hands off")], parents(cluster, "shared", OTHER)
    made_route(cluster, "shared", to=("edge",))
    cluster.apply(redirect(NS, "shared", ["elsewhere"], "gone.test"))
    wait_for("our entries are removed", lambda: not parents(cluster, "shared"), 10)
    assert parents(cluster, "shared", OTHER) == [stranger("hands off")], parents(cluster, "shared", OTHER)


@check("a foreign condition on a Gateway and its listener survives 20 writes of ours")
def foreign_condition(cluster):
    theirs = {"type": "example.com/Checked", "status": "True", "reason": "Checked", "message": "", "lastTransitionTime": SINCE}

    def change():
        found = cluster.api.get("Gateway", "edge", NS)
        for conditions in found["status"]["conditions"], found["status"]["listeners"][0]["conditions"]:
            conditions.insert(0, theirs)
        return found

    write(cluster, change)
    for number in range(20):
        cluster.apply(gateway(NS, "edge", (8080, 9000 + number)))
        status = cluster.gateway_is(NS, "edge")["status"]
        for conditions in status["conditions"], status["listeners"][0]["conditions"]:
            assert condition(conditions, theirs["type"]) == theirs, conditions


@check("a manually edited status is repaired within seconds")
def edited(cluster):
    generation = made_route(cluster, "edited")

    def change():
        route = cluster.api.get("HTTPRoute", "edited", NS)
        condition(route["status"]["parents"][0]["conditions"], "Accepted").update(status="False", reason="Spoilt")
        return route

    write(cluster, change)
    right = lambda: has(parents(cluster, "edited")[0]["conditions"], "Accepted", "True", generation, "Accepted")  # noqa: E731
    wait_for("it is right again", right, 5)
    cluster.api.patch("Gateway", "second", NS, {"status": {"conditions": None, "listeners": None, "addresses": None}}, "status")
    found = cluster.gateway_is(NS, "second", seconds=5)
    assert found["status"]["addresses"] and found["status"]["listeners"], found["status"]


@check("a status of a later generation is not overwritten")
def later_generation(cluster):
    made_route(cluster, "later")

    def say(generation: int):
        def change():
            route = cluster.api.get("HTTPRoute", "later", NS)
            found = condition(route["status"]["parents"][0]["conditions"], "Accepted")
            found.update(status="False", reason="FromLater", observedGeneration=generation)
            return route

        return change

    write(cluster, say(999))
    # Once a later object has its status, this one was processed.
    for mark in "once.test", "twice.test":
        cluster.apply(redirect(NS, "later", ["edge"], mark))
        made_route(cluster, "after", mark)
        assert has(parents(cluster, "later")[0]["conditions"], "Accepted", "False", 999, "FromLater"), parents(cluster, "later")
    write(cluster, say(1))
    wait_for("our entry is written again", lambda: has(parents(cluster, "later")[0]["conditions"], "Accepted", "True", 3), 5)


@check("two controllers that constantly write one route's status both succeed")
def two_writers(cluster):
    made_route(cluster, "contested")
    ends, count = threading.Event(), 0

    def hammer():
        nonlocal count
        while not ends.is_set():
            count += 1
            add_stranger(cluster, "contested", str(count))

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        for number in range(20):
            made_route(cluster, "contested", f"v{number}.test")
    finally:
        ends.set()
        thread.join()
    assert parents(cluster, "contested", OTHER) == [stranger(str(count))], f"{count}: {parents(cluster, 'contested', OTHER)}"
    assert len(parents(cluster, "contested")) == 1, parents(cluster, "contested")
    return f"the other wrote {count} times"


def versions(cluster, but: str = "") -> dict[tuple, str]:
    """resourceVersion of every object with a status, except the one of this name."""
    found = {}
    for kind in WRITTEN:
        for one in cluster.api.list(kind):
            metadata = one["metadata"]
            if metadata["name"] != but:
                found[kind, metadata.get("namespace"), metadata["name"]] = metadata["resourceVersion"]
    return found


@check("nothing is written without a change: for 10 s, and by a restarted controller")
def no_write_without_change(cluster):
    made_route(cluster, "last")
    # The Gateway counts the route; that status may be written a moment after the route's own status.
    counted = lambda: cluster.api.get("Gateway", "edge", NS)["status"]["listeners"][0]["attachedRoutes"]  # noqa: E731
    attached = sum(bool(parents(cluster, one["metadata"]["name"])) for one in cluster.api.list("HTTPRoute", NS))
    wait_for(f"the Gateway counts {attached} routes", lambda: counted() == attached, 5)
    before = versions(cluster)
    assert len(before) >= 8, before

    def changed():
        now = versions(cluster)
        return {name for name in before | now if before.get(name) != now.get(name)}

    until = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < until and not changed():
        time.sleep(0.5)
    assert not changed(), f"written without a change: {changed()}"
    old = {pod["metadata"]["name"] for pod in cluster.controllers()}
    for name in old:
        cluster.api.delete("Pod", name, SYSTEM)
    wait_for("a new controller leads", lambda: cluster.leader() not in {"", *old}, 30)
    # Once a new route has its status, the new leader has processed all others.
    made_route(cluster, "newcomer")
    now = versions(cluster, but="newcomer")
    # The Gateway counts the new route.
    differing = {name for name in now if now[name] != before[name]} - {("Gateway", NS, "edge")}
    assert not differing, f"written by the new leader: {differing}"
    wait_for("two controllers are ready", lambda: len(cluster.controllers()) == 2, 30)
