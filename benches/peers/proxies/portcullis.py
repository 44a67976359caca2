"""Owns how Portcullis is configured as the proxy under test: Gateway API objects in a folder."""

import base64
import subprocess
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from figure import BEFORE

from .base import REPOSITORY, SERVER_NAME, ForwardSite, Proxy, Site

MANY_TEAMS = REPOSITORY / "config" / "examples" / "many-teams" / "generate"
HOSTNAMES_PER_ROUTE = 16  # the limit of the HTTPRoute's `hostnames`


class Portcullis(Proxy):
    """Started with one route that takes everything, or with the `routes` given (YAML documents), and with further arguments."""

    name = "portcullis"
    program = str(REPOSITORY / "target" / "release" / "portcullis")
    install = "cargo build --release"
    has_http3 = True

    def __init__(self, program: str | None = None, routes: Iterable[str] | None = None, workers: int = 1, arguments: Iterable[str] = ()):
        super().__init__(program)
        self.routes = routes
        self.arguments = arguments
        self.workers = workers

    def command(self, site: Site, folder: Path) -> list[str]:
        routes = "---\n".join(self.routes or [http_route("everything", paths=["/"])])
        return self._start(site, folder, {"gateway.yaml": _gateway(site), "routes.yaml": routes})

    def forward_command(self, site: ForwardSite, folder: Path) -> list[str]:
        return self._start(site, folder, {"gateway.yaml": _forwarding_gateway(site)})

    def _start(self, site: Site | ForwardSite, folder: Path, files: dict[str, str]) -> list[str]:
        config = folder / "config"
        config.mkdir()
        for name, text in files.items():
            (config / name).write_text(text)
        return self._run(site, config)

    def _run(self, site: Site | ForwardSite, config: Path) -> list[str]:
        return [
            *(self.path, "run", "--config-dir", str(config)),
            *("--workers", str(self.workers), "--admin", f"127.0.0.1:{site.admin}"),
            # By default it logs to its output, which the bench sends to the log.
            *([] if site.access_log else ["--access-log", "off"]),
            *self.arguments,
        ]


class Restricted(Portcullis):
    """Ready when it says so, since it need not answer the request of others that shows that they are."""

    def is_ready(self, site: Site) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{site.admin}/readyz", timeout=5):
                return True
        except OSError:
            return False


class ManyTeams(Restricted):
    """With the objects of config/examples/many-teams, where each of `sets` teams has a ListenerSet and `routes` HTTPRoutes."""

    def __init__(self, program: str | None, sets: int, routes: int):
        super().__init__(program)
        self._sets, self._routes = sets, routes

    def command(self, site: Site, folder: Path) -> list[str]:
        config = folder / "config"
        numbers = {"--sets": self._sets, "--routes": self._routes, "--http": site.http, "--https": site.https, "--backend": site.backend}
        arguments = [str(word) for pair in numbers.items() for word in pair]
        subprocess.run([MANY_TEAMS, config, *arguments], check=True, timeout=600)
        return self._run(site, config)


class Before(Portcullis):
    """Another build of the program, such as that of the commit before a change."""

    name = BEFORE


def many_routes(count: int) -> Iterable[str]:
    """`count` HTTPRoutes on one hostname, each with a path of its own: /team-N/service-N."""
    return (http_route(f"service-{i}", ["bench.example"], [route_path(i)]) for i in range(count))


def route_path(i: int) -> str:
    return f"/team-{i % 50}/service-{i}"


def many_hostnames(count: int) -> Iterable[str]:
    """`count` hostnames, as many to a route as the API allows."""
    for first in range(0, count, HOSTNAMES_PER_ROUTE):
        names = [hostname(i) for i in range(first, min(first + HOSTNAMES_PER_ROUTE, count))]
        yield http_route(f"hosts-{first}", names, ["/"])


def hostname(i: int) -> str:
    return f"tenant-{i}.bench.example"


def many_rules(routes: int, rules: int, backends: int, port: int) -> Iterable[str]:
    """`routes` HTTPRoutes, each with a hostname and `rules` rules with a path each: /team-N. They share `backends` Services on a port."""
    for i in range(routes):
        yield http_route(f"route-{i}", [hostname(i)], [f"/team-{rule}" for rule in range(rules)], f"backend-{i % backends}", is_apart=True)
    for i in range(backends):
        yield service(f"backend-{i}", port)


