"""Policies that are new, beside routes that are new: no request passes before its policy is in force, whatever is fetched for it."""

import concurrent.futures
import contextlib
import http.client
import sys
import threading

import issuer
from api import wait_for
from checks import check, scaled
from objects import access_policy, backend_tls, backend_tls_override, gateway, namespace, redirect, to_backend

NS = "protection"
ROUNDS = scaled(50)
WRITES_IN_SECOND = 50
HOST = "any.test"
# What a request gets whose backend closes the connection in the handshake.
UNANSWERED = 503
# Counts connections by whether they begin with a handshake of TLS: its records have type 22. /counts says how many do not, and do.
SERVER = """
import http.server, socket, threading
plain = tls = 0
def look(connection):
    global plain, tls
    with connection:
        first = connection.recv(1)
        tls += first == b"\\x16"
        plain += first not in (b"", b"\\x16")
def listen():
    listener = socket.create_server(("", 8443))
    while True:
        threading.Thread(target=look, args=(listener.accept()[0],)).start()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"{plain} {tls}".encode()
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
    cluster.apply(users("known"), service("count", 8080), on_path(to_backend(NS, "counts", ["edge"], "count"), "counts"), redirect(NS, "busy", ["edge"], "mark.test", "/busy"))
    cluster.apply(policy("known", "busy", "known"))
    cluster.gateway_is(NS, "edge")
    cluster.edge = cluster.address(NS, "edge")
    wait_for("the sink runs", lambda: cluster.ready_pods(NS, "app=sink"), 30)
    wait_for("its counts are served", lambda: status(cluster, "counts") == 200, 30)


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


def connections(cluster) -> tuple[int, int]:
    """Returns how many connections the sink got in plain text, and with TLS."""
    connection = http.client.HTTPConnection(cluster.edge, 8080, timeout=10)
    try:
        connection.request("GET", "/counts")
        plain, tls = connection.getresponse().read().split()
        return int(plain), int(tls)
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


class Requests:
    """Requests to a path, one after the other, from before its objects are written until the end of the block."""

    def __init__(self, cluster, name: str):
        self.cluster, self.name, self.ends = cluster, name, threading.Event()
        self.statuses: list[int] = []

    def __enter__(self):
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        self.sent = self.pool.submit(self.send)
        self.some(1)
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.pool.shutdown()
        self.sent.result()

    def send(self):
        while not self.ends.is_set():
            self.statuses.append(status(self.cluster, self.name))

    def until(self, wanted: int) -> None:
        """Waits for a status."""
        wait_for(f"/{self.name} has {wanted}", lambda: self.sent.done() or self.statuses[-1] == wanted, every=0.002)

    def some(self, count: int) -> None:
        """Waits for more responses."""
        enough = len(self.statuses) + count
        wait_for(f"/{self.name} is answered", lambda: self.sent.done() or len(self.statuses) >= enough, every=0.002)

    def count(self, *permitted: int) -> int:
        """Returns how many had another status."""
        return sum(found not in permitted for found in self.statuses)


def secret_of(number: int, name: str) -> str:
    """Returns what a policy refers to: what is known, what is written before it, or after it."""
    return "known" if number % 3 == 0 else name


@check(f"no request passes before a new AccessPolicy: {ROUNDS} policies before their routes, with a Secret that is known, new, or missing")
def new_policies(cluster):
    passed = 0
    with churn(cluster):
        for number in range(ROUNDS):
            name = f"new-{number}"
            secret = secret_of(number, name)
            with Requests(cluster, name) as requests:
                if number % 3 == 1:
                    cluster.apply(users(secret))
                cluster.apply(policy(name, name, secret), redirect(NS, name, ["edge"], "mark.test", f"/{name}"))
                if number % 3 == 2:
                    requests.until(500)
                    cluster.apply(users(secret))
                requests.until(401)
            passed += requests.count(404, 500, 401)
    assert passed == 0, f"{passed} requests passed"


@check(f"no request passes while an AccessPolicy is replaced: {ROUNDS} times by one with a new Secret, or by itself with a new Secret")
def replaced_policies(cluster):
    before = "before"
    with churn(cluster), Requests(cluster, "replaced") as requests:
        cluster.apply(users("first"), policy(before, "replaced", "first"), redirect(NS, "replaced", ["edge"], "mark.test", "/replaced"))
        requests.until(401)
        for number in range(ROUNDS):
            secret = f"replaced-{number}"
            if number % 2:
                cluster.apply(users(secret), policy(before, "replaced", secret))
            else:
                cluster.apply(users(secret), policy(secret, "replaced", secret))
                cluster.api.delete("AccessPolicy", before, NS)
                before = secret
            requests.some(20)
            requests.until(401)
    assert requests.count(404, 500, 401) == 0, f"{requests.count(404, 500, 401)} requests passed"


def tls(number: int, name: str, to: str, ca: str) -> dict:
    """A policy, or an override."""
    return backend_tls_override(NS, name, to, "edge", ca) if number % 2 else backend_tls(NS, name, to, ca)


def has_tls_only(cluster, before: tuple[int, int]) -> None:
    plain, tls = (now - then for now, then in zip(connections(cluster), before, strict=True))
    assert plain == 0, f"{plain} connections in plain text"
    assert tls >= ROUNDS, f"{tls} connections with TLS"


@check(f"nothing is sent in plain text before new TLS to a backend: {ROUNDS} policies and overrides before their routes, with a ConfigMap that is known, new, or missing")
def new_backend_tls(cluster):
    cluster.apply(authorities(cluster, "known"))
    before = connections(cluster)
    with churn(cluster):
        for number in range(ROUNDS):
            name = f"tls-{number}"
            ca = secret_of(number, name)
            with Requests(cluster, name) as requests:
                if number % 3 == 1:
                    cluster.apply(authorities(cluster, ca))
                cluster.apply(tls(number, name, name, ca), service(name, 8443), on_path(to_backend(NS, name, ["edge"], name), name))
                if number % 3 == 2:
                    requests.until(500)
                    cluster.apply(authorities(cluster, ca))
                requests.until(UNANSWERED)
    has_tls_only(cluster, before)


@check(f"nothing is sent in plain text while TLS to a backend is replaced: {ROUNDS} times, by a policy or an override with a new ConfigMap")
def replaced_backend_tls(cluster):
    before, name = connections(cluster), "replaced-tls"
    with churn(cluster), Requests(cluster, name) as requests:
        cluster.apply(authorities(cluster, name), tls(1, name, name, name), service(name, 8443), on_path(to_backend(NS, name, ["edge"], name), name))
        requests.until(UNANSWERED)
        previous = tls(1, name, name, name)
        for number in range(ROUNDS):
            new = f"replaced-tls-{number}"
            cluster.apply(authorities(cluster, new), tls(number, new, name, new))
            cluster.api.delete(previous["kind"], previous["metadata"]["name"], NS)
            previous = tls(number, new, name, new)
            requests.some(20)
            requests.until(UNANSWERED)
    has_tls_only(cluster, before)
