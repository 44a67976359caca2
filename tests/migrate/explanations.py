"""Why answers of what portcullis migrate makes differ from those of what ingress2gateway makes. Each reason is a line of the report of portcullis migrate, or
something that the controller does by default. Does not know how answers come about."""

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Reason:
    # Which difference it explains.
    holds: Callable
    # A line of the report that has to be there; none for what the controller does by default.
    line: str
    because: str


def status(own: object, others: tuple = ()) -> Callable:
    return lambda request, ours, theirs: ours["status"] == own and (not others or theirs["status"] in others)


def over_http(request: object, ours: dict, theirs: dict) -> bool:
    return request.scheme == "http" and ours["status"] == 308 and ours["location"].startswith(f"https://{request.host}")


def to_slash(request: object, ours: dict, theirs: dict) -> bool:
    return ours["status"] == 301 and ours["location"].endswith(request.path + "/")


STATUSES = [
    Reason(over_http, r"HTTPRoute \S+-https-redirect", "ingress2gateway does not redirect to HTTPS, as the controller does for hosts with TLS"),
    Reason(lambda request, ours, _: request.method == "POST" and ours["status"] == 413, "", "ingress2gateway does not limit bodies, which the controller limits to 1 MiB"
           " or proxy-body-size"),
    Reason(to_slash, "", "ingress2gateway does not redirect from a path to that with a slash at its end, as nginx does"),
    Reason(status(301), "(permanent-redirect|from-to-www-redirect): RequestRedirect", "ingress2gateway ignores permanent-redirect"),
    Reason(status(308), "permanent-redirect: RequestRedirect", "ingress2gateway ignores permanent-redirect"),
    Reason(status(307), "temporal-redirect: RequestRedirect", "ingress2gateway ignores temporal-redirect"),
    Reason(status(503), "limit-rpm: RateLimitPolicy", "ingress2gateway ignores limits"),
    Reason(status(302), "(temporal-redirect: RequestRedirect|app-root:)", "ingress2gateway ignores temporal-redirect and app-root"),
    Reason(status(401), "auth-type: AccessPolicy basic", "ingress2gateway ignores auth-type and auth-secret: its routes are open"),
    Reason(status(403), "(whitelist-source-range|allowlist-source-range|denylist-source-range): AccessPolicy", "ingress2gateway ignores lists of addresses: its"
           " routes are open"),
    Reason(status(403), "auth-url: AccessPolicy external", "ingress2gateway ignores auth-url: its routes are open"),
    Reason(status(403), r"auth-url: the routes refuse all requests \(403\)", "ingress2gateway ignores auth-url; portcullis refuses what it cannot protect"),
    Reason(status(403), r"server-snippet: .*refuse all requests \(403\)", "ingress2gateway ignores snippets; portcullis refuses what it cannot protect"),
    Reason(status(403), "auth-tls-secret:", "ingress2gateway ignores auth-tls-secret: its routes are open"),
    Reason(status(500), "auth-url: AccessPolicy external", "ingress2gateway ignores auth-url; the test has no authorization server, and portcullis fails closed"),
    Reason(status(500), "auth-secret: AccessPolicy basic", "ingress2gateway ignores auth-secret; the test has no such Secret, and portcullis fails closed"),
    Reason(status(500), "backend-protocol: BackendTLSOverride", "ingress2gateway ignores backend-protocol; portcullis needs the permission of the operator to"
           " connect without verification"),
    Reason(status(404), "backend-protocol: GRPCRoute", "ingress2gateway ignores backend-protocol GRPC, and the test sends no gRPC calls"),
    Reason(status(204), "enable-cors: CORS filter", "ingress2gateway ignores enable-cors: the backend gets the preflight request"),
    Reason(status("closed"), "ssl-passthrough: TLSRoute", "ingress2gateway ignores ssl-passthrough: the backend of the test has no TLS"),
    Reason(status("closed"), "use-proxy-protocol: ClientPolicy", "ingress2gateway does not read the ConfigMap of the controller: the test sends no PROXY protocol"),
    Reason(status(404, ("no listener",)), "left: .* its class is", "neither serves the Ingress of another class"),
]

# By the part of answers with the same status.
PARTS = {
    "strict-transport-security": Reason(lambda request, ours, _: request.scheme == "https", "", "ingress2gateway does not send HSTS, as the controller does"),
    "cookies": Reason(lambda *_: True, "affinity:", "ingress2gateway ignores affinity"),
    "host": Reason(lambda *_: True, "upstream-vhost:", "ingress2gateway ignores upstream-vhost"),
    "path": Reason(lambda *_: True, "rewrite-target:", "ingress2gateway ignores rewrite-target"),
    "access-control-allow-origin": Reason(lambda *_: True, "enable-cors:", "ingress2gateway ignores enable-cors"),
    "content-security-policy": Reason(lambda *_: True, "configuration-snippet:", "ingress2gateway ignores snippets"),
}
CANARY = Reason(lambda *_: True, "canary-weight:", "the canary of a weight gets requests by chance")
BY_HEADER = Reason(lambda request, *_: "x-canary" in request.headers, "canary-by-header:", "ingress2gateway converts one way to select a canary alone")
OTHER_CANARY = Reason(lambda *_: True, "canary-by-(cookie|header-pattern|header-value):", "ingress2gateway gives a canary without a weight a share of all requests")
# What it makes that an API server refuses.
REFUSED = "ingress2gateway makes an HTTPS listener without certificateRefs, which the API refuses: the controller has a default certificate"


def applies(reason: Reason, report: list, differing: tuple) -> bool:
    has_line = not reason.line or any(re.search(reason.line, line) for line in report)
    return has_line and reason.holds(*differing)


def explain(application: object, report: list, request: object, ours: dict, theirs: dict) -> str:
    """Returns why two answers differ; empty if no reason explains all of it."""
    differing = (request, ours, theirs)
    report = application.lines_about(report, request.host)
    if theirs["status"] == "closed" and "default-certificate" in application.settings:
        return REFUSED
    if ours["status"] != theirs["status"]:
        return next((reason.because for reason in STATUSES if applies(reason, report, differing)), "")
    found = set()
    for part in sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)):
        reasons = [BY_HEADER, CANARY, OTHER_CANARY] if part == "backend" else [PARTS[part]] if part in PARTS else []
        because = next((reason.because for reason in reasons if applies(reason, report, differing)), "")
        if not because:
            return ""
        found.add(because)
    return "; ".join(sorted(found))
