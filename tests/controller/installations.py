"""Two installations in a cluster, with a class and a controllerName each: neither touches what is the other's, and a Gateway moves from
one to the other without a lost request."""

import subprocess
from contextlib import ExitStack

import guarded
from api import has, wait_for
from checks import check
from cluster import CONTROLLER_PODS, GATEWAY_LABEL, SYSTEM, answers
from leaders import both
from objects import CLASS, CONTROLLER, gateway, gateway_class, namespace, parameters, parameters_ref, redirect

NS = "installations"
OTHER_SYSTEM = "portcullis-internal"
OTHER_CLASS = "internal"
OTHER_CONTROLLER = "example.com/internal"
PLACES = {"ours": CLASS, "theirs": OTHER_CLASS}
CONTROLLERS = {CLASS: CONTROLLER, OTHER_CLASS: OTHER_CONTROLLER}
# What a controller creates for a Gateway: all have the name GATEWAY-CLASS.
CHILDREN = ("ServiceAccount", "Service", "Deployment", "PodDisruptionBudget")


def prepare(cluster):
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": OTHER_SYSTEM},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "portcullis-controller"},
        "subjects": [{"kind": "ServiceAccount", "name": "portcullis-controller", "namespace": OTHER_SYSTEM}],
    }
    cluster.apply(binding, gateway_class(OTHER_CLASS, OTHER_CONTROLLER))
    apply = ["kubectl", "apply", "--server-side", "-f", "-"]
    subprocess.run(apply, input=other_manifest(cluster).encode(), check=True, stdout=subprocess.DEVNULL)
    two_others(cluster)
    cluster.apply(namespace(NS), parameters(NS, "edge", drain={"delay": "2s", "deadline": "5s"}))
    for name, class_name in PLACES.items():
        cluster.apply(gateway(NS, name, class_name=class_name))
    cluster.apply(redirect(NS, "mark", list(PLACES), "mark-0.test"))
    for name in PLACES:
        cluster.gateway_is(NS, name)


