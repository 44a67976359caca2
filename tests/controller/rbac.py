"""Compares the audit log with the permissions in deploy/install.yaml: nothing is denied, nothing is unused.

Runs last, because the other subjects send the requests that need these permissions.
"""

import audit
from api import condition, wait_for
from audit import WRITES
from checks import check
from cluster import SYSTEM
from objects import access_policy, backend_policy, backend_tls, backend_tls_override, echo, external, gateway, gateway_class, https_listener, key_material, listener_set, namespace, parameters, parameters_ref, to_backend, traffic_policy

NS = "rights"
CONTROLLER = "portcullis-controller"
# Permissions that are not visible in requests, and the reason for each.
UNSEEN = {
    ("create", "events"): "events report problems that no subject causes, or that occur later",
    ("patch", "events"): "a repeated event increases its count",
    ("update", "secrets"): "the CA is renewed after months",
    ("get", "poddisruptionbudgets"): "an existing object of that name is read to verify its owner",
    ("get", "networkpolicies"): "an existing object of that name is read to verify its owner",
    ("get", "horizontalpodautoscalers"): "an existing object of that name is read to verify its owner",
    ("get", "daemonsets"): "the owner of a pod of a DaemonSet is read when the pod connects",
    ("get", "configmaps"): "a CA bundle is read when a policy refers to it for the first time",
    **{(verb, "serviceimports"): "the cluster of these tests has no CRD of the Multi-Cluster Services API" for verb in ["list", "watch"]},
    **dict.fromkeys(
        [("list", "inferencepools"), ("watch", "inferencepools"), ("patch", "inferencepools/status")],
        "the cluster of these tests has no CRD of the Inference Extension",
    ),
    **dict.fromkeys([("list", "xlistenersets"), ("watch", "xlistenersets"), ("patch", "xlistenersets/status")], "the cluster of these tests has ListenerSets"),
    ("create", "leases"): "only the first controller creates the Lease",
}


def prepare(cluster):
    """Causes the requests that no other subject causes: all kinds of routes, a ListenerSet, addresses of nodes, and key
    material that exists before anything refers to it."""
    on_nodes = parameters(NS, "nodes", workload={"replicas": 1}, service={"type": "NodePort"})
    cluster.apply(namespace(NS), gateway_class("rights"), *echo(NS, "echo"), on_nodes, *key_material(NS, "keys"))
    edge = gateway(NS, "edge", class_name="rights", parametersRef=parameters_ref("nodes"))
    edge["spec"]["allowedListeners"] = {"namespaces": {"from": "Same"}}
    cluster.apply(edge, listener_set(NS, "more", "edge", 8081))
    for kind in "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute":
        route = to_backend(NS, "any", ["edge"], "echo", kind)
        # Routes of two kinds cannot share a hostname.
        if kind in ("HTTPRoute", "GRPCRoute"):
            route["spec"]["hostnames"] = [f"{kind.lower()}.test"]
        if kind == "TLSRoute":
            route["spec"]["hostnames"] = ["tls.test"]
        cluster.apply(route)
    cluster.gateway_is(NS, "edge")
    outside = to_backend(NS, "outside", ["edge"], "any")
    outside["spec"]["hostnames"] = ["outside.test"]
    outside["spec"]["rules"][0]["backendRefs"] = [{"group": "gateway.networking.x-k8s.io", "kind": "XBackend", "name": "any"}]
    cluster.apply(external(NS, "any", "any.example.com"), outside)
    wait_for("XBackend has a status", lambda: cluster.api.get("XBackend", "any", NS).get("status", {}).get("parents"), 10)
    for kind in "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute":
        wait_for(f"{kind} has a status", lambda: cluster.api.get(kind, "any", NS).get("status", {}).get("parents"), 10)
    edge["spec"]["listeners"].append(https_listener(8443, "keys"))
    cluster.apply(edge, backend_tls(NS, "any", "echo", "keys"), backend_tls_override(NS, "any", "echo", "edge"), traffic_policy(NS, "any", "echo"), backend_policy(NS, "any", "echo"))
    limits = access_policy(NS, "any", "edge", rules=[{"name": "any", "concurrent": 1000}])
    del limits["spec"]["ipRules"]
    clients = access_policy(NS, "any", "edge", clientIP={})
    del clients["spec"]["ipRules"]
    bodies = access_policy(NS, "any", "edge", requestBody={"maxSize": "1Mi"})
    del bodies["spec"]["ipRules"]
    traces = access_policy(NS, "any", "edge", tracing={"provider": {"backendRef": {"name": "echo", "port": 80}}})
    del traces["spec"]["ipRules"]
    cluster.apply(access_policy(NS, "any", "edge"), {**limits, "kind": "RateLimitPolicy"}, {**bodies, "kind": "RoutePolicy"}, {**clients, "kind": "ClientPolicy"}, {**traces, "kind": "TelemetryPolicy"})
    cluster.gateway_is(NS, "edge")
    for kind in "AccessPolicy", "RateLimitPolicy", "RoutePolicy", "ClientPolicy", "TelemetryPolicy", "XBackendTrafficPolicy", "BackendPolicy":
        wait_for(f"{kind} has a status", lambda: cluster.api.get(kind, "any", NS).get("status", {}).get("ancestors"), 60)
    found = lambda: cluster.api.get("ListenerSet", "more", NS).get("status", {}).get("conditions", [])  # noqa: E731
    wait_for("the ListenerSet has a status", lambda: condition(found(), "Programmed").get("observedGeneration"), 10)


