"""The objects of a Gateway that many teams share: each team has a namespace, a ListenerSet, a certificate, routes and backends."""

import base64
from pathlib import Path

from certificates import self_signed

GATEWAY = """apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {{name: portcullis}}
spec: {{controllerName: portcullis.dev/gateway-controller}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: shared, namespace: infra}}
spec:
  gatewayClassName: portcullis
  addresses: [{{value: 127.0.0.1}}]
  allowedListeners: {{namespaces: {{from: All}}}}
  listeners: [{{name: http, port: {http}, protocol: HTTP, hostname: gateway.example.com}}]
"""

LISTENERS = """apiVersion: v1
kind: Namespace
metadata: {{name: {team}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {{name: listeners, namespace: {team}}}
spec:
  parentRef: {{name: shared, namespace: infra}}
  listeners:
  - {{name: http, port: {http}, protocol: HTTP, hostname: {team}.example.com}}
  - name: https
    port: {https}
    protocol: HTTPS
    hostname: {team}.example.com
    tls: {{certificateRefs: [{{name: certificate}}]}}
"""

CERTIFICATE = """apiVersion: v1
kind: Secret
metadata: {{name: certificate, namespace: {team}}}
type: kubernetes.io/tls
data:
  tls.crt: {certificate}
  tls.key: {key}
"""

SERVICE = """apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {team}}}
spec: {{ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}, namespace: {team}, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{port: {port}}}]
endpoints: [{{addresses: [127.0.0.1]}}]
"""

ROUTE = """apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: app-{route}, namespace: {team}}}
spec:
  parentRefs: [{{group: gateway.networking.k8s.io, kind: ListenerSet, name: listeners}}]
  rules:
  - matches: [{{path: {{type: PathPrefix, value: /app-{route}}}}}]
{filters}    backendRefs: [{{name: {service}, port: 80}}]
"""

FILTER = """    filters:
    - type: ResponseHeaderModifier
      responseHeaderModifier: {{set: [{{name: x-version, value: "{version}"}}]}}
"""

ROUTES_PER_SERVICE = 4


class Teams:
    """Writes a folder: `gateway.yaml`, and `teams/TEAM` with the files of each team."""

    def __init__(self, folder: Path, routes: int, http: int, https: int, backend: int) -> None:
        self.folder, self.routes, self.http, self.https, self.backend = folder, routes, http, https, backend

    def gateway(self) -> None:
        """Writes the Gateway."""
        (self.folder / "teams").mkdir(parents=True, exist_ok=True)
        (self.folder / "gateway.yaml").write_text(GATEWAY.format(http=self.http))

    def team(self, index: int, parent: Path | None = None) -> Path:
        """Writes the files of a team, and returns their folder."""
        team = name(index)
        folder = (parent or self.folder / "teams") / team
        folder.mkdir(exist_ok=True)
        (folder / "listeners.yaml").write_text(LISTENERS.format(team=team, http=self.http, https=self.https))
        (folder / "certificate.yaml").write_text(self.secret(index)[0])
        (folder / "backends.yaml").write_text(self.backends(index, self.backend))
        (folder / "routes.yaml").write_text(self.http_routes(index))
        return folder

    def secret(self, index: int) -> tuple[str, str]:
        """A Secret with a new certificate, and the certificate."""
        certificate, key = self_signed(f"{name(index)}.example.com")
        encoded = [base64.b64encode(text.encode()).decode() for text in (certificate, key)]
        return CERTIFICATE.format(team=name(index), certificate=encoded[0], key=encoded[1]), certificate

    def backends(self, index: int, port: int) -> str:
        """The Services of a team, with endpoints on a port."""
        count = -(-self.routes // ROUTES_PER_SERVICE)
        return "---\n".join(SERVICE.format(name=f"service-{service}", team=name(index), port=port) for service in range(count))

    def http_routes(self, index: int, version: str | None = None) -> str:
        """The routes of a team. With a version, responses of the first route have it in the header x-version."""
        texts = []
        for route in range(self.routes):
            filters = FILTER.format(version=version) if version is not None and route == 0 else ""
            texts.append(ROUTE.format(team=name(index), route=route, service=f"service-{route // ROUTES_PER_SERVICE}", filters=filters))
        return "---\n".join(texts)


def name(index: int) -> str:
    """The namespace of a team."""
    return f"team-{index:04}"
