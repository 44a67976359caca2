"""Rollouts under load: of a backend, and of the Gateway's own pods. No request may fail."""

from api import wait_for
from checks import check, scaled
from objects import backend_policy, echo, gateway, namespace, parameters, parameters_ref, to_backend
from traffic import Load, status_of

NS = "rollouts"
OWN_ROLLOUTS = scaled(3)
ABRUPT_ROLLOUTS = scaled(5)
# A backend with graceful termination: it serves until the proxies have been notified.
SANE = {"lifecycle": {"preStop": {"sleep": {"seconds": 2}}}}


def prepare(cluster):
    patient = backend_policy(NS, "abrupt", "abrupt")
    patient["spec"]["connection"] = {"connectTimeout": "1m"}
    cluster.apply(
        namespace(NS),
        *echo(NS, "echo", 3, container=SANE, terminationGracePeriodSeconds=10),
        *echo(NS, "abrupt", 3, terminationGracePeriodSeconds=10),
        parameters(NS, "edge", drain={"delay": "2s", "deadline": "5s"}),
        gateway(NS, "edge", parametersRef=parameters_ref("edge")),
        gateway(NS, "abrupt", parametersRef=parameters_ref("edge")),
        to_backend(NS, "echo", ["edge"], "echo"),
        to_backend(NS, "abrupt", ["abrupt"], "abrupt"),
        # A request that waits for a connection to a deleted pod is lost: its client gives up before.
        patient,
    )
    for name, backend in (("edge", "echo"), ("abrupt", "abrupt")):
        cluster.gateway_is(NS, name)
        cluster.is_rolled_out(NS, backend)
        with Load(cluster.address(NS, name), 8080, kept=0, fresh=1) as load:
            wait_for("its address leads there", lambda: load.backends, 10)


def roll(cluster, name: str, number: int) -> None:
    annotation = {"rollout": str(number)}
    cluster.api.patch("Deployment", name, NS, {"spec": {"template": {"metadata": {"annotations": annotation}}}})
    cluster.is_rolled_out(NS, name)


@check("a backend is rolled again and again, and no request fails")
def backend(cluster):
    with Load(cluster.address(NS, "edge"), 8080) as load:
        for number in range(cluster.rollouts):
            roll(cluster, "echo", number)
    assert len(load.backends) >= 3 * cluster.rollouts, f"only {len(load.backends)} pods have responded"
    return f"{cluster.rollouts} rollouts, {load.verdict()} by {len(load.backends)} pods"


@check(f"a backend without preStop is rolled {ABRUPT_ROLLOUTS} times, and no request waits for a deleted pod")
def abrupt(cluster):
    with Load(cluster.address(NS, "abrupt"), 8080, methods=("GET",)) as load:
        for number in range(ABRUPT_ROLLOUTS):
            roll(cluster, "abrupt", number)
    figures = ", ".join(f"p{100 * share:g} {load.latency(share):.1f} ms" for share in (0.5, 0.9, 0.99, 0.999, 1))
    return f"{load.verdict()}, {figures}"


@check("a backend that is scaled to zero has no endpoint until it is scaled up")
def scaled_to_nothing(cluster):
    address = cluster.address(NS, "edge")
    cluster.api.patch("Deployment", "echo", NS, {"spec": {"replicas": 0}})
    wait_for("there is no pod", lambda: not cluster.api.list("Pod", NS, "app=echo"), 20)
    # One request may still wait for a pod that terminated just before the API server reported it.
    wait_for("nothing answers", lambda: status_of(address, 8080) == 503, 15)
    for pod in cluster.replicas(NS, "edge", 2):
        log = cluster.log(pod["metadata"]["name"], NS)
        assert "cannot be read" not in log, next(line for line in log.splitlines() if "cannot be read" in line)
    cluster.api.patch("Deployment", "echo", NS, {"spec": {"replicas": 3}})
    cluster.is_rolled_out(NS, "echo")
    wait_for("it answers", lambda: status_of(address, 8080) == 200, 5)


@check(f"the Gateway's own pods are rolled {OWN_ROLLOUTS} times, and no request fails")
def own(cluster):
    name = "edge-portcullis"
    with Load(cluster.address(NS, "edge"), 8080) as load:
        for number in range(OWN_ROLLOUTS):
            before = cluster.api.get("Deployment", name, NS)["metadata"]["generation"]
            workload = {"annotations": {"rollout": str(number)}}
            cluster.apply(parameters(NS, "edge", workload=workload, drain={"delay": "2s", "deadline": "5s"}))
            changed = lambda: cluster.api.get("Deployment", name, NS)["metadata"]["generation"] > before  # noqa: E731
            wait_for("the Deployment is changed", changed, 10)
            cluster.is_rolled_out(NS, name)
    return f"{OWN_ROLLOUTS} rollouts, {load.verdict()}"