def granted(role: dict) -> set[tuple[str, str, str]]:
    return {
        (verb, group, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def reread(rights: set[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
    """Rights to read an object again after a conflict of a patch of its status, which is rare."""
    return {("get", group, resource.removesuffix("/status")) for _, group, resource in rights if resource.endswith("/status")}


def used(events: list[audit.Event]) -> set[tuple[str, str, str]]:
    return {(event.verb, event.group, event.resource) for event in events}


def of_data_planes(cluster) -> list[audit.Event]:
    """Requests by ServiceAccounts of Gateways, from their creation by the controller to their deletion."""
    alive, found = set(), []
    maker = f"system:serviceaccount:{SYSTEM}:{CONTROLLER}"
    for event in audit.read(cluster.audit_log):
        account = f"system:serviceaccount:{event.namespace}:{event.name}"
        if event.resource == "serviceaccounts" and event.verb in {"create", "patch"} and event.user == maker:
            alive.add(account)
        elif event.resource == "serviceaccounts" and event.verb == "delete":
            alive.discard(account)
        elif event.user in alive:
            found.append(event)
    return found


def denied(events: list[audit.Event]) -> list[str]:
    return [f"{event.time} {event.pod} {event.verb} {event.resource} {event.name}" for event in events if event.is_forbidden]


@check("no request of the controller is denied")
def controller_is_let(cluster):
    faults = denied(audit.of_account(cluster.audit_log, SYSTEM, CONTROLLER))
    assert not faults, f"{len(faults)}: {faults[:5]}"


@check("pods of Gateways send no request to the API server")
def data_planes_ask_nothing(cluster):
    made = [event for event in audit.of_account(cluster.audit_log, SYSTEM, CONTROLLER) if event.resource == "serviceaccounts"]
    assert any(event.verb in WRITES and event.code < 300 for event in made), "the controller has created no ServiceAccount"
    # Checks use tokens of their accounts that are not bound to pods.
    events = [event for event in of_data_planes(cluster) if event.pod]
    asked = [f"{event.time} {event.pod} {event.verb} {event.resource} {event.name}" for event in events]
    assert not asked, f"{len(asked)}: {asked[:5]}"


@check("every permission of the controller is used")
def controller_needs_all(cluster):
    roles = cluster.api.get("ClusterRole", CONTROLLER), cluster.api.get("Role", CONTROLLER, SYSTEM)
    rights = set().union(*map(granted, roles))
    idle = rights - reread(rights) - used(audit.of_account(cluster.audit_log, SYSTEM, CONTROLLER))
    surplus = sorted(one for one in idle if (one[0], one[2]) not in UNSEEN)
    assert not surplus, f"never used: {surplus}"
