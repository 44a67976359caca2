"""An issuer of tokens in the cluster, with keys that it publishes over HTTPS, and clients with its tokens."""

import base64
import http.client
import json
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from api import condition, wait_for
from cluster import CONTROLLER_PODS, SYSTEM

ISSUER = "https://login.example.com"
CONTROLLER = "portcullis-controller"
PERMISSION = "--allow-jwks-address=10.0.0.0/8"
# Serves with a Handler.
SERVE = """
server = http.server.ThreadingHTTPServer(("", 8443), Handler)
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain("/keys/tls.crt", "/keys/tls.key")
server.socket = tls.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""
# Sends the file /keys/jwks to each client.
SERVER = (
    """
import http.server, ssl
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = open("/keys/jwks", "rb").read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
"""
    + SERVE
)


class Key:
    """An Ed25519 key of the issuer."""

    def __init__(self, name: str):
        self._name = name
        self._folder = Path(tempfile.mkdtemp())
        self._file = self._folder / "key"
        openssl("genpkey", "-algorithm", "ed25519", "-out", self._file)

    def jwk(self) -> dict:
        public = openssl("pkey", "-in", self._file, "-pubout", "-outform", "DER")[-32:]
        return {"kty": "OKP", "crv": "Ed25519", "kid": self._name, "x": encoded(public)}

    def token(self) -> str:
        header = {"alg": "EdDSA", "kid": self._name}
        claims = {"iss": ISSUER, "exp": int(time.time()) + 3600}
        message = ".".join(encoded(json.dumps(part).encode()) for part in (header, claims))
        unsigned = self._folder / "message"
        unsigned.write_text(message)
        signature = openssl("pkeyutl", "-sign", "-rawin", "-inkey", self._file, "-in", unsigned)
        return f"{message}.{encoded(signature)}"


def openssl(*arguments) -> bytes:
    return subprocess.run(["openssl", *arguments], check=True, capture_output=True).stdout


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def certificate(host: str) -> tuple[str, str]:
    """A self-signed certificate of the issuer, and its key."""
    folder = Path(tempfile.mkdtemp())
    names = ("-subj", "/CN=issuer", "-addext", f"subjectAltName=DNS:{host}", "-addext", "basicConstraints=critical,CA:FALSE")
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", *names, "-keyout", folder / "key", "-out", folder / "cert")
    return (folder / "cert").read_text(), (folder / "key").read_text()


class Issuer:
    """The issuer in a namespace: a Deployment, a Service and a ConfigMap of the name `issuer`."""

    def __init__(self, cluster, namespace: str, host: str, server: str = SERVER, *arguments: str):
        self._cluster, self._namespace = cluster, namespace
        self._command = [sys.executable, "-c", server, *arguments]
        # What its ConfigMap has besides keys and certificate.
        self._more: dict[str, str] = {}
        self._certificate, self._key = certificate(host)
        self._metadata = {"namespace": namespace, "name": "issuer"}

    def start(self, *keys: Key) -> None:
        selector = {"app": "issuer"}
        container = {
            "name": "issuer",
            "image": "host",
            "command": self._command,
            "volumeMounts": [{"name": "keys", "mountPath": "/keys"}],
            "readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1},
        }
        volume = {"name": "keys", "configMap": {"name": "issuer"}}
        pod = {"containers": [container], "volumes": [volume], "terminationGracePeriodSeconds": 0}
        deployment = {"replicas": 1, "selector": {"matchLabels": selector}, "template": {"metadata": {"labels": selector}, "spec": pod}}
        service = {"selector": selector, "ports": [{"port": 8443}]}
        self.publish(*keys)
        self._cluster.apply(
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": self._metadata, "spec": deployment},
            {"apiVersion": "v1", "kind": "Service", "metadata": self._metadata, "spec": service},
        )

    def publish(self, *keys: Key) -> None:
        """Sets the keys that the issuer sends. Their ConfigMap also has the authority of its certificate."""
        published = json.dumps({"keys": [key.jwk() for key in keys]})
        data = {"jwks": published, "tls.crt": self._certificate, "tls.key": self._key, "ca.crt": self._certificate, **self._more}
        self._cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": self._metadata, "data": data})

    def sends(self, *keys: Key) -> bool:
        """Whether its pod sends these keys: its volume follows the ConfigMap later."""
        [pod] = self._cluster.ready_pods(self._namespace, "app=issuer")
        connection = http.client.HTTPSConnection(pod["status"]["podIP"], 8443, timeout=5, context=ssl._create_unverified_context())
        try:
            connection.request("GET", "/keys")
            return json.load(connection.getresponse())["keys"] == [key.jwk() for key in keys]
        finally:
            connection.close()


def status(address: str, key: Key | None) -> int:
    """Status of a request to a Gateway, or to a pod of it, with a token or without one."""
    headers = {"Authorization": f"Bearer {key.token()}"} if key else {}
    connection = http.client.HTTPConnection(address, 8080, timeout=5)
    try:
        connection.request("GET", "/", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def resolved(cluster, namespace: str, kind: str, name: str) -> dict:
    """The condition ResolvedRefs of a policy."""
    ancestors = cluster.api.get(kind, name, namespace).get("status", {}).get("ancestors", [])
    return condition(ancestors[0]["conditions"], "ResolvedRefs") if ancestors else {}


def permit(cluster, namespace: str, is_permitted: bool) -> None:
    """Has controllers, and the pods of the Gateway `edge`, that may ask addresses of the cluster, or may not. Restarts them unless it is so."""
    before = {pod["metadata"]["uid"] for pod in cluster.controllers()}
    containers = cluster.api.get("Deployment", CONTROLLER, SYSTEM)["spec"]["template"]["spec"]["containers"]
    arguments = [argument for argument in containers[0]["args"] if argument != PERMISSION] + [PERMISSION] * is_permitted
    if arguments != containers[0]["args"]:
        containers[0]["args"] = arguments
        cluster.api.patch("Deployment", CONTROLLER, SYSTEM, {"spec": {"template": {"spec": {"containers": containers}}}})
        _replaced(cluster, before)

    # The pods of the Gateway have the permission, too, and a new one has no keys before a controller has fetched them.
    def have_it():
        containers = cluster.is_rolled_out(namespace, "edge-portcullis")["spec"]["template"]["spec"]["containers"]
        return (PERMISSION in containers[0]["args"]) == is_permitted

    wait_for("the pods of the Gateway are new", have_it, 60)


def _replaced(cluster, before: set[str]) -> None:
    def are_new():
        pods = cluster.api.list("Pod", SYSTEM, CONTROLLER_PODS)
        return len(pods) == len(cluster.controllers()) == 2 and not before & {pod["metadata"]["uid"] for pod in pods}

    wait_for("two new controllers are ready", are_new, 90)
