"""The configuration stream: which pods may read it, and that it contains only the Gateway's own objects and keys."""

import base64

from api import Api, Refused, wait_for
from checks import check
from cluster import GATEWAY_LABEL, SYSTEM, metrics
from objects import gateway, https_listener, key_material, namespace, parameters, parameters_ref, redirect
from pods import PORT, FakePods, claims, now, token_of, with_claims

NS, OTHER = "streams", "streams-other"
LABELS = {"app.kubernetes.io/managed-by": "portcullis-controller", "gateway.networking.k8s.io/gateway-class-name": "portcullis"}
# Pods that are never scheduled have tokens but open no connections.
NOWHERE = {"no": "such"}


def secret_of(namespace: str, name: str) -> list[dict]:
    """Recognizable key material."""
    objects = key_material(namespace, name)
    objects[0]["stringData"] = {"tls.crt": f"crt-of-{namespace}-{name}", "tls.key": f"key-of-{namespace}-{name}"}
    return objects


def prepare(cluster):
    cluster.apply(namespace(NS), namespace(OTHER), *secret_of(NS, "a"), *secret_of(NS, "b"), *secret_of(OTHER, "far"))
    cluster.apply(parameters(NS, "idle", workload={"replicas": 1, "nodeSelector": NOWHERE}))
    for name, secret in ("a", "a"), ("b", "b"):
        one = gateway(NS, name, parametersRef=parameters_ref("idle"))
        one["spec"]["listeners"].append(https_listener(8443, secret))
        cluster.apply(one, redirect(NS, name, [name], f"{name}.test"))
    cluster.controller = controllers(cluster)[cluster.leader()]
    cluster.pod = {name: pod_of(cluster, name) for name in ("a", "b")}


def controllers(cluster) -> dict[str, str]:
    """Waits for a leader; returns the addresses of the controller pods by name."""

    def look():
        pods = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in cluster.controllers()}
        return len(pods) == 2 and cluster.leader() in pods and pods

    return wait_for("one of two controllers leads", look, 30)


def pod_of(cluster, name: str) -> dict:
    """A pod of the Gateway of this name."""
    labels = f"{GATEWAY_LABEL}={name}"
    return wait_for(f"Gateway {name} has a pod", lambda: cluster.api.list("Pod", NS, labels), 20)[0]


