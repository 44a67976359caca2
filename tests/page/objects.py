"""The objects of the test of the page: a Gateway with one fault of each kind that the page shows, and one with many routes."""

import base64
import json

HOST = "shop.example.com"
CANARY = "canary-4c1d"


def document(kind: str, name: str, spec: dict, version: str = "gateway.networking.k8s.io/v1", **members) -> str:
    return json.dumps({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec} | members)


def service(name: str, ports: list[int]) -> list[str]:
    """A Service with an endpoint on each port of this machine."""
    slices = []
    for index, port in enumerate(ports):
        labels = {"kubernetes.io/service-name": name}
        slices.append({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": f"{name}-{index}", "labels": labels},
            "addressType": "IPv4", "ports": [{"port": port}], "endpoints": [{"addresses": ["127.0.0.1"]}],
        })  # fmt: skip
    return [document("Service", name, {"ports": [{"port": 80}]}, "v1"), *map(json.dumps, slices)]


def secret(name: str, kind: str, data: dict[str, bytes]) -> str:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind, "data": encoded})


def tls(name: str, certificate: tuple[bytes, bytes]) -> str:
    return secret(name, "kubernetes.io/tls", {"tls.crt": certificate[0], "tls.key": certificate[1]})


def rule(path: str, backend: str, port: int = 80, **members) -> dict:
    return {"matches": [{"path": {"value": path}}], "backendRefs": [{"name": backend, "port": port}]} | members


def route(name: str, rules: list[dict], hostnames: list[str] | None = None) -> str:
    spec = {"parentRefs": [{"name": "edge"}], "hostnames": hostnames or [HOST], "rules": rules}
    return document("HTTPRoute", name, spec)


def policy(kind: str, name: str, target: tuple[str, str], spec: dict) -> str:
    reference = {"group": "gateway.networking.k8s.io", "kind": target[0], "name": target[1]}
    return document(kind, name, {"targetRefs": [reference], **spec}, "portcullis.dev/v1alpha1")


def faults(ports: dict[str, int], backends: dict[str, int], certificates: dict[str, tuple[bytes, bytes]]) -> str:
    """Objects of which one of each kind is wrong. A port that another program has is among them if `ports` has one."""

    def listener(name: str, port: int, hostname: str, certificate: str = "") -> dict:
        settings = {"tls": {"certificateRefs": [{"name": certificate}]}} if certificate else {}
        return {"name": name, "port": port, "protocol": "HTTPS" if certificate else "HTTP", "hostname": hostname} | settings

    listeners = [
        {"name": "http", "port": ports["http"], "protocol": "HTTP"},
        {"name": "database", "port": ports["tcp"], "protocol": "TCP"},
        *[{"name": "taken", "port": ports["taken"], "protocol": "HTTP"} for _ in range("taken" in ports)],
        listener("old", ports["https"], "old.example.com", "old"),
        listener("soon", ports["https"], HOST, "soon"),
        listener("late", ports["https"], "late.example.com", "late"),
    ]
    header = {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "x-token", "value": CANARY}]}}
    guarded = rule("/private", "app")
    guarded["matches"][0]["headers"] = [{"name": "x-key", "value": CANARY}]
    foreign = rule("/foreign", "app")
    foreign["backendRefs"][0]["namespace"] = "data"
    both = rule("/cart", "app", filters=[header])
    both["backendRefs"] = [{"name": "app", "port": 80, "weight": 90}, {"name": "next", "port": 80, "weight": 10}]
    users = secret("users", "Opaque", {"auth": b"alice:{SHA}" + base64.b64encode(b"0123456789abcdefghij")})
    validation = {"hostname": "secure.example.com", "wellKnownCACertificates": "System"}
    secure = {"targetRefs": [{"group": "", "kind": "Service", "name": "secure"}], "validation": validation}
    parts = [
        document("Gateway", "edge", {"gatewayClassName": "portcullis", "listeners": listeners}),
        *[tls(name, pair) for name, pair in certificates.items()],
        users, secret("partners", "Opaque", {"shop": CANARY.encode()}),
        *service("app", [backends["app"], backends["dead"]]), *service("next", [backends["app"]]), *service("broken", [backends["broken"]]),
        *service("empty", []), *service("secure", [backends["app"]]),
        document("BackendTLSPolicy", "secure", secure),
        route("web", [both, rule("/", "app")]),
        route("broken", [rule("/broken", "broken")]),
        route("empty", [rule("/empty", "empty")]),
        route("wrong-port", [rule("/port", "app", 81)]),
        route("foreign", [foreign]),
        route("private", [guarded]),
        route("web-copy", [rule("/cart", "next")]),
        route("secure", [rule("/secure", "secure")]),
        route("limited", [rule("/limited", "app")]),
        document("TCPRoute", "database", {"parentRefs": [{"name": "edge"}], "rules": [{"backendRefs": [{"name": "next", "port": 80}]}]}),
        policy("RateLimitPolicy", "visitors", ("HTTPRoute", "limited"), {"rules": [{"name": "hourly", "limit": {"requests": 1, "per": "Hour"}}]}),
        policy("AccessPolicy", "office", ("Gateway", "edge"), {"ipRules": {"allow": ["127.0.0.0/9", "127.128.0.0/9"]}}),
        policy("AccessPolicy", "anyone", ("HTTPRoute", "web"), {"ipRules": {"allow": ["127.0.0.0/8", "192.0.2.0/24"]}}),
        policy("AccessPolicy", "staff", ("HTTPRoute", "private"), {"basic": {"secretRef": {"name": "users"}}, "apiKey": {
            "secretRefs": [{"name": "partners"}], "from": [{"type": "Query", "name": "key"}]}}),
    ]  # fmt: skip
    return "\n---\n".join(parts)


# A file with an object that cannot be read.
UNREADABLE = "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: typo}\nspec: {parentRefs: [{name: edge}], rules: [{matchs: []}]}\n"

# An object of which nothing is served, and with which nothing is wrong.
NOTHING = json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})


def many(port: int, backend: int, routes: int) -> str:
    """A Gateway with this number of routes, each with a hostname and a backend."""
    parts = [document("Gateway", "edge", {"gatewayClassName": "portcullis", "listeners": [{"name": "http", "port": port, "protocol": "HTTP"}]})]
    for number in range(routes):
        parts += service(f"app-{number:04}", [backend])
        parts.append(route(f"route-{number:04}", [rule("/", f"app-{number:04}")], [f"host-{number:04}.example.com"]))
    return "\n---\n".join(parts)
