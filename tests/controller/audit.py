"""Reads the API server's audit log: user, request and authorization decision."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WRITES = {"create", "update", "patch", "delete", "deletecollection"}
_POD = "authentication.kubernetes.io/pod-name"


@dataclass(frozen=True)
class Event:
    """A completed request."""

    time: str
    user: str
    pod: str
    verb: str
    group: str
    resource: str
    """Resource with its subresource, after a slash."""
    namespace: str
    name: str
    code: int
    is_forbidden: bool
    """Rejected by RBAC, not by a quota or webhook."""


def read(log: Path) -> Iterator[Event]:
    """All requests for objects, in order of arrival."""
    with log.open() as lines:
        events = [json.loads(line) for line in lines]
    events.sort(key=lambda event: event["requestReceivedTimestamp"])
    seen = set()
    for event in events:
        # A watch is logged twice: at its start and at its end.
        if event["auditID"] in seen or "objectRef" not in event or "responseStatus" not in event:
            continue
        seen.add(event["auditID"])
        target, user = event["objectRef"], event["user"]
        yield Event(
            time=event["requestReceivedTimestamp"],
            user=user.get("username", ""),
            pod=user.get("extra", {}).get(_POD, [""])[0],
            verb=event["verb"],
            group=target.get("apiGroup", ""),
            resource=target["resource"] + (f"/{target['subresource']}" if "subresource" in target else ""),
            namespace=target.get("namespace", ""),
            name=target.get("name", ""),
            code=event["responseStatus"]["code"],
            is_forbidden=event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid",
        )


def of_account(log: Path, namespace: str, account: str) -> list[Event]:
    user = f"system:serviceaccount:{namespace}:{account}"
    return [event for event in read(log) if event.user == user]
