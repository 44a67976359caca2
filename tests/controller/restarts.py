"""AccessPolicies that are new or become stricter while pods that apply them are killed or rolled, or while the controller that leads is
killed: no request passes that they refuse, in any pod. `restarts_tls` has the same for TLS to backends."""

import errno
import http.client
import random
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import protection
from api import has, wait_for
from checks import check, scaled
from cluster import SYSTEM, process, send, without_controllers
from instances import Instance, Instances, Requests, status
from leaders import both, leader_of
from objects import gateway, parameters, parameters_ref, redirect

NS = protection.NS
GATEWAY, PODS = "restarts", 2
# In turn, policies refer to what is missing, known, and new.
KILLS, TAKEOVERS = scaled(3), scaled(1)
ROLLOUTS = scaled(1)
# In each, one pod cannot write its copy.
RESTARTS = scaled(1)
# With it, these few rounds have different moments and kinds of kills, each between two writes.
SEED = 1627
UNUSABLE = 500
# How far the successor of a killed pod has come, or the pod after the restart of its container: None as long as it is not there.
AFTER_A_KILL = {
    "not awaited": lambda _: True,
    "there": lambda one: one is not None,
    "at its address": lambda one: one and one.address,
    "running": lambda one: one and one.is_running,
    "ready": lambda one: one and one.is_ready,
}
# Of the old and the new pods, in the order in which it comes.
OF_A_ROLLOUT = {
    "a new pod is there": lambda _, new: new,
    "a new pod has an address": lambda _, new: any(one.address for one in new),
    "a new pod runs": lambda _, new: any(one.is_running for one in new),
    "a new pod is ready": lambda _, new: any(one.was_ready for one in new),
    "an old pod ends": lambda old, _: any(one.is_ending for one in old),
    "all new pods are ready": lambda _, new: sum(one.was_ready for one in new) >= PODS,
}


def settings(rollout: str) -> dict:
    workload = {"replicas": PODS, "annotations": {"rollout": rollout}}
    return parameters(NS, GATEWAY, workload=workload, drain={"delay": "2s", "deadline": "5s"})


def prepare(cluster):
    protection.prepare(cluster)
    # The route that changes all the time.
    cluster.apply(redirect(NS, "busy", ["edge", GATEWAY], "mark.test", "/busy"))
    # Those of another subject stay: a change of them begins a rollout.
    if not cluster.api.get("GatewayParameters", GATEWAY, NS):
        cluster.apply(settings("none"))
    cluster.apply(gateway(NS, GATEWAY, parametersRef=parameters_ref(GATEWAY)))
    cluster.gateway_is(NS, GATEWAY)
    cluster.instances = Instances(cluster.api, NS, GATEWAY)
    wait_for("its pods are ready", lambda: cluster.instances.are(PODS))


class Access:
    """AccessPolicies that ask for a password, on routes that redirect."""

    name, passes, refused = "access", 302, 401

    def objects(self, number: int, name: str) -> tuple[list[dict], dict]:
        """A policy and what it protects, in the order in which they are written, and what the policy refers to."""
        secret = protection.secret_of(number, name)
        return [protection.policy(name, name, secret), self._route(name)], protection.users(secret)

    def settle(self, _cluster, requests: Requests) -> None:
        """Waits until every pod applies the policy."""
        requests.all_respond(self.refused, PODS)

    def loosen(self, cluster, _number: int, name: str) -> None:
        policy = protection.policy(name, name, "known")
        del policy["spec"]["basic"]
        cluster.apply(policy, self._route(name))

    def tighten(self, cluster, number: int, name: str) -> None:
        """Replaces the policy, and returns once its conditions say that the new one is in force."""
        secret = "known" if number % 2 == 0 else name
        cluster.apply(protection.users(secret), protection.policy(name, name, secret))
        in_force(cluster, "AccessPolicy", name, "Accepted", "Programmed")

    def _route(self, name: str) -> dict:
        return redirect(NS, name, [GATEWAY], "mark.test", f"/{name}")


def in_force(cluster, kind: str, name: str, *conditions: str) -> None:
    """Waits until these conditions of a policy are True for its generation, and Programmed of its Gateway is True: the conditions of
    a policy wait some seconds for pods that lag, and then it is Programmed of the Gateway that is False."""

    def look():
        policy = cluster.api.get(kind, name, NS)
        ancestors, generation = policy.get("status", {}).get("ancestors", []), policy["metadata"]["generation"]
        if not ancestors or not all(has(one["conditions"], it, "True", generation) for one in ancestors for it in conditions):
            return False
        return has(cluster.api.get("Gateway", GATEWAY, NS).get("status", {}).get("conditions", []), "Programmed", "True")

    wait_for(f"{kind} {name} is in force", look, every=0.002)


