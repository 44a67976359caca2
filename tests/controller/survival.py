"""Traffic and pods while controllers are killed, frozen, replaced or absent, and the admin port under a connection flood."""

import http.client
import signal
import socket
import time
from contextlib import ExitStack

from api import LEAST_SECONDS, wait_for
from checks import check
from cluster import GATEWAY_LABEL, SYSTEM, answers, frozen, is_ready, redirect_of, send
from objects import echo, gateway, namespace, redirect, to_backend
from traffic import Load

NS = "survival"
RATE = 1000
CONTROLLER = "portcullis-controller"


def prepare(cluster):
    route = redirect(NS, "mark", ["edge"], "v0.test", path="/mark")
    cluster.apply(namespace(NS), *echo(NS, "echo", 2), gateway(NS, "edge"), to_backend(NS, "echo", ["edge"], "echo"), route)
    cluster.gateway_is(NS, "edge")
    cluster.replicas(NS, "edge", 2)
    with Load(cluster.address(NS, "edge"), 8080, kept=0, fresh=1) as load:
        wait_for("its address leads there", lambda: load.backends, 10)


def both(cluster) -> list[dict]:
    def look():
        pods = cluster.controllers()
        return len(pods) == 2 and cluster.leader() in {pod["metadata"]["name"] for pod in pods} and pods

    return wait_for("there are two controllers, and one of them leads", look, 60)


def marked(cluster, mark: str) -> float:
    """Changes a route and waits until both pods serve it. Returns the duration."""
    began = time.monotonic()
    cluster.apply(redirect(NS, "mark", ["edge"], mark, path="/mark"))
    for pod in cluster.ready_pods(NS, f"{GATEWAY_LABEL}=edge"):
        follows = lambda: mark in redirect_of(pod["status"]["podIP"], 8080, "/mark")  # noqa: E731
        wait_for(f"{pod['metadata']['name']} follows", follows)
    return time.monotonic() - began


def load_on(cluster) -> Load:
    return Load(cluster.address(NS, "edge"), 8080, rate=RATE, kept=24, fresh=4)


@check(f"both controllers are killed under {RATE} requests a second: no request fails, and changes are applied")
def killed(cluster):
    pods = both(cluster)
    with load_on(cluster) as load:
        time.sleep(1)
        for pod in pods:
            send(pod, signal.SIGKILL)
        took = marked(cluster, "killed.test")
        time.sleep(2)
    return f"{load.verdict()}, p99 {load.latency(0.99):.1f} ms; a change was served after {took:.1f} s"


@check(f"both controllers are suspended for 8 s under {RATE} requests a second: no request fails, and changes are applied")
def stand_still(cluster):
    pods = both(cluster)
    with load_on(cluster) as load:
        with ExitStack() as stack:
            for pod in pods:
                stack.enter_context(frozen(pod))
            time.sleep(8)
        took = marked(cluster, "thawed.test")
        time.sleep(2)
    return f"{load.verdict()}, p99 {load.latency(0.99):.1f} ms; a change was served after {took:.1f} s"


@check(f"the leader is suspended under {RATE} requests a second: the other applies changes")
def leader_stands_still(cluster):
    leader = next(pod for pod in both(cluster) if pod["metadata"]["name"] == cluster.leader())
    with load_on(cluster) as load, frozen(leader):
        took = marked(cluster, "other.test")
    both(cluster)
    return f"{load.verdict()}; after {took:.1f} s"


@check(f"the controller is rolled under {RATE} requests a second: no request fails, and each change is applied")
def upgraded(cluster):
    both(cluster)
    deployment = lambda: cluster.api.get("Deployment", CONTROLLER, SYSTEM)  # noqa: E731
    with load_on(cluster) as load:
        annotation = {"rolled": str(time.time())}
        cluster.api.patch("Deployment", CONTROLLER, SYSTEM, {"spec": {"template": {"metadata": {"annotations": annotation}}}})

        def is_rolled():
            found = deployment()
            status = found.get("status", {})
            is_seen = status.get("observedGeneration") == found["metadata"]["generation"]
            return is_seen and all(status.get(field, 0) == 2 for field in ("replicas", "updatedReplicas", "availableReplicas"))

        worst, number, until = 0.0, 0, time.monotonic() + 180
        while not is_rolled():
            assert time.monotonic() < until, "the rollout does not end"
            number += 1
            worst = max(worst, marked(cluster, f"during-{number}.test"))
        worst = max(worst, marked(cluster, "rolled.test"))
        time.sleep(1)
    both(cluster)
    return f"{load.verdict()}; {number} changes meanwhile, the slowest after {worst:.1f} s"


