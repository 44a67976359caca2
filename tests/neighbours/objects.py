"""The objects of a proxy: its Gateway, the routes and policies of both clients, and the backends."""

import base64
import subprocess
from pathlib import Path

# A route with limits, traces of all requests, HTTP/3, and the route of gRPC.
SHARED = """\
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: limited}
spec:
  parentRefs: [{name: edge}]
  hostnames: [hostile.test]
  rules:
  - matches: [{path: {value: /limited}}]
    backendRefs: [{name: polite-one, port: 80}]
---
apiVersion: portcullis.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: limited}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: limited}]
  rules:
  - {name: client, key: [{type: ClientIP}], limit: {requests: 10, per: Second}}
  - {name: key, key: [{type: Header, name: X-Key}], limit: {requests: 1, per: Hour}}
---
apiVersion: portcullis.dev/v1alpha1
kind: TelemetryPolicy
metadata: {name: edge}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: edge}]
  tracing:
    provider: {backendRef: {name: collector, port: 80}}
    samplingRate: {numerator: 1, denominator: 1}
---
apiVersion: portcullis.dev/v1alpha1
kind: ClientPolicy
metadata: {name: edge}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: edge}]
  http3: {}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: grpc}
spec:
  parentRefs: [{name: edge}]
  hostnames: [grpc.test]
  rules: [{backendRefs: [{name: polite-two, port: 80}]}]
"""


def certificate(folder: Path) -> str:
    """Returns a Secret with a certificate of its own."""
    key, pem = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=edge"]
    subprocess.run([*command, "-addext", "subjectAltName=DNS:*.test", "-keyout", key, "-out", pem], check=True, capture_output=True)
    encoded = [base64.b64encode(file.read_bytes()).decode() for file in (pem, key)]
    return f"""\
---
apiVersion: v1
kind: Secret
metadata: {{name: edge}}
type: kubernetes.io/tls
data: {{tls.crt: {encoded[0]}, tls.key: {encoded[1]}}}
"""


def gateway(ports: tuple[int, int]) -> str:
    return f"""\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge}}
spec:
  gatewayClassName: portcullis
  listeners:
  - {{name: http, port: {ports[0]}, protocol: HTTP}}
  - {{name: https, port: {ports[1]}, protocol: HTTPS, tls: {{certificateRefs: [{{name: edge}}]}}}}
"""


def route(client: str, owner: str) -> str:
    """What a client asks for, at the backends of `owner`."""
    return f"""\
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {client}}}
spec:
  parentRefs: [{{name: edge}}]
  hostnames: [{client}.test]
  rules:
  - matches: [{{path: {{value: /one}}}}]
    backendRefs: [{{name: {owner}-one, port: 80}}]
  - matches: [{{path: {{value: /two}}}}]
    backendRefs: [{{name: {owner}-two, port: 80}}]
---
apiVersion: portcullis.dev/v1alpha1
kind: RoutePolicy
metadata: {{name: {client}}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, name: {client}}}]
  compression: {{minSize: 2Ki}}
"""


def service(name: str, protocol: str, ports: list[int]) -> str:
    text = f"""\
---
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec: {{ports: [{{port: 80, appProtocol: {protocol}}}]}}
"""
    for port in ports:
        text += f"""\
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-{port}, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{port: {port}}}]
endpoints: [{{addresses: [127.0.0.1]}}]
"""
    return text


def everything(ports: tuple[int, int], endpoints: dict[str, list[list[int]]], collector: int) -> str:
    """`ports` are those for plain text and for TLS, over TCP and QUIC. `endpoints` are those of HTTP/1.1 and of HTTP/2, by the client whose requests they get."""
    text = gateway(ports) + SHARED + service("collector", "http", [collector])
    for client in "polite", "hostile":
        text += route(client, client if client in endpoints else "polite")
        for (name, protocol), its_ports in zip((("one", "http"), ("two", "kubernetes.io/h2c")), endpoints.get(client, []), strict=False):
            text += service(f"{client}-{name}", protocol, its_ports)
    return text
