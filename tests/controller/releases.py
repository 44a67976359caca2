"""Shifts requests between two installations of an unmodified chart with a ReleaseBackend."""

import http.client
import math
import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

from api import condition, has, wait_for
from checks import check, scaled
from cluster import frozen, metrics
from objects import backend_policy, gateway, namespace, release_backend, to_backend, to_releases
from survival import scale_controllers
from traffic import Load, status_of

NS = "releases"
OLD, NEW = "v41", "v42"
CHART = Path(__file__).resolve().parent / "chart.yaml"
RATE = 1000
COUNTED = scaled(8_000)
# Fewer requests are enough if one release gets all of them.
COUNTED_WHOLE = 5_000


def install(release: str) -> None:
    manifests = CHART.read_text().replace("RELEASE", release)
    command = ["kubectl", "apply", "-n", NS, "-f", "-"]
    subprocess.run(command, input=manifests.encode(), check=True, stdout=subprocess.DEVNULL)
    name = f"deployment/{release}-shop"
    command = ["kubectl", "rollout", "status", "-n", NS, name, "--timeout=60s"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def prepare(cluster):
    cluster.apply(namespace(NS), gateway(NS, "edge"))
    install(OLD)
    install(NEW)
    cluster.apply(weighted(0), to_releases(NS, "shop", ["edge"], "shop"))
    cluster.gateway_is(NS, "edge")
    cluster.replicas(NS, "edge", 2)
    with Load(cluster.address(NS, "edge"), 8080, kept=0, fresh=1) as load:
        wait_for("its address leads there", lambda: load.backends, 10)


def weighted(percent: int) -> dict:
    return release_backend(NS, "shop", f"{OLD}-shop", {OLD: 100 - percent, NEW: percent})


def shift(cluster, percent: int) -> None:
    """Sets the share of the new release and waits until all pods of the Gateway apply it."""
    cluster.apply(weighted(percent))
    for pod in cluster.replicas(NS, "edge", 2):
        wait_for(f"the new release has {percent} %", lambda: round(100 * share(pod, NEW), 6) == percent, 10)


def share(pod: dict, release: str) -> float:
    samples = metrics(pod).items()
    own = (value for name, value in samples if name.startswith("portcullis_upstream_release_share{") and f'release="{release}"' in name)
    return next(own, -1)


def count(load: Load, requests: int) -> dict[str, int]:
    """Waits for this number of further requests. Returns how many of them each release has served."""
    # Requests in flight may have started before the shift.
    time.sleep(0.2)
    before = dict(load.backends)
    wait_for(f"{requests} requests are answered", lambda: sum(load.backends.values()) - sum(before.values()) >= requests, 600)
    counts = {OLD: 0, NEW: 0}
    for pod, total in dict(load.backends).items():
        counts[pod.partition("-")[0]] += total - before.get(pod, 0)
    return counts


@check(f"an unmodified chart, installed twice, is shifted 0 → 1 → 50 → 100 → 0 % under {RATE} requests a second: no request fails")
def shifted(cluster):
    shares = []
    with Load(cluster.address(NS, "edge"), 8080, rate=RATE, kept=24, fresh=4) as load:
        for percent in (0, 1, 50, 100, 0):
            shift(cluster, percent)
            counts = count(load, COUNTED if 0 < percent < 100 else COUNTED_WHOLE)
            part = counts[NEW] / sum(counts.values())
            # Random choices differ by more than five standard deviations in one of a million runs.
            tolerance = 5 * math.sqrt(percent / 100 * (1 - percent / 100) / COUNTED)
            assert abs(part - percent / 100) <= tolerance, f"{percent} % is {100 * part:.3f} %: {counts}"
            shares.append(f"{100 * part:.2f}")
    return f"{' → '.join(shares)} %, {load.verdict()}"


@check("the status has the ready endpoints, weight and share of each release")
def status(cluster):
    shift(cluster, 25)

    def look():
        found = cluster.api.get("ReleaseBackend", "shop", NS)
        status = found.get("status", {})
        generation = found["metadata"]["generation"]
        is_good = all(has(status.get("conditions", []), kind, "True", generation) for kind in ("Accepted", "ResolvedRefs", "Programmed"))
        return is_good and status.get("releases")

    releases = wait_for("its conditions are true", look, 20)
    expected = [
        {"value": OLD, "ready": 2, "weight": 75, "effectivePercent": 75},
        {"value": NEW, "ready": 2, "weight": 25, "effectivePercent": 25},
    ]
    assert releases == expected, releases


@check("the status of a ReleaseBackend names the BackendPolicies on it, until they are deleted")
def affected(cluster):
    def affecting():
        conditions = cluster.api.get("ReleaseBackend", "shop", NS).get("status", {}).get("conditions", [])
        return condition(conditions, "portcullis.dev/BackendPolicyAffected").get("message", "")

    assert not affecting(), affecting()
    cluster.apply(backend_policy(NS, "turns", "shop", "portcullis.dev", "ReleaseBackend"))
    message = wait_for("the ReleaseBackend names the policy", affecting, 20)
    assert message == f"affected by BackendPolicy {NS}/turns", message
    cluster.api.delete("BackendPolicy", "turns", NS)
    wait_for("the ReleaseBackend names no policy", lambda: not affecting(), 20)


@check("a session that one pod of a Gateway began is continued by the other")
def sessions(cluster):
    route = to_backend(NS, "sessions", ["edge"], f"{OLD}-shop")
    route["spec"]["rules"][0] |= {
        "matches": [{"path": {"type": "Exact", "value": "/session"}}],
        "sessionPersistence": {"type": "Header", "sessionName": "X-Session"},
    }
    cluster.apply(route)
    addresses = [pod["status"]["podIP"] for pod in cluster.replicas(NS, "edge", 2)]
    tokens = [wait_for("a session begins", lambda: session(address), 20) for address in addresses]
    for token in tokens:
        for address in addresses:
            assert session(address, token) == "", "a pod does not accept the session of another one"
    assert session(addresses[0], "A" * 72), "a forged session is accepted"


def session(address: str, token: str = "") -> str:
    """The new session of a response; empty if it has none."""
    connection = http.client.HTTPConnection(address, 8080, timeout=5)
    try:
        connection.request("GET", "/session", headers={"X-Session": token} if token else {})
        answer = connection.getresponse()
        answer.read()
        return answer.getheader("X-Session") or ""
    finally:
        connection.close()


@check("while the leader is suspended, new pods of a release get their share")
def without_leader(cluster):
    shift(cluster, 50)
    leader = next(pod for pod in cluster.controllers() if pod["metadata"]["name"] == cluster.leader())
    with Load(cluster.address(NS, "edge"), 8080) as load, frozen(leader):
        cluster.api.patch("Deployment", f"{NEW}-shop", NS, {"spec": {"replicas": 4}})
        wait_for("four pods of the new release answer", lambda: sum(pod.startswith(NEW) for pod in load.backends) == 4, 30)
        counts = count(load, 3_000)
    part = counts[NEW] / sum(counts.values())
    # Five standard deviations for this number of requests.
    assert abs(part - 0.5) < 0.046, counts
    return f"{100 * part:.1f} % of {sum(counts.values())}, {load.verdict()}"


@check("a release without ready pods loses its share, and gets it back")
def short(cluster):
    shift(cluster, 50)
    # The chart has no preStop hook, so its pods terminate before the proxies are notified. Requests with a safe method are
    # retried.
    with Load(cluster.address(NS, "edge"), 8080, methods=("GET",)) as load:
        cluster.api.patch("Deployment", f"{NEW}-shop", NS, {"spec": {"replicas": 0}})
        pods = lambda: cluster.replicas(NS, "edge", 2)  # noqa: E731
        wait_for("the old release has everything", lambda: all(share(pod, OLD) == 1 for pod in pods()), 30)
        counts = count(load, 1_000)
        assert counts[NEW] == 0, counts
        cluster.api.patch("Deployment", f"{NEW}-shop", NS, {"spec": {"replicas": 2}})
        wait_for("the new release has its share", lambda: all(share(pod, NEW) == 0.5 for pod in pods()), 30)
    return load.figures()


@contextmanager
def on_its_own(cluster):
    """A data plane that watches the API server itself."""
    command = [cluster.program, "run", "--kubernetes", "--gateway", f"{NS}/edge", "--access-log", "off", "--log-level", "warn"]
    with subprocess.Popen(command, env={**os.environ, "PORTCULLIS_ADMIN": "off"}) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


def command(cluster, *arguments: str) -> subprocess.CompletedProcess:
    """Runs `portcullis shift` on the ReleaseBackend."""
    whole = [cluster.program, "shift", f"{NS}/shop", *arguments]
    return subprocess.run(whole, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)


@check("`portcullis shift` changes weights, names the owner of a weight, and shows the requests of each release")
def by_command(cluster):
    shift(cluster, 0)
    refused = command(cluster, f"{NEW}=25%")
    assert refused.returncode == 1 and "--force" in refused.stdout and "belongs to test" in refused.stdout, refused.stdout
    with Load(cluster.address(NS, "edge"), 8080) as load:
        done = command(cluster, f"{NEW}=25%", "--force", "--watch", "--for", "6s", "--window", "4s")
        assert done.returncode == 0, done.stdout
        shares = [line for line in done.stdout.splitlines() if f"release={NEW} " in line and "share=25%" in line]
        assert any("errors=0%" in line for line in shares), done.stdout
    for pod in cluster.replicas(NS, "edge", 2):
        assert share(pod, NEW) == 0.25
    return load.verdict()


@check("without a controller, a data plane that watches the cluster itself gives new pods of a release their share")
def without_controllers(cluster):
    shift(cluster, 50)
    scale_controllers(cluster, 0)
    try:
        with on_its_own(cluster):

            def serves():
                try:
                    return status_of("127.0.0.1", 8080) == 200
                except OSError:
                    return False

            wait_for("it serves", serves, 20)
            with Load("127.0.0.1", 8080) as load:
                cluster.api.patch("Deployment", f"{NEW}-shop", NS, {"spec": {"replicas": 5}})
                wait_for("five pods of the new release answer", lambda: sum(pod.startswith(NEW) for pod in load.backends) == 5, 30)
                counts = count(load, 3_000)
    finally:
        scale_controllers(cluster, 2)
    part = counts[NEW] / sum(counts.values())
    assert abs(part - 0.5) < 0.046, counts
    return f"{100 * part:.1f} % of {sum(counts.values())}, {load.verdict()}"


@check("`portcullis shift --abort-above` rolls back a release whose responses are errors")
def aborted(cluster):
    # The named port of its pods is closed: every attempt at the new release fails.
    ports = [{"name": "http", "containerPort": 3999, "protocol": "TCP"}]
    container = {"name": "shop", "ports": ports, "readinessProbe": None}
    cluster.api.patch("Deployment", f"{NEW}-shop", NS, {"spec": {"template": {"spec": {"containers": [{**broken(cluster), **container}]}}}})
    wait_for("its pods are replaced", lambda: rolled(cluster, f"{NEW}-shop"), 60)
    shift(cluster, 0)
    with Load(cluster.address(NS, "edge"), 8080, methods=("GET",)):
        done = command(cluster, f"{NEW}=50", f"{OLD}=50", "--force", "--watch", "--for", "40s", "--abort-above", "5%")
    assert done.returncode == 3, done.stdout
    releases = cluster.api.get("ReleaseBackend", "shop", NS)["spec"]["releases"]
    assert {one["value"]: one["weight"] for one in releases} == {OLD: 100, NEW: 0}, releases


def broken(cluster) -> dict:
    return cluster.api.get("Deployment", f"{NEW}-shop", NS)["spec"]["template"]["spec"]["containers"][0]


def rolled(cluster, name: str) -> bool:
    found = cluster.api.get("Deployment", name, NS)
    status, wanted = found.get("status", {}), found["spec"]["replicas"]
    is_seen = status.get("observedGeneration") == found["metadata"]["generation"]
    return is_seen and all(status.get(field, 0) == wanted for field in ("replicas", "updatedReplicas", "readyReplicas"))
