"""Outage of the API server: traffic continues, nothing restarts, and changes take effect soon after."""

import time

from api import has, wait_for
from checks import check
from cluster import CONTROLLER_PODS, SYSTEM, answers, is_ready
from objects import echo, gateway, namespace, redirect, to_backend
from traffic import Load

NS = "outage"
AWAY_SECONDS = 15


def prepare(cluster):
    cluster.apply(namespace(NS), *echo(NS, "echo", 2), gateway(NS, "edge", (8080, 8081)), to_backend(NS, "echo", ["edge"], "echo"))
    route = redirect(NS, "mark", ["edge"], "before.test")
    route["spec"]["parentRefs"][0]["sectionName"] = "http-8081"
    cluster.apply(route)
    cluster.api.patch("HTTPRoute", "echo", NS, {"spec": {"parentRefs": [{"name": "edge", "sectionName": "http-8080"}]}})
    cluster.gateway_is(NS, "edge")
    wait_for("it answers", lambda: answers(cluster.address(NS, "edge"), 8081, "before.test"), 20)


def states(cluster) -> dict[str, tuple[bool, int]]:
    """Readiness and restart count by Portcullis pod."""
    pods = cluster.api.list("Pod", NS) + cluster.api.list("Pod", SYSTEM, CONTROLLER_PODS)
    return {pod["metadata"]["name"]: (is_ready(pod), pod["status"]["containerStatuses"][0]["restartCount"]) for pod in pods}


def survive(cluster, verdict: str, seconds: float) -> str:
    """Cuts off all pods, changes a route, and waits until it is served and in the status, for at most `seconds`."""
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
        wait_for("the change is served", lambda: answers(address, 8081, mark), seconds)
        served = time.monotonic() - back

        def is_said():
            route = cluster.api.get("HTTPRoute", "mark", NS)
            return has(route["status"]["parents"][0]["conditions"], "Accepted", "True", route["metadata"]["generation"])

        wait_for("the change is said to be served", is_said, seconds)
        said = time.monotonic() - back
    assert states(cluster) == before, f"pods were {before} and are {states(cluster)}"
    return f"{load.verdict()}; the change was served after {served:.1f} s and said after {said:.1f} s"


@check(f"an API server that refuses connections for {AWAY_SECONDS} s costs no request, and changes take effect within 6 s")
def refuses(cluster):
    return survive(cluster, "reject", 6)


@check(f"an API server that does not respond for {AWAY_SECONDS} s costs no request, and changes take effect afterwards")
def is_silent(cluster):
    return survive(cluster, "drop", 50)
