"""The objects that checks create, as plain JSON with a minimum of fields."""

CLASS = "portcullis"
CONTROLLER = "portcullis.dev/gateway-controller"
GATEWAY_API = "gateway.networking.k8s.io/v1"


def namespace(name: str) -> dict:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def gateway_class(name: str, controller: str = CONTROLLER, **spec) -> dict:
    return {"apiVersion": GATEWAY_API, "kind": "GatewayClass", "metadata": {"name": name}, "spec": {"controllerName": controller, **spec}}


def gateway(namespace: str, name: str, ports: tuple[int, ...] = (8080,), class_name: str = CLASS, **infrastructure) -> dict:
    """A Gateway with an HTTP listener on each of the ports."""
    spec = {
        "gatewayClassName": class_name,
        "listeners": [{"name": f"http-{port}", "port": port, "protocol": "HTTP"} for port in ports],
    }
    if infrastructure:
        spec["infrastructure"] = infrastructure
    return _object("Gateway", namespace, name, spec)


def parameters(namespace: str, name: str, **spec) -> dict:
    return {
        "apiVersion": "portcullis.dev/v1alpha1",
        "kind": "GatewayParameters",
        "metadata": {"namespace": namespace, "name": name},
        "spec": spec,
    }


def parameters_ref(name: str) -> dict:
    return {"group": "portcullis.dev", "kind": "GatewayParameters", "name": name}


def redirect(namespace: str, name: str, parents: list[str], mark: str, path: str = "/") -> dict:
    """An HTTPRoute without a backend: it redirects to the host `mark`."""
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": path}}],
        "filters": [{"type": "RequestRedirect", "requestRedirect": {"hostname": mark, "statusCode": 302}}],
    }
    return _route("HTTPRoute", namespace, name, parents, [rule])


def to_backend(namespace: str, name: str, parents: list[str], service: str, kind: str = "HTTPRoute", port: int = 80) -> dict:
    return _route(kind, namespace, name, parents, [{"backendRefs": [{"name": service, "port": port}]}])


def on_path(route: dict, name: str) -> dict:
    """The route, for paths below /NAME only."""
    route["spec"]["rules"][0]["matches"] = [{"path": {"type": "PathPrefix", "value": f"/{name}"}}]
    return route


def htpasswd(namespace: str, name: str) -> dict:
    """A Secret with the user `a`, whose password is `a`."""
    data = {"auth": "a:{SHA}hvfkN/qlp/zhXR3cuerq6jd2Z7g="}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": namespace, "name": name}, "type": "Opaque", "stringData": data}


def listener_set(namespace: str, name: str, parent: str, port: int) -> dict:
    spec = {
        "parentRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": parent},
        "listeners": [{"name": "extra", "port": port, "protocol": "HTTP"}],
    }
    return _object("ListenerSet", namespace, name, spec)


def key_material(namespace: str, name: str) -> list[dict]:
    """A Secret for a listener and a ConfigMap for a BackendTLSPolicy, with placeholders instead of key material."""
    metadata = {"namespace": namespace, "name": name}
    pair = {"tls.crt": "none", "tls.key": "none"}
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/tls", "stringData": pair},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca.crt": "none"}},
    ]


def https_listener(port: int, secret: str) -> dict:
    return {"name": f"https-{port}", "port": port, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": secret}]}}


def backend_tls(namespace: str, name: str, service: str, ca: str) -> dict:
    spec = {
        "targetRefs": [{"group": "", "kind": "Service", "name": service}],
        "validation": {"hostname": "any.test", "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": ca}]},
    }
    return _object("BackendTLSPolicy", namespace, name, spec)


def backend_tls_override(namespace: str, name: str, service: str, gateway: str, ca: str | None = None) -> dict:
    """An override for requests of one Gateway to a Service: with these authorities, or with mode None."""
    target = {"group": "", "kind": "Service", "name": service, "from": {"kind": "Gateway", "name": gateway}}
    tls = {"mode": "None"} if ca is None else {"validation": backend_tls(namespace, name, service, ca)["spec"]["validation"]}
    return {
        "apiVersion": "portcullis.dev/v1alpha1",
        "kind": "BackendTLSOverride",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"targetRefs": [target], **tls},
    }


