"""The certificates and the objects of the proxy."""

import base64
import datetime
import json
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

WEB, OTHER, CALLS = "web.test", "other.test", "calls.test"
ORIGIN = "https://app.test"
# Of the user `user` with the password `password`.
USERS = "user:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g="
MAX_BODY = 100_000


class Authority:
    """Issues certificates with one key, so that a browser can be told to trust it."""

    def __init__(self, name: str):
        self.key, self.leaf_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self.sign(self.name, self.key, x509.BasicConstraints(ca=True, path_length=0), [])

    def sign(self, subject: x509.Name, key, constraints: x509.BasicConstraints, names: list[str]) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(self.name, subject, key.public_key(), x509.random_serial_number(), now - datetime.timedelta(1), now + datetime.timedelta(2))
        builder = builder.add_extension(constraints, critical=True)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def issue(self, *names: str) -> bytes:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        leaf = self.sign(subject, self.leaf_key, x509.BasicConstraints(ca=False, path_length=None), list(names))
        return leaf.public_bytes(serialization.Encoding.PEM)

    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self) -> bytes:
        return self.leaf_key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())

    def pin(self) -> str:
        """The hash of the key, as Chromium takes it."""
        key = self.leaf_key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        digest = hashes.Hash(hashes.SHA256())
        digest.update(key)
        return base64.b64encode(digest.finalize()).decode()

    def write(self, folder: Path, name: str) -> tuple[str, str]:
        """Writes a certificate of a client and its key to files."""
        certificate, key = folder / f"{name}.pem", folder / f"{name}-key.pem"
        certificate.write_bytes(self.issue(name))
        key.write_bytes(self.key_pem())
        return str(certificate), str(key)


def thing(version: str, kind: str, name: str, **more) -> dict:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **more}


def gateway_api(kind: str, name: str, spec: dict) -> dict:
    return thing("gateway.networking.k8s.io/v1", kind, name, spec=spec)


def policy(kind: str, name: str, target: str, target_kind: str = "HTTPRoute", **spec) -> dict:
    targets = [{"group": "gateway.networking.k8s.io", "kind": target_kind, "name": target}]
    return thing("portcullis.dev/v1alpha1", kind, name, spec={"targetRefs": targets, **spec})


def secret(name: str, certificate: bytes, key: bytes) -> dict:
    data = {"tls.crt": base64.b64encode(certificate).decode(), "tls.key": base64.b64encode(key).decode()}
    return thing("v1", "Secret", name, type="kubernetes.io/tls", data=data)


def service(name: str, port: int, **more) -> list[dict]:
    endpoints = {"addressType": "IPv4", "ports": [{"port": port}], "endpoints": [{"addresses": ["127.0.0.1"]}]}
    labelled = thing("discovery.k8s.io/v1", "EndpointSlice", name, **endpoints)
    labelled["metadata"]["labels"] = {"kubernetes.io/service-name": name}
    return [thing("v1", "Service", name, spec={"ports": [{"port": 80, **more}]}), labelled]


def route(name: str, paths: list[str], *filters: dict, backend: str | None = "web", hosts: tuple[str, ...] = (WEB, OTHER)) -> dict:
    rule = {"matches": [{"path": {"type": "PathPrefix", "value": path}} for path in paths], "filters": list(filters)}
    if backend:
        rule["backendRefs"] = [{"name": backend, "port": 80}]
    return gateway_api("HTTPRoute", name, {"parentRefs": [{"name": "edge"}], "hostnames": list(hosts), "rules": [rule]})


