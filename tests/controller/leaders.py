"""Leader election of two controllers: only the leader writes; the other takes over when it resigns, dies or is suspended."""

import signal
import time

import audit
from api import has, wait_for
from checks import check
from cluster import CONTROLLER_PODS, SYSTEM, frozen, send
from objects import gateway, namespace, parameters, parameters_ref, redirect

NS = "leaders"
KILLS = 4


def prepare(cluster):
    cluster.apply(namespace(NS), gateway(NS, "edge"), parameters(NS, "one", workload={"replicas": 1}))
    cluster.gateway_is(NS, "edge")


def both(cluster) -> dict[str, dict]:
    """Waits for exactly two ready controller pods; returns them by name."""

    def look():
        ready = cluster.controllers()
        return len(ready) == len(cluster.api.list("Pod", SYSTEM, CONTROLLER_PODS)) == 2 and ready

    return {pod["metadata"]["name"]: pod for pod in wait_for("two controllers are ready", look, 40)}


def leader_of(cluster, pods: dict[str, dict]) -> str:
    return wait_for("one of them leads", lambda: cluster.leader() in pods and cluster.leader(), 20)


def works(cluster, name: str, seconds: float) -> None:
    """Checks that statuses are written: a new route is accepted."""
    cluster.apply(redirect(NS, name, ["edge"], "any.test"))

    def look():
        parents = cluster.api.get("HTTPRoute", name, NS).get("status", {}).get("parents", [])
        return parents and has(parents[0]["conditions"], "Accepted", "True")

    wait_for(f"route {name} is accepted", look, seconds)


def claims_to_lead(log: str) -> bool:
    elections = [line for line in log.splitlines() if "portcullis::status::lease" in line]
    return bool(elections) and elections[-1].endswith("is the leader now")


@check("one of two leads, and both are ready")
def one_leads(cluster):
    pods = both(cluster)
    leader = leader_of(cluster, pods)
    claims = [name for name in pods if claims_to_lead(cluster.log(name))]
    assert claims == [leader], f"{claims} report that they lead, and the Lease names {leader}"


@check("after SIGTERM of the leader another leads within 5 s")
def told_to_go(cluster):
    leader = leader_of(cluster, both(cluster))
    cluster.api.delete("Pod", leader, SYSTEM)
    wait_for("another leads", lambda: cluster.leader() not in {leader, ""}, 5)
    works(cluster, "after-term", 5)


@check("after the deletion of the leader's pod another leads within 10 s")
def dies(cluster):
    pods = both(cluster)
    leader = leader_of(cluster, pods)
    # A stopped process does not handle SIGTERM, so that it cannot release the Lease.
    send(pods[leader], signal.SIGSTOP)
    cluster.api.delete("Pod", leader, SYSTEM, grace=0)
    wait_for("another leads", lambda: cluster.leader() not in {leader, ""}, 9)
    works(cluster, "after-death", 5)


@check(f"a leader whose process is killed delays a new Gateway by no more than 10 s: {KILLS} times")
def is_killed(cluster):
    took = []
    for number in range(KILLS):
        pods = both(cluster)
        send(pods[leader_of(cluster, pods)], signal.SIGKILL)
        began = time.monotonic()
        name = f"after-kill-{number}"
        cluster.apply(gateway(NS, name, parametersRef=parameters_ref("one")))
        cluster.gateway_is(NS, name, seconds=10)
        took.append(time.monotonic() - began)
        cluster.api.delete("Gateway", name, NS)
    return ", ".join(f"{seconds:.1f} s" for seconds in took)


@check("after a suspension of the leader another leads within 10 s, and the former leader writes nothing when it resumes")
def stands_still(cluster):
    pods = both(cluster)
    leader = leader_of(cluster, pods)
    with frozen(pods[leader]):
        # Work for the suspended leader.
        cluster.apply(redirect(NS, "meanwhile", ["edge"], "any.test"))
        wait_for("another leads", lambda: cluster.leader() not in {leader, ""}, 9)
    wait_for("it says so", lambda: "is no longer the leader" in cluster.log(leader), 10)
    works(cluster, "after-thaw", 5)


@check("only the holder of the Lease has written at any time")
def only_the_holder(cluster):
    works(cluster, "finally", 10)
    # The audit log is written before the response, so that it contains all previous requests.
    holder, changes, strays = None, 0, []
    for event in audit.of_account(cluster.audit_log, SYSTEM, "portcullis-controller"):
        # Every replica creates TokenReviews, which change nothing.
        if event.verb not in audit.WRITES or event.resource == "tokenreviews":
            continue
        if event.resource == "leases":
            if event.code < 300:
                changes += event.pod != holder
                holder = event.pod
        elif event.pod != holder:
            strays.append(f"{event.pod} {event.verb} {event.resource} {event.name} at {event.time}, while {holder} leads")
    assert not strays, f"{len(strays)}: {strays[:3]}"
    return f"{changes} holders one after the other"
