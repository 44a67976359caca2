"""Owns the objects of the bench and their changes, which return when the API server has stored them."""

import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "controller"))

from api import Api
from objects import access_policy, backend_tls

CRDS = Path(__file__).resolve().parents[2] / "deploy" / "crds"


class Routes:
    """The HTTPRoutes of the bench, in the cluster of the kubeconfig."""

    def __init__(self):
        self._api = Api()
        self.count = 0
        subprocess.run(["kubectl", "apply", "-f", "-"], input=objects().encode(), check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["kubectl", "rollout", "status", "deployment/echo", "--timeout=120s"], check=True, stdout=subprocess.DEVNULL)

    def grow(self, count: int) -> None:
        for number in range(self.count, count):
            self._api.apply(route(number, "0"))
        self.count = max(self.count, count)

    def arrivals(self, number: int) -> dict[str, float]:
        """The times when the versions of a route reach a client that watches it and does nothing else, by their values; grows while the cluster runs."""
        times: dict[str, float] = {}

        def follow() -> None:
            for version in self._api.watch("HTTPRoute", f"route-{number}", "default"):
                header = version["spec"]["rules"][0]["filters"][0]["responseHeaderModifier"]["set"][0]
                times.setdefault(header["value"], time.monotonic())

        threading.Thread(target=follow, daemon=True).start()
        return times

    def change(self, number: int, value: str) -> str:
        """Changes a route, and returns a path of it."""
        self._api.patch("HTTPRoute", f"route-{number}", "default", {"spec": route(number, value)["spec"]})
        return f"/route-{number}/"

    def add(self, value: str) -> str:
        """Creates a route, and returns a path of it."""
        number = self.count
        self._api.apply(route(number, value))
        self.count += 1
        return f"/route-{number}/"

    def protect(self) -> None:
        """Creates policies that protect, on a route and a Service that no request goes to."""
        subprocess.run(["kubectl", "apply", "--server-side", "-f", CRDS], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["kubectl", "wait", "--for=condition=Established", "--timeout=60s", "-f", CRDS], check=True, stdout=subprocess.DEVNULL)
        target = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "protected"}
        self._api.apply(access_policy("default", "protected", "", targetRefs=[target]))
        self._api.apply(backend_tls("default", "protected", "protected", "authorities"))


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