def gateway(port: int, guarded: int) -> list[dict]:
    def https(name: str, port: int, host: str) -> dict:
        return {"name": name, "port": port, "protocol": "HTTPS", "hostname": host, "tls": {"certificateRefs": [{"name": name.split("-", maxsplit=1)[0]}]}}

    validation = {"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "clients"}]}
    frontend = {"default": {}, "perPort": [{"port": guarded, "tls": {"validation": validation}}]}
    listeners = [https("web", port, WEB), https("other", port, OTHER), https("calls", port, CALLS), https("web-guarded", guarded, WEB)]
    return [
        gateway_api("GatewayClass", "portcullis", {"controllerName": "portcullis.dev/gateway-controller"}),
        gateway_api("Gateway", "edge", {"gatewayClassName": "portcullis", "tls": {"frontend": frontend}, "listeners": listeners}),
        policy("ClientPolicy", "http3", "edge", "Gateway", http3={"maxAge": "1h"}),
    ]


PATHS = [
    "/echo", "/bytes", "/chunked", "/mirror", "/slow", "/trailers", "/early", "/refuse", "/broken", "/cut", "/hang", "/endless", "/ws", "/chat", "/page",
    "/status", "/cookies", "/large-head",
]  # fmt: skip


def routes(port: int) -> list[dict]:
    cors = {"allowOrigins": [ORIGIN, f"https://{WEB}:{port}"], "allowMethods": ["GET", "PUT"], "allowHeaders": ["x-custom"], "maxAge": 60}
    added = {"set": [{"name": "x-added", "value": "by the route"}]}
    limit = {"name": "one", "key": [{"type": "Header", "name": "x-client"}], "limit": {"requests": 1, "per": "Hour"}}
    return [
        route("web", PATHS),
        route("login", ["/login"]),
        policy("AccessPolicy", "login", "login", basic={"secretRef": {"name": "users"}}),
        thing("v1", "Secret", "users", stringData={"auth": USERS}),
        route("forbidden", ["/forbidden"]),
        policy("AccessPolicy", "forbidden", "forbidden", authorization={"rules": [{"name": "none", "action": "Deny", "match": {"methods": ["GET"]}}]}),
        route("small", ["/small"]),
        policy("RoutePolicy", "small", "small", requestBody={"maxSize": MAX_BODY}),
        route("limited", ["/limited"]),
        policy("RateLimitPolicy", "limited", "limited", rules=[limit]),
        route("text", ["/text"]),
        policy("RoutePolicy", "text", "text", compression={}),
        route("cors", ["/cors"], {"type": "CORS", "cors": cors}),
        route("moved", ["/moved"], {"type": "RequestRedirect", "requestRedirect": {"path": {"type": "ReplaceFullPath", "replaceFullPath": "/echo"}, "statusCode": 302}}, backend=None),
        route("old", ["/old"], {"type": "URLRewrite", "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/echo/new"}}}),
        route("added", ["/added"], {"type": "ResponseHeaderModifier", "responseHeaderModifier": added}, {"type": "RequestHeaderModifier", "requestHeaderModifier": added}),
        route("absent", ["/absent"], backend="absent"),
        gateway_api("GRPCRoute", "calls", {"parentRefs": [{"name": "edge"}], "hostnames": [CALLS], "rules": [
            {"matches": [{"method": {"service": "test.Service"}}], "backendRefs": [{"name": "grpc", "port": 80}]},
        ]}),
    ]  # fmt: skip


def everything(ports: tuple[int, int], backends: tuple[int, int], servers: Authority, clients: Authority) -> list[dict]:
    key = servers.key_pem()
    return [
        *gateway(*ports),
        secret("web", servers.issue(WEB), key),
        secret("other", servers.issue(OTHER), key),
        secret("calls", servers.issue(CALLS), key),
        thing("v1", "ConfigMap", "clients", data={"ca.crt": clients.pem().decode()}),
        *service("web", backends[0]),
        *service("grpc", backends[1]),
        thing("v1", "Service", "absent", spec={"ports": [{"port": 80}]}),
        *routes(ports[0]),
    ]


def text(objects: list[dict]) -> str:
    """JSON is YAML."""
    return "\n---\n".join(json.dumps(each) for each in objects)
