"""Argo Rollouts: a canary with the changes of routes and Services that its plugin for the Gateway API documents."""

import copy
import http.client
import json

import pages
from api import wait_for
from canaries import expect, is_accepted, requests
from checks import check
from objects import echo

PAGE, NS = "argo-rollouts", "rollouts"
STABLE, CANARY = "shop-stable", "shop-canary"
# Deployments in the place of the two ReplicaSets of a Rollout.
OLD, NEW = "shop-1", "shop-2"


def version(name: str) -> dict:
    made = echo(NS, name, 2)[0]
    labels = made["spec"]["template"]["metadata"]["labels"]
    made["spec"]["selector"]["matchLabels"] = labels
    labels.update(app="shop", version=name)
    return made


def select(cluster, service: str, name: str) -> None:
    cluster.api.patch("Service", service, NS, {"spec": {"selector": {"app": "shop", "version": name}}})


def put(cluster, change) -> None:
    """Changes the route as the plugin does: it reads it, and replaces it. Waits until the change is accepted."""
    route = copy.deepcopy(cluster.api.get("HTTPRoute", "shop", NS))
    change(route["spec"]["rules"])
    route["metadata"].pop("managedFields")
    pages.kubectl(route, arguments=["replace", "-f", "-"])
    wait_for("the route is accepted", lambda: is_accepted(cluster.api.get("HTTPRoute", "shop", NS)), 10, every=0.01)


def weigh(canary: int):
    def change(rules):
        for rule in rules:
            for one in rule["backendRefs"]:
                if len(rule["backendRefs"]) == 2:
                    one["weight"] = canary if one["name"] == CANARY else 100 - canary

    return change


def header_route(rules) -> None:
    """`setHeaderRoute`: a rule with the matches of the first, and a header."""
    match = {**rules[0]["matches"][0], "headers": [{"type": "Exact", "name": "x-canary", "value": "yes"}]}
    rules.append({"matches": [match], "backendRefs": [{"group": "", "kind": "Service", "name": CANARY, "port": 80}]})


def prepare(cluster):
    made = pages.objects(PAGE)
    pages.apply(*made)
    cluster.apply(version(OLD))
    select(cluster, STABLE, OLD)
    select(cluster, CANARY, OLD)
    cluster.gateway_is(NS, "web", seconds=60)
    wait_for("the stable version is ready", lambda: len(cluster.ready_pods(NS, f"version={OLD}")) == 2, 60)
    wait_for("the route is accepted", lambda: is_accepted(cluster.api.get("HTTPRoute", "shop", NS)), 20)


def begin(cluster) -> None:
    cluster.apply(version(NEW))
    wait_for("the canary is ready", lambda: len(cluster.ready_pods(NS, f"version={NEW}")) == 2, 60)
    select(cluster, CANARY, NEW)


@check("requests follow weights of 0, 20, 50 and 100 as soon as the route is accepted; none fails, also when the new version is promoted and the old one ends")
def canary(cluster):
    with requests(cluster, NS, "web") as running:
        begin(cluster)
        for percent in (0, 20, 50, 100):
            put(cluster, weigh(percent))
            expect(running.shares(), {OLD: 1 - percent / 100, NEW: percent / 100})
        select(cluster, STABLE, NEW)
        wait_for("the stable Service has the new pods only", lambda: endpoints(cluster, STABLE) == {NEW}, 20)
        put(cluster, weigh(0))
        cluster.api.delete("Deployment", OLD, NS)
        wait_for("the old pods are deleted", lambda: not cluster.api.list("Pod", NS, f"version={OLD}"), 60)
        expect(running.shares(), {NEW: 1})
    return running.load.figures()


def endpoints(cluster, service: str) -> set[str]:
    slices = cluster.api.list("EndpointSlice", NS, f"kubernetes.io/service-name={service}")
    names = [one["targetRef"]["name"] for found in slices for one in found.get("endpoints") or [] if one["conditions"].get("ready")]
    return {name.rsplit("-", 2)[0] for name in names}


@check("requests with the header of a header route go to the canary, others by weight")
def header(cluster):
    cluster.apply(version(OLD))
    wait_for("the canary is ready", lambda: len(cluster.ready_pods(NS, f"version={OLD}")) == 2, 60)
    select(cluster, CANARY, OLD)
    wait_for("the canary Service has its pods", lambda: endpoints(cluster, CANARY) == {OLD}, 20)
    put(cluster, header_route)
    address = cluster.address(NS, "web")
    for headers, wanted in (({"x-canary": "yes"}, OLD), ({}, NEW)):
        found = {responder(address, headers) for _ in range(20)}
        assert found == {wanted}, f"{headers}: {found}"
    cluster.api.delete("Namespace", NS)


def responder(address: str, headers: dict) -> str:
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", "/", headers=headers)
        return json.loads(connection.getresponse().read())["pod"].rsplit("-", 2)[0]
    finally:
        connection.close()
