"""Client of the API server: reads, writes and waits, with a connection per thread."""

import base64
import http.client
import json
import ssl
import subprocess
import tempfile
import threading
import time
from urllib.parse import quote

GATEWAY = "/apis/gateway.networking.k8s.io/v1"
# By kind: API path, and whether it is namespaced.
KINDS = {
    "Namespace": ("/api/v1", "namespaces", False),
    "Node": ("/api/v1", "nodes", False),
    "Pod": ("/api/v1", "pods", True),
    "ConfigMap": ("/api/v1", "configmaps", True),
    "Secret": ("/api/v1", "secrets", True),
    "Service": ("/api/v1", "services", True),
    "ServiceAccount": ("/api/v1", "serviceaccounts", True),
    "Deployment": ("/apis/apps/v1", "deployments", True),
    "DaemonSet": ("/apis/apps/v1", "daemonsets", True),
    "ReplicaSet": ("/apis/apps/v1", "replicasets", True),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets", True),
    "HorizontalPodAutoscaler": ("/apis/autoscaling/v2", "horizontalpodautoscalers", True),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies", True),
    "EndpointSlice": ("/apis/discovery.k8s.io/v1", "endpointslices", True),
    "Event": ("/apis/events.k8s.io/v1", "events", True),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases", True),
    "ResourceQuota": ("/api/v1", "resourcequotas", True),
    "ValidatingWebhookConfiguration": ("/apis/admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", False),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles", True),
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "GatewayParameters": ("/apis/portcullis.dev/v1alpha1", "gatewayparameters", True),
    "AccessPolicy": ("/apis/portcullis.dev/v1alpha1", "accesspolicies", True),
    "BackendPolicy": ("/apis/portcullis.dev/v1alpha1", "backendpolicies", True),
    "TelemetryPolicy": ("/apis/portcullis.dev/v1alpha1", "telemetrypolicies", True),
    "ClientPolicy": ("/apis/portcullis.dev/v1alpha1", "clientpolicies", True),
    "RateLimitPolicy": ("/apis/portcullis.dev/v1alpha1", "ratelimitpolicies", True),
    "RouteFilter": ("/apis/portcullis.dev/v1alpha1", "routefilters", True),
    "RoutePolicy": ("/apis/portcullis.dev/v1alpha1", "routepolicies", True),
    "BackendTLSOverride": ("/apis/portcullis.dev/v1alpha1", "backendtlsoverrides", True),
    "ReleaseBackend": ("/apis/portcullis.dev/v1alpha1", "releasebackends", True),
    "XBackend": ("/apis/gateway.networking.x-k8s.io/v1alpha1", "xbackends", True),
    "XBackendTrafficPolicy": ("/apis/gateway.networking.x-k8s.io/v1alpha1", "xbackendtrafficpolicies", True),
    "GatewayClass": (GATEWAY, "gatewayclasses", False),
    "Gateway": (GATEWAY, "gateways", True),
    "ListenerSet": (GATEWAY, "listenersets", True),
    "HTTPRoute": (GATEWAY, "httproutes", True),
    "GRPCRoute": (GATEWAY, "grpcroutes", True),
    "TLSRoute": (GATEWAY, "tlsroutes", True),
    "TCPRoute": (GATEWAY, "tcproutes", True),
    "UDPRoute": (GATEWAY, "udproutes", True),
    "ReferenceGrant": (GATEWAY, "referencegrants", True),
    "BackendTLSPolicy": (GATEWAY, "backendtlspolicies", True),
}
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


class Refused(Exception):
    """A response with an error status."""

    def __init__(self, code: int, text: str):
        super().__init__(f"{code}: {text[:300]}")
        self.code = code


