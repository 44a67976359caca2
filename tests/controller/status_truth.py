"""Truth of conditions: Programmed and Accepted change only once every ready replica serves the change."""

import http.client

from api import condition, has, wait_for
from checks import check
from cluster import frozen, redirect_of, without_controllers
from objects import gateway, namespace, parameters, parameters_ref, redirect

NS = "truth"
CHANGES = 50


def prepare(cluster):
    cluster.apply(
        namespace(NS),
        parameters(NS, "three", workload={"replicas": 3}),
        gateway(NS, "edge", parametersRef=parameters_ref("three")),
        redirect(NS, "mark", ["edge"], "v0.test"),
    )
    cluster.gateway_is(NS, "edge")
    cluster.replicas(NS, "edge", 3)

    def look():
        slices = cluster.api.list("EndpointSlice", NS, "kubernetes.io/service-name=edge-portcullis")
        endpoints = [one for found in slices for one in found["endpoints"]]
        return sum(one["conditions"]["ready"] for one in endpoints) == 3

    wait_for("its Service leads to all of them", look, 10)


def ips(cluster) -> list[str]:
    return [pod["status"]["podIP"] for pod in cluster.replicas(NS, "edge", 3)]


def is_accepted(route: dict) -> bool:
    parents = route.get("status", {}).get("parents", [])
    return any(has(parent["conditions"], "Accepted", "True", route["metadata"]["generation"]) for parent in parents)


def mark_route(cluster, mark: str, name: str = "mark") -> None:
    """Changes the target of a route, and returns as soon as its condition has the new generation."""
    cluster.apply(redirect(NS, name, ["edge"], mark))
    look = lambda: is_accepted(cluster.api.get("HTTPRoute", name, NS))  # noqa: E731
    wait_for(f"route {name} is accepted for {mark}", look, 10, every=0.002)


@check(f"once a route's Accepted has the generation of a change, every replica serves it: {CHANGES} changes")
def no_stale_answer(cluster):
    addresses = ips(cluster)
    kept = {address: http.client.HTTPConnection(address, 8080, timeout=5) for address in addresses}
    stale = []
    for number in range(1, CHANGES + 1):
        mark = f"v{number}.test"
        mark_route(cluster, mark)
        for address in addresses:
            kept[address].request("GET", "/")
            answer = kept[address].getresponse()
            answer.read()
            for location in answer.getheader("location", ""), redirect_of(address, 8080):
                if mark not in location:
                    stale.append(f"{address} sends {location!r} after {mark}")
    assert not stale, f"{len(stale)} stale responses: {stale[:3]}"


@check("once a new Gateway is Programmed, every ready replica responds")
def programmed_means_served(cluster):
    cluster.apply(gateway(NS, "fresh"), redirect(NS, "fresh", ["fresh"], "fresh.test"))
    wait_for(
        "it is programmed",
        lambda: has(cluster.api.get("Gateway", "fresh", NS).get("status", {}).get("conditions", []), "Programmed", "True"),
        30,
        every=0.002,
    )
    ready = cluster.ready_pods(NS, "gateway.networking.k8s.io/gateway-name=fresh")
    assert ready, "no pod is ready"
    for pod in ready:
        assert "fresh.test" in redirect_of(pod["status"]["podIP"], 8080), f"{pod['metadata']['name']} does not respond"
    cluster.api.delete("Gateway", "fresh", NS)


def state(cluster) -> tuple[dict, int]:
    """The Gateway's Programmed, and its generation."""
    found = cluster.api.get("Gateway", "edge", NS)
    return condition(found["status"]["conditions"], "Programmed"), found["metadata"]["generation"]


