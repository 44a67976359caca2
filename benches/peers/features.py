"""Owns the features that have a budget: their objects, what requests have for them, how one sees that they have an effect, and the CPU
time that they may add. Plain data, for budgets.py and ../instructions/budgets."""

import base64
import functools
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import admin
import issuer
import sign_in
from proxies import Site
from proxies.portcullis import http_route, service

# The route that is measured, and another one on the same listeners, which gets no requests.
MEASURED, OTHER = "measured", "other"
OTHER_PATH = "/other"
API_KEY = "5d41402abc4b2a76b9719d911017c592"
ISSUER, AUDIENCE = "https://login.example.com", "shop"
CIDRS = 1000
# More than a proxy can serve, so that no request is refused.
REQUESTS_PER_SECOND = 1_000_000


@dataclass(frozen=True)
class Feature:
    """What may add `limit` to the CPU time of requests, as a share of it."""

    name: str
    title: str
    limit: float
    # Objects beside the routes, given the port of a collector.
    objects: Callable[[int], list[str]] = lambda _: []
    # What requests have, also without the feature.
    headers: Callable[[], dict[str, str]] = dict
    # What requests have that a process with the feature gave to one of them, which came to its port.
    given: Callable[[int], dict[str, str]] | None = None
    # Arguments of the program.
    arguments: Callable[[], list[str]] = list
    # What is open while the load runs, given the admin port.
    opened: Callable[[int], AbstractContextManager[admin.Reader]] | None = None
    # The share of requests that are traced; None without a collector.
    sampled: float | None = None
    # Requests that the feature refuses: path, headers, status.
    refused: tuple[str, dict[str, str], int] | None = None
    # The least time of a sample, for what happens every few seconds.
    seconds: float = 0.0
    # Whether the CPU time decides, instead of counts: what takes longer than its instructions say, and what the kernel has a part in.
    is_by_time: bool = False
    # The number of policies that must be in service, with nothing that is wrong.
    policies: int = 0
    # What it may add to the instructions of a request, as a share of them, where that has a budget, too.
    limit_of_instructions: float | None = None

    @property
    def is_periodic(self) -> bool:
        """Whether it costs every few seconds instead of by request."""
        return self.seconds > 0

    def documents(self, collector: int) -> list[str]:
        return [*routes(), *self.objects(collector)]

    def fault(self, site: Site) -> str:
        """Why the feature has no effect; empty if it has."""
        if self.policies:
            found = admin.document(site.admin, "policies")["total"]
            if found != self.policies:
                return f"{found} of {self.policies} policies are in service"
            problems = admin.document(site.admin, "problems")["problems"]
            if problems:
                return f"{problems[0]['object']}: {problems[0]['message']}"
        if self.refused:
            path, headers, expected = self.refused
            found = status(site.http, path, headers)
            if found != expected:
                return f"a request that it refuses gets {found} instead of {expected}"
        return ""


def routes() -> list[str]:
    return [http_route(MEASURED), http_route(OTHER, paths=[OTHER_PATH])]


def status(port: int, path: str, headers: dict[str, str]) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


def policy(kind: str, name: str, spec: str, route: str = MEASURED) -> str:
    """A policy on a route. `spec` are the lines of its sections."""
    sections = "".join(f"  {line}\n" for line in spec.strip().splitlines())
    return f"""\
apiVersion: portcullis.dev/v1alpha1
kind: {kind}
metadata: {{name: {name}, namespace: default}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, name: {route}}}]
{sections}"""


def tracing(numerator: int) -> Callable[[int], list[str]]:
    """Traces a share of the requests, in hundredths."""
    return lambda collector: [
        f"""\
apiVersion: portcullis.dev/v1alpha1
kind: TelemetryPolicy
metadata: {{name: traces, namespace: default}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: bench}}]
  tracing:
    provider: {{backendRef: {{name: collector, port: 80}}}}
    samplingRate: {{numerator: {numerator}, denominator: 100}}
""",
        service("collector", collector),
    ]


def ip_rules(route: str = MEASURED, name: str = "addresses") -> str:
    """1,000 CIDRs, half of them permitted and half of them refused."""
    half = CIDRS // 2
    allow = ["127.0.0.0/8", *cidrs(half - 1, 64)]
    deny = ["198.51.100.0/24", *cidrs(half - 1, 128)]
    return policy("AccessPolicy", name, f"ipRules:\n  allow: [{', '.join(allow)}]\n  deny: [{', '.join(deny)}]", route)


