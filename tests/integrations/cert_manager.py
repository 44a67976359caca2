"""cert-manager: Certificates for listeners of Gateways and ListenerSets, how soon they are served, and challenges of ACME."""

import base64
import http.client
import json
import socket
import ssl
import threading
import time

import pages
from api import condition, has, wait_for
from checks import check

PAGE, PEBBLE = "cert-manager", "pebble"
# Time in which a certificate is served.
SOON = 1.0


def prepare(cluster):
    pages.apply_file(cluster.built / "manifests" / "cert-manager.yaml")
    wait_for("its kinds are served", lambda: "certificates" in pages.kubectl(arguments=["api-resources", "--api-group=cert-manager.io"]), 30)
    pages.apply(*pages.deployment(PAGE, PAGE))
    everything = pages.objects(PAGE)
    own = [one for one in everything if "cert-manager.io" in one["apiVersion"]]
    pages.apply(*[one for one in own if one["metadata"]["name"] != "acme"])
    wait_for("the issuer is ready", lambda: is_ready(cluster, "ClusterIssuer", "internal"), 60)
    cluster.authority = secret(cluster, "cert-manager", "internal-ca")["tls.crt"]
    cluster.others = [one for one in everything if one not in own]


def in_namespace(cluster, name: str) -> list[dict]:
    """The namespace, and what the page puts into it."""
    return [one for one in cluster.others if one["metadata"].get("namespace", one["metadata"]["name"]) == name]


def is_ready(cluster, kind: str, name: str, namespace: str = "") -> bool:
    found = cluster.api.get(kind, name, namespace)
    return bool(found) and has(found.get("status", {}).get("conditions", []), "Ready", "True")


def secret(cluster, namespace: str, name: str) -> dict[str, str]:
    found = cluster.api.get("Secret", name, namespace)
    return {key: base64.b64decode(value).decode() for key, value in (found or {}).get("data", {}).items()}


class Handshakes:
    """Tries handshakes for a hostname again and again, and knows since when they present each certificate."""

    def __init__(self, address: str, host: str, authority: str):
        self._address, self._host = address, host
        self._context = ssl.create_default_context(cadata=authority)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.served: dict[bytes, float] = {}
        self.failures = 0

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(0.02):
            try:
                with socket.create_connection((self._address, 443), timeout=5) as plain, self._context.wrap_socket(plain, server_hostname=self._host) as stream:
                    self.served.setdefault(stream.getpeercert(binary_form=True), time.monotonic())
            except OSError:
                self.failures += 1