class Api:
    """The API server of the kubeconfig, with its user or with a token. All objects are plain JSON."""

    def __init__(self, token: str | None = None):
        view = subprocess.run(["kubectl", "config", "view", "--raw", "--minify", "-o", "json"], capture_output=True, check=True)
        config = json.loads(view.stdout)
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._server = cluster["server"].split("//")[1]
        self._tls = ssl.create_default_context(cafile=_file(cluster, "certificate-authority"))
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        if not token:
            self._tls.load_cert_chain(_file(user, "client-certificate"), _file(user, "client-key"))
        self._own = threading.local()

    def get(self, kind: str, name: str, namespace: str = "") -> dict | None:
        """The object; None if it does not exist."""
        try:
            return self._ask("GET", _path(kind, namespace, name))
        except Refused as error:
            if error.code == 404:
                return None
            raise

    def list(self, kind: str, namespace: str = "", labels: str = "") -> list[dict]:
        query = f"?labelSelector={quote(labels)}" if labels else ""
        return self._ask("GET", _path(kind, namespace) + query)["items"]

    def apply(self, *objects: dict) -> None:
        """Server-side apply with another field manager than Portcullis."""
        for obj in objects:
            metadata = obj["metadata"]
            path = _path(obj["kind"], metadata.get("namespace", ""), metadata["name"])
            self._ask("PATCH", f"{path}?fieldManager=test&force=true", obj, APPLY)

    def patch(self, kind: str, name: str, namespace: str, change: dict, subresource: str = "") -> dict:
        """A merge patch: None removes a field."""
        path = _path(kind, namespace, name) + (f"/{subresource}" if subresource else "")
        return self._ask("PATCH", path, change, MERGE)

    def put_status(self, obj: dict) -> dict:
        """Replaces the object at the resourceVersion of `obj`; raises Refused with 409 on a conflict."""
        metadata = obj["metadata"]
        path = _path(obj["kind"], metadata.get("namespace", ""), metadata["name"])
        return self._ask("PUT", f"{path}/status", obj, "application/json")

    def create(self, obj: dict) -> dict:
        return self._ask("POST", _path(obj["kind"], obj["metadata"].get("namespace", "")), obj, "application/json")

    def token(self, namespace: str, account: str, audience: str | None = None, pod: dict | None = None) -> str:
        """A token of a ServiceAccount, bound to a pod if one is given."""
        spec = {"audiences": [audience] if audience else None, "expirationSeconds": 3600}
        if pod:
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = _path("ServiceAccount", namespace, account) + "/token"
        return self._ask("POST", path, request, "application/json")["status"]["token"]

    def rights(self, namespace: str) -> tuple[str, ...]:
        """Permissions in a namespace, like `kubectl auth can-i --list`."""
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}}
        path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
        status = self._ask("POST", path, review, "application/json")["status"]
        rules = status["resourceRules"] + status["nonResourceRules"]
        return tuple(sorted(json.dumps(rule, sort_keys=True) for rule in rules))

    def delete(self, kind: str, name: str, namespace: str = "", grace: int | None = None, foreground: bool = False) -> None:
        query = ["propagationPolicy=Foreground"] * foreground + [f"gracePeriodSeconds={grace}"] * (grace is not None)
        try:
            self._ask("DELETE", _path(kind, namespace, name) + ("?" + "&".join(query) if query else ""))
        except Refused as error:
            if error.code != 404:
                raise

    def _ask(self, method: str, path: str, body: dict | None = None, content: str | None = None) -> dict:
        headers = {**self._headers, **({"Content-Type": content} if content else {})}
        text = None if body is None else json.dumps(body)
        connection = self._connection()
        try:
            connection.request(method, path, text, headers)
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            raise
        if answer.status >= 300:
            raise Refused(answer.status, f"{method} {path}: {data.decode(errors='replace')}")
        return json.loads(data)

    def watch(self, kind: str, name: str, namespace: str = ""):
        """Yields each version of an object as it arrives, on a separate connection. Ends when the API server ends the watch."""
        for line in self.watch_lines(kind, name, namespace):
            yield json.loads(line)["object"]

    def watch_lines(self, kind: str, name: str = "", namespace: str = ""):
        """Yields each event as its line of JSON: of one object, or without a name of all. Otherwise like `watch`."""
        selector = f"&fieldSelector=metadata.name={quote(name)}" if name else ""
        connection = http.client.HTTPSConnection(self._server, context=self._tls, timeout=600)
        connection.request("GET", f"{_path(kind, namespace)}?watch=1&timeoutSeconds=600{selector}", headers=self._headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise Refused(answer.status, f"watch {kind}: {answer.read().decode(errors='replace')}")
        try:
            while line := answer.readline():
                yield line
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPSConnection:
        if not hasattr(self._own, "connection"):
            self._own.connection = http.client.HTTPSConnection(self._server, context=self._tls, timeout=30)
        return self._own.connection


# The least deadline: only a failure reaches it, also on a busy machine.
LEAST_SECONDS = 60


def wait_for(what: str, look, seconds: float = LEAST_SECONDS, every: float = 0.05):
    """Waits until `look` returns a true value and returns it. Fails with `what` after `seconds`, or the least deadline if that is later."""
    seconds = max(seconds, LEAST_SECONDS)
    until = time.monotonic() + seconds
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > until:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(every)


def condition(conditions: list[dict], kind: str) -> dict:
    """The condition of this type; empty if missing."""
    return next((one for one in conditions if one["type"] == kind), {})


def has(conditions: list[dict], kind: str, status: str, generation: int | None = None, reason: str | None = None) -> bool:
    found = condition(conditions, kind)
    return (
        found.get("status") == status
        and (generation is None or found.get("observedGeneration") == generation)
        and (reason is None or found.get("reason") == reason)
    )


def _path(kind: str, namespace: str, name: str = "") -> str:
    prefix, plural, is_namespaced = KINDS[kind]
    scope = f"/namespaces/{namespace}" if is_namespaced and namespace else ""
    return f"{prefix}{scope}/{plural}" + (f"/{name}" if name else "")


def _file(entry: dict, name: str) -> str:
    """Path of a file that the kubeconfig refers to or embeds."""
    if name in entry:
        return entry[name]
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(base64.b64decode(entry[f"{name}-data"]))
        return file.name