def scale_controllers(cluster, replicas: int) -> None:
    cluster.api.patch("Deployment", CONTROLLER, SYSTEM, {"spec": {"replicas": replicas}})
    wait_for(f"there are {replicas} controllers", lambda: len(cluster.api.list("Pod", SYSTEM)) == replicas, 40)
    if replicas:
        both(cluster)


@check("without a controller a killed container is ready again with its configuration; a new pod waits and reports the reason")
def no_controller(cluster):
    both(cluster)
    marked(cluster, "last.test")
    scale_controllers(cluster, 0)
    try:
        pods = cluster.replicas(NS, "edge", 2)
        name, address = pods[0]["metadata"]["name"], pods[0]["status"]["podIP"]
        began = time.monotonic()
        send(pods[0], signal.SIGKILL)

        def is_back():
            pod = cluster.api.get("Pod", name, NS)
            return pod["status"]["containerStatuses"][0]["restartCount"] == 1 and is_ready(pod)

        wait_for("it is ready again", is_back, 10, every=0.02)
        took = time.monotonic() - began
        assert "last.test" in redirect_of(address, 8080, "/mark"), "it does not serve the last configuration"
        cluster.api.delete("Pod", pods[1]["metadata"]["name"], NS)
        labels, old = f"{GATEWAY_LABEL}=edge", {pod["metadata"]["name"] for pod in pods}

        def newcomer():
            fresh = [pod for pod in cluster.api.list("Pod", NS, labels) if pod["metadata"]["name"] not in old]
            running = [pod for pod in fresh if pod["status"].get("containerStatuses", [{}])[0].get("state", {}).get("running")]
            return running and running[0]

        fresh = wait_for("there is a new pod", newcomer, 20)
        reason = wait_for("it says why it waits", lambda: readiness(fresh), 10)
        assert "controller" in reason, reason
        assert not is_ready(cluster.api.get("Pod", fresh["metadata"]["name"], NS)), "it is ready"
    finally:
        scale_controllers(cluster, 2)
    cluster.replicas(NS, "edge", 2, 30)
    return f"after {took:.2f} s; the new pod says {reason!r}"


def ask(pod: dict, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(pod["status"]["podIP"], 19000, timeout=LEAST_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace").strip()
    finally:
        connection.close()


def readiness(pod: dict) -> str:
    """Why a pod is not ready; empty if it is ready or does not respond."""
    try:
        status, text = ask(pod, "/readyz")
    except OSError:
        return ""
    return "" if status == 200 else text


@check("a pod with an admin port full of idle connections stays ready, and remote clients cannot read the configuration")
def crowded_admin_port(cluster):
    pods = cluster.replicas(NS, "edge", 2)
    name, crowd = pods[0]["metadata"]["name"], []
    try:
        for _ in range(200):
            crowd.append(socket.create_connection((pods[0]["status"]["podIP"], 19000), timeout=LEAST_SECONDS))
        until, slowest = time.monotonic() + 8, 0.0
        while time.monotonic() < until:
            began = time.monotonic()
            assert ask(pods[0], "/healthz")[0] == 200, "/healthz does not return 200"
            slowest = max(slowest, time.monotonic() - began)
            assert is_ready(cluster.api.get("Pod", name, NS)), f"it is not ready: {readiness(pods[0])}"
            # A client that keeps reconnecting.
            for number, one in enumerate(crowd[:20]):
                one.close()
                crowd[number] = socket.create_connection((pods[0]["status"]["podIP"], 19000), timeout=LEAST_SECONDS)
            time.sleep(0.2)
    finally:
        for one in crowd:
            one.close()
    for path in "/config", "/", "/served":
        status, text = ask(pods[0], path)
        assert status in {403, 404} and "mark" not in text, f"{path}: {status} {text[:200]}"
    assert answers(pods[0]["status"]["podIP"], 8080, "") or ask(pods[0], "/metrics")[0] == 200
    return f"the slowest probe took {1000 * slowest:.0f} ms"