class Written:
    """Knows since when a Secret has each certificate."""

    def __init__(self, cluster, namespace: str, name: str):
        self.seen: dict[bytes, float] = {}
        threading.Thread(target=self._run, args=(cluster, namespace, name), daemon=True).start()

    def _run(self, cluster, namespace: str, name: str) -> None:
        for found in cluster.api.watch("Secret", name, namespace):
            pem = base64.b64decode(found.get("data", {}).get("tls.crt", "")).decode()
            if pem:
                leaf = pem.split("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n"
                self.seen.setdefault(ssl.PEM_cert_to_DER_cert(leaf), time.monotonic())


def served_soon(handshakes: Handshakes, written: Written, count: int) -> str:
    """Waits until this number of certificates is served; returns how long the last one took."""
    wait_for("the certificate is in the Secret", lambda: len(written.seen) >= count, 60)
    newest = list(written.seen)[-1]
    wait_for("the certificate is served", lambda: newest in handshakes.served, 10)
    seconds = handshakes.served[newest] - written.seen[newest]
    assert seconds <= SOON, f"{seconds:.2f} s"
    return f"{max(seconds, 0):.2f} s after the Secret"


def location(cluster, host: str) -> str:
    context = ssl.create_default_context(cadata=cluster.authority)
    connection = http.client.HTTPSConnection(cluster.address("infra", "edge"), context=context, timeout=5)
    with socket.create_connection((connection.host, 443), timeout=5) as plain, context.wrap_socket(plain, server_hostname=host) as stream:
        connection.sock = stream
        connection.request("GET", "/", headers={"Host": host})
        return connection.getresponse().getheader("location", "")


@check("the Certificate of a Gateway's listener is made, and served within 1 s once its Secret is there")
def of_a_gateway(cluster):
    infra = in_namespace(cluster, "infra")
    pages.apply(infra[0])
    written = Written(cluster, "infra", "www")
    pages.apply(*infra[1:])
    address = cluster.address("infra", "edge")
    with Handshakes(address, "www.example.com", cluster.authority) as handshakes:
        figures = served_soon(handshakes, written, 1)
    gateway = cluster.gateway_is("infra", "edge")
    listener = gateway["status"]["listeners"][0]
    assert has(listener["conditions"], "ResolvedRefs", "True"), listener
    assert location(cluster, "www.example.com") == "https://www.example.net/", location(cluster, "www.example.com")
    return figures


@check("so is that of a ListenerSet's listener, in the namespace of the ListenerSet, with the issuer of its Gateway")
def of_a_listener_set(cluster):
    shop = in_namespace(cluster, "shop")
    pages.apply(shop[0])
    written = Written(cluster, "shop", "shop")
    with Handshakes(cluster.address("infra", "edge"), "shop.example.com", cluster.authority) as handshakes:
        pages.apply(*shop[1:])
        figures = served_soon(handshakes, written, 1)
        refused = handshakes.failures
    assert refused, "handshakes for a hostname without a certificate are accepted"
    conditions = cluster.api.get("ListenerSet", "shop", "shop")["status"]["listeners"][0]["conditions"]
    assert has(conditions, "ResolvedRefs", "True") and has(conditions, "Accepted", "True"), conditions
    assert location(cluster, "shop.example.com") == "https://shop.example.net/"
    return figures


@check("a renewed certificate is served within 1 s; an open connection stays open, and no handshake fails")
def renewal(cluster):
    address = cluster.address("infra", "edge")
    written = Written(cluster, "infra", "www")
    wait_for("the certificate is read", lambda: written.seen, 10)
    context = ssl.create_default_context(cadata=cluster.authority)
    with socket.create_connection((address, 443), timeout=5) as plain, context.wrap_socket(plain, server_hostname="www.example.com") as stream:
        with Handshakes(address, "www.example.com", cluster.authority) as handshakes:
            wait_for("a handshake", lambda: handshakes.served, 10)
            renew(cluster)
            figures = served_soon(handshakes, written, 2)
        stream.sendall(b"GET / HTTP/1.1\r\nHost: www.example.com\r\n\r\n")
        assert stream.recv(12) == b"HTTP/1.1 302"
    assert handshakes.failures == 0, f"{handshakes.failures} handshakes failed"
    return figures


def renew(cluster) -> None:
    """What `cmctl renew` does."""
    certificate = cluster.api.get("Certificate", "www", "infra")
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    issuing = {"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "renewed by hand", "lastTransitionTime": now}
    conditions = [one for one in certificate["status"]["conditions"] if one["type"] != "Issuing"]
    cluster.api.patch("Certificate", "www", "infra", {"status": {"conditions": [*conditions, issuing]}}, "status")


@check("listeners without a hostname, or with a Secret of another namespace, have no Certificate, and the Gateway has the event BadConfig")
def without_certificates(cluster):
    nameless = {"name": "any", "port": 8443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "any"}]}}
    foreign = {**nameless, "name": "foreign", "hostname": "foreign.example.com", "tls": {"certificateRefs": [{"name": "foreign", "namespace": "shop"}]}}
    gateway = pages.find(PAGE, "Gateway", "edge")
    spec = {**gateway["spec"], "listeners": [*gateway["spec"]["listeners"], nameless, foreign]}
    pages.apply({**gateway, "spec": spec})
    arguments = ["get", "events", "-n", "infra", "--field-selector", "involvedObject.name=edge,reason=BadConfig", "-o", "name"]
    wait_for("the event", lambda: pages.kubectl(arguments=arguments), 20)
    made = [one["metadata"]["name"] for where in ("infra", "shop") for one in cluster.api.list("Certificate", where)]
    assert sorted(made) == ["shop", "www"], made
    conditions = cluster.api.get("Gateway", "edge", "infra")["status"]["listeners"]
    resolved = [condition(one["conditions"], "ResolvedRefs").get("status") for one in conditions]
    assert resolved == ["True", "False", "False"], conditions
    assert location(cluster, "www.example.com"), "the other listener is not served"
    pages.apply(gateway)


