"""The objects of a Gateway in its namespace: created, repaired, updated and deleted with it."""

from api import condition, has, wait_for
from checks import check
from cluster import GATEWAY_LABEL, SYSTEM, answers
from objects import echo, gateway, gateway_class, namespace, parameters, parameters_ref, redirect, to_backend

NS = "provisioning"
KINDS = ["ServiceAccount", "ConfigMap", "Service", "PodDisruptionBudget", "Deployment"]
ALL_KINDS = [*KINDS, "DaemonSet", "HorizontalPodAutoscaler", "NetworkPolicy"]
MANAGED = "app.kubernetes.io/managed-by=portcullis-controller"
NAME = "web-portcullis"


def prepare(cluster):
    cluster.apply(namespace(NS), gateway(NS, "web"), redirect(NS, "web", ["web"], "web.test"))
    cluster.gateway_is(NS, "web")


def named(kind: str) -> str:
    """Name of that object of Gateway `web`."""
    return f"{NAME}-controller-ca" if kind == "ConfigMap" else NAME


def children(cluster, name: str, kinds: list[str] = ALL_KINDS) -> dict[str, list[dict]]:
    """Objects of a Gateway by kind. Omits kinds without objects."""
    found = {kind: cluster.api.list(kind, NS, f"{GATEWAY_LABEL}={name},{MANAGED}") for kind in kinds}
    return {kind: objects for kind, objects in found.items() if objects}


def accepted(cluster, name: str, status: str) -> None:
    def look():
        found = cluster.api.get("Gateway", name, NS)
        return has(found.get("status", {}).get("conditions", []), "Accepted", status, found["metadata"]["generation"])

    wait_for(f"Gateway {name} has Accepted {status}", look, 10)


@check("a Gateway gets owned and labelled objects, which are deleted with it")
def made_and_taken_away(cluster):
    cluster.apply(gateway(NS, "brief"))
    cluster.gateway_is(NS, "brief")
    owner = cluster.api.get("Gateway", "brief", NS)["metadata"]["uid"]
    found = children(cluster, "brief")
    assert sorted(found) == sorted(KINDS), f"it has {sorted(found)}"
    for kind, objects in found.items():
        names = [one["metadata"]["name"] for one in objects]
        assert names == ["brief-portcullis-controller-ca" if kind == "ConfigMap" else "brief-portcullis"], (kind, names)
        metadata = objects[0]["metadata"]
        owners = metadata["ownerReferences"]
        assert [one["uid"] for one in owners if one["controller"]] == [owner], f"{kind} belongs to {owners}"
        assert metadata["labels"]["gateway.networking.k8s.io/gateway-class-name"] == "portcullis", kind
    cluster.api.delete("Gateway", "brief", NS)
    # The garbage collector of a new cluster discovers new kinds after some time.
    wait_for("its objects are gone", lambda: not children(cluster, "brief"), 60)


@check("an object of another owner with a required name is not changed, and the Gateway reports it")
def not_taken_over(cluster):
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "taken-portcullis", "namespace": NS}}
    cluster.apply(account, gateway(NS, "taken"))

    def look():
        conditions = cluster.api.get("Gateway", "taken", NS).get("status", {}).get("conditions", [])
        return "belongs to another owner" in condition(conditions, "Programmed").get("message", "")

    wait_for("the Gateway says so", look, 10)
    metadata = cluster.api.get("ServiceAccount", "taken-portcullis", NS)["metadata"]
    assert "ownerReferences" not in metadata and "labels" not in metadata, metadata
    cluster.api.delete("ServiceAccount", "taken-portcullis", NS)
    cluster.gateway_is(NS, "taken")
    cluster.api.delete("Gateway", "taken", NS)


