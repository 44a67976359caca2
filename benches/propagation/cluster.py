"""Owns what is asked of the API server: the objects of the bench, and writes that return when they are stored."""

import base64
import http.client
import json
import ssl
import subprocess
import tempfile

ROUTES = "/apis/gateway.networking.k8s.io/v1/namespaces/default/httproutes"


class Api:
    """A connection to the API server of the kubeconfig, as whoever it names."""

    def __init__(self):
        self.routes = 0
        view = subprocess.run(["kubectl", "config", "view", "--raw", "--minify", "-o", "json"], capture_output=True, check=True)
        config = json.loads(view.stdout)
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        context = ssl.create_default_context(cafile=_file(cluster, "certificate-authority"))
        self._headers = {"Content-Type": "application/json"}
        if "token" in user:
            self._headers["Authorization"] = f"Bearer {user['token']}"
        else:
            context.load_cert_chain(_file(user, "client-certificate"), _file(user, "client-key"))
        self._connection = http.client.HTTPSConnection(cluster["server"].split("//")[1], context=context)

    def apply(self, yaml: str) -> None:
        subprocess.run(["kubectl", "apply", "-f", "-"], input=yaml.encode(), check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["kubectl", "rollout", "status", "deployment/echo", "--timeout=120s"], check=True, stdout=subprocess.DEVNULL)

    def create_route(self, number: int) -> None:
        self._write("POST", ROUTES, route(number, "0"))
        self.routes = max(self.routes, number + 1)

    def replace_route(self, number: int, value: str) -> None:
        """Returns when the API server has stored it."""
        patch = {"spec": route(number, value)["spec"]}
        self._write("PATCH", f"{ROUTES}/route-{number}", patch, {"Content-Type": "application/merge-patch+json"})

    def _write(self, method: str, path: str, body: dict, headers: dict | None = None) -> None:
        self._connection.request(method, path, json.dumps(body), {**self._headers, **(headers or {})})
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status not in (200, 201):
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]!r}")


def route(number: int, value: str) -> dict:
    """An HTTPRoute with a path of its own, whose responses carry `value`."""
    header = {"set": [{"name": "x-value", "value": value}]}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": f"route-{number}", "namespace": "default"},
        "spec": {
            "parentRefs": [{"name": "edge"}],
            "rules": [{
                "matches": [{"path": {"type": "PathPrefix", "value": f"/route-{number}"}}],
                "filters": [{"type": "ResponseHeaderModifier", "responseHeaderModifier": header}],
                "backendRefs": [{"name": "echo", "port": 80}],
            }],
        },
    }


def objects() -> str:
    return """\
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: portcullis}
spec: {controllerName: portcullis.dev/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: default}
spec:
  gatewayClassName: portcullis
  listeners: [{name: http, port: 8080, protocol: HTTP}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: echo, namespace: default}
spec:
  replicas: 2
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec:
      containers:
      - name: echo
        image: echo-basic
        env:
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: default}
spec:
  selector: {app: echo}
  ports: [{port: 80, targetPort: 3000}]
"""


def _file(entry: dict, name: str) -> str:
    """The path of a file that the kubeconfig names or holds."""
    if name in entry:
        return entry[name]
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(base64.b64decode(entry[f"{name}-data"]))
        return file.name
