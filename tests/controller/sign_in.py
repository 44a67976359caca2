"""Sign-ins at an OpenID provider in the cluster: controllers discover it, pods exchange its codes, and sessions are those of all pods
of a Gateway."""

import http.client
import signal
from urllib.parse import urlsplit

import issuer
from api import wait_for
from checks import check
from cluster import SYSTEM, send
from objects import access_policy, gateway, namespace, parameters, parameters_ref, redirect
from provider import CLIENT, SECRET, Browser, Provider

NS = "desk"
MARK = "mark.test"
PODS = 2


def prepare(cluster):
    cluster.provider = Provider(cluster, NS, f"issuer.{NS}.svc.cluster.local")
    cluster.apply(
        namespace(NS),
        parameters(NS, "two", workload={"replicas": PODS}),
        gateway(NS, "edge", parametersRef=parameters_ref("two")),
        redirect(NS, "mark", ["edge"], MARK),
    )
    cluster.provider.start_signing()
    metadata = {"namespace": NS, "name": "client"}
    oidc = {"issuer": cluster.provider.url, "clientID": CLIENT, "clientSecretRef": {"name": "client"}, "caConfigMapRef": {"name": "issuer"}}
    cluster.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "stringData": {"client-secret": SECRET}},
        access_policy(NS, "desk", "edge", oidc=oidc),
    )
    cluster.gateway_is(NS, "edge")
    wait_for("the provider runs", lambda: cluster.ready_pods(NS, "app=issuer"), 60)
    issuer.permit(cluster, NS, True)
    wait_for("all pods know the provider", lambda: all(redirects(cluster, pod) for pod in pods(cluster)), 60)


def pods(cluster) -> list[dict]:
    return cluster.replicas(NS, "edge", PODS, 60)


def redirects(cluster, pod: dict) -> bool:
    """Whether a pod sends a browser without a session to the provider. One that has just started may not listen yet."""
    try:
        status, location = Browser().visit(pod)
    except (OSError, http.client.HTTPException):
        return False
    return status == 302 and location.startswith(cluster.provider.url)


def is_signed_in(browser: Browser, pod: dict) -> bool:
    status, location = browser.visit(pod)
    return status == 302 and urlsplit(location).hostname == MARK


@check("a sign-in may end at another pod than it has begun at, and its session is good for all pods of the Gateway")
def anywhere(cluster):
    one, other = pods(cluster)
    for begins, ends in ((one, one), (one, other), (other, one)):
        browser = Browser()
        browser.sign_in(cluster.provider, begins, ends)
        assert is_signed_in(browser, one) and is_signed_in(browser, other)
    assert redirects(cluster, one) and redirects(cluster, other), "browsers without a session"


@check("sessions go on, and browsers sign in, while all controllers are replaced")
def replaced(cluster):
    one, other = pods(cluster)
    browser, count = Browser(), 0
    browser.sign_in(cluster.provider, one, one)
    before = {pod["metadata"]["uid"] for pod in cluster.controllers()}
    for pod in cluster.controllers():
        cluster.api.delete("Pod", pod["metadata"]["name"], SYSTEM)

    def are_new():
        nonlocal count
        count += 1
        assert is_signed_in(browser, one) and is_signed_in(browser, other), f"turn {count}"
        Browser().sign_in(cluster.provider, one, other)
        found = cluster.controllers()
        return len(found) == 2 and not before & {pod["metadata"]["uid"] for pod in found}

    wait_for("two new controllers are ready", are_new, 90)
    return f"{count} sign-ins"


@check("a pod that starts again knows the provider, and the sessions of before")
def starts_again(cluster):
    one, other = pods(cluster)
    browser = Browser()
    browser.sign_in(cluster.provider, one, one)
    send(one, signal.SIGKILL)
    wait_for("the pod knows the provider", lambda: redirects(cluster, one), 60)
    assert is_signed_in(browser, one) and is_signed_in(browser, other)
    issuer.permit(cluster, NS, False)