def http_route(name: str, hostnames: Iterable[str] = (), paths: Iterable[str] = ("/",), backend: str = "backend", is_apart: bool = False) -> str:
    """An HTTPRoute with one rule for all paths, or with one for each."""
    hosts = "".join(f"\n  - {hostname}" for hostname in hostnames)
    matches = [f"\n    - path: {{type: PathPrefix, value: {path}}}" for path in paths]
    rules = "".join(f"  - matches:{of_rule}\n    backendRefs:\n    - {{name: {backend}, port: 80}}\n" for of_rule in (matches if is_apart else ["".join(matches)]))
    return f"""\
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {name}, namespace: default}}
spec:
  parentRefs:
  - name: bench{f"{chr(10)}  hostnames:{hosts}" if hosts else ""}
  rules:
{rules}"""


def _gateway(site: Site) -> str:
    certificate = base64.b64encode(site.certificate.read_bytes()).decode()
    key = base64.b64encode(site.key.read_bytes()).decode()
    return f"""\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: bench, namespace: default}}
spec:
  gatewayClassName: portcullis
  addresses:
  - {{type: IPAddress, value: 127.0.0.1}}
  listeners:
  - {{name: http, port: {site.http}, protocol: HTTP}}
  - {{name: h2c, port: {site.h2c}, protocol: HTTP}}
  - name: https
    port: {site.https}
    protocol: HTTPS
    tls:
      mode: Terminate
      certificateRefs:
      - name: bench
---
apiVersion: v1
kind: Secret
metadata: {{name: bench, namespace: default}}
type: kubernetes.io/tls
data:
  tls.crt: {certificate}
  tls.key: {key}
---
{service("backend", site.backend)}{_HTTP3 if site.http3 else ""}"""


_HTTP3 = """\
---
apiVersion: portcullis.dev/v1alpha1
kind: ClientPolicy
metadata: {name: bench, namespace: default}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: bench}]
  http3: {}
"""


def service(name: str, port: int, protocol: str = "TCP") -> str:
    """A Service with port 80, and its one endpoint."""
    return f"""\
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: default}}
spec:
  ports:
  - {{name: main, port: 80, targetPort: {port}, protocol: {protocol}}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: {name}-1
  namespace: default
  labels: {{kubernetes.io/service-name: {name}}}
addressType: IPv4
ports:
- {{name: main, port: {port}, protocol: {protocol}}}
endpoints:
- addresses: [127.0.0.1]
  conditions: {{ready: true}}
"""


def _forwarding_gateway(site: ForwardSite) -> str:
    gateway = f"""\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: bench, namespace: default}}
spec:
  gatewayClassName: portcullis
  addresses:
  - {{type: IPAddress, value: 127.0.0.1}}
  listeners:
  - {{name: tcp, port: {site.tcp}, protocol: TCP}}
  - {{name: tls, port: {site.tls}, protocol: TLS, tls: {{mode: Passthrough}}}}
  - {{name: udp, port: {site.udp}, protocol: UDP}}
"""
    return "---\n".join([
        gateway,
        *(_forwarding_route("TCPRoute", "tcp"), service("tcp", site.tcp_backend)),
        *(_forwarding_route("TLSRoute", "tls", [SERVER_NAME]), service("tls", site.tls_backend)),
        *(_forwarding_route("UDPRoute", "udp"), service("udp", site.udp_backend, "UDP")),
    ])


def _forwarding_route(kind: str, listener: str, hostnames: Iterable[str] = ()) -> str:
    hosts = f"{chr(10)}  hostnames: [{', '.join(hostnames)}]" if hostnames else ""
    return f"""\
apiVersion: gateway.networking.k8s.io/v1
kind: {kind}
metadata: {{name: {listener}, namespace: default}}
spec:
  parentRefs: [{{name: bench, sectionName: {listener}}}]{hosts}
  rules:
  - backendRefs: [{{name: {listener}, port: 80}}]
"""