def other_manifest(cluster) -> str:
    """The installation, in another namespace and with another controllerName. It shares the CRDs and the ClusterRole, and has its own
    class and binding."""
    shared = ("CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "GatewayClass")
    documents = cluster.manifest.read_text().split("\n---\n")
    own = [one for one in documents if not any(f"kind: {kind}" in one.splitlines() for kind in shared)]
    text = "\n---\n".join(own).replace(SYSTEM, OTHER_SYSTEM)
    before = "        - --concurrent-rollouts=1\n"
    assert text.count(before) == 1, "the controller has no argument --concurrent-rollouts"
    return text.replace(before, f"{before}        - --controller-name={OTHER_CONTROLLER}\n")


def two_others(cluster, without: frozenset[str] = frozenset()) -> None:
    """Waits for two ready controllers of the other installation, and none of these."""

    def look():
        pods = cluster.ready_pods(OTHER_SYSTEM, CONTROLLER_PODS)
        return len(pods) == 2 and not {pod["metadata"]["name"] for pod in pods} & without

    wait_for("two controllers of the other installation are ready", look)


def children(cluster, names: dict[str, str]) -> dict[tuple[str, str], str]:
    """UIDs of what the Gateways have, by kind and name."""
    found = {(kind, f"{name}-{class_name}"): cluster.api.get(kind, f"{name}-{class_name}", NS) for name, class_name in names.items() for kind in CHILDREN}
    return {key: one["metadata"]["uid"] for key, one in found.items() if one and "deletionTimestamp" not in one["metadata"]}


def marked(cluster, mark: str) -> None:
    """Changes a route of both, and waits until the pods of both serve it, and both have written its status."""
    cluster.apply(redirect(NS, "mark", list(PLACES), mark))
    for name in PLACES:
        for pod in cluster.ready_pods(NS, f"{GATEWAY_LABEL}={name}"):
            wait_for(f"{pod['metadata']['name']} serves {mark}", lambda: answers(pod["status"]["podIP"], 8080, mark))

    def look():
        route = cluster.api.get("HTTPRoute", "mark", NS)
        parents, generation = route.get("status", {}).get("parents", []), route["metadata"]["generation"]
        found = {one["parentRef"]["name"]: one["controllerName"] for one in parents}
        wanted = {name: CONTROLLERS[class_name] for name, class_name in PLACES.items()}
        return found == wanted and all(has(one["conditions"], "Accepted", "True", generation) for one in parents)

    wait_for(f"both controllers have accepted {mark}", look)


def versions(cluster) -> list[str]:
    """Versions of the objects that only one of them writes."""
    gateways = [cluster.api.get("Gateway", name, NS) for name in PLACES]
    classes = [cluster.api.get("GatewayClass", name) for name in PLACES.values()]
    return [one["metadata"]["resourceVersion"] for one in gateways + classes]


@check("both serve the Gateways of their class, also after all controllers were replaced, and neither changes what is the other's")
def side_by_side(cluster):
    marked(cluster, "mark-1.test")
    before = children(cluster, PLACES)
    assert len(before) == len(PLACES) * len(CHILDREN), before
    # A controller that starts looks at all objects that it may have created.
    ours, theirs = ({pod["metadata"]["name"] for pod in cluster.ready_pods(system, CONTROLLER_PODS)} for system in (SYSTEM, OTHER_SYSTEM))
    for system, names in ((SYSTEM, ours), (OTHER_SYSTEM, theirs)):
        for name in names:
            cluster.api.delete("Pod", name, system)
    two_others(cluster, frozenset(theirs))
    wait_for("the controllers are others", lambda: not set(both(cluster)) & ours)
    marked(cluster, "mark-2.test")
    number = 2
    for _ in range(3):
        # A pod that lags on a busy machine changes one of these times, and controllers that undo each other change all of them.
        calm = versions(cluster)
        for _ in range(5):
            number += 1
            marked(cluster, f"mark-{number}.test")
        if versions(cluster) == calm:
            break
    else:
        raise AssertionError("a status of a Gateway or a class changes without a cause")
    assert children(cluster, PLACES) == before, "objects of a Gateway were replaced"
    for name, class_name in PLACES.items():
        deployment = cluster.api.get("Deployment", f"{name}-{class_name}", NS)
        managers = {one["manager"] for one in deployment["metadata"]["managedFields"]}
        assert (OTHER_CONTROLLER in managers) == (class_name == OTHER_CLASS), f"{name} is managed by {managers}"


@check(f"a Gateway moves to the other installation under {guarded.RATE} requests a second: no request fails, and no policy is open")
def moved(cluster):
    before, after = {"old": CONTROLLER}, {"new": OTHER_CONTROLLER}
    cluster.apply(*guarded.objects(NS, ["old"]), gateway(NS, "old", parametersRef=parameters_ref("edge")))
    cluster.is_rolled_out(NS, "echo")
    guarded.in_force(cluster, NS, before)
    with ExitStack() as stack:
        old = stack.enter_context(guarded.Traffic(cluster, NS, "old"))
        old.are_refused()
        # What is permitted on a listener is decided when it opens: the routes and policies wait for the Gateway.
        cluster.apply(*guarded.routes(NS, ["old", "new"]))
        cluster.apply(gateway(NS, "new", class_name=OTHER_CLASS, parametersRef=parameters_ref("edge")))
        guarded.in_force(cluster, NS, before | after)
        cluster.replicas(NS, "new", guarded.PODS, guarded.SECONDS)
        with guarded.Traffic(cluster, NS, "new") as new:
            new.are_refused()
            # Clients have the new address.
            stack.close()
            old.judge("at the old address")
            cluster.apply(*guarded.routes(NS, ["new"]))
            cluster.api.delete("Gateway", "old", NS)
            wait_for("what the old Gateway had is deleted", lambda: not children(cluster, {"old": CLASS}))
            wait_for("its pods are gone", lambda: not cluster.api.list("Pod", NS, f"{GATEWAY_LABEL}=old"))
            guarded.in_force(cluster, NS, after)
            new.are_refused()
        new.judge("at the new address")
    return f"old: {old.figures()}; new: {new.figures()}"


@check("a Gateway whose class becomes one of the other installation gets objects of that one, and loses those that it had")
def other_class(cluster):
    cluster.apply(gateway(NS, "turns"))
    cluster.gateway_is(NS, "turns")
    for class_name, previous in ((OTHER_CLASS, CLASS), (CLASS, OTHER_CLASS)):
        cluster.apply(gateway(NS, "turns", class_name=class_name))
        wait_for(f"it has no objects of {previous}", lambda: not children(cluster, {"turns": previous}))
        cluster.gateway_is(NS, "turns")
        assert len(children(cluster, {"turns": class_name})) == len(CHILDREN), class_name
    cluster.api.delete("Gateway", "turns", NS)


@check("the other installation is removed, and the Gateways of the first one stay")
def removed(cluster):
    for name in ("theirs", "new"):
        cluster.api.delete("Gateway", name, NS)
    gone = lambda: not children(cluster, {"theirs": OTHER_CLASS, "new": OTHER_CLASS})  # noqa: E731
    wait_for("what its Gateways had is deleted", gone)
    cluster.api.delete("GatewayClass", OTHER_CLASS)
    wait_for("its class is deleted", lambda: not cluster.api.get("GatewayClass", OTHER_CLASS))
    cluster.api.delete("ClusterRoleBinding", OTHER_SYSTEM)
    cluster.api.delete("Namespace", OTHER_SYSTEM)
    wait_for("its namespace is deleted", lambda: not cluster.api.get("Namespace", OTHER_SYSTEM))
    cluster.gateway_is(NS, "ours")
    assert len(children(cluster, {"ours": CLASS})) == len(CHILDREN)
