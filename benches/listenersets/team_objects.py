"""Owns the objects of the teams of config/examples/many-teams as an API server takes them: JSON, headless Services, and endpoints that are not loopback."""

import base64

from certificates import self_signed
from teams import ROUTES_PER_SERVICE, name

from scene import GATEWAY_NAMESPACE, host

GATEWAY_API = "gateway.networking.k8s.io/v1"
INFRA, GATEWAY = GATEWAY_NAMESPACE, "shared"
HTTP, HTTPS = 8080, 8443


def namespace(title: str) -> dict:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": title}}


def gateway_class() -> dict:
    return {"apiVersion": GATEWAY_API, "kind": "GatewayClass", "metadata": {"name": "portcullis"}, "spec": {"controllerName": "portcullis.dev/gateway-controller"}}


def gateway(parameters: str = "") -> dict:
    spec = {
        "gatewayClassName": "portcullis",
        "allowedListeners": {"namespaces": {"from": "All"}},
        "listeners": [{"name": "http", "port": HTTP, "protocol": "HTTP", "hostname": "gateway.example.com"}],
    }
    if parameters:
        reference = {"group": "portcullis.dev", "kind": "GatewayParameters", "name": parameters}
        spec["infrastructure"] = {"parametersRef": reference}
    return _object(GATEWAY_API, "Gateway", INFRA, GATEWAY, spec)


def parameters(title: str) -> dict:
    """One pod that says little."""
    spec = {"workload": {"replicas": 1}, "log": {"accessLog": "off", "level": "warn"}}
    return _object("portcullis.dev/v1alpha1", "GatewayParameters", INFRA, title, spec)


def before_listeners(index: int, routes: int, address: str, port: int) -> list[dict]:
    """All objects of a team except its ListenerSet, the namespace first."""
    team = name(index)
    services = range(-(-routes // ROUTES_PER_SERVICE))
    return [
        namespace(team),
        secret(index, self_signed(host(index))),
        *(_service(team, f"service-{service}") for service in services),
        *(endpoints(index, f"service-{service}", address, port) for service in services),
        *(http_route(index, route) for route in range(routes)),
    ]


def listener_set(index: int) -> dict:
    https = {"name": "https", "port": HTTPS, "protocol": "HTTPS", "hostname": host(index), "tls": {"certificateRefs": [{"name": "certificate"}]}}
    spec = {
        "parentRef": {"name": GATEWAY, "namespace": INFRA},
        "listeners": [{"name": "http", "port": HTTP, "protocol": "HTTP", "hostname": host(index)}, https],
    }
    return _object(GATEWAY_API, "ListenerSet", name(index), "listeners", spec)


def secret(index: int, pair: tuple[str, str]) -> dict:
    certificate, key = (base64.b64encode(part.encode()).decode() for part in pair)
    metadata = {"namespace": name(index), "name": "certificate"}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/tls", "data": {"tls.crt": certificate, "tls.key": key}}


def endpoints(index: int, service: str, address: str, port: int) -> dict:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"namespace": name(index), "name": service, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address]}],
    }


def http_route(index: int, route: int, version: str | None = None) -> dict:
    """A route of a team. With a version, responses have it in the header x-version."""
    rule: dict = {
        "matches": [{"path": {"type": "PathPrefix", "value": f"/app-{route}"}}],
        "backendRefs": [{"name": f"service-{route // ROUTES_PER_SERVICE}", "port": 80}],
    }
    if version is not None:
        rule["filters"] = [{"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": [{"name": "x-version", "value": version}]}}]
    spec = {"parentRefs": [{"group": "gateway.networking.k8s.io", "kind": "ListenerSet", "name": "listeners"}], "rules": [rule]}
    return _object(GATEWAY_API, "HTTPRoute", name(index), f"app-{route}", spec)


def _service(team: str, title: str) -> dict:
    # Headless, so that kube-proxy of the cluster has nothing to do for it.
    return _object("v1", "Service", team, title, {"clusterIP": "None", "ports": [{"port": 80}]})


def _object(version: str, kind: str, team: str, title: str, spec: dict) -> dict:
    return {"apiVersion": version, "kind": kind, "metadata": {"namespace": team, "name": title}, "spec": spec}