@check("deleted objects are recreated within seconds")
def comes_back(cluster):
    for kind in KINDS:
        before = cluster.api.get(kind, named(kind), NS)["metadata"]["uid"]
        cluster.api.delete(kind, named(kind), NS)

        def look():
            found = cluster.api.get(kind, named(kind), NS)
            return found and found["metadata"]["uid"] != before

        wait_for(f"the {kind} is there again", look, 5)
    cluster.gateway_is(NS, "web")


@check("changed objects are repaired within seconds")
def put_right(cluster):
    def service():
        return cluster.api.get("Service", NAME, NS)

    ports = [{"name": "port-8080", "port": 1234, "targetPort": 1, "protocol": "TCP"}]
    cluster.api.patch("Service", NAME, NS, {"spec": {"ports": ports}})
    wait_for("the Service has its port", lambda: [port["port"] for port in service()["spec"]["ports"]] == [8080], 5)
    cluster.api.patch("Service", NAME, NS, {"metadata": {"labels": {GATEWAY_LABEL: None}}})
    wait_for("the Service has its label", lambda: service()["metadata"]["labels"].get(GATEWAY_LABEL) == "web", 5)
    name = named("ConfigMap")
    before = cluster.api.get("ConfigMap", name, NS)["data"]
    cluster.api.patch("ConfigMap", name, NS, {"data": {"ca.crt": "somebody else's"}})
    wait_for("the ConfigMap has the CA", lambda: cluster.api.get("ConfigMap", name, NS)["data"] == before, 5)
    cluster.api.patch("Deployment", NAME, NS, {"spec": {"replicas": 5}})
    wait_for("the Deployment has its replicas", lambda: cluster.api.get("Deployment", NAME, NS)["spec"]["replicas"] == 2, 5)


@check("an object that loses the watched label or its owner is repaired within seconds")
def watched_by_label(cluster):
    # Two objects: the repairs of the checks before count, and too many of one object delay the next.
    key, account = "app.kubernetes.io/managed-by", named("ServiceAccount")
    cluster.api.patch("Service", NAME, NS, {"metadata": {"labels": {key: None}}})
    wait_for("the Service has its label", lambda: cluster.api.get("Service", NAME, NS)["metadata"]["labels"].get(key), 5)
    cluster.api.patch("ServiceAccount", account, NS, {"metadata": {"ownerReferences": None}})
    wait_for("the ServiceAccount has its owner", lambda: cluster.api.get("ServiceAccount", account, NS)["metadata"].get("ownerReferences"), 5)


@check("infrastructure labels and annotations reach all objects, and follow changes")
def infrastructure(cluster):
    def everywhere(labels: dict, absent: str | None = None):
        def look():
            metadata = [one["metadata"] for objects in children(cluster, "web").values() for one in objects]
            metadata.append(cluster.api.get("Deployment", NAME, NS)["spec"]["template"]["metadata"])
            return all(
                labels.items() <= one.get(field, {}).items() and absent not in one.get(field, {})
                for one in metadata
                for field in ("labels", "annotations")
            )

        wait_for(f"{labels} everywhere, and {absent} nowhere", look, 5)

    for values, absent in ({"test-one": "1"}, None), ({"test-two": "2"}, "test-one"):
        cluster.apply(gateway(NS, "web", labels=values, annotations=values))
        everywhere(values, absent)
    cluster.apply(gateway(NS, "web"))
    everywhere({}, "test-two")


@check("a listener on another port opens it in the Service, and in the pods without replacing them")
def another_port(cluster):
    before = {pod["metadata"]["name"] for pod in cluster.replicas(NS, "web", 2, 40)}
    cluster.apply(gateway(NS, "web", (8080, 8443, 80)))
    cluster.gateway_is(NS, "web")
    address = cluster.address(NS, "web")
    for port in 8080, 8443, 80:
        wait_for(f"port {port} answers", lambda: answers(address, port, "web.test"), 5)
    after = {pod["metadata"]["name"] for pod in cluster.replicas(NS, "web", 2)}
    assert before == after, f"pods were {before} and are {after}"
    cluster.apply(gateway(NS, "web"))
    ports = lambda: [port["port"] for port in cluster.api.get("Service", NAME, NS)["spec"]["ports"]]  # noqa: E731
    wait_for("the Service has one port again", lambda: ports() == [8080], 5)


