"""Keys of a token issuer that controllers fetch from the endpoints of a Service, with the TLS of its policy, and keys that tokens
name before anybody has fetched them."""

import issuer
from api import wait_for
from checks import check
from issuer import ISSUER, Issuer, Key
from objects import access_policy, backend_tls, gateway, namespace, parameters, parameters_ref, redirect

NS = "keys"
# The certificate has this name, which is that of the policy. The URI has another one, which has no address.
HOST = "any.test"
URI = "http://login.test/keys"


def prepare(cluster):
    cluster.first, cluster.second = Key("first"), Key("second")
    cluster.key_server = Issuer(cluster, NS, HOST)
    # Only a token that names an unknown key has them fetched again.
    remote = {"uri": URI, "cacheDuration": "24h", "backendRef": {"name": "issuer", "port": 8443}}
    cluster.apply(
        namespace(NS),
        parameters(NS, "two", workload={"replicas": 2}),
        gateway(NS, "edge", parametersRef=parameters_ref("two")),
        redirect(NS, "mark", ["edge"], "mark.test"),
    )
    cluster.key_server.start(cluster.first)
    # The policy comes first: without it, the URI decides, and the fetch would be plain text.
    cluster.apply(backend_tls(NS, "tls", "issuer", "issuer"))
    cluster.apply(access_policy(NS, "tokens", "edge", jwt={"providers": [{"issuer": ISSUER, "jwks": {"remote": remote}}]}))
    cluster.gateway_is(NS, "edge")
    wait_for("the issuer runs", lambda: cluster.ready_pods(NS, "app=issuer"), 30)


def statuses(cluster, key: Key | None) -> set[int]:
    """The statuses of requests to all pods of the Gateway."""
    pods = cluster.replicas(NS, "edge", 2)
    return {issuer.status(pod["status"]["podIP"], key) for pod in pods}


def resolved(cluster) -> dict:
    return issuer.resolved(cluster, NS, "AccessPolicy", "tokens")


@check("controllers fetch keys from the pods of a Service, with the TLS of its policy")
def follows_tls(cluster):
    wait_for("its tokens are valid", lambda: statuses(cluster, cluster.first) == {302}, 60)
    wait_for("the policy says it", lambda: resolved(cluster).get("status") == "True", 30)
    assert (statuses(cluster, None), statuses(cluster, cluster.second)) == ({401}, {401})


@check("a key that tokens name before it is fetched is known to the pods that get them long before its time")
def unpublished(cluster):
    cluster.key_server.publish(cluster.first, cluster.second)
    wait_for("its tokens are valid", lambda: statuses(cluster, cluster.second) == {302}, 90)
    assert statuses(cluster, cluster.first) == {302}


@check("keys stay in use and are not fetched while the policy on TLS to their Service cannot be applied")
def broken_policy(cluster):
    cluster.apply(backend_tls(NS, "tls", "issuer", "missing"))
    refused = wait_for("the policy says it", lambda: resolved(cluster).get("reason") == "KeySetNotFetched" and resolved(cluster), 30)
    assert f"BackendTLSPolicy {NS}/tls cannot be applied to it" in refused["message"], refused
    cluster.key_server.publish(cluster.second)
    wait_for("the issuer sends one key", lambda: cluster.key_server.sends(cluster.second), 60)
    assert statuses(cluster, cluster.first) == statuses(cluster, cluster.second) == {302}
    cluster.apply(backend_tls(NS, "tls", "issuer", "issuer"))
    wait_for("the keys are fetched at once", lambda: statuses(cluster, cluster.first) == {401}, 30)
    wait_for("the policy says it", lambda: resolved(cluster).get("status") == "True", 30)
    assert statuses(cluster, cluster.second) == {302}