def pod(name: str, account: str, owner: dict | None = None, labels: dict | None = None) -> dict:
    """A pod of another user who may create pods."""
    metadata = {"namespace": NS, "name": name, "labels": labels or {}}
    if owner:
        reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
        metadata["ownerReferences"] = [{**reference, "controller": True, "blockOwnerDeletion": False}]
    spec = {"serviceAccountName": account, "nodeSelector": NOWHERE, "containers": [{"name": "c", "image": "host"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def account(name: str, owner: dict) -> dict:
    """A ServiceAccount with the controller's labels."""
    reference = {"apiVersion": owner["apiVersion"], "kind": "Gateway", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    metadata = {
        "namespace": NS,
        "name": name,
        "labels": {**LABELS, GATEWAY_LABEL: owner["metadata"]["name"]},
        "finalizers": ["example.com/stay"],
        "ownerReferences": [{**reference, "controller": True}],
    }
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}


@check("a pod receives its Gateway's objects and no keys of another Gateway")
def gets_its_own(cluster):
    with FakePods(cluster, cluster.controller) as pods:
        status, reason = pods.answer("a", f"{NS}/a", token_of(cluster, cluster.pod["a"]))
        assert status == 200, f"{status} {reason}"
        pods.committed("a")
        got, text = pods.puts("a"), pods.text("a")
        for expected in ("Gateway", NS, "a"), ("HTTPRoute", NS, "a"), ("Secret", NS, "a"), ("GatewayClass", "", "portcullis"):
            assert expected in got, f"{expected} is not among {sorted(got)}"
        for mine, theirs in ("key-of-streams-a", "key-of-streams-b"), ("crt-of-streams-a", "crt-of-streams-b"):
            forms = lambda value: (value, base64.b64encode(value.encode()).decode())  # noqa: E731
            assert any(form in text for form in forms(mine)), f"{mine} is missing, so the check proves nothing"
            assert not any(form in text for form in forms(theirs)), f"{theirs} is in it"
        foreign = {one for one in got if one[2] == "b"}
        assert not foreign, foreign
    return f"{len(got)} objects, {len(text)} bytes"


@check("a Secret of another namespace is streamed only while a ReferenceGrant exists")
def grant(cluster):
    reference = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "ReferenceGrant", "metadata": {"namespace": OTHER, "name": "far"}}
    reference["spec"] = {
        "from": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": NS}],
        "to": [{"group": "", "kind": "Secret", "name": "far"}],
    }
    far = gateway(NS, "c", parametersRef=parameters_ref("idle"))
    listener = https_listener(8443, "far")
    listener["tls"]["certificateRefs"][0]["namespace"] = OTHER
    far["spec"]["listeners"].append(listener)
    cluster.apply(far)
    with FakePods(cluster, cluster.controller) as pods:
        pods.connect("c", f"{NS}/c", token_of(cluster, pod_of(cluster, "c")))
        pods.committed("c")
        secret = ("Secret", OTHER, "far")
        assert secret not in pods.puts("c"), "the Secret is streamed without a grant"
        cluster.apply(reference)
        wait_for("it comes", lambda: secret in pods.puts("c"), 5)
        cluster.api.delete("ReferenceGrant", "far", OTHER)
        wait_for("it is taken back", lambda: secret in pods.deletes("c"), 5)
        cluster.api.delete("Gateway", "c", NS)
        wait_for("the stream ends with the Gateway", lambda: "c" in pods.ends, 10)


@check("a change arrives as one commit, only at the pods of its Gateway")
def follows(cluster):
    with FakePods(cluster, cluster.controller) as pods:
        for name in "a", "b":
            pods.connect(name, f"{NS}/{name}", token_of(cluster, cluster.pod[name]))
            pods.committed(name)
        had = {name: (len(pods.commits(name)), len(pods.lines[name])) for name in ("a", "b")}
        began = now()
        cluster.apply(redirect(NS, "a", ["a"], "changed.test"))
        at, _ = pods.committed("a", had["a"][0])
        assert "changed.test" in pods.text("a"), "the commit does not contain the change"
        strays = [line for _, line in pods.lines["b"][had["b"][1] :] if "leader" not in line]
        assert not strays, f"Gateway b got {strays}"
    return f"after {(at - began) / 1e6:.1f} ms"


@check("a reconnecting pod gets the changes, and a pod of an unknown instance gets the full state")
def comes_back(cluster):
    token = token_of(cluster, cluster.pod["a"])
    with FakePods(cluster, cluster.controller) as pods:
        pods.connect("first", f"{NS}/a", token)
        _, revision = pods.committed("first")
        instance = pods.lines["first"][0][1]["begin"]["instance"]
        cluster.apply(redirect(NS, "a", ["a"], "between.test"))
        wait_for("it is committed", lambda: pods.commits("first")[-1][1] > revision, 5)
        pods.connect("again", f"{NS}/a", token, f"{instance}/{revision}")
        pods.committed("again")
        assert pods.lines["again"][0][1]["begin"].get("base") == revision, pods.lines["again"][0]
        assert pods.puts("again") == {("HTTPRoute", NS, "a")}, pods.puts("again")
        pods.connect("other", f"{NS}/a", token, f"elsewhere/{revision}")
        pods.committed("other")
        assert pods.puts("other") == pods.puts("first"), pods.puts("other") ^ pods.puts("first")


@check("the leader announces itself, and the other controller the leader's address")
def where_the_leader_is(cluster):
    found = controllers(cluster)
    leader = cluster.leader()
    token = token_of(cluster, cluster.pod["a"])
    for name, address in found.items():
        with FakePods(cluster, address) as pods:
            pods.connect(name, f"{NS}/a", token)
            pods.committed(name)
            announced = lambda: [line["leader"].get("address") for _, line in pods.lines[name] if "leader" in line]  # noqa: E731
            expected = None if name == leader else f"{found[leader]}:{PORT}"
            wait_for(f"{name} announces {expected}", lambda: announced() and announced()[-1] == expected, 5)


@check("a stream ends within a minute after the deletion of the pod of its token")
def ends_with_its_pod(cluster):
    old = pod_of(cluster, "a")
    with FakePods(cluster, cluster.controller) as pods:
        pods.connect("old", f"{NS}/a", token_of(cluster, old))
        pods.committed("old")
        cluster.api.delete("Pod", old["metadata"]["name"], NS, grace=0)
        try:
            wait_for("the stream ends", lambda: "old" in pods.ends, 60, every=0.5)
        finally:
            others = lambda: [one for one in cluster.api.list("Pod", NS, f"{GATEWAY_LABEL}=a") if one["metadata"]["uid"] != old["metadata"]["uid"]]  # noqa: E731
            cluster.pod["a"] = wait_for("there is another pod", others, 20)[0]


def refusals(cluster) -> dict[str, float]:
    """Rejected streams of the leader, by status."""
    leader = next(one for one in cluster.controllers() if one["metadata"]["name"] == cluster.leader())
    found = {name: value for name, value in metrics(leader).items() if "controller_stream_refusals" in name}
    return {name.partition('code="')[2].partition('"')[0]: value for name, value in found.items()}


def strangers(cluster) -> dict[str, tuple[str, str, int]]:
    """By description: a Gateway, an invalid token, and the expected status."""
    api, mine = cluster.api, token_of(cluster, cluster.pod["a"])
    gateway_a = api.get("Gateway", "a", NS)
    api.create(pod("borrows", "a-portcullis"))
    set_of = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"namespace": NS, "name": "forged"}}
    template = pod("unused", "a-portcullis")["spec"]
    labels = {"app": "forged"}
    set_of["spec"] = {"replicas": 0, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": template}}
    forged = api.create(set_of)
    api.patch("ReplicaSet", "forged", NS, {"spec": {"replicas": 1}})
    grown = wait_for("the ReplicaSet has a pod", lambda: api.list("Pod", NS, "app=forged"), 20)[0]
    assert grown["metadata"]["ownerReferences"][0]["uid"] == forged["metadata"]["uid"], grown["metadata"]
    # Missing parameters: the controller creates nothing for this Gateway, and its names stay free.
    api.apply(gateway(NS, "broken", parametersRef=parameters_ref("absent")))
    for name, owner in ("handmade", gateway_a), ("broken-portcullis", api.get("Gateway", "broken", NS)):
        api.create(account(name, owner))
        api.create(pod(f"of-{name}", name))
    gone = api.create(pod("gone", "a-portcullis"))
    of_gone = token_of(cluster, gone)
    api.delete("Pod", "gone", NS, grace=0)
    wait_for("the pod is gone", lambda: not api.get("Pod", "gone", NS), 10)
    of = lambda name: token_of(cluster, api.get("Pod", name, NS))  # noqa: E731
    return {
        "no token": (f"{NS}/a", "", 401),
        "no token at all, but some word": (f"{NS}/a", "word", 401),
        "another audience": (f"{NS}/a", token_of(cluster, cluster.pod["a"], "https://kubernetes.default.svc.cluster.local"), 401),
        "an expired token": (f"{NS}/a", with_claims(mine, exp=claims(mine)["iat"] - 1), 401),
        "a forged token": (f"{NS}/a", with_claims(mine, sub=f"system:serviceaccount:{NS}:b-portcullis"), 403),
        "a deleted pod": (f"{NS}/a", of_gone, 403),
        "a token without a pod": (f"{NS}/a", api.token(NS, "a-portcullis", "portcullis.dev/controller"), 403),
        "the name of another Gateway": (f"{NS}/b", mine, 403),
        "the name of no Gateway": (f"{NS}/nobody", mine, 403),
        "a pod of somebody else with the ServiceAccount": (f"{NS}/a", of("borrows"), 403),
        "a pod of a ReplicaSet that is not ours": (f"{NS}/a", token_of(cluster, grown), 403),
        "a hand-made ServiceAccount with our labels": (f"{NS}/a", of("of-handmade"), 403),
        "a hand-made ServiceAccount of the right name": (f"{NS}/broken", of("of-broken-portcullis"), 403),
    }


@check("clients that are not pods of the Gateway are rejected, counted, and logged once for each reason, and do not learn which Gateways exist")
def refused(cluster):
    cases, before = strangers(cluster), refusals(cluster)
    wrong, answers = [], set()
    with FakePods(cluster, cluster.controller) as pods:
        for number in range(2):
            for what, (name, token, expected) in cases.items():
                status, reason = pods.answer(f"{what} {number}", name, token)
                if expected == 403:
                    answers.add(reason)
                if status != expected:
                    wrong.append(f"{what}: {status} instead of {expected}, {reason!r}")
        text = "".join(pods.text(name) for name in pods.lines)
        assert not text, f"somebody got {text[:200]}"
    assert not wrong, wrong
    assert len(answers) == 1, f"the reasons differ: {answers}"
    after = refusals(cluster)
    for status in 401, 403:
        count = 2 * sum(expected == status for _, _, expected in cases.values())
        counted = after.get(str(status), 0) - before.get(str(status), 0)
        assert counted == count, f"{counted} refusals with {status} are counted, {count} were made"
    log = cluster.log(cluster.leader()).splitlines()
    for name in {name for name, _, _ in cases.values()}:
        start = f"rejected a stream of Gateway {name}: "
        lines = [line.partition(start)[2] for line in log if start in line]
        # Names that clients invent share their lines.
        assert (lines or name == f"{NS}/nobody") and len(lines) == len(set(lines)), f"{name} has the log lines {lines}"
    for kind, name in ("ReplicaSet", "forged"), ("Pod", "borrows"), ("Gateway", "broken"):
        cluster.api.delete(kind, name, NS)
    for name in "handmade", "broken-portcullis":
        cluster.api.patch("ServiceAccount", name, NS, {"metadata": {"finalizers": None}})
        cluster.api.delete("ServiceAccount", name, NS)
    return f"{len(cases)} strangers"


@check("a stream token is not valid at the API server, and the ServiceAccount of pods has no permissions")
def no_rights(cluster):
    try:
        Api(token_of(cluster, cluster.pod["a"])).list("Secret", NS)
        raise AssertionError("the API server accepts the token for the controller")
    except Refused as error:
        assert error.code == 401, error
    cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": NS, "name": "any"}})
    pods, anybody = Api(cluster.api.token(NS, "a-portcullis")), Api(cluster.api.token(NS, "any"))
    for where in NS, OTHER, SYSTEM:
        assert pods.rights(where) == anybody.rights(where), set(pods.rights(where)) ^ set(anybody.rights(where))
    for kind, where in ("Secret", NS), ("Secret", ""), ("ConfigMap", NS), ("Pod", NS), ("Gateway", NS), ("HTTPRoute", ""):
        try:
            pods.list(kind, where)
            raise AssertionError(f"it may list {kind} in {where or 'all namespaces'}")
        except Refused as error:
            assert error.code == 403, error
    assert not cluster.api.get("ClusterRoleBinding", "portcullis-data-plane"), "pods are bound to a ClusterRole"
