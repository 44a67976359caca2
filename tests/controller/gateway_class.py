"""GatewayClasses: their status, and the finalizer while they are in use."""

from api import has, wait_for
from checks import check
from objects import gateway, gateway_class, namespace

NS = "classes"
FINALIZER = "gateway-exists-finalizer.gateway.networking.k8s.io"


def prepare(cluster):
    cluster.apply(namespace(NS))


def finalizers(cluster, name: str) -> list[str]:
    return cluster.api.get("GatewayClass", name)["metadata"].get("finalizers", [])


@check("its status has Accepted, SupportedVersion and sorted features")
def status(cluster):
    def look():
        found = cluster.api.get("GatewayClass", "portcullis").get("status", {})
        conditions = found.get("conditions", [])
        return has(conditions, "Accepted", "True") and has(conditions, "SupportedVersion", "True") and found

    found = wait_for("Accepted and SupportedVersion are True", look, 10)
    features = [feature["name"] for feature in found["supportedFeatures"]]
    assert features and features == sorted(features), features


@check("a class of another controller is not changed")
def foreign(cluster):
    cluster.apply(gateway_class("strange", "example.com/other"), gateway(NS, "strange", class_name="strange"))
    cluster.apply(gateway_class("known"))
    wait_for("ours has a status", lambda: has(conditions(cluster, "known"), "Accepted", "True"), 10)
    assert has(conditions(cluster, "strange"), "Accepted", "Unknown", reason="Pending"), conditions(cluster, "strange")
    assert not finalizers(cluster, "strange"), finalizers(cluster, "strange")
    cluster.api.delete("GatewayClass", "strange")
    cluster.api.delete("GatewayClass", "known")


def conditions(cluster, name: str) -> list[dict]:
    return cluster.api.get("GatewayClass", name).get("status", {}).get("conditions", [])


@check("a class has the finalizer while Gateways use it, and its deletion waits for the last one")
def finalizer(cluster):
    cluster.apply(gateway_class("busy"))
    wait_for("it is accepted", lambda: has(conditions(cluster, "busy"), "Accepted", "True"), 10)
    assert FINALIZER not in finalizers(cluster, "busy"), "an unused class has the finalizer"
    cluster.apply(gateway(NS, "one", class_name="busy"), gateway(NS, "two", class_name="busy"))
    wait_for("it has the finalizer", lambda: FINALIZER in finalizers(cluster, "busy"), 10)
    cluster.gateway_is(NS, "two")
    cluster.api.delete("GatewayClass", "busy")
    cluster.api.delete("Gateway", "one", NS)
    wait_for("the first Gateway is gone", lambda: cluster.api.get("Gateway", "one", NS) is None, 10)
    # A Gateway of a class in deletion is served until it is deleted itself.
    cluster.gateway_is(NS, "two")
    assert FINALIZER in finalizers(cluster, "busy"), "the finalizer is missing while a Gateway uses the class"
    cluster.api.delete("Gateway", "two", NS)
    wait_for("the class is gone", lambda: cluster.api.get("GatewayClass", "busy") is None, 10)


@check("an unused class loses the finalizer")
def unused(cluster):
    cluster.apply(gateway_class("idle"), gateway(NS, "idle", class_name="idle"))
    wait_for("it has the finalizer", lambda: FINALIZER in finalizers(cluster, "idle"), 10)
    cluster.api.delete("Gateway", "idle", NS)
    wait_for("it has none", lambda: FINALIZER not in finalizers(cluster, "idle"), 10)
    cluster.api.delete("GatewayClass", "idle")