def external(namespace: str, name: str, hostname: str) -> dict:
    """An XBackend with a hostname, without TLS."""
    return {
        "apiVersion": "gateway.networking.x-k8s.io/v1alpha1",
        "kind": "XBackend",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"type": "ExternalHostname", "externalHostname": {"hostname": hostname}, "port": {"port": 80}},
    }


def access_policy(namespace, name, target, **spec):
    """An AccessPolicy on a Gateway that refuses the addresses of documentation."""
    return {
        "apiVersion": "portcullis.dev/v1alpha1",
        "kind": "AccessPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": target}],
            "ipRules": {"deny": ["192.0.2.0/24"]},
            **spec,
        },
    }


def rate_limit_policy(namespace: str, name: str, gateway: str, *rules: dict) -> dict:
    target = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": gateway}
    return {
        "apiVersion": "portcullis.dev/v1alpha1",
        "kind": "RateLimitPolicy",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"targetRefs": [target], "rules": list(rules)},
    }


def traffic_policy(namespace: str, name: str, service: str) -> dict:
    """An XBackendTrafficPolicy that limits the retries to a Service."""
    return {
        "apiVersion": "gateway.networking.x-k8s.io/v1alpha1",
        "kind": "XBackendTrafficPolicy",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"targetRefs": [{"group": "", "kind": "Service", "name": service}], "retryConstraint": {}},
    }


def backend_policy(namespace: str, name: str, backend: str, group: str = "", kind: str = "Service") -> dict:
    """A BackendPolicy for a Service, or for a backend of another kind."""
    return {
        "apiVersion": "portcullis.dev/v1alpha1",
        "kind": "BackendPolicy",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"targetRefs": [{"group": group, "kind": kind, "name": backend}], "loadBalancing": {"type": "RoundRobin"}},
    }


def release_backend(namespace: str, name: str, service: str, weights: dict[str, int], **spec) -> dict:
    """A ReleaseBackend over a chart's Service, with releases by `app.kubernetes.io/instance`."""
    instance = "app.kubernetes.io/instance"
    return {
        "apiVersion": "portcullis.dev/v1alpha1",
        "kind": "ReleaseBackend",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "loadBalancer": {"v1.Service": {"name": service, "removeKeys": [instance]}},
            "splitBy": instance,
            "releases": [{"value": value, "weight": weight} for value, weight in weights.items()],
            **spec,
        },
    }


def to_releases(namespace: str, name: str, parents: list[str], backend: str) -> dict:
    reference = {"group": "portcullis.dev", "kind": "ReleaseBackend", "name": backend, "port": 80}
    return _route("HTTPRoute", namespace, name, parents, [{"backendRefs": [reference]}])


def echo(namespace: str, name: str, replicas: int = 1, **pod) -> list[dict]:
    """A Deployment of echo-basic, which terminates gracefully, and its Service. `pod` is merged into the pod spec."""
    variables = [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
    ]
    container = {
        "name": "echo",
        "image": "echo-basic",
        "env": variables,
        "readinessProbe": {"httpGet": {"path": "/health", "port": 3000}, "periodSeconds": 1},
    }
    container.update(pod.pop("container", {}))
    selector = {"app": name}
    deployment = {
        "replicas": replicas,
        "selector": {"matchLabels": selector},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {"metadata": {"labels": selector}, "spec": {"containers": [container], **pod}},
    }
    service = {"selector": selector, "ports": [{"port": 80, "targetPort": 3000}]}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": namespace, "name": name}, "spec": deployment},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": namespace, "name": name}, "spec": service},
    ]


def _route(kind: str, namespace: str, name: str, parents: list[str], rules: list[dict]) -> dict:
    return _object(kind, namespace, name, {"parentRefs": [{"name": parent} for parent in parents], "rules": rules})


def _object(kind: str, namespace: str, name: str, spec: dict) -> dict:
    return {"apiVersion": GATEWAY_API, "kind": kind, "metadata": {"namespace": namespace, "name": name}, "spec": spec}
