"""Conditions of objects whose parent is refused, deleted or handed over, and of pods that the API server refuses."""

from api import condition, wait_for
from checks import check
from cluster import SYSTEM
from objects import gateway, gateway_class, listener_set, namespace, parameters, parameters_ref, redirect

NS = "ownership"
FROM_ALL = {"namespaces": {"from": "All"}}


def prepare(cluster):
    cluster.apply(namespace(NS), gateway_class("foreign", "example.com/other"))


def with_sets(found: dict) -> dict:
    """The Gateway, which admits ListenerSets."""
    found["spec"]["allowedListeners"] = FROM_ALL
    return found


def statuses(cluster, kind: str, name: str) -> tuple[str, str]:
    """Status of Accepted and of Programmed."""
    conditions = cluster.api.get(kind, name, NS).get("status", {}).get("conditions", [])
    return tuple(condition(conditions, kind).get("status", "") for kind in ("Accepted", "Programmed"))


def reasons(cluster, kind: str, name: str) -> tuple[str, str]:
    conditions = cluster.api.get(kind, name, NS).get("status", {}).get("conditions", [])
    return tuple(condition(conditions, kind).get("reason", "") for kind in ("Accepted", "Programmed"))


def becomes(cluster, kind: str, name: str, expected: tuple[str, str]) -> None:
    try:
        wait_for(f"{kind} {name} has {expected}", lambda: reasons(cluster, kind, name) == expected, 15)
    except AssertionError as error:
        raise AssertionError(f"{error}; it has {cluster.api.get(kind, name, NS).get('status')}") from None


def own(cluster, name: str, **infrastructure) -> None:
    """Creates a Gateway with a ListenerSet and a route for each of both, all of this name, and waits until all serve."""
    through_set = redirect(NS, f"{name}-set", [name], f"{name}-set.test")
    through_set["spec"]["parentRefs"] = [{"kind": "ListenerSet", "name": name}]
    cluster.apply(
        with_sets(gateway(NS, name, **infrastructure)),
        listener_set(NS, name, name, 9090),
        redirect(NS, name, [name], f"{name}.test"),
        through_set,
    )
    cluster.gateway_is(NS, name)
    wait_for("its set is programmed", lambda: statuses(cluster, "ListenerSet", name) == ("True", "True"), 15)
    for route in name, f"{name}-set":
        wait_for(f"route {route} has a status", lambda: parents(cluster, route), 10)


def parents(cluster, name: str) -> list[dict]:
    return cluster.api.get("HTTPRoute", name, NS).get("status", {}).get("parents", [])


def disown(cluster, name: str) -> None:
    for kind, which in ("ListenerSet", name), ("HTTPRoute", name), ("HTTPRoute", f"{name}-set"), ("Gateway", name):
        cluster.api.delete(kind, which, NS)


def routes_are_released(cluster, name: str) -> None:
    for route in name, f"{name}-set":
        wait_for(f"route {route} has no status", lambda: not parents(cluster, route), 15)


@check("a ListenerSet of a Gateway with InvalidParameters or UnsupportedAddress is not accepted")
def of_a_refused_gateway(cluster):
    refused = "ParentNotAccepted", "ParentNotProgrammed"
    own(cluster, "refused")
    cluster.apply(with_sets(gateway(NS, "refused", parametersRef=parameters_ref("missing"))))
    becomes(cluster, "ListenerSet", "refused", refused)
    cluster.apply(with_sets(gateway(NS, "refused")))
    becomes(cluster, "ListenerSet", "refused", ("Accepted", "Programmed"))
    unsupported = with_sets(gateway(NS, "refused"))
    unsupported["spec"]["addresses"] = [{"type": "Hostname", "value": "a.test"}]
    cluster.apply(unsupported)
    becomes(cluster, "ListenerSet", "refused", refused)
    disown(cluster, "refused")


@check("a ListenerSet of a Gateway without its address is not programmed")
def of_a_gateway_without_address(cluster):
    found = with_sets(gateway(NS, "unreachable"))
    found["spec"]["addresses"] = [{"type": "IPAddress", "value": "198.51.100.77"}]
    cluster.apply(found, listener_set(NS, "unreachable", "unreachable", 9090))
    wait_for("the Gateway is not programmed", lambda: statuses(cluster, "Gateway", "unreachable")[1] == "False", 30)
    wait_for("nor is its set", lambda: statuses(cluster, "ListenerSet", "unreachable") == ("True", "False"), 30)
    cluster.api.delete("ListenerSet", "unreachable", NS)
    cluster.api.delete("Gateway", "unreachable", NS)


