"""The semantic conventions for HTTP spans (v1.44, the stable part) as checks on spans of OTLP's JSON. Must not know the test."""

from __future__ import annotations

SERVER, CLIENT, ERROR = 2, 3, 2
METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"}
REQUIRED = {
    SERVER: ("http.request.method", "url.path", "url.scheme"),
    CLIENT: ("http.request.method", "server.address", "server.port", "url.full"),
}
# Types of attributes that are not text.
NUMBERS = {"http.response.status_code", "http.request.resend_count", "server.port", "client.port", "network.peer.port"}
# gRPC statuses that are errors of a server: UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS.
GRPC_ERRORS = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}


def attributes(holder: dict) -> dict:
    """Returns the attributes of a span or an event. Numbers are text in OTLP's JSON."""
    found = {}
    for attribute in holder.get("attributes", []):
        key, value = attribute["key"], attribute["value"]
        if key in found:
            raise ValueError(f"{key} is there twice")
        found[key] = int(value["intValue"]) if "intValue" in value else value["stringValue"]
    return found


def problems(span: dict) -> list[str]:
    """Returns what is wrong with one span."""
    try:
        found = attributes(span)
    except ValueError as error:
        return [str(error)]
    return [*identity(span), *present(span, found), *named(span, found), *status(span, found)]


def identity(span: dict) -> list[str]:
    wrong = []
    for field, length in (("traceId", 32), ("spanId", 16)):
        value = span.get(field, "")
        if len(value) != length or not value.strip("0"):
            wrong.append(f"{field} is {value!r}")
    if span.get("kind") not in REQUIRED:
        wrong.append(f"kind is {span.get('kind')}")
    start, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
    if not 0 < start <= end:
        wrong.append(f"it begins at {start} and ends at {end}")
    for event in span.get("events", []):
        if not start <= int(event["timeUnixNano"]) <= end:
            wrong.append(f"event {event['name']} is outside of the span")
    return wrong


def present(span: dict, found: dict) -> list[str]:
    """Checks required and conditionally required attributes, and types."""
    wrong = [f"{key} is missing" for key in REQUIRED.get(span.get("kind"), ()) if found.get(key) in (None, "")]
    for key, value in found.items():
        if key in NUMBERS and not isinstance(value, int):
            wrong.append(f"{key} is no number")
    method = found.get("http.request.method")
    if method is not None and method not in METHODS | {"_OTHER"}:
        wrong.append(f"http.request.method {method} is not known")
    if (method == "_OTHER") != ("http.request.method_original" in found):
        wrong.append("http.request.method_original is not as http.request.method says")
    if "server.address" in found and "server.port" not in found:
        wrong.append("server.port is missing beside server.address")
    if "url.path" in found and not found["url.path"].startswith("/"):
        wrong.append(f"url.path is {found['url.path']}")
    if any(mark in found.get("url.path", "") for mark in "?#"):
        wrong.append("url.path has more than the path")
    full = found.get("url.full", "http://")
    if not full.startswith(("http://", "https://")) or "@" in full:
        wrong.append(f"url.full is {full}")
    if span.get("kind") == SERVER and "http.request.resend_count" in found:
        wrong.append("http.request.resend_count is for CLIENT")
    return wrong


def named(span: dict, found: dict) -> list[str]:
    """Checks the name: `{method} {target}`, with a target of low cardinality, or `{method}`."""
    method = found.get("http.request.method")
    method = "HTTP" if method == "_OTHER" else method
    target = found.get("http.route" if span.get("kind") == SERVER else "url.template")
    expected = f"{method} {target}" if target else method
    return [] if span.get("name") == expected else [f"name is {span.get('name')!r}, not {expected!r}"]


def status(span: dict, found: dict) -> list[str]:
    """Checks that the status is unset unless there is an error, and that errors have a type."""
    code = found.get("http.response.status_code")
    code = code if isinstance(code, int) else None
    rpc = found.get("rpc.response.status_code")
    least = 500 if span.get("kind") == SERVER else 400
    is_error = span.get("status", {}).get("code", 0) == ERROR
    wrong = []
    if code is not None and not 100 <= code < 600:
        wrong.append(f"http.response.status_code is {code}")
    if code is not None and code >= least and not is_error:
        wrong.append(f"status {code} is no error")
    if code is None and not is_error:
        wrong.append("no response, and no error")
    if span.get("kind") == SERVER and code is not None and 400 <= code < 500 and is_error:
        wrong.append(f"status {code} is an error of the server")
    if span.get("kind") == SERVER and rpc in GRPC_ERRORS and not is_error:
        wrong.append(f"gRPC status {rpc} is no error")
    if is_error != bool(found.get("error.type")):
        wrong.append(f"the status is {span.get('status')}, and error.type is {found.get('error.type')!r}")
    if span.get("status", {}).get("code", 0) not in (0, ERROR):
        wrong.append("only applications set the status Ok")
    return wrong


def trace_problems(spans: list[dict], parent: str | None) -> list[str]:
    """Returns what is wrong with the spans of one request, whose client's span is `parent`."""
    wrong = [f"{kind(span)} {span.get('name')}: {problem}" for span in spans for problem in problems(span)]
    servers = [span for span in spans if span.get("kind") == SERVER]
    if len(servers) != 1:
        return [*wrong, f"{len(servers)} SERVER spans"]
    server = servers[0]
    if server.get("parentSpanId", "") != (parent or ""):
        wrong.append(f"the parent of SERVER is {server.get('parentSpanId')!r}, not {parent!r}")
    if len({span["spanId"] for span in spans}) != len(spans):
        wrong.append("span ids are not unique")
    if len({span["traceId"] for span in spans}) != 1:
        wrong.append("trace ids differ")
    for span in spans:
        if span is not server and span.get("parentSpanId") != server["spanId"]:
            wrong.append(f"the parent of CLIENT is {span.get('parentSpanId')!r}")
        if span is not server and int(span["startTimeUnixNano"]) < int(server["startTimeUnixNano"]):
            wrong.append("CLIENT begins before SERVER")
    return wrong


def kind(span: dict) -> str:
    return {SERVER: "SERVER", CLIENT: "CLIENT"}.get(span.get("kind"), "?")


def resends(spans: list[dict]) -> list[int]:
    """Returns `http.request.resend_count` of attempts in order of time; 0 where it is missing."""
    attempts = sorted((span for span in spans if span["kind"] == CLIENT), key=lambda span: int(span["startTimeUnixNano"]))
    return [attributes(span).get("http.request.resend_count", 0) for span in attempts]
