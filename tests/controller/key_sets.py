"""Keys of a token issuer in the cluster: controllers fetch them where the operator permits it, and pods keep them."""

import time

import issuer
from api import wait_for
from checks import check
from cluster import SYSTEM
from issuer import ISSUER, Issuer, Key
from objects import access_policy, gateway, namespace, redirect

NS = "login"
HOST = f"issuer.{NS}.svc.cluster.local"


def prepare(cluster):
    cluster.old, cluster.new = Key("old"), Key("new")
    cluster.issuer = Issuer(cluster, NS, HOST)
    remote = {"uri": f"https://{HOST}:8443/keys", "cacheDuration": "10s", "caConfigMapRef": {"name": "issuer"}}
    cluster.apply(namespace(NS), gateway(NS, "edge"))
    cluster.issuer.start(cluster.old)
    cluster.apply(
        redirect(NS, "mark", ["edge"], "mark.test"),
        access_policy(NS, "tokens", "edge", jwt={"providers": [{"issuer": ISSUER, "jwks": {"remote": remote}}]}),
    )
    cluster.gateway_is(NS, "edge")
    wait_for("the issuer runs", lambda: cluster.ready_pods(NS, "app=issuer"), 30)


def status(cluster, key: Key | None) -> int:
    return issuer.status(cluster.address(NS, "edge"), key)


def resolved(cluster) -> dict:
    return issuer.resolved(cluster, NS, "AccessPolicy", "tokens")


@check("controllers fetch keys from addresses of the cluster only if the operator permits it")
def needs_permission(cluster):
    refused = wait_for("the policy says it", lambda: resolved(cluster).get("reason") == "KeySetNotFetched" and resolved(cluster), 30)
    assert "--allow-jwks-address" in refused["message"], refused
    assert (status(cluster, None), status(cluster, cluster.old)) == (401, 500)
    issuer.permit(cluster, NS, True)
    wait_for("its tokens are valid", lambda: status(cluster, cluster.old) == 302, 30)
    wait_for("the policy says it", lambda: resolved(cluster).get("status") == "True", 30)
    assert status(cluster, cluster.new) == 401


@check("tokens stay valid while their issuer is away and all controllers are replaced")
def is_away(cluster):
    cluster.api.patch("Deployment", "issuer", NS, {"spec": {"replicas": 0}})
    wait_for("the issuer is away", lambda: not cluster.api.list("Pod", NS, "app=issuer"), 30)
    before, sent = {pod["metadata"]["uid"] for pod in cluster.controllers()}, 0
    for pod in cluster.controllers():
        cluster.api.delete("Pod", pod["metadata"]["name"], SYSTEM)

    def valid() -> None:
        nonlocal sent
        sent += 1
        found = status(cluster, cluster.old)
        assert found == 302, f"request {sent} got {found}"

    def are_new():
        valid()
        pods = cluster.controllers()
        return len(pods) == 2 and not before & {pod["metadata"]["uid"] for pod in pods}

    wait_for("two new controllers are ready", are_new, 60)
    wait_for("the policy says it", lambda: valid() or resolved(cluster).get("reason") == "KeySetNotFetched", 60)
    until = time.monotonic() + 5
    while time.monotonic() < until:
        valid()
    return f"{sent} requests"


@check("keys that an issuer publishes before it uses them are known in time")
def rotates(cluster):
    cluster.issuer.publish(cluster.old, cluster.new)
    cluster.api.patch("Deployment", "issuer", NS, {"spec": {"replicas": 1}})
    wait_for("tokens of the new key are valid", lambda: status(cluster, cluster.new) == 302, 60)
    assert status(cluster, cluster.old) == 302
    cluster.issuer.publish(cluster.new)
    wait_for("tokens of the old key are not valid", lambda: status(cluster, cluster.old) == 401, 30)
    assert status(cluster, cluster.new) == 302