def kill_pod(cluster, chance: random.Random) -> tuple[str, Callable[[], bool]]:
    """Kills a pod, or its process, so that its container starts again from its copy of the objects. Waits for a moment of what
    follows. Returns what it did, and whether the pods are others."""
    victim, again, moment = chance.choice(cluster.instances.present()), chance.random() < 0.5, chance.choice(list(AFTER_A_KILL))
    # A container that has been restarted before starts only after a while.
    again &= victim.restarts == 0
    lives = {one.life for one in cluster.instances.all()}
    if again:
        send(victim.pod, signal.SIGKILL)
    else:
        cluster.api.delete("Pod", victim.name, NS, grace=0)
    successor = lambda: next((one for one in cluster.instances.present() if one.life not in lives), None)  # noqa: E731
    wait_for(f"what follows {victim.name} is {moment}", lambda: AFTER_A_KILL[moment](successor()), every=0.005)
    return f"{victim.name} was {'restarted' if again else 'deleted'}, and what follows it was {moment}", lambda: successor() is not None


def kill_leader(cluster, chance: random.Random) -> tuple[str, Callable[[], bool]]:
    """Kills the controller that leads. Waits for another one, or not. Returns what it did, and whether another one leads."""
    pods = both(cluster)
    leader, waits = leader_of(cluster, pods), chance.random() < 0.5
    # A stopped process cannot release the Lease.
    send(pods[leader], signal.SIGSTOP)
    cluster.api.delete("Pod", leader, SYSTEM, grace=0)
    another = lambda: cluster.leader() not in {leader, ""}  # noqa: E731
    if waits:
        wait_for("another leads", another)
    return f"{leader} was killed, and {'another one led' if waits else 'no other one was awaited'}", another


def disturbed(cluster, kind, rounds: int, disturb) -> str:
    """Writes policies before what they protect, and disturbs at a random moment before, between or after the writes."""
    chance, sent = random.Random(SEED), 0
    with protection.churn(cluster):
        # The first policy refers to what is missing.
        for number in range(2, 2 + rounds):
            leader_of(cluster, both(cluster))
            name = f"{kind.name}-{disturb.__name__.replace('_', '-')}-{number}"
            objects, referred = kind.objects(number, name)
            with Requests(cluster.instances, [name], kind.passes) as requests:
                steps = [partial(cluster.apply, one) for one in objects]
                if number % 3 == 1:
                    steps.insert(0, partial(cluster.apply, referred))
                if number % 3 == 2:
                    steps += [partial(requests.one_responds, name, UNUSABLE), partial(cluster.apply, referred)]
                at = chance.randrange(len(steps) + 1)
                requests.all_respond(404, PODS)
                for step in steps[:at]:
                    step()
                happened, is_over = disturb(cluster, chance)
                for step in steps[at:]:
                    step()
                wait_for(f"it is over that {happened}", is_over)
                kind.settle(cluster, requests)
            requests.judge(f"round {number}, after {at} of {len(steps)} steps {happened}")
            sent += requests.sent
    return f"{sent} requests"


def rolled(cluster, kind) -> str:
    """Rolls the pods of the Gateway, and makes a policy stricter at each stage of that."""
    sent = 0
    for number in range(ROLLOUTS):
        names = [f"{kind.name}-rolled-{number}-{stage}" for stage in range(len(OF_A_ROLLOUT))]
        for stage, name in enumerate(names):
            kind.loosen(cluster, stage, name)
        with protection.churn(cluster), Requests(cluster.instances, names, kind.passes, protected=False) as requests:
            requests.all_respond(kind.passes, PODS)
            former = cluster.instances.all()
            known = old = cluster.instances.present()
            cluster.apply(settings(f"{kind.name}-{number}"))
            new = lambda: [one for one in cluster.instances.all() if one not in former]  # noqa: E731
            for stage, (name, moment) in enumerate(zip(names, OF_A_ROLLOUT, strict=True)):
                wait_for(moment, lambda: OF_A_ROLLOUT[moment](old, new()), every=0.005)
                ready = [one for one in cluster.instances.present() if one.was_ready]
                kind.tighten(cluster, stage, name)
                requests.protect(name, known)
                # Since these were ready, a change has been sent and confirmed.
                known = ready
            requests.all_respond(kind.refused, PODS)
        requests.judge(f"rollout {number}")
        sent += requests.sent
    return f"{sent} requests"


