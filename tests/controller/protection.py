"""Policies that are new, beside routes that are new: no request passes before its policy is in force, whatever is fetched for it."""

import contextlib
import http.client
import sys
import threading
import time

import issuer
from api import wait_for
from checks import check, scaled
from objects import access_policy, backend_tls, gateway, namespace, redirect, to_backend

NS = "protection"
ROUNDS = scaled(50)
WRITES_IN_SECOND = 50
HOST = "any.test"
# Counts connections that do not begin with a handshake of TLS: its records have type 22. /plain says how many.
SERVER = """
import http.server, socket, threading
plain = 0
def look(connection):
    global plain
    with connection:
        first = connection.recv(1)
        plain += first not in (b"", b"\\x16")
def listen():
    listener = socket.create_server(("", 8443))
    while True:
        threading.Thread(target=look, args=(listener.accept()[0],)).start()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = str(plain).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
threading.Thread(target=listen).start()
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""


def service(name: str, port: int) -> dict:
    """A Service of the sink."""
    spec = {"selector": {"app": "sink"}, "ports": [{"port": 80, "targetPort": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": NS, "name": name}, "spec": spec}


def prepare(cluster):
    selector, metadata = {"app": "sink"}, {"namespace": NS, "name": "sink"}
    container = {"name": "sink", "image": "host", "command": [sys.executable, "-c", SERVER], "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}}
    pod = {"containers": [container], "terminationGracePeriodSeconds": 0}
    deployment = {"replicas": 1, "selector": {"matchLabels": selector}, "template": {"metadata": {"labels": selector}, "spec": pod}}
    cluster.authority, _ = issuer.certificate(HOST)
    cluster.apply(namespace(NS), gateway(NS, "edge"), {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": deployment})
    cluster.apply(users("known"), service("count", 8080), on_path(to_backend(NS, "plain", ["edge"], "count"), "plain"), redirect(NS, "busy", ["edge"], "mark.test", "/busy"))
    cluster.apply(policy("known", "busy", "known"))
    cluster.gateway_is(NS, "edge")
    cluster.edge = cluster.address(NS, "edge")
    wait_for("the sink runs", lambda: cluster.ready_pods(NS, "app=sink"), 30)
    wait_for("its count is served", lambda: status(cluster, "plain") == 200, 30)


def users(name: str) -> dict:
    # The SHA-1 of "a".
    data = {"auth": "a:{SHA}hvfkN/qlp/zhXR3cuerq6jd2Z7g="}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": NS, "name": name}, "type": "Opaque", "stringData": data}


def authorities(cluster, name: str) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": NS, "name": name}, "data": {"ca.crt": cluster.authority}}


def policy(name: str, route: str, secret: str) -> dict:
    target = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": route}
    return access_policy(NS, name, "edge", targetRefs=[target], basic={"secretRef": {"name": secret}})


def on_path(route: dict, name: str) -> dict:
    route["spec"]["rules"][0]["matches"] = [{"path": {"type": "PathPrefix", "value": f"/{name}"}}]
    return route


def status(cluster, name: str) -> int:
    connection = http.client.HTTPConnection(cluster.edge, 8080, timeout=10)
    try:
        connection.request("GET", f"/{name}")
        return connection.getresponse().status
    finally:
        connection.close()


def plain(cluster) -> int:
    connection = http.client.HTTPConnection(cluster.edge, 8080, timeout=10)
    try:
        connection.request("GET", "/plain")
        return int(connection.getresponse().read())
    finally:
        connection.close()


@contextlib.contextmanager
def churn(cluster):
    """Changes a route all the time."""
    ends = threading.Event()

    def write():
        number = 0
        while not ends.wait(1 / WRITES_IN_SECOND):
            number += 1
            cluster.api.patch("HTTPRoute", "busy", NS, {"metadata": {"annotations": {"test": str(number)}}})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ends.set()
        writer.join()


def until(cluster, name: str, wanted: int, permitted: set[int]) -> int:
    """Sends requests until the status is as wanted, which takes a minute at most. Returns how many had another one than permitted."""
    passed, began = 0, time.monotonic()
    while True:
        found = status(cluster, name)
        passed += found not in permitted | {wanted}
        if found == wanted:
            return passed
        assert time.monotonic() < began + 60, f"/{name} still has {found}"


@check(f"no request passes before a new AccessPolicy: {ROUNDS} policies before their routes, with a Secret that is known, new, or missing")
def new_policies(cluster):
    passed = 0
    with churn(cluster):
        for number in range(ROUNDS):
            name, secret = f"new-{number}", ["known", f"new-{number}", f"new-{number}"][number % 3]
            if number % 3 == 1:
                cluster.apply(users(secret))
            cluster.apply(policy(name, name, secret), redirect(NS, name, ["edge"], "mark.test", f"/{name}"))
            if number % 3 == 2:
                passed += until(cluster, name, 500, {404, 401})
                cluster.apply(users(secret))
            passed += until(cluster, name, 401, {404, 500})
    assert passed == 0, f"{passed} requests passed"


@check(f"no request passes while an AccessPolicy is replaced: {ROUNDS} times by one with a new Secret, or by itself with a new Secret")
def replaced_policies(cluster):
    cluster.apply(users("first"), policy("before", "replaced", "first"), redirect(NS, "replaced", ["edge"], "mark.test", "/replaced"))
    passed, before = until(cluster, "replaced", 401, {404, 500}), "before"
    with churn(cluster):
        for number in range(ROUNDS):
            secret = f"replaced-{number}"
            if number % 2:
                cluster.apply(users(secret), policy(before, "replaced", secret))
            else:
                cluster.apply(users(secret), policy(secret, "replaced", secret))
                cluster.api.delete("AccessPolicy", before, NS)
                before = secret
            for _ in range(20):
                passed += status(cluster, "replaced") not in {401, 500}
            passed += until(cluster, "replaced", 401, {500})
    assert passed == 0, f"{passed} requests passed"


@check(f"nothing is sent in plain text before a new BackendTLSPolicy: {ROUNDS} policies before their routes, with a new ConfigMap")
def new_backend_tls(cluster):
    before = plain(cluster)
    with churn(cluster):
        for number in range(ROUNDS):
            name = f"tls-{number}"
            cluster.apply(authorities(cluster, name), backend_tls(NS, name, name, name), service(name, 8443))
            cluster.apply(on_path(to_backend(NS, name, ["edge"], name), name))
            until_answered(cluster, name)
    assert plain(cluster) == before, f"{plain(cluster) - before} connections in plain text"


@check(f"nothing is sent in plain text while a BackendTLSPolicy is replaced: {ROUNDS} times by one with a new ConfigMap")
def replaced_backend_tls(cluster):
    before, name = plain(cluster), "replaced-tls"
    cluster.apply(authorities(cluster, name), backend_tls(NS, name, name, name), service(name, 8443), on_path(to_backend(NS, name, ["edge"], name), name))
    until_answered(cluster, name)
    previous = name
    with churn(cluster):
        for number in range(ROUNDS):
            new = f"replaced-tls-{number}"
            cluster.apply(authorities(cluster, new), backend_tls(NS, new, name, new))
            cluster.api.delete("BackendTLSPolicy", previous, NS)
            previous = new
            for _ in range(20):
                status(cluster, name)
    assert plain(cluster) == before, f"{plain(cluster) - before} connections in plain text"


def until_answered(cluster, name: str) -> None:
    """Sends requests until the route is served, and a few more."""
    wait_for(f"/{name} is served", lambda: status(cluster, name) != 404, every=0)
    for _ in range(20):
        status(cluster, name)