@check("a lagging replica holds Programmed back for 5 s, then is named, until it catches up")
def a_replica_behind(cluster):
    behind = ips(cluster)[0]
    with without_controllers(behind):
        cluster.apply(gateway(NS, "edge", (8080, 8081), parametersRef=parameters_ref("three")))
        cluster.apply(redirect(NS, "mark", ["edge"], "behind.test"))

        def look():
            programmed, generation = state(cluster)
            is_new = programmed["observedGeneration"] == generation
            assert not is_new or programmed["status"] != "True", "Programmed is True"
            return is_new and programmed

        # A new leader holds statuses longer.
        programmed = wait_for("Programmed has the generation of the change", look, 16, every=0.02)
        assert programmed["reason"] == "Pending" and behind in programmed["message"], programmed
    cluster.gateway_is(NS, "edge", seconds=20)
    assert "behind.test" in redirect_of(behind, 8081), "the replica does not serve the change yet"
    cluster.apply(gateway(NS, "edge", parametersRef=parameters_ref("three")))
    cluster.gateway_is(NS, "edge")


@check("a change from A to B and back is not confirmed by replicas that still serve A or B")
def there_and_back(cluster):
    addresses = ips(cluster)
    cluster.gateway_is(NS, "edge")
    mark_route(cluster, "a.test")
    with without_controllers(addresses[0]):
        cluster.apply(redirect(NS, "mark", ["edge"], "b.test"))
        wait_for("the second has the change", lambda: "b.test" in redirect_of(addresses[1], 8080), 5)
        with without_controllers(addresses[1]):
            cluster.apply(redirect(NS, "mark", ["edge"], "a.test"))
            generation = cluster.api.get("HTTPRoute", "mark", NS)["metadata"]["generation"]

            def look():
                # The route first: both conditions may be written between the two requests.
                route = cluster.api.get("HTTPRoute", "mark", NS)
                programmed, _ = state(cluster)
                is_confirmed = is_accepted(route) and route["metadata"]["generation"] == generation
                is_stale = "b.test" in redirect_of(addresses[1], 8080)
                assert not (is_confirmed and is_stale and programmed["status"] == "True"), "confirmed while a replica serves the previous state"
                # The first one is behind for longer.
                return programmed["status"] != "True" and addresses[1] in programmed["message"]

            wait_for("the Gateway reports the lagging replica", look, 16, every=0.02)
    cluster.gateway_is(NS, "edge", seconds=20)
    for address in addresses:
        wait_for("all serve it", lambda: "a.test" in redirect_of(address, 8080), 5)


@check("a suspended replica is waited for until it is not ready")
def a_frozen_replica(cluster):
    pods = cluster.replicas(NS, "edge", 3)
    with frozen(pods[0]):
        cluster.apply(gateway(NS, "edge", (8080, 8082), parametersRef=parameters_ref("three")))

        def look():
            programmed, generation = state(cluster)
            return programmed["observedGeneration"] == generation and programmed["status"] == "True"

        wait_for("Programmed is True without the suspended replica", look, 20, every=0.02)
        ready = {pod["metadata"]["name"] for pod in cluster.ready_pods(NS, "gateway.networking.k8s.io/gateway-name=edge")}
        assert pods[0]["metadata"]["name"] not in ready, "it was programmed while that replica was ready"
    cluster.replicas(NS, "edge", 3)
    for pod in pods:
        redirect_of(pod["status"]["podIP"], 8082)
    cluster.apply(gateway(NS, "edge", parametersRef=parameters_ref("three")))
    cluster.gateway_is(NS, "edge")


@check("a Gateway without a ready replica is not Programmed, with the reason")
def no_replica(cluster):
    cluster.apply(parameters(NS, "none", workload={"replicas": 1, "nodeSelector": {"no": "such"}}))
    cluster.apply(gateway(NS, "nowhere", parametersRef=parameters_ref("none")))
    found = cluster.gateway_is(NS, "nowhere", "False")
    programmed = condition(found["status"]["conditions"], "Programmed")
    assert programmed["reason"] == "Pending" and "no replica" in programmed["message"], programmed
    cluster.api.delete("Gateway", "nowhere", NS)