@check("a ListenerSet whose parent is a ListenerSet is not accepted")
def of_a_set(cluster):
    own(cluster, "root")
    nested = listener_set(NS, "nested", "root", 9091)
    nested["spec"]["parentRef"] = {"group": "gateway.networking.k8s.io", "kind": "ListenerSet", "name": "root"}
    cluster.apply(nested)
    becomes(cluster, "ListenerSet", "nested", ("Invalid", "Invalid"))
    cluster.api.delete("ListenerSet", "nested", NS)
    disown(cluster, "root")


@check("after its Gateway is deleted, a ListenerSet is not accepted, and routes have no status of it")
def of_a_deleted_gateway(cluster):
    own(cluster, "gone")
    cluster.api.delete("Gateway", "gone", NS)
    becomes(cluster, "ListenerSet", "gone", ("ParentNotAccepted", "ParentNotProgrammed"))
    routes_are_released(cluster, "gone")
    own(cluster, "gone")
    disown(cluster, "gone")


@check("a Gateway whose class does not exist any more is not programmed, nor are its ListenerSets and routes")
def of_a_missing_class(cluster):
    own(cluster, "orphan")
    cluster.apply(with_sets(gateway(NS, "orphan", class_name="missing")))
    becomes(cluster, "Gateway", "orphan", ("Pending", "Pending"))
    found = cluster.api.get("Gateway", "orphan", NS)
    programmed = condition(found["status"]["conditions"], "Programmed")
    assert programmed["status"] == "False" and "GatewayClass missing" in programmed["message"], programmed
    assert programmed["observedGeneration"] == found["metadata"]["generation"], programmed
    assert not found["status"].get("addresses") and not found["status"].get("listeners"), found["status"]
    becomes(cluster, "ListenerSet", "orphan", ("ParentNotAccepted", "ParentNotProgrammed"))
    routes_are_released(cluster, "orphan")
    own(cluster, "orphan")
    disown(cluster, "orphan")


@check("a Gateway of another controller has no condition of this one, and conditions of the other stay")
def of_a_foreign_class(cluster):
    own(cluster, "turncoat")
    cluster.apply(with_sets(gateway(NS, "turncoat", class_name="foreign")))
    becomes(cluster, "Gateway", "turncoat", ("Pending", "Pending"))
    becomes(cluster, "ListenerSet", "turncoat", ("Pending", "Pending"))
    assert statuses(cluster, "Gateway", "turncoat") == ("Unknown", "Unknown"), statuses(cluster, "Gateway", "turncoat")
    routes_are_released(cluster, "turncoat")
    theirs = cluster.api.get("Gateway", "turncoat", NS)["status"]["conditions"]
    for one in theirs:
        one |= {"status": "True", "reason": one["type"], "message": "the other controller"}
    cluster.api.patch("Gateway", "turncoat", NS, {"status": {"conditions": theirs}}, "status")
    # The controller has seen the change once it has processed a later one.
    own(cluster, "later")
    disown(cluster, "later")
    assert reasons(cluster, "Gateway", "turncoat") == ("Accepted", "Programmed"), reasons(cluster, "Gateway", "turncoat")
    disown(cluster, "turncoat")


def says(cluster, name: str, words: str, space: str = NS) -> dict:
    """Waits until Programmed of a Gateway contains these words; returns the condition."""

    def look():
        conditions = cluster.api.get("Gateway", name, space).get("status", {}).get("conditions", [])
        found = condition(conditions, "Programmed")
        return words in found.get("message", "") and found

    return wait_for(f"Programmed of Gateway {name} says {words!r}", look, 60)


@check("pods that a quota refuses are in the Gateway's Programmed, with the API server's message")
def refused_by_quota(cluster):
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": NS}, "spec": {"hard": {"pods": "0"}}}
    cluster.apply(quota)
    wait_for("the quota is known", lambda: cluster.api.get("ResourceQuota", "none", NS).get("status", {}).get("hard"), 30)
    cluster.apply(gateway(NS, "poor"))
    assert says(cluster, "poor", "exceeded quota: none")["status"] == "False"
    cluster.api.delete("ResourceQuota", "none", NS)
    cluster.api.delete("Gateway", "poor", NS)


@check("pods that Pod Security refuses are in the Gateway's Programmed, with the API server's message")
def refused_by_pod_security(cluster):
    space = "restricted"
    cluster.apply(namespace(space))
    cluster.api.patch("Namespace", space, "", {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    cluster.apply(
        parameters(SYSTEM, "ghosts", workload={"hostNetwork": True}),
        gateway_class("ghosts", parametersRef={**parameters_ref("ghosts"), "namespace": SYSTEM}),
        gateway(space, "ghost", (8085,), class_name="ghosts"),
    )
    assert says(cluster, "ghost", "violates PodSecurity", space)["status"] == "False"
    cluster.api.delete("Gateway", "ghost", space)
