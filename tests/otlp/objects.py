"""The objects of the test of traces: Gateways that differ in their collector, with the same routes."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from manifests import CLASS, service

# A hostname is that of an HTTPRoute or of a GRPCRoute.
HOST, CALLS, SERVICE = "otlp.test", "calls.otlp.test", "otlp.Calls"

# Rules of the HTTPRoute: the first segment of the path, and more of the rule.
ROUTES = {
    "plain": "",
    "retry": "retry: {codes: [503], attempts: 1, backoff: 1ms}",
    "mirror": "filters: [{type: RequestMirror, requestMirror: {backendRef: {name: app, port: 80}}}]",
    "guarded": "filters: [{type: ExternalAuth, externalAuth: {protocol: HTTP, backendRef: {name: app, port: 80}, http: {path: /check}}}]",
    "missing": "",
    "broken": "",
    "dead": "",
    "cancelled": "",
    "socket": "",
    "early": "",
    "redirect": "filters: [{type: RequestRedirect, requestRedirect: {hostname: other.test, statusCode: 302}}]",
    "slow": "timeouts: {request: 300ms}",
    "limited": "",
}


def gateway(name: str, port: int, protocol: str) -> str:
    # The memory of spans is measured at the others.
    log = "  accessLog: {sink: OTLP}\n" if name in ("http", "grpc") else ""
    return f"""\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: {name}}}
spec:
  gatewayClassName: portcullis
  listeners: [{{name: plain, port: {port}, protocol: HTTP}}]
---
apiVersion: portcullis.dev/v1alpha1
kind: TelemetryPolicy
metadata: {{name: {name}}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: {name}}}]
{log}  tracing:
    provider: {{protocol: {protocol}, backendRef: {{name: collector-{name}, port: 80}}}}
    samplingRate: {{numerator: 1, denominator: 1}}
---
apiVersion: portcullis.dev/v1alpha1
kind: RateLimitPolicy
metadata: {{name: {name}}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: {name}}}]
  rules:
  - name: one
    match: {{path: {{value: /limited}}}}
    limit: {{requests: 1, per: Hour}}
---
"""


def rule(name: str, more: str) -> str:
    backend = "dead" if name == "dead" else "app"
    backends = "" if name == "redirect" else f"    backendRefs: [{{name: {backend}, port: 80}}]\n"
    return f"  - matches: [{{path: {{value: /{name}}}}}]\n{backends}" + (f"    {more}\n" if more else "")


def objects(gateways: dict[str, tuple[str, int]], ports: dict[str, int], backends: dict[str, int]) -> str:
    parents = ", ".join(f"{{name: {name}}}" for name in gateways)
    text = CLASS
    for name, (protocol, collector) in gateways.items():
        text += gateway(name, ports[name], protocol) + service(f"collector-{name}", collector, "127.0.0.1")
    for name, port in backends.items():
        text += service(name, port, "127.0.0.1")
    head = f"  parentRefs: [{parents}]\n  hostnames: [%s]\n  rules:\n"
    text += f"apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: web}}\nspec:\n{head % HOST}"
    text += "".join(rule(name, more) for name, more in ROUTES.items())
    methods = "".join(f"  - matches: [{{method: {{service: {SERVICE}, method: {method}}}}}]\n    backendRefs: [{{name: calls, port: 80}}]\n" for method in ("Good", "Bad"))
    text += f"---\napiVersion: gateway.networking.k8s.io/v1\nkind: GRPCRoute\nmetadata: {{name: calls}}\nspec:\n{head % CALLS}{methods}"
    return text
