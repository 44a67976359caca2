"""Argo CD: what its health checks, and those of the page, say about the conditions that Portcullis writes."""

import json
import subprocess

import yaml

import pages
from api import wait_for
from checks import check
from objects import access_policy, backend_tls, echo, gateway, https_listener, key_material, listener_set, namespace, parameters, redirect, to_backend

PAGE, NS = "argo-cd", "health"
# Kinds for which the page says to repeat its check.
REPEATED = [
    "gateway.networking.k8s.io/ListenerSet",
    "gateway.networking.k8s.io/TLSRoute",
    "gateway.networking.k8s.io/TCPRoute",
    "gateway.networking.k8s.io/UDPRoute",
    "gateway.networking.x-k8s.io/XBackend",
]


def overrides() -> dict[str, str]:
    """Checks of the page, by key."""
    config = pages.find(PAGE, "ConfigMap", "argocd-cm")["data"]["resource.customizations"]
    checks = {key: one["health.lua"] for key, one in yaml.safe_load(config).items()}
    return checks | dict.fromkeys(REPEATED, checks["portcullis.dev/*"])


class Health:
    """The program with Argo CD's checks."""

    def __init__(self, built):
        checks = built / "state" / "health.json"
        checks.write_text(json.dumps(overrides()))
        self._program = subprocess.Popen([built / "bin" / "argo-cd", "--overrides", checks], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def of(self, obj: dict) -> dict:
        self._program.stdin.write(json.dumps(obj) + "\n")
        self._program.stdin.flush()
        return json.loads(self._program.stdout.readline())


def prepare(cluster):
    cluster.health = Health(cluster.built)
    opened = gateway(NS, "web")
    opened["spec"]["allowedListeners"] = {"namespaces": {"from": "Same"}}
    opened["spec"]["listeners"].append({"name": "tcp", "port": 9000, "protocol": "TCP"})
    broken = gateway(NS, "broken")
    broken["spec"]["listeners"].append(https_listener(8443, "nothing"))
    tcp = to_backend(NS, "tcp", ["web"], "app", "TCPRoute")
    tcp["spec"]["parentRefs"][0]["sectionName"] = "tcp"
    closed = listener_set(NS, "closed", "broken", 8091)
    aimed = access_policy(NS, "aimed", "web")
    aimed["spec"]["targetRefs"][0]["sectionName"] = "nowhere"
    both, wrong = redirect(NS, "both", ["web", "nowhere"], "a.test"), redirect(NS, "wrong", ["web"], "a.test")
    wrong["spec"]["parentRefs"][0]["sectionName"] = "nowhere"
    right, missing = redirect(NS, "right", ["web"], "a.test"), to_backend(NS, "missing", ["web"], "nothing")
    # An HTTPRoute and a GRPCRoute cannot share a hostname.
    for route in (right, wrong, both, missing):
        route["spec"]["hostnames"] = ["www.test"]
    cluster.apply(namespace(NS), *echo(NS, "app"), parameters(NS, "parameters"), key_material(NS, "ca")[1], opened, broken)
    cluster.apply(right, wrong, both, missing, tcp)
    for name, service in (("grpc", "app"), ("grpc-missing", "nothing")):
        route = to_backend(NS, name, ["web"], service, "GRPCRoute")
        cluster.apply({**route, "spec": {**route["spec"], "hostnames": [f"{name}.test"]}})
    cluster.apply(listener_set(NS, "set", "web", 8090), closed, access_policy(NS, "policy", "web"), aimed, backend_tls(NS, "tls", "app", "ca"))


def become(cluster, kind: str, name: str, wanted: str, part: str = "", namespace: str = NS) -> None:
    last = {}

    def look():
        last.update(cluster.health.of(cluster.api.get(kind, name, namespace)))
        return last["status"] == wanted and part in last["message"]

    try:
        wait_for("", look, 60, every=0.2)
    except AssertionError:
        raise AssertionError(f"{kind} {name} is {last}, not {wanted} with {part!r}") from None


@check("Gateways and their class")
def gateways(cluster):
    become(cluster, "GatewayClass", "portcullis", "Healthy", namespace="")
    become(cluster, "Gateway", "web", "Healthy")
    become(cluster, "Gateway", "broken", "Degraded", "nothing")


@check("routes; a parent that does not exist is not seen")
def routes(cluster):
    become(cluster, "HTTPRoute", "right", "Healthy")
    become(cluster, "HTTPRoute", "both", "Healthy")
    become(cluster, "HTTPRoute", "wrong", "Degraded")
    become(cluster, "HTTPRoute", "missing", "Degraded", "nothing")
    become(cluster, "GRPCRoute", "grpc", "Healthy")
    become(cluster, "GRPCRoute", "grpc-missing", "Degraded", "nothing")
    become(cluster, "TCPRoute", "tcp", "Healthy")


@check("ListenerSets, policies and parameters, by the check of the page")
def own_check(cluster):
    become(cluster, "ListenerSet", "set", "Healthy")
    become(cluster, "ListenerSet", "closed", "Degraded")
    become(cluster, "AccessPolicy", "policy", "Healthy")
    become(cluster, "AccessPolicy", "aimed", "Degraded", "nowhere")
    become(cluster, "BackendTLSPolicy", "tls", "Degraded")
    become(cluster, "GatewayParameters", "parameters", "Healthy")


@check("a Gateway that no pod serves yet is Progressing, and so is a change that no controller has seen")
def progressing(cluster):
    found = cluster.api.get("Gateway", "web", NS)
    for one in found["status"]["conditions"]:
        if one["type"] == "Programmed":
            one.update(status="False", reason="Pending", message="no replica of its data plane is ready yet")
    assert cluster.health.of(found)["status"] == "Progressing", cluster.health.of(found)
    policy = cluster.api.get("AccessPolicy", "policy", NS)
    policy["metadata"]["generation"] += 1
    assert cluster.health.of(policy)["status"] == "Progressing", cluster.health.of(policy)
    assert cluster.health.of({**policy, "status": None})["status"] == "Progressing"


@check("a policy that another one overrides is Suspended")
def suspended(cluster):
    cluster.apply(access_policy(NS, "zz-later", "web"))
    become(cluster, "AccessPolicy", "zz-later", "Suspended")
    cluster.api.delete("Namespace", NS)