def cidrs(count: int, first: int) -> Iterable[str]:
    """Networks that do not touch each other, so that they stay as many."""
    return (f"10.{first + index // 128}.{index % 128 * 2}.0/24" for index in range(count))


def limit(route: str = MEASURED, name: str = "clients", scope: str = "Replica") -> str:
    rule = f"rules:\n- name: client\n  scope: {scope}\n  key: [{{type: ClientIP}}]\n  limit: {{requests: {REQUESTS_PER_SECOND}, per: Second}}"
    return policy("RateLimitPolicy", name, rule, route)


def api_key(route: str = MEASURED, name: str = "keys") -> list[str]:
    return [
        policy("AccessPolicy", name, "apiKey:\n  secretRefs: [{name: keys}]\n  from: [{type: Header, name: X-API-Key}]", route),
        secret("keys", {"acme": API_KEY, "other": API_KEY[::-1]}),
    ]


def secret(name: str, values: dict[str, str]) -> str:
    data = ", ".join(f"{key}: {base64.b64encode(value.encode()).decode()}" for key, value in values.items())
    return f"apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: default}}\ntype: Opaque\ndata: {{{data}}}\n"


def jwt(route: str = MEASURED, name: str = "tokens") -> str:
    provider = f"""\
jwt:
  providers:
  - issuer: {ISSUER}
    audiences: [{AUDIENCE}]
    jwks: {{inline: '{issuer.key_set()}'}}"""
    return policy("AccessPolicy", name, provider, route)


@functools.cache
def _token() -> str:
    return issuer.token(issuer.claims(ISSUER, AUDIENCE))


def oidc(_collector: int) -> list[str]:
    section = f"oidc:\n  issuer: {sign_in.provider().url}\n  clientID: {sign_in.CLIENT}\n  clientSecretRef: {{name: client}}"
    return [policy("AccessPolicy", "desk", section), secret("client", {"client-secret": "of the bench"})]


def _on_the_other_route(_collector: int) -> list[str]:
    return [ip_rules(OTHER), limit(OTHER), *api_key(OTHER), jwt(OTHER)]


def _bearer() -> dict[str, str]:
    return {"Authorization": f"Bearer {_token()}"}


def _api_key() -> dict[str, str]:
    return {"X-API-Key": API_KEY}


ALL = [
    Feature(
        *("policies-elsewhere", "policies on another route", 0.0, _on_the_other_route),
        policies=4, refused=(OTHER_PATH, {}, 401), limit_of_instructions=0.005,
    ),
    Feature("ip-rules", f"IP rules of {CIDRS} CIDRs", 0.02, lambda _: [ip_rules()], policies=1),
    Feature("limit", "a limit by the address of the client", 0.03, lambda _: [limit()], policies=1),
    Feature("api-key", "API keys", 0.03, lambda _: api_key(), _api_key, policies=1, refused=("/", {}, 401)),
    Feature("jwt", "JSON Web Tokens, of which the one of the load is remembered", 0.05, lambda _: [jwt()], _bearer, policies=1, refused=("/", {}, 401)),
    Feature("limit-gateway", "a limit by the address of the client, of all pods of the Gateway", 0.05, lambda _: [limit(scope="Gateway")], policies=1),
    Feature(
        *("oidc", "sessions of OpenID Connect", 0.08, oidc),
        given=lambda port: {"Cookie": sign_in.cookie(port)},
        arguments=sign_in.arguments, policies=1, refused=("/", {}, 401), is_by_time=True,
    ),
    Feature("traces-0", "traces of 0 % of the requests", 0.005, tracing(0), sampled=0.0, policies=1),
    Feature("traces-1", "traces of 1 % of the requests", 0.01, tracing(1), sampled=0.01, policies=1),
    Feature("traces-100", "traces of all requests", 0.2, tracing(100), sampled=1.0, policies=1, is_by_time=True),
    Feature("tap", "a tap of another route", 0.01, opened=lambda port: admin.tap(port, f"default/{OTHER}")),
    Feature("page", "the open page", 0.01, opened=admin.page, seconds=8.0),
]
