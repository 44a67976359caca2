"""Policies on TLS to backends that are new or become stricter while pods that apply them are killed or rolled, or while the controller
that leads is killed: nothing is sent in plain text that they protect, by any pod."""

import protection
import restarts
from api import wait_for
from checks import check
from instances import Requests
from objects import backend_tls, backend_tls_override, on_path, to_backend
from restarts import GATEWAY, KILLS, NS, PODS, RESTARTS, TAKEOVERS, disturbed, in_force, kill_leader, kill_pod, restarted, rolled


def prepare(cluster):
    restarts.prepare(cluster)
    cluster.apply(protection.authorities(cluster, "known"))


class BackendTls:
    """BackendTLSPolicies for a Service whose pod counts connections with and without TLS, and completes no handshake."""

    name, passes, refused = "tls", 200, protection.UNANSWERED

    def __init__(self, cluster):
        self._cluster, self._before = cluster, protection.counts(cluster)

    def objects(self, number: int, name: str) -> tuple[list[dict], dict]:
        ca = protection.secret_of(number, name)
        return [backend_tls(NS, name, name, ca), *self._backend(name)], protection.authorities(self._cluster, ca)

    def settle(self, cluster, requests: Requests) -> None:
        requests.all_respond(self.refused, PODS)
        # A Service without endpoints has the same status.
        before = protection.counts(cluster).tls
        wait_for("a pod begins a handshake", lambda: protection.counts(cluster).tls > before)

    def loosen(self, cluster, number: int, name: str) -> None:
        """Permits plain text: nothing asks for TLS, or an override says that there is none."""
        if number % 2:
            cluster.apply(backend_tls_override(NS, name, name, GATEWAY))
        cluster.apply(*self._backend(name))

    def tighten(self, cluster, number: int, name: str) -> None:
        policy = backend_tls_override(NS, name, name, GATEWAY, "known") if number % 2 else backend_tls(NS, name, name, "known")
        cluster.apply(policy)
        in_force(cluster, policy["kind"], name, "Accepted")

    def nothing_in_plain_text(self) -> None:
        plain = protection.counts(self._cluster).plain - self._before.plain
        assert plain == 0, f"{plain} connections in plain text"

    def nothing_protected_in_plain_text(self) -> None:
        protected = protection.counts(self._cluster).protected - self._before.protected
        assert protected == 0, f"{protected} requests in plain text, which were sent after the policy was said to be in force"

    def _backend(self, name: str) -> list[dict]:
        route = to_backend(NS, name, [GATEWAY], name)
        return [protection.service(name, 8443), on_path(route, name)]


@check(f"nothing is sent in plain text before a new BackendTLSPolicy while pods are killed: {KILLS} policies, with a ConfigMap that is known, new, or missing")
def pods_are_killed(cluster):
    """A pod sends nothing in plain text to a Service that an older policy protects, from its first request. The case fails if a
    new pod, the copy of a restarted container, or the pod that stays has the route and the Service before the policy, or takes a policy
    without its authorities for none."""
    kind = BackendTls(cluster)
    figures = disturbed(cluster, kind, KILLS, kill_pod)
    kind.nothing_in_plain_text()
    return figures


@check(f"nothing is sent in plain text before a new BackendTLSPolicy while the leader is killed: {TAKEOVERS} policies, the first one with a ConfigMap that is missing")
def leader_is_killed(cluster):
    """The same holds for pods that move to another controller. The case fails if the other one, whose watches may be at different
    places, sends them the route and the Service without the policy, or the policy as one without effect while it fetches the ConfigMap."""
    kind = BackendTls(cluster)
    figures = disturbed(cluster, kind, TAKEOVERS, kill_leader)
    kind.nothing_in_plain_text()
    return figures


@check("nothing is sent in plain text once a policy on TLS is said to be in force, at each stage of a rollout of the Gateway's pods")
def pods_are_rolled(cluster):
    """Accepted of a BackendTLSPolicy, or of an override that permitted plain text before, and Programmed of the Gateway mean that
    every ready pod uses TLS. Pods that end or have just become ready follow by themselves. The case fails if the condition is written before all have reported the change, if a new pod becomes ready with an older
    state, if a pod that ends does not follow changes while it serves, or if a pod uses a connection in plain text again that it has
    kept from before."""
    kind = BackendTls(cluster)
    figures = rolled(cluster, kind)
    kind.nothing_protected_in_plain_text()
    return figures


@check(f"nothing is sent in plain text once a policy on TLS is said to be in force, in containers that are killed then and start without a controller: {RESTARTS} times")
def containers_are_killed(cluster):
    """Accepted of a BackendTLSPolicy, or of an override, means that no container starts with what was before. The case fails if a pod
    reports a change before its copy has it, or if the copy of an older state is left when a later one cannot be written."""
    kind = BackendTls(cluster)
    figures = restarted(cluster, kind)
    kind.nothing_protected_in_plain_text()
    return figures
