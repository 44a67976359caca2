"""Policies that are new, beside routes that are new: no request passes before its policy is in force, whatever is fetched for it."""

import concurrent.futures
import contextlib
import http.client
import sys
import threading
from typing import NamedTuple

import issuer
from api import wait_for
from checks import check, scaled
from objects import access_policy, backend_tls, backend_tls_override, gateway, htpasswd, namespace, on_path, redirect, to_backend

NS = "protection"
ROUNDS = scaled(50)
WRITES_IN_SECOND = 50
HOST = "any.test"
# What a request gets whose backend closes the connection in the handshake.
UNANSWERED = 503
# Counts connections by whether they begin with a handshake of TLS, whose records have type 22: these end at once, others get
# responses. Of requests in plain text it also counts those with the query `protected`. Port 8080 says how many there were.
SERVER = """
import http.server, socket, threading
counts, lock = {"plain": 0, "tls": 0, "protected": 0}, threading.Lock()
def count(kind):
    with lock:
        counts[kind] += 1
def look(connection):
    with connection:
        first = connection.recv(1, socket.MSG_PEEK)
        if first == b"\\x16":
            count("tls")
        elif first:
            count("plain")
            respond(connection)
def respond(connection):
    for line in connection.makefile("rb"):
        if b"?protected " in line:
            count("protected")
        if line == b"\\r\\n":
            connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
def listen():
    listener = socket.create_server(("", 8443))
    while True:
        threading.Thread(target=look, args=(listener.accept()[0],)).start()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = " ".join(map(str, counts.values())).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
threading.Thread(target=listen).start()
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""


class Counts(NamedTuple):
    """What the sink got: connections in plain text, connections with TLS, and requests in plain text with the query `protected`."""

    plain: int
    tls: int
    protected: int


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
    cluster.apply(users("known"), policy("known", "busy", "known"), redirect(NS, "busy", ["edge"], "mark.test", "/busy"))
    cluster.gateway_is(NS, "edge")
    cluster.edge = cluster.address(NS, "edge")
    sink(cluster)
    wait_for("a policy is in force", lambda: status(cluster, "busy") == 401, 30)


def sink(cluster) -> dict:
    """Waits until the pod of the sink is ready: on a busy machine it may miss a probe. Returns it."""
    return wait_for("the sink is ready", lambda: cluster.ready_pods(NS, "app=sink"))[0]


def users(name: str) -> dict:
    return htpasswd(NS, name)


def authorities(cluster, name: str) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": NS, "name": name}, "data": {"ca.crt": cluster.authority}}


def policy(name: str, route: str, secret: str) -> dict:
    target = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": route}
    return access_policy(NS, name, "edge", targetRefs=[target], basic={"secretRef": {"name": secret}})


def status(cluster, name: str) -> int:
    connection = http.client.HTTPConnection(cluster.edge, 8080, timeout=10)
    try:
        connection.request("GET", f"/{name}")
        return connection.getresponse().status
    finally:
        connection.close()


def counts(cluster) -> Counts:
    """Returns what the sink has counted."""
    connection = http.client.HTTPConnection(sink(cluster)["status"]["podIP"], 8080, timeout=10)
    try:
        connection.request("GET", "/")
        return Counts(*(int(count) for count in connection.getresponse().read().split()))
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


def is_missing(number: int) -> bool:
    """Whether what a new policy refers to is written last. Few are: each takes as long as the old policy stays in force."""
    return number % 20 in (2, 13)


@check(f"no request passes while an AccessPolicy is replaced: {ROUNDS} times by one with a new Secret, or by itself with a new Secret, some of which are missing")
def replaced_policies(cluster):
    before = "before"
    with churn(cluster), Requests(cluster, "replaced") as requests:
        cluster.apply(users("first"), policy(before, "replaced", "first"), redirect(NS, "replaced", ["edge"], "mark.test", "/replaced"))
        requests.until(401)
        for number in range(ROUNDS):
            secret = f"replaced-{number}"
            if not is_missing(number):
                cluster.apply(users(secret))
            if number % 2:
                cluster.apply(policy(before, "replaced", secret))
            else:
                cluster.apply(policy(secret, "replaced", secret))
                cluster.api.delete("AccessPolicy", before, NS)
                before = secret
            if is_missing(number):
                requests.until(500)
                cluster.apply(users(secret))
            requests.some(20)
            requests.until(401)
    assert requests.count(404, 500, 401) == 0, f"{requests.count(404, 500, 401)} requests passed"


def tls(number: int, name: str, to: str, ca: str) -> dict:
    """A policy, or an override."""
    return backend_tls_override(NS, name, to, "edge", ca) if number % 2 else backend_tls(NS, name, to, ca)


def has_tls_only(cluster, before: Counts) -> None:
    plain, tls, _ = (now - then for now, then in zip(counts(cluster), before, strict=True))
    assert plain == 0, f"{plain} connections in plain text"
    assert tls >= ROUNDS, f"{tls} connections with TLS"


@check(f"nothing is sent in plain text before new TLS to a backend: {ROUNDS} policies and overrides before their routes, with a ConfigMap that is known, new, or missing")
def new_backend_tls(cluster):
    cluster.apply(authorities(cluster, "known"))
    before = counts(cluster)
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


@check(f"nothing is sent in plain text while TLS to a backend is replaced: {ROUNDS} times, by a policy or an override with a ConfigMap that is new or missing")
def replaced_backend_tls(cluster):
    before, name = counts(cluster), "replaced-tls"
    with churn(cluster), Requests(cluster, name) as requests:
        cluster.apply(authorities(cluster, name), tls(1, name, name, name), service(name, 8443), on_path(to_backend(NS, name, ["edge"], name), name))
        requests.until(UNANSWERED)
        previous = tls(1, name, name, name)
        for number in range(ROUNDS):
            new = f"replaced-tls-{number}"
            if not is_missing(number):
                cluster.apply(authorities(cluster, new))
            cluster.apply(tls(number, new, name, new))
            cluster.api.delete(previous["kind"], previous["metadata"]["name"], NS)
            previous = tls(number, new, name, new)
            if is_missing(number):
                requests.until(500)
                cluster.apply(authorities(cluster, new))
            requests.some(20)
            requests.until(UNANSWERED)
    has_tls_only(cluster, before)