@check("a change to another controller's class deletes the objects; changing back recreates them")
def another_class(cluster):
    cluster.apply(gateway_class("foreign", "example.com/other"), gateway(NS, "turncoat"))
    cluster.gateway_is(NS, "turncoat")
    cluster.apply(gateway(NS, "turncoat", class_name="foreign"))
    wait_for("its objects are gone", lambda: not children(cluster, "turncoat"), 10)
    cluster.apply(gateway(NS, "turncoat"))
    cluster.gateway_is(NS, "turncoat")
    cluster.api.delete("Gateway", "turncoat", NS)


@check("parameters roll out: replicas, DaemonSet, autoscaler and back")
def parameters_roll_out(cluster):
    def workloads():
        return sorted(set(children(cluster, "tuned")) - {"ConfigMap", "Service", "ServiceAccount", "PodDisruptionBudget"})

    autoscaling = {"minReplicas": 1, "maxReplicas": 2}
    cluster.apply(parameters(NS, "tuned", workload={"replicas": 1}), gateway(NS, "tuned", parametersRef=parameters_ref("tuned")))
    cluster.gateway_is(NS, "tuned")
    assert "PodDisruptionBudget" not in children(cluster, "tuned"), "a single pod has a budget"
    cluster.apply(parameters(NS, "tuned", autoscaling=autoscaling))
    wait_for("there is an autoscaler", lambda: workloads() == ["Deployment", "HorizontalPodAutoscaler"], 5)
    cluster.apply(parameters(NS, "tuned", workload={"kind": "DaemonSet"}))
    wait_for("there is a DaemonSet alone", lambda: workloads() == ["DaemonSet"], 60)
    cluster.apply(parameters(NS, "tuned", log={"level": "debug"}, workload={"replicas": 1}))
    wait_for("there is a Deployment alone", lambda: workloads() == ["Deployment"], 60)
    arguments = cluster.api.get("Deployment", "tuned-portcullis", NS)["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--log-level=debug" in arguments, arguments
    cluster.api.delete("Gateway", "tuned", NS)


def lose_parameters(cluster, name: str) -> str:
    """Creates a Gateway, waits until it serves, and deletes its parameters. Returns its address."""
    cluster.apply(
        parameters(NS, name, workload={"replicas": 1}),
        gateway(NS, name, parametersRef=parameters_ref(name)),
        redirect(NS, name, [name], f"{name}.test"),
    )
    cluster.gateway_is(NS, name)
    address = cluster.address(NS, name)
    wait_for("it answers", lambda: answers(address, 8080, f"{name}.test"), 10)
    cluster.api.delete("GatewayParameters", name, NS)
    accepted(cluster, name, "False")
    return address


@check("a Gateway with deleted parameters reports it, and keeps its objects and pods")
def lost_parameters(cluster):
    address = lose_parameters(cluster, "orphan")
    status = cluster.api.get("Gateway", "orphan", NS)["status"]
    assert condition(status["conditions"], "Accepted")["reason"] == "InvalidParameters", status
    # External DNS controllers would remove the record otherwise.
    assert [one["value"] for one in status.get("addresses", [])] == [address], f"its addresses are {status.get('addresses')}"
    before = {kind: [one["metadata"]["uid"] for one in objects] for kind, objects in children(cluster, "orphan").items()}
    # Forces a new reconciliation: another Gateway is created and deleted.
    cluster.apply(gateway(NS, "other"))
    cluster.gateway_is(NS, "other")
    cluster.api.delete("Gateway", "other", NS)
    wait_for("the other's objects are gone", lambda: not children(cluster, "other"), 10)
    after = {kind: [one["metadata"]["uid"] for one in objects] for kind, objects in children(cluster, "orphan").items()}
    assert before == after and "Deployment" in after, f"they were {before} and are {after}"
    cluster.replicas(NS, "orphan", 1)
    cluster.apply(parameters(NS, "orphan", workload={"replicas": 1}))
    cluster.gateway_is(NS, "orphan")
    wait_for("it answers again", lambda: answers(address, 8080, "orphan.test"), 10)
    cluster.api.delete("Gateway", "orphan", NS)


@check("a Gateway with deleted parameters keeps serving")
def lost_parameters_serving(cluster):
    address = lose_parameters(cluster, "bereft")
    try:
        for _ in range(20):
            assert answers(address, 8080, "bereft.test"), "it does not respond any more"
    finally:
        cluster.api.delete("Gateway", "bereft", NS)


@check("a Gateway of a class on the host network has the node's address and a privileged port")
def on_host(cluster):
    cluster.apply(
        parameters(SYSTEM, "host", workload={"replicas": 1, "hostNetwork": True}),
        gateway_class("host", parametersRef={**parameters_ref("host"), "namespace": SYSTEM}),
        gateway(NS, "host", (81,), class_name="host"),
        redirect(NS, "host", ["host"], "host.test"),
    )
    cluster.gateway_is(NS, "host")
    wait_for("it answers", lambda: answers("172.31.255.1", 81, "host.test"), 10)
    cluster.api.delete("Gateway", "host", NS)


@check("a Gateway whose parameters ask for root on nodes gets nothing, and its condition names fields and flags")
def refused_parameters(cluster):
    workload = {
        "kind": "DaemonSet",
        "hostNetwork": True,
        "image": "evil.example/root",
        "priorityClassName": "system-node-critical",
        "tolerations": [{"operator": "Exists"}],
        "annotations": {"iam.amazonaws.com/role": "admin"},
        "env": [{"name": "LD_PRELOAD", "value": "/mnt/own/own.so"}],
        "volumes": [{"name": "own", "configMap": {"name": "own"}}],
        "patch": {"spec": {"template": {"spec": {"initContainers": [{"name": "root", "image": "evil.example/root"}]}}}},
    }
    cluster.apply(parameters(NS, "greedy", workload=workload, networkPolicy={}), gateway(NS, "greedy", (443,), parametersRef=parameters_ref("greedy")))
    accepted(cluster, "greedy", "False")
    found = condition(cluster.api.get("Gateway", "greedy", NS)["status"]["conditions"], "Accepted")
    assert found["reason"] == "InvalidParameters" and f"GatewayParameters {NS}/greedy" in found["message"], found
    for field, flag in (
        ("image", "--allow-image"),
        ("hostNetwork", "--allow-host-network"),
        ("priorityClassName", "--allow-priority-class"),
        ("tolerations[0]", "--allow-toleration"),
        ("annotations[iam.amazonaws.com/role]", "--allow-annotation"),
        ("env[LD_PRELOAD]", "--allow-env"),
        ("volumes[own].configMap", "--allow-volume"),
        ("initContainers.image", "--allow-patch"),
        ("networkPolicy", "--allow-network-policy"),
    ):
        assert field in found["message"] and flag in found["message"], (field, found)
    # A later Gateway is provisioned: the refused one had its turn.
    cluster.apply(gateway(NS, "other"))
    cluster.gateway_is(NS, "other")
    assert not children(cluster, "greedy"), f"it has {sorted(children(cluster, 'greedy'))}"
    cluster.api.delete("Gateway", "other", NS)
    cluster.api.delete("Gateway", "greedy", NS)


@check("a Gateway whose parameters become refused keeps its objects and pods, and serves")
def refused_later(cluster):
    cluster.apply(
        parameters(NS, "later", workload={"replicas": 1}),
        gateway(NS, "later", parametersRef=parameters_ref("later")),
        redirect(NS, "later", ["later"], "later.test"),
    )
    cluster.gateway_is(NS, "later")
    address = cluster.address(NS, "later")
    pods = {pod["metadata"]["uid"] for pod in cluster.replicas(NS, "later", 1)}
    cluster.apply(parameters(NS, "later", workload={"replicas": 1, "image": "evil.example/root"}))
    accepted(cluster, "later", "False")
    wait_for("it answers", lambda: answers(address, 8080, "later.test"), 10)
    assert pods == {pod["metadata"]["uid"] for pod in cluster.replicas(NS, "later", 1)}, "its pods are replaced"
    cluster.api.delete("Gateway", "later", NS)


@check("pods, Service and autoscaler have what the parameters of a class say, with its patches")
def every_field(cluster):
    term = {"topologyKey": "kubernetes.io/hostname"}
    workload = {
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}},
        "env": [{"name": "COLOUR", "value": "blue"}],
        "volumes": [{"name": "notes", "configMap": {"name": "notes", "optional": True}}],
        "volumeMounts": [{"name": "notes", "mountPath": "/mnt/notes", "readOnly": True}],
        "patch": {"spec": {"minReadySeconds": 1, "template": {"spec": {"dnsConfig": {"options": [{"name": "ndots", "value": "1"}]}}}}},
    }
    service = {
        "ipFamilyPolicy": "PreferDualStack",
        "ipFamilies": ["IPv4"],
        "patch": {"spec": {"sessionAffinity": "ClientIP", "ports": [{"port": 8080, "nodePort": 30808}, {"port": 19000, "nodePort": 30900}]}},
    }
    metric = {"type": "Resource", "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 90}}}
    autoscaling = {"minReplicas": 1, "maxReplicas": 2, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}, "metrics": [metric]}
    cluster.apply(
        parameters(SYSTEM, "full", workload=workload, service=service, autoscaling=autoscaling),
        gateway_class("full", parametersRef={**parameters_ref("full"), "namespace": SYSTEM}),
        gateway(NS, "full", class_name="full"),
        redirect(NS, "full", ["full"], "full.test"),
    )
    cluster.gateway_is(NS, "full")
    assert answers(cluster.address(NS, "full"), 8080, "full.test"), "it does not answer"
    found = {kind: objects[0]["spec"] for kind, objects in children(cluster, "full").items() if "spec" in objects[0]}
    deployment, pods = found["Deployment"], found["Deployment"]["template"]["spec"]
    container = pods["containers"][0]
    assert {"name": "COLOUR", "value": "blue"} in container["env"], container["env"]
    assert "/mnt/notes" in [mount["mountPath"] for mount in container["volumeMounts"]], container["volumeMounts"]
    assert deployment["minReadySeconds"] == 1 and pods["dnsConfig"], deployment
    (preferred,) = pods["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert GATEWAY_LABEL in preferred["podAffinityTerm"]["labelSelector"]["matchLabels"], preferred
    (port,) = found["Service"]["ports"]
    assert (port["port"], port["nodePort"], found["Service"]["sessionAffinity"]) == (8080, 30808, "ClientIP"), found["Service"]
    assert found["Service"]["ipFamilyPolicy"] == "PreferDualStack", found["Service"]
    autoscaler = found["HorizontalPodAutoscaler"]
    assert autoscaler["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 60, autoscaler
    assert [one["resource"]["name"] for one in autoscaler["metrics"]] == ["memory"], autoscaler


@check("pods have a NetworkPolicy for the ports of listeners while the parameters say so, and it goes with them")
def network_policy(cluster):
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    cluster.apply(
        parameters(SYSTEM, "closed", workload={"replicas": 1}, networkPolicy={"metricsFrom": peers}),
        gateway_class("closed", parametersRef={**parameters_ref("closed"), "namespace": SYSTEM}),
        gateway(NS, "closed", (8080, 80), class_name="closed"),
    )
    cluster.gateway_is(NS, "closed")
    (policy,) = children(cluster, "closed")["NetworkPolicy"]
    listeners, metrics, pods = policy["spec"]["ingress"]
    assert sorted(port["port"] for port in listeners["ports"]) == [8080, 64592] and "from" not in listeners, listeners
    assert [port["port"] for port in metrics["ports"]] == [19000] and metrics["from"] == peers, metrics
    own = [{"podSelector": policy["spec"]["podSelector"]}]
    assert [port["port"] for port in pods["ports"]] == [19001] and pods["from"] == own, pods
    selector = policy["spec"]["podSelector"]["matchLabels"]
    (pod,) = cluster.replicas(NS, "closed", 1)
    assert selector.items() <= pod["metadata"]["labels"].items(), (selector, pod["metadata"]["labels"])
    cluster.api.patch("GatewayParameters", "closed", SYSTEM, {"spec": {"networkPolicy": None}})
    wait_for("the policy is removed", lambda: "NetworkPolicy" not in children(cluster, "closed"), 10)
    assert pod["metadata"]["uid"] == cluster.replicas(NS, "closed", 1)[0]["metadata"]["uid"], "its pod is replaced"
    cluster.api.delete("Gateway", "closed", NS)


@check("a patch that the API server refuses is named in Programmed, and the last good Deployment keeps serving")
def refused_patch(cluster):
    def patched(spec: dict) -> dict:
        return parameters(SYSTEM, "patched", workload={"replicas": 1, "patch": {"spec": {"template": {"spec": spec}}}})

    cluster.apply(
        patched({"terminationGracePeriodSeconds": 40}),
        gateway_class("patched", parametersRef={**parameters_ref("patched"), "namespace": SYSTEM}),
        gateway(NS, "patched", class_name="patched"),
        redirect(NS, "patched", ["patched"], "patched.test"),
    )
    cluster.gateway_is(NS, "patched")
    address = cluster.address(NS, "patched")
    pods = {pod["metadata"]["uid"] for pod in cluster.replicas(NS, "patched", 1)}
    for spec, rule in (({"dnsPolicy": "Never"}, "spec.template.spec.dnsPolicy"), ({"hostAliases": [{"ip": 5}]}, "ip")):
        cluster.apply(patched(spec))

        def is_named() -> bool:
            conditions = cluster.api.get("Gateway", "patched", NS)["status"]["conditions"]
            message = condition(conditions, "Programmed")["message"]
            return f"Deployment {NS}/patched-patched cannot be applied" in message and rule in message

        wait_for(f"Programmed names {rule}", is_named, 10)
        assert answers(address, 8080, "patched.test"), "it does not answer"
    cluster.apply(patched({"serviceAccountName": "default"}))
    accepted(cluster, "patched", "False")
    message = condition(cluster.api.get("Gateway", "patched", NS)["status"]["conditions"], "Accepted")["message"]
    assert "spec.template.spec.serviceAccountName belongs to the controller" in message, message
    assert answers(address, 8080, "patched.test"), "it does not answer"
    assert pods == {pod["metadata"]["uid"] for pod in cluster.replicas(NS, "patched", 1)}, "its pods are replaced"
    cluster.api.delete("Gateway", "patched", NS)


@check("routes of every kind get a status")
def every_route(cluster):
    cluster.apply(*echo(NS, "echo"))
    kinds = "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"
    for kind in kinds:
        route = to_backend(NS, "any", ["web"], "echo", kind)
        if kind == "TLSRoute":
            route["spec"]["hostnames"] = ["tls.test"]
        cluster.apply(route)
    for kind in kinds:
        wait_for(f"{kind} has a status", lambda: cluster.api.get(kind, "any", NS).get("status", {}).get("parents"), 10)
        cluster.api.delete(kind, "any", NS)
