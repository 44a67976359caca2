"""Flagger: a canary of a Deployment from its begin to its end, with requests under way."""

import time

import pages
from api import wait_for
from canaries import expect, is_accepted, requests, weights
from checks import check
from objects import echo

PAGE, NS = "flagger", "canaries"
PRIMARY, CANARY = "shop-primary", "shop"
LATEST = 180


def prepare(cluster):
    pages.apply_file(cluster.built / "manifests" / "flagger.yaml")
    pages.apply_file(cluster.built / "manifests" / "flagger-account.yaml")
    labels = {"app": "flagger"}
    container = {"name": "flagger", "image": "flagger", "args": ["-mesh-provider=gatewayapi:v1", "-metrics-server=http://127.0.0.1:9", "-log-level=info"]}
    pod = {"metadata": {"labels": labels}, "spec": {"serviceAccountName": "flagger", "containers": [container]}}
    program = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "default", "name": "flagger"}}
    pages.apply({**program, "spec": {"selector": {"matchLabels": labels}, "template": pod}})
    objects = pages.objects(PAGE)
    pages.apply(objects[0])
    cluster.apply(echo(NS, CANARY, 2)[0])
    pages.apply(*objects[1:])
    wait_for("the Canary is initialized", lambda: phase(cluster) == "Initialized", LATEST, every=0.5)
    cluster.gateway_is(NS, "web", seconds=60)


def phase(cluster) -> str:
    return cluster.api.get("Canary", "shop", NS).get("status", {}).get("phase", "")


def route(cluster) -> dict:
    return cluster.api.get("HTTPRoute", "shop", NS)


@check("it makes a route whose requests all go to the primary")
def initial(cluster):
    assert weights(route(cluster)) == [100, 0], route(cluster)["spec"]
    with requests(cluster, NS, "web") as running:
        expect(running.shares(100), {PRIMARY: 1})


@check("a change of the Deployment gets 30 % and then 60 % of the requests, and then all as the new primary; no request fails")
def canary(cluster):
    seen, phases, until = {}, set(), time.monotonic() + LATEST
    with requests(cluster, NS, "web") as running:
        changed = echo(NS, CANARY, 2)[0]
        changed["spec"]["template"]["metadata"]["annotations"] = {"version": "2"}
        cluster.apply(changed)
        while phase(cluster) != "Succeeded":
            phases.add(phase(cluster))
            assert time.monotonic() < until, f"the phase is {phase(cluster)} after weights of {list(seen)}"
            begin = weights(route(cluster))
            shares = running.shares(200)
            # Only while the weights stay.
            if begin[1] not in seen and weights(route(cluster)) == begin:
                shares = running.shares(200)
                if weights(route(cluster)) == begin:
                    seen[begin[1]] = shares
        after = running.shares(200)
    for percent, shares in seen.items():
        expect(shares, {PRIMARY: 1 - percent / 100, CANARY: percent / 100})
    assert {0, 30, 60} <= set(seen), f"weights of {list(seen)} were seen"
    expect(after, {PRIMARY: 1})
    assert weights(route(cluster)) == [100, 0] and is_accepted(route(cluster))
    assert {"Progressing", "Promoting"} <= phases, phases
    return running.load.figures()


@check("it writes the route again that somebody else has changed")
def owned(cluster):
    rule = {**route(cluster)["spec"]["rules"][0], "timeouts": {"request": "7s"}}
    cluster.api.patch("HTTPRoute", "shop", NS, {"spec": {"rules": [rule]}})
    wait_for("the change is undone", lambda: "timeouts" not in route(cluster)["spec"]["rules"][0], 60, every=0.5)
