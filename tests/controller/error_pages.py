"""Error pages that pods of a Gateway ask a backend for."""

import http.client
import sys

import issuer
from api import wait_for
from checks import check
from objects import gateway, namespace, to_backend

NS, OTHERS = "pages", "others-pages"
# Responds with a page that names the status and the route that it is for.
SERVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        names = ("X-Code", "X-Namespace", "X-Ingress-Name", "Authorization")
        body = " ".join(str(self.headers[name]) for name in names).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""


def server(in_namespace: str) -> list[dict]:
    """The Deployment `pages` and its Service."""
    selector, metadata = {"app": "pages"}, {"namespace": in_namespace, "name": "pages"}
    container = {"name": "pages", "image": "host", "command": [sys.executable, "-c", SERVER], "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}}
    pod = {"containers": [container], "terminationGracePeriodSeconds": 0}
    deployment = {"replicas": 1, "selector": {"matchLabels": selector}, "template": {"metadata": {"labels": selector}, "spec": pod}}
    service = {"selector": selector, "ports": [{"port": 80, "targetPort": 8080}]}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": deployment},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service},
    ]


def policy(**reference) -> dict:
    target = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge"}
    page = {"codes": [503], "source": "Gateway", "backendRef": {"name": "pages", "port": 80, **reference}}
    return {
        "apiVersion": "portcullis.dev/v1alpha1",
        "kind": "RoutePolicy",
        "metadata": {"namespace": NS, "name": "fetched"},
        "spec": {"targetRefs": [target], "errorPages": [page]},
    }


def prepare(cluster):
    # Nothing is behind this Service, so that its requests get 503.
    idle = {"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": NS, "name": "idle"}, "spec": {"selector": {"app": "none"}, "ports": [{"port": 80}]}}
    cluster.apply(namespace(NS), namespace(OTHERS), gateway(NS, "edge"), idle, to_backend(NS, "shop", ["edge"], "idle"))
    cluster.apply(*server(NS), *server(OTHERS), policy())
    cluster.gateway_is(NS, "edge")
    for one in (NS, OTHERS):
        wait_for("the server of pages runs", lambda one=one: cluster.ready_pods(one, "app=pages"), 30)


def page(cluster) -> tuple[int, str | None, str]:
    """Status, media type and body of a response."""
    connection = http.client.HTTPConnection(cluster.address(NS, "edge"), 8080, timeout=10)
    try:
        connection.request("GET", "/cart?secret=1", headers={"Authorization": "Bearer secret"})
        response = connection.getresponse()
        return response.status, response.getheader("content-type"), response.read().decode()
    finally:
        connection.close()


def resolved(cluster) -> dict:
    return issuer.resolved(cluster, NS, "RoutePolicy", "fetched")


FETCHED = (503, "text/html", f"503 {NS} shop None")


@check("a page of a Service takes the place of an error, with its status and without credentials of the client")
def fetched(cluster):
    wait_for("the page is served", lambda: page(cluster) == FETCHED, 30)
    wait_for("the policy says it", lambda: resolved(cluster).get("status") == "True", 30)


@check("a page of another namespace needs a ReferenceGrant there, and responses are served without it until then")
def needs_grant(cluster):
    cluster.apply(policy(namespace=OTHERS))
    wait_for("the policy says it", lambda: resolved(cluster).get("reason") == "RefNotPermitted", 30)
    wait_for("responses have no page", lambda: page(cluster)[0] == 503 and page(cluster) != FETCHED, 30)
    source = {"group": "portcullis.dev", "kind": "RoutePolicy", "namespace": NS}
    grant = {"from": [source], "to": [{"group": "", "kind": "Service"}]}
    cluster.apply({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "ReferenceGrant", "metadata": {"namespace": OTHERS, "name": "pages"}, "spec": grant})
    wait_for("the page is served", lambda: page(cluster) == FETCHED, 30)
    wait_for("the policy says it", lambda: resolved(cluster).get("status") == "True", 30)


@check("responses are served without a page while its server is away, and with it once that is back")
def is_away(cluster):
    cluster.api.patch("Deployment", "pages", OTHERS, {"spec": {"replicas": 0}})
    wait_for("responses have no page", lambda: page(cluster)[0] == 503 and page(cluster) != FETCHED, 60)
    cluster.api.patch("Deployment", "pages", OTHERS, {"spec": {"replicas": 1}})
    wait_for("the page is served", lambda: page(cluster) == FETCHED, 60)
