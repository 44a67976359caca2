"""Outages of the API server and of the controllers: traffic continues, nothing restarts, and changes take effect soon after."""

import time

from api import has, wait_for
from checks import check, scaled
from cluster import CONTROLLER_PODS, SYSTEM, answers, is_ready, metrics
from objects import echo, gateway, namespace, redirect, to_backend
from traffic import Load

NS = "outage"
AWAY_SECONDS = 15
# Without controllers, at least: two rollouts of each backend take that long or longer.
ALONE_SECONDS = scaled(15)
BACKENDS = ("echo", "second")
CONTROLLER = "portcullis-controller"
FALLBACKS = "portcullis_upstream_fallback_requests_total"
# It serves for some seconds after its endpoints are removed.
SANE = {"lifecycle": {"preStop": {"sleep": {"seconds": 2}}}}


def prepare(cluster):
    ports = (8080, 8081, 8082)
    cluster.apply(namespace(NS), gateway(NS, "edge", ports))
    for name, port in zip(BACKENDS, (8080, 8082), strict=True):
        cluster.apply(*echo(NS, name, 2, container=SANE, terminationGracePeriodSeconds=10), to_backend(NS, name, ["edge"], name))
        cluster.api.patch("HTTPRoute", name, NS, {"spec": {"parentRefs": [{"name": "edge", "sectionName": f"http-{port}"}]}})
    route = redirect(NS, "mark", ["edge"], "before.test")
    route["spec"]["parentRefs"][0]["sectionName"] = "http-8081"
    cluster.apply(route)
    cluster.gateway_is(NS, "edge")
    wait_for("it answers", lambda: answers(cluster.address(NS, "edge"), 8081, "before.test"), 20)


def states(cluster) -> dict[str, tuple[bool, int]]:
    """Readiness and restart count by Portcullis pod."""
    pods = cluster.api.list("Pod", NS) + cluster.api.list("Pod", SYSTEM, CONTROLLER_PODS)
    return {pod["metadata"]["name"]: (is_ready(pod), pod["status"]["containerStatuses"][0]["restartCount"]) for pod in pods}


def survive(cluster, verdict: str) -> str:
    """Cuts off all pods, changes a route, and waits until it is served and in the status."""
    wait_for("all are ready", lambda: all(ready for ready, _ in states(cluster).values()), 20)
    address, before = cluster.address(NS, "edge"), states(cluster)
    mark = f"{verdict}.test"
    with Load(address, 8080) as load:
        with cluster.without_api_server(verdict):
            until = time.monotonic() + AWAY_SECONDS
            cluster.api.patch(
                "HTTPRoute",
                "mark",
                NS,
                {"spec": {"rules": redirect(NS, "mark", ["edge"], mark)["spec"]["rules"]}},
            )
            while time.monotonic() < until:
                assert states(cluster) == before, f"pods were {before} and are {states(cluster)}"
                time.sleep(0.5)
        back = time.monotonic()
        wait_for("the change is served", lambda: answers(address, 8081, mark))
        served = time.monotonic() - back

        def is_said():
            route = cluster.api.get("HTTPRoute", "mark", NS)
            return has(route["status"]["parents"][0]["conditions"], "Accepted", "True", route["metadata"]["generation"])

        wait_for("the change is said to be served", is_said)
        said = time.monotonic() - back
    assert states(cluster) == before, f"pods were {before} and are {states(cluster)}"
    return f"{load.verdict()}; the change was served after {served:.1f} s and said after {said:.1f} s"


@check(f"an API server that refuses connections for {AWAY_SECONDS} s costs no request, and changes take effect afterwards")
def refuses(cluster):
    return survive(cluster, "reject")


@check(f"an API server that does not respond for {AWAY_SECONDS} s costs no request, and changes take effect afterwards")
def is_silent(cluster):
    return survive(cluster, "drop")


def roll(cluster, name: str, number: int) -> None:
    """Replaces all pods of a Deployment, and waits until the new ones are ready and the previous ones are gone."""
    annotation = {"rollout": str(number)}
    cluster.api.patch("Deployment", name, NS, {"spec": {"template": {"metadata": {"annotations": annotation}}}})

    def is_done():
        pods = cluster.api.list("Pod", NS, f"app={name}")
        return len(pods) == 2 and all(is_ready(pod) and pod["metadata"].get("annotations", {}).get("rollout") == str(number) for pod in pods)

    wait_for(f"{name} is rolled out", is_done, 30)


@check(f"both controllers are away for {ALONE_SECONDS} s, each backend is rolled twice, and no request fails")
def alone(cluster):
    address, pods = cluster.address(NS, "edge"), cluster.replicas(NS, "edge", 2)

    def total(metric: str) -> float:
        return sum(value for pod in pods for name, value in metrics(pod).items() if name.startswith(metric))

    loads = [Load(address, port, rate=100, methods=("GET",)) for port in (8080, 8082)]
    with loads[0], loads[1]:
        cluster.api.patch("Deployment", CONTROLLER, SYSTEM, {"spec": {"replicas": 0}})
        try:
            wait_for("no pod has a stream", lambda: total("portcullis_stream_connected") == 0, 20)
            until = time.monotonic() + ALONE_SECONDS
            for number in range(2):
                for name in BACKENDS:
                    roll(cluster, name, number)
            time.sleep(max(0, until - time.monotonic()))
            fallbacks = total(FALLBACKS)
        finally:
            cluster.api.patch("Deployment", CONTROLLER, SYSTEM, {"spec": {"replicas": 2}})
        wait_for("two controllers are ready", lambda: len(cluster.controllers()) == 2, 60)
        wait_for("all pods have a stream", lambda: total("portcullis_stream_connected") == 2, 20)
        time.sleep(2)
        after = total(FALLBACKS)
        time.sleep(2)
        assert total(FALLBACKS) == after, "requests still fall back although the stream is back"
    assert fallbacks > 0, "no request fell back"
    return f"{loads[0].verdict()}; {loads[1].verdict()}; {fallbacks:.0f} fell back"
