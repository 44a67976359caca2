"""Obstacles to provisioning a Gateway: Gateways with the same object names, quotas, hanging webhooks, deletion of the
Gateway, and RBAC objects of earlier versions."""

import socket
import time
from datetime import UTC, datetime

import audit
from api import condition, has, wait_for
from checks import check
from cluster import GATEWAY_LABEL, SYSTEM, answers
from objects import gateway, gateway_class, namespace, parameters, parameters_ref, redirect

NS, HANGING = "contention", "hanging"
KINDS = ["ServiceAccount", "ConfigMap", "Service", "PodDisruptionBudget", "Deployment"]
OTHER_CLASS = "internal-portcullis"


def prepare(cluster):
    one = {"workload": {"replicas": 1}}
    cluster.apply(namespace(NS), namespace(HANGING), gateway_class(OTHER_CLASS))
    cluster.apply(parameters(NS, "one", **one), parameters(HANGING, "one", **one))


def conditions(cluster, name: str, where: str = NS) -> list[dict]:
    return cluster.api.get("Gateway", name, where).get("status", {}).get("conditions", [])


def uids(cluster, name: str) -> dict[str, str]:
    """UIDs of the objects of a Gateway, by kind."""
    found = {kind: cluster.api.list(kind, NS, f"{GATEWAY_LABEL}={name}") for kind in KINDS}
    return {kind: objects[0]["metadata"]["uid"] for kind, objects in found.items() if objects}


@check("of two Gateways with the same object names the second changes nothing, reports it, and gets the names when the first is deleted")
def collision(cluster):
    cluster.apply(gateway(NS, "web", class_name=OTHER_CLASS), redirect(NS, "web", ["web"], "web.test"))
    cluster.gateway_is(NS, "web")
    address, before = cluster.address(NS, "web"), uids(cluster, "web")
    assert set(before) == set(KINDS), before
    cluster.apply(gateway(NS, "web-internal"))
    refused = lambda: condition(conditions(cluster, "web-internal"), "Accepted").get("status") == "False"  # noqa: E731
    wait_for("the second is not accepted", refused, 15)
    accepted = condition(conditions(cluster, "web-internal"), "Accepted")
    assert "web" in accepted["message"] and accepted["reason"] not in {"Pending", "Accepted"}, accepted
    after = uids(cluster, "web")
    assert before == after, f"they were {before} and are {after}"
    assert not uids(cluster, "web-internal"), uids(cluster, "web-internal")
    assert answers(address, 8080, "web.test"), "the first Gateway does not respond any more"
    cluster.gateway_is(NS, "web", seconds=1)
    messages = [one["message"] for one in conditions(cluster, "web-internal")]
    pods = [pod["metadata"]["name"] for pod in cluster.replicas(NS, "web", 2)]
    assert not any(pod in message for pod in pods for message in messages), f"a message names pods of the other Gateway: {messages}"
    cluster.api.delete("Gateway", "web", NS)
    cluster.gateway_is(NS, "web-internal")
    cluster.api.delete("Gateway", "web-internal", NS)
    return accepted["reason"]


@check("foreground deletion of a Gateway deletes its pods and recreates nothing")
def foreground(cluster):
    drain = {"delay": "1s", "deadline": "2s"}
    cluster.apply(parameters(NS, "brief", workload={"replicas": 1}, drain=drain))
    # The garbage collector of a new cluster discovers new kinds after some time.
    for name in "warm", "front":
        cluster.apply(gateway(NS, name, parametersRef=parameters_ref("brief")))
        cluster.gateway_is(NS, name)
    cluster.api.delete("Gateway", "warm", NS, foreground=True)
    wait_for("the garbage collector works", lambda: not cluster.api.get("Gateway", "warm", NS), 60)
    deleted = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    began = time.monotonic()
    cluster.api.delete("Gateway", "front", NS, foreground=True)
    wait_for("the Gateway is deleted", lambda: not cluster.api.get("Gateway", "front", NS), 10, every=0.02)
    took = time.monotonic() - began
    wait_for("so are its objects", lambda: not uids(cluster, "front"), 10)
    time.sleep(1)
    events = audit.of_account(cluster.audit_log, SYSTEM, "portcullis-controller")
    late = [event for event in events if event.namespace == NS and event.name.startswith("front-") and event.time > deleted]
    made = [f"{event.verb} {event.resource}" for event in late if event.verb in {"create", "patch"} and event.code < 300]
    assert not made, made
    return f"{took:.1f} s"


@check("an exceeded quota is reported in the Gateway's conditions until it is lifted")
def quota(cluster):
    limit = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"namespace": NS, "name": "none"}, "spec": {"hard": {"count/services": "0"}}}
    cluster.apply(limit)
    wait_for("the quota counts", lambda: cluster.api.get("ResourceQuota", "none", NS).get("status", {}).get("hard"), 10)
    cluster.apply(gateway(NS, "poor", parametersRef=parameters_ref("one")))
    is_reported = lambda: "exceeded quota" in condition(conditions(cluster, "poor"), "Programmed").get("message", "")  # noqa: E731
    wait_for("the condition reports the quota", is_reported, 10)
    programmed = condition(conditions(cluster, "poor"), "Programmed")
    assert programmed["status"] == "False", programmed
    cluster.api.delete("ResourceQuota", "none", NS)
    cluster.gateway_is(NS, "poor", seconds=40)
    cluster.api.delete("Gateway", "poor", NS)


@check("a namespace with a hanging webhook delays no others: ten Gateways wait there, and one elsewhere is Programmed meanwhile")
def hanging_webhook(cluster):
    with socket.create_server(("127.0.0.1", 0), backlog=128) as silent:
        port = silent.getsockname()[1]
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["services", "serviceaccounts"]}
        hook = {
            "name": "hangs.example.com",
            "clientConfig": {"url": f"https://127.0.0.1:{port}/"},
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": HANGING}},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 30,
        }
        kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
        cluster.apply({**kind, "metadata": {"name": "hangs"}, "webhooks": [hook]})
        try:
            # The API server needs a moment to load a webhook; it is loaded once it blocks a request.
            time.sleep(1)
            for number in range(10):
                cluster.apply(gateway(HANGING, f"stuck-{number}", parametersRef=parameters_ref("one")))
            time.sleep(0.5)
            began = time.monotonic()
            cluster.apply(gateway(NS, "free", parametersRef=parameters_ref("one")))
            cluster.gateway_is(NS, "free")
            took = time.monotonic() - began
            for number in range(10):
                found = conditions(cluster, f"stuck-{number}", HANGING)
                assert not has(found, "Programmed", "True"), "the webhook blocks no request"
        finally:
            cluster.api.delete("ValidatingWebhookConfiguration", "hangs")
    cluster.api.delete("Gateway", "free", NS)
    for number in range(10):
        cluster.api.delete("Gateway", f"stuck-{number}", HANGING)
    return f"{took:.1f} s"