def start_pebble(cluster) -> None:
    """Starts the ACME server. It asks the name server of the cluster, and sends challenges to port 80."""
    certificate = {
        "apiVersion": "cert-manager.io/v1",
        "kind": "Certificate",
        "metadata": {"namespace": PEBBLE, "name": PEBBLE},
        "spec": {"secretName": PEBBLE, "dnsNames": [f"{PEBBLE}.{PEBBLE}.svc.cluster.local"], "issuerRef": {"kind": "ClusterIssuer", "name": "internal"}},
    }
    settings = {
        "listenAddress": "0.0.0.0:14000",
        "managementListenAddress": "0.0.0.0:15000",
        "certificate": "/tls/tls.crt",
        "privateKey": "/tls/tls.key",
        "httpPort": 80,
        "tlsPort": 443,
        "retryAfter": {"authz": 1, "order": 1},
    }
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": PEBBLE, "name": PEBBLE}, "data": {"config.json": json.dumps({"pebble": settings})}}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": PEBBLE, "name": PEBBLE}, "spec": {"selector": {"app": PEBBLE}, "ports": [{"port": 14000}]}}
    made = pages.deployment(PEBBLE, PEBBLE, "-config", "/config/config.json", "-strict")
    pod = made[-1]["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "config", "configMap": {"name": PEBBLE}}, {"name": "tls", "secret": {"secretName": PEBBLE}}]
    # Without a wait before each validation.
    pod["containers"][0]["env"] = [{"name": "PEBBLE_VA_NOSLEEP", "value": "1"}]
    pod["containers"][0]["volumeMounts"] = [{"name": "config", "mountPath": "/config"}, {"name": "tls", "mountPath": "/tls"}]
    pod["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": 14000}, "periodSeconds": 1}
    pages.apply(made[0], certificate)
    wait_for("its certificate is ready", lambda: is_ready(cluster, "Certificate", PEBBLE, PEBBLE), 30)
    pages.apply(config, service, *made[1:])
    wait_for("it is ready", lambda: cluster.ready_pods(PEBBLE, f"app={PEBBLE}"), 30)


@check("an ACME server validates a challenge by HTTP-01 beside a route that redirects all requests, and its certificate is served")
def acme(cluster):
    start_pebble(cluster)
    public = in_namespace(cluster, "public")
    pages.apply(*public)
    cluster.address("public", "public")
    began = time.monotonic()
    pages.apply(pages.find(PAGE, "ClusterIssuer", "acme"))
    try:
        wait_for("the certificate is ready", lambda: is_ready(cluster, "Certificate", "public", "public"), 90, every=0.2)
    except AssertionError as error:
        states = pages.kubectl(arguments=["get", "certificaterequests,orders,challenges", "-n", "public", "-o", "jsonpath={.items[*].status}"])
        raise AssertionError(f"{error}; {states}") from None
    seconds = time.monotonic() - began
    address, context = cluster.address("public", "public"), ssl._create_unverified_context()
    issued = secret(cluster, "public", "public")["tls.crt"].split("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n"

    def is_served() -> bool:
        host = "public-portcullis.public.svc.cluster.local"
        with socket.create_connection((address, 443), timeout=5) as plain, context.wrap_socket(plain, server_hostname=host) as stream:
            return stream.getpeercert(binary_form=True) == ssl.PEM_cert_to_DER_cert(issued)

    wait_for("the certificate is served", is_served, SOON)
    connection = http.client.HTTPConnection(address, 80, timeout=5)
    connection.request("GET", "/.well-known/acme-challenge/other")
    assert connection.getresponse().status == 301
    # The garbage collector of a new cluster discovers new kinds after some time.
    wait_for("the route of the challenge is deleted", lambda: [one["metadata"]["name"] for one in cluster.api.list("HTTPRoute", "public")] == ["to-https"], 60)
    return f"{seconds:.0f} s"
