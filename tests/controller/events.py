"""Events: one for each transition of an object, none while nothing changes, and none of a new leader about what is known. A busy pod of a
healthy Gateway has no problem meanwhile."""

import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from api import wait_for
from checks import check
from cluster import SYSTEM, metrics, without_controllers
from objects import (
    GATEWAY_API,
    access_policy,
    backend_tls,
    echo,
    gateway,
    https_listener,
    key_material,
    listener_set,
    namespace,
    parameters,
    parameters_ref,
    redirect,
    to_backend,
)
from traffic import Load

NS, POOR, DATA = "events", "events-poor", "events-data"
GATEWAYS = ["plain", "stale", "expiring", "secretless", "addressed", "open", "well"]
# Requests a second at Gateway `well`, with which nothing is wrong.
RATE = 100
# An object has at most one event a minute, and a replica is behind after 30 s.
LATEST = 110
# An address of documentation, which no load balancer has.
UNUSABLE = "192.0.2.1"


@dataclass
class Fault:
    """What breaks an object, what mends it, and the reasons of the events about both."""

    object: str
    reasons: list[str]
    provoke: Callable[[], object]
    mend: Callable[[], object]
    restored: list[str] = field(default_factory=list)


class Behind:
    """Cuts off the pod of Gateway `stale` from the controllers, and changes the Gateway."""

    def __init__(self, cluster):
        self._cluster = cluster

    def begin(self) -> None:
        address = self._cluster.replicas(NS, "stale", 1)[0]["status"]["podIP"]
        self._cut = without_controllers(address)
        self._cut.__enter__()
        self._cluster.apply(gateway(NS, "stale", (8080, 8081), parametersRef=parameters_ref("single")))

    def end(self) -> None:
        self._cut.__exit__(None, None, None)


def pair(name: str, begin: float, end: float) -> dict:
    """A Secret with a new certificate, valid between these days from now."""
    day = lambda days: time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + days * 86400))  # noqa: E731
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        (folder / "index.txt").touch()
        settings = f"[ca]\ndefault_ca = own\n[own]\ndatabase = {folder}/index.txt\nnew_certs_dir = {folder}\nrand_serial = yes\ndefault_md = sha256\n"
        settings += f"policy = any\nx509_extensions = names\n[any]\ncommonName = supplied\n[names]\nsubjectAltName = DNS:{name}.test\n"
        (folder / "ca.conf").write_text(settings)
        key, request, chain = folder / "key.pem", folder / "request.pem", folder / "chain.pem"
        new = ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", request, "-subj", f"/CN={name}.test"]
        sign = ["ca", "-batch", "-selfsign", "-config", folder / "ca.conf", "-keyfile", key, "-in", request, "-out", chain, "-notext"]
        for command in (new, [*sign, "-startdate", day(begin), "-enddate", day(end)]):
            subprocess.run(["openssl", *command], check=True, capture_output=True)
        data = {"tls.crt": chain.read_text(), "tls.key": key.read_text()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": NS, "name": name}, "type": "kubernetes.io/tls", "stringData": data}


def with_https(name: str) -> dict:
    made = gateway(NS, name)
    made["spec"]["listeners"].append(https_listener(8443, name))
    return made


def opened(namespaces: str) -> dict:
    """Gateway `open`, with ListenerSets of these namespaces."""
    made = gateway(NS, "open")
    made["spec"]["allowedListeners"] = {"namespaces": {"from": namespaces}}
    return made


def addressed(*addresses: str) -> dict:
    made = gateway(NS, "addressed")
    made["spec"]["addresses"] = [{"type": "IPAddress", "value": address} for address in addresses]
    return made


def for_host(host: str) -> dict:
    """Route `elsewhere` for a host. The listener that it names has the host here.test."""
    route = redirect(NS, "elsewhere", ["plain"], "a.test")
    route["spec"]["hostnames"] = [host]
    route["spec"]["parentRefs"][0]["sectionName"] = "here"
    return route


def plain() -> dict:
    made = gateway(NS, "plain")
    made["spec"]["listeners"].append({"name": "here", "port": 8081, "protocol": "HTTP", "hostname": "here.test"})
    return made


def foreign() -> dict:
    route = to_backend(NS, "foreign", ["plain"], "app")
    route["spec"]["rules"][0]["backendRefs"][0]["namespace"] = DATA
    return route


def grant() -> dict:
    peers = {"from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": NS}], "to": [{"group": "", "kind": "Service"}]}
    return {"apiVersion": GATEWAY_API, "kind": "ReferenceGrant", "metadata": {"namespace": DATA, "name": "apps"}, "spec": peers}


def on_route(name: str, *allowed: str) -> dict:
    """An AccessPolicy on route `guarded`, below one of Gateway `plain` that allows 10.0.0.0/8."""
    target = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "guarded"}
    return access_policy(NS, name, "plain", targetRefs=[target], ipRules={"allow": list(allowed)})


