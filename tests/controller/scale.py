"""Many Gateways on one controller: memory for their streams, and the latency of changes.

The pods are fake: real objects that are never scheduled, whose tokens another process presents. Runs only if selected
explicitly.
"""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from api import Api, wait_for
from checks import check
from cluster import GATEWAY_LABEL, SYSTEM, process
from objects import gateway, namespace, parameters, parameters_ref, redirect
from pods import FakePods, now, token_of

NS = "scale"
GATEWAYS, REPLICAS, CHANGES = int(os.environ.get("SCALE_GATEWAYS", "200")), 2, 200
MOST_MEGABYTES, MOST_MILLISECONDS = 150, 50


def resident(pod: dict) -> float:
    """Megabytes of memory of a pod's process."""
    status = Path(f"/proc/{process(pod)}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def prepare(cluster):
    """One controller, and the Gateways with their pods."""
    cluster.api.patch("Deployment", "portcullis-controller", SYSTEM, {"spec": {"replicas": 1}})
    wait_for("there is one controller", lambda: len(cluster.api.list("Pod", SYSTEM)) == 1 and cluster.controllers(), 60)
    nowhere = {"replicas": REPLICAS, "nodeSelector": {"no": "such"}}
    cluster.apply(namespace(NS), parameters(NS, "idle", workload=nowhere))
    names = [f"gateway-{number}" for number in range(GATEWAYS)]
    for name in names:
        cluster.apply(gateway(NS, name, parametersRef=parameters_ref("idle")), redirect(NS, name, [name], "first.test"))
    labels = "app.kubernetes.io/managed-by=portcullis-controller"
    count = GATEWAYS * REPLICAS
    wait_for("all have their pods", lambda: len(cluster.api.list("Pod", NS, labels)) == count, 180, every=1)
    cluster.fleet = {}
    for pod in cluster.api.list("Pod", NS, labels):
        cluster.fleet.setdefault(pod["metadata"]["labels"][GATEWAY_LABEL], []).append(pod)


def tokens(cluster) -> dict[str, list[tuple[str, str]]]:
    """By Gateway, the names of its pods and their tokens."""
    local = threading.local()

    def of(pod):
        if not hasattr(local, "cluster"):
            local.cluster = type("", (), {"api": Api()})()
        return pod["metadata"]["name"], token_of(local.cluster, pod)

    with ThreadPoolExecutor(8) as pool:
        return {name: list(pool.map(of, pods)) for name, pods in cluster.fleet.items()}


@check(f"{GATEWAYS} Gateways with {REPLICAS} pods each: a change reaches only its pods, within {MOST_MILLISECONDS} ms and with {MOST_MEGABYTES} MB of memory")
def streams(cluster):
    controller = wait_for("the controller leads", lambda: cluster.leader() and cluster.controllers(), 30)[0]
    before = resident(controller)
    fleet = tokens(cluster)
    with FakePods(cluster, controller["status"]["podIP"], brief=True, sources=True) as pods:
        began = time.monotonic()
        for name, members in fleet.items():
            for pod, token in members:
                pods.connect(pod, f"{NS}/{name}", token)
        for members in fleet.values():
            for pod, _ in members:
                wait_for(f"{pod} gets a commit", lambda: pods.commits(pod), 60)
        connected = time.monotonic() - began
        time.sleep(3)
        delays, strays = [], 0
        for number in range(CHANGES):
            name = f"gateway-{(number * 37) % GATEWAYS}"
            lines = {pod: len(all_of) for pod, all_of in pods.lines.items()}
            commits = {pod: len(pods.commits(pod)) for pod, _ in fleet[name]}
            start = now()
            cluster.apply(redirect(NS, name, [name], f"change-{number}.test"))
            for pod, count in commits.items():
                delays.append((pods.committed(pod, count)[0] - start) / 1e6)
            others = set(pods.lines) - set(commits)
            time.sleep(0.02)
            strays += sum(len(pods.lines[pod]) > lines[pod] for pod in others)
        assert not pods.ends, f"{len(pods.ends)} streams have ended: {list(pods.ends.items())[:3]}"
        memory = resident(controller)
    delays.sort()
    share = lambda part: delays[min(len(delays) - 1, int(len(delays) * part))]  # noqa: E731
    figures = f"{memory:.0f} MB ({before:.0f} MB without streams), all connected after {connected:.1f} s, "
    figures += f"changes after p50 {share(0.5):.1f}, p99 {share(0.99):.1f}, at most {delays[-1]:.1f} ms"
    assert not strays, f"{strays} streams of other Gateways got a commit; {figures}"
    assert memory <= MOST_MEGABYTES and share(0.99) <= MOST_MILLISECONDS, figures
    return figures