def restarted(cluster, kind) -> str:
    """Makes a policy stricter, and kills the containers of all pods once it is said to be in force. They start without a controller."""
    sent = 0
    for number in range(RESTARTS):
        name = f"{kind.name}-restarted-{number}"
        if any(one.restarts for one in cluster.instances.present()):
            renew(cluster, name)
        kind.loosen(cluster, number, name)
        with Requests(cluster.instances, [name], kind.passes, protected=False) as requests:
            requests.all_respond(kind.passes, PODS)
            copied, full = pods = cluster.instances.present()
            fill(cluster, [full], f"{name}-large")
            kind.tighten(cluster, number, name)
            requests.protect(name, pods)
            # Nothing is written or received any more, until the controllers cannot be reached.
            for one in pods:
                send(one.pod, signal.SIGSTOP)
            with without_controllers(*(one.address for one in pods)):
                for one in pods:
                    send(one.pod, signal.SIGKILL)
                wait_for("their containers have started again", lambda: all(has_started_again(one) for one in pods))
                wait_for("the copy is served", lambda: status(copied.address, f"/{name}") == kind.refused)
            filler(full).unlink()
            requests.all_respond(kind.refused, PODS)
        requests.judge(f"restart {number}")
        sent += requests.sent
    return f"{sent} requests"


def renew(cluster, rollout: str) -> None:
    """Replaces the pods of the Gateway: a container that has been restarted before starts only after a while."""
    known = cluster.instances.all()
    cluster.apply(settings(rollout))
    are_new = lambda: not any(one in known for one in cluster.instances.present())  # noqa: E731
    wait_for("its pods are new", lambda: cluster.instances.are(PODS) and are_new())


def filler(instance: Instance) -> Path:
    """A file in the volume of a pod's copy."""
    return Path(f"/proc/{process(instance.pod)}/root/var/lib/portcullis/filler")


def fill(cluster, pods: list[Instance], name: str) -> None:
    """Leaves no room for copies, and waits until pods serve a change that does not fit into what is left of the last page."""
    for one in pods:
        with filler(one).open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 20))
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
    large = redirect(NS, name, [GATEWAY], "mark.test", f"/{name}")
    large["spec"]["rules"][0]["matches"] += [{"path": {"type": "PathPrefix", "value": f"/{name}/{number}/{'x' * 900}"}} for number in range(16)]
    cluster.apply(large)
    wait_for("the large change is served", lambda: all(status(one.address, f"/{name}") == 302 for one in pods))


def has_started_again(instance: Instance) -> bool:
    """Whether a restarted container is ready, or lacks a copy and has failed to reach a controller."""
    if not (instance.restarts and instance.is_running):
        return False
    connection = http.client.HTTPConnection(instance.address, 19000, timeout=5)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        text = answer.read()
        has_failed = b"waiting for the controller" in text and not any(it in text for it in (b": connecting", b"its first state is not complete"))
        return answer.status == 200 or has_failed
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@check(f"no request passes before a new AccessPolicy while pods are killed: {KILLS} policies, with a Secret that is known, new, or missing")
def pods_are_killed(cluster):
    """A pod protects from its first response: it gets a policy with what this refers to, or as one that refuses, in the commit that
    has its route, or in an earlier one. The case fails if a new pod serves before it has everything, if a controller sends a whole
    state with a policy left out whose Secret is not fetched, if the copy of a restarted container has a part of a commit, or if the
    pod that stays applies the route before the policy."""
    return disturbed(cluster, Access(), KILLS, kill_pod)


@check(f"no request passes before a new AccessPolicy while the leader is killed: {TAKEOVERS} policies, the first one with a Secret that is missing")
def leader_is_killed(cluster):
    """Each controller sends a route only once its own watches have all policies that are older. The case fails if pods that move
    to the other controller, or to one that starts, get a state of it in which the policy is missing, because its watches of two kinds
    are at different places or it has not fetched the Secret."""
    return disturbed(cluster, Access(), TAKEOVERS, kill_leader)


@check("no request passes once a stricter AccessPolicy is said to be in force, at each stage of a rollout of the Gateway's pods")
def pods_are_rolled(cluster):
    """Accepted and Programmed of a policy and Programmed of its Gateway mean that every ready pod applies it. Pods that end or have
    just become ready are not waited for, and follow by themselves. The case fails if the conditions are written before all ready pods
    have reported the change, if a new pod becomes ready with an older state of another controller, or if a pod that ends does not
    follow changes while it serves."""
    return rolled(cluster, Access())


@check(f"no request passes once a stricter AccessPolicy is said to be in force, in containers that are killed then and start without a controller: {RESTARTS} times")
def containers_are_killed(cluster):
    """Accepted and Programmed of a policy mean that no container starts with what was before. The case fails if a pod reports a change
    before its copy has it, or if the copy of an older state is left when a later one cannot be written."""
    return restarted(cluster, Access())