def on_listener(name: str) -> dict:
    policy = access_policy(NS, "aimed", "open")
    policy["spec"]["targetRefs"][0]["sectionName"] = name
    return policy


def authority() -> dict:
    """A ConfigMap with the certificate of an authority."""
    data = {"ca.crt": pair("authority", -1, 80)["stringData"]["tls.crt"]}
    return {**key_material(NS, "authority")[1], "data": data}


def faults(cluster) -> list[Fault]:
    api = cluster.api

    def put(*objects):
        return lambda: cluster.apply(*objects)

    def remove(kind, name, where=NS):
        return lambda: api.delete(kind, name, where)

    def without_room():
        limit = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"namespace": POOR, "name": "none"}, "spec": {"hard": {"count/services": "0"}}}
        cluster.apply(limit)
        wait_for("the quota counts", lambda: api.get("ResourceQuota", "none", POOR).get("status", {}).get("hard"), 10)
        cluster.apply(gateway(POOR, "poor"))

    behind = Behind(cluster)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "taken-portcullis", "namespace": NS}}
    to_app, to_nothing = (to_backend(NS, "missing", ["plain"], name) for name in ("app", "nothing"))
    resolved = ["ReferencesNotResolved"], ["ReferencesResolved"]
    return [
        Fault("Gateway taken", ["NameTaken"], put(account, gateway(NS, "taken")), remove("ServiceAccount", "taken-portcullis"), ["Accepted", "Programmed"]),
        Fault("Gateway poor", ["ProvisioningRefused"], without_room, remove("ResourceQuota", "none", POOR), ["Programmed"]),
        Fault("Gateway stale", ["NotProgrammed", "ReplicaBehind"], behind.begin, behind.end, ["Programmed"]),
        Fault("Gateway expiring", ["CertificateExpiring"], put(pair("expiring", -80, 2)), put(pair("expiring", -1, 80))),
        Fault("Gateway secretless", resolved[0], remove("Secret", "secretless"), put(pair("secretless", -1, 80)), resolved[1]),
        Fault("Gateway addressed", ["NotProgrammed"], put(addressed(UNUSABLE)), put(addressed()), ["Programmed"]),
        Fault("HTTPRoute elsewhere", ["NotAccepted"], put(for_host("other.test")), put(for_host("here.test")), ["Accepted"]),
        Fault("HTTPRoute missing", resolved[0], put(to_nothing), put(to_app), resolved[1]),
        Fault("HTTPRoute foreign", resolved[0], remove("ReferenceGrant", "apps", DATA), put(grant()), resolved[1]),
        Fault("BackendTLSPolicy tls", ["NotAccepted"], remove("ConfigMap", "authority"), put(authority()), ["Accepted"]),
        Fault("ListenerSet set", ["NotAccepted"], put(opened("None")), put(opened("Same")), ["Accepted"]),
        Fault("AccessPolicy loose", ["AccessLoosened"], put(on_route("loose", "0.0.0.0/0")), put(on_route("loose", "10.1.0.0/16")), ["AccessRestored"]),
        Fault("AccessPolicy aimed", ["NotAccepted"], put(on_listener("nowhere")), put(on_listener("http-8080")), ["Accepted"]),
    ]


def prepare(cluster):
    cluster.apply(namespace(NS), namespace(POOR), namespace(DATA))
    # Before the Gateway that names them: a controller may see objects of different kinds in another order.
    cluster.apply(parameters(NS, "single", workload={"replicas": 1}))
    cluster.apply(pair("expiring", -1, 80), pair("secretless", -1, 80), authority(), grant())
    cluster.apply(*echo(NS, "app"), *echo(DATA, "app"), *echo(NS, "secure")[1:])
    cluster.apply(plain(), gateway(NS, "stale", parametersRef=parameters_ref("single")), with_https("expiring"), with_https("secretless"), addressed(), opened("Same"))
    cluster.apply(gateway(NS, "well", parametersRef=parameters_ref("single")), to_backend(NS, "served", ["well"], "app"))
    for name in GATEWAYS:
        cluster.gateway_is(NS, name, seconds=60)
    cluster.apply(listener_set(NS, "set", "open", 8090), for_host("here.test"), to_backend(NS, "missing", ["plain"], "app"), foreign())
    cluster.apply(backend_tls(NS, "tls", "secure", "authority"), to_backend(NS, "secure", ["plain"], "secure"), redirect(NS, "guarded", ["plain"], "a.test", "/guarded"))
    cluster.apply(access_policy(NS, "strict", "plain", ipRules={"allow": ["10.0.0.0/8"]}), on_route("loose", "10.1.0.0/16"), on_listener("http-8080"))
    cluster.faults = faults(cluster)


def written(cluster) -> dict[str, dict]:
    """Events of this subject's objects by name."""
    found = [one for where in (NS, POOR, DATA) for one in cluster.api.list("Event", where)]
    return {one["metadata"]["name"]: one for one in found if one["reportingController"].startswith("portcullis.dev")}


def counted(events) -> Counter:
    """How often each object has an event of each reason, repetitions included."""
    count = Counter()
    for one in events:
        about = one["regarding"]
        count[f"{about['kind']} {about['name']}: {one['reason']}"] += one.get("series", {}).get("count", 1)
    return count


def described(events) -> str:
    return "; ".join(f"{one['regarding']['kind']} {one['regarding']['name']}: {one['reason']}: {one['note']}" for one in events)


def expect(cluster, known: dict, wanted: list[str]) -> None:
    """Waits until there are these new events beside the known ones, each once."""

    def new() -> list[dict]:
        return [one for name, one in written(cluster).items() if one["metadata"]["resourceVersion"] != known.get(name)]

    try:
        wait_for("the expected events", lambda: len(new()) >= len(wanted), LATEST, every=0.5)
    except AssertionError:
        missing = Counter(wanted) - counted(new())
        raise AssertionError(f"no event {', '.join(missing)}; there are {described(new())}") from None
    found = counted(new())
    assert found == Counter(wanted), f"beside the expected: {dict(found - Counter(wanted))}, missing: {dict(Counter(wanted) - found)}; {described(new())}"


def versions(cluster) -> dict[str, str]:
    return {name: one["metadata"]["resourceVersion"] for name, one in written(cluster).items()}


def stays_quiet(cluster, seconds: float, look: Callable[[], None] = lambda: None) -> None:
    """Asserts that no Event comes, and looks at something else meanwhile."""
    known, until = versions(cluster), time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(1)
        now = versions(cluster)
        changed = [one for name, one in written(cluster).items() if now.get(name) != known.get(name)]
        assert not changed, f"after {seconds - (until - time.monotonic()):.0f} s: {described(changed)}"
        look()


def stays_healthy(cluster) -> str:
    """No Event comes while nothing changes, and no problem of a pod that has a constant load."""
    pod = cluster.replicas(NS, "well", 1)[0]
    with Load(cluster.address(NS, "well"), 8080, rate=RATE, kept=4, fresh=1) as load:

        def look() -> None:
            counts = {name: count for name, count in metrics(pod).items() if name.startswith("portcullis_problems{")}
            wrong = [name for name, count in counts.items() if count]
            assert counts and not wrong, f"after {load.figures()}: {wrong}"

        stays_quiet(cluster, cluster.quiet, look)
    return f"{cluster.quiet:.0f} s, {load.verdict()}"


@check("a new Gateway has one once it is programmed; other objects that are as they should be have none")
def none_of_healthy_objects(cluster):
    expect(cluster, {}, [f"Gateway {name}: Programmed" for name in GATEWAYS])
    # After a minute, the next event of an object comes at once.
    stays_quiet(cluster, 60)


@check("each of 13 faults has one for each transition")
def once_per_fault(cluster):
    known = versions(cluster)
    for fault in cluster.faults:
        fault.provoke()
    expect(cluster, known, [f"{fault.object}: {reason}" for fault in cluster.faults for reason in fault.reasons])


@check("`portcullis status` in a pod that no controller reaches says so within 2 s")
def stale_pod(cluster):
    pod = cluster.replicas(NS, "stale", 1)[0]["metadata"]["name"]
    began = time.monotonic()
    command = ["kubectl", "exec", "-n", NS, pod, "--", "portcullis", "status"]
    printed = subprocess.run(command, capture_output=True, text=True).stdout
    seconds = time.monotonic() - began
    assert "NOT connected" in printed and "changes of objects do not arrive" in printed, printed
    assert seconds < 2, f"{seconds:.1f} s"
    return f"{seconds:.2f} s"


@check("a new leader repeats none")
def quiet_leader(cluster):
    leader = cluster.leader()
    cluster.api.delete("Pod", leader, SYSTEM)
    wait_for("another controller leads", lambda: cluster.leader() not in ("", leader), 40)
    wait_for("two controllers are ready", lambda: len(cluster.controllers()) == 2, 60)
    # It holds statuses for 10 s, and replicas are behind after 25 s more.
    stays_quiet(cluster, 60)


@check("while all of them last, there are no more, and a busy pod of another Gateway has no problem")
def quiet_while_broken(cluster):
    # After the new leader: API servers keep Events for an hour, and a leader knows of no others.
    return stays_healthy(cluster)


@check("the end of each fault has one")
def once_per_recovery(cluster):
    known = versions(cluster)
    for fault in cluster.faults:
        fault.mend()
    expect(cluster, known, [f"{fault.object}: {reason}" for fault in cluster.faults for reason in fault.restored])


@check("after that, there are no more")
def quiet_when_mended(cluster):
    stays_quiet(cluster, cluster.quiet / 2)
    for name in (POOR, DATA, NS):
        cluster.api.delete("Namespace", name)
    return f"{cluster.quiet / 2:.0f} s"
