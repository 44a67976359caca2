"""`check --kubernetes` and `explain --kubernetes`: what they print of a real cluster, and what they ask of it."""

import json
import os
import subprocess

import audit
from checks import check
from objects import gateway, namespace, redirect, to_backend

NS = "reading"
READER = "reader"
RESOURCES = {
    "": ["services", "configmaps", "secrets"],
    "discovery.k8s.io": ["endpointslices"],
    "gateway.networking.k8s.io": ["gateways", "httproutes", "listenersets", "backendtlspolicies"],
}
ROUTES = 510


def prepare(cluster):
    routes = [redirect(NS, f"mark-{number}", ["edge"], f"mark-{number}.test", f"/{number}") for number in range(ROUTES)]
    cluster.apply(namespace(NS), gateway(NS, "edge"), *routes)
    cluster.gateway_is(NS, "edge")
    rules = [{"apiGroups": [group], "resources": names, "verbs": ["get", "list"]} for group, names in RESOURCES.items()]
    metadata = {"name": READER, "namespace": NS}
    rbac = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": rules}
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": READER},
        "subjects": [{"kind": "ServiceAccount", "name": READER, "namespace": NS}],
    }
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [account, role, binding]})
    subprocess.run(["kubectl", "apply", "-f", "-"], input=text.encode(), check=True, stdout=subprocess.DEVNULL)


def run(cluster, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = [cluster.program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment})


def is_refused(conditions: list) -> bool:
    return any(one["type"] == "Accepted" and one["status"] != "True" for one in conditions)


@check("check --kubernetes has the conditions that the controller writes, of more routes than a page")
def conditions(cluster):
    done = run(cluster, "check", "--kubernetes", "--namespaces", NS, "-o", "json")
    found = json.loads(done.stdout)
    # Classes are of no namespace: those of other suites are read too.
    refused = {one["object"] for one in found["conditions"] if is_refused(one["conditions"])}
    assert all(name.startswith("GatewayClass ") for name in refused), refused
    assert done.returncode == int(bool(refused)), (done.stdout[-2000:], done.stderr)
    assert found["summary"]["routes"] == ROUTES, found["summary"]
    of_gateway = [one for one in found["conditions"] if one["object"] == f"Gateway {NS}/edge" and one["place"] == ""]
    accepted = [one for placed in of_gateway for one in placed["conditions"] if one["type"] == "Accepted"]
    stored = cluster.api.get("Gateway", "edge", NS)["status"]["conditions"]
    stored = [one for one in stored if one["type"] == "Accepted"]
    assert [(one["status"], one["reason"]) for one in accepted] == [(one["status"], one["reason"]) for one in stored], (accepted, stored)


@check("a route to a Service that does not exist is a problem with exit code 1, until it is removed")
def problem(cluster):
    cluster.apply(to_backend(NS, "lost", ["edge"], "nowhere"))
    done = run(cluster, "check", "--kubernetes", "--quiet")
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert f"problem: HTTPRoute {NS}/lost: " in done.stdout and "BackendNotFound" in done.stdout, done.stdout
    cluster.api.delete("HTTPRoute", "lost", NS)


@check("explain --kubernetes names the rule; without one, the exit code is 1")
def explanation(cluster):
    explain = ["explain", "--kubernetes", "--gateway", f"{NS}/edge"]
    done = run(cluster, *explain, "http://any.test:8080/507/a")
    assert done.returncode == 0 and f"HTTPRoute {NS}/mark-507" in done.stdout, (done.stdout, done.stderr)
    done = run(cluster, *explain, "http://any.test:8080/nothing")
    assert done.returncode == 1 and "404" in done.stdout, (done.stdout, done.stderr)


@check("a user of one namespace gets an answer for it, hears what is missing, and reads and asks for its rights only")
def restricted(cluster):
    view = subprocess.run(["kubectl", "config", "view", "--raw", "--minify", "-o", "json"], capture_output=True, check=True)
    config = json.loads(view.stdout)
    config["users"][0]["user"] = {"token": cluster.api.token(NS, READER)}
    file = cluster.logs.parent / "reader.kubeconfig"
    file.write_text(json.dumps(config))
    file.chmod(0o600)
    done = run(cluster, "check", "--kubernetes", "--namespaces", NS, "--kubeconfig", str(file))
    forbidden = [line for line in done.stderr.splitlines() if "cannot be listed" in line and "treated as absent" in line]
    names = {line.removeprefix("portcullis: ").split()[0] for line in forbidden}
    assert {"GatewayClass", "Namespace", "HTTPRoute"} & names == {"GatewayClass", "Namespace"}, done.stderr
    # Without a class, no Gateway is served.
    assert done.returncode in (0, 1) and "Gateways: " in done.stdout, (done.stdout[-500:], done.stderr)
    events = audit.of_account(cluster.audit_log, NS, READER)
    # A review of rights is asked for as an object that is created, and stored nowhere.
    asked = {(event.verb, event.resource) for event in events if event.verb not in {"get", "list"}}
    assert len(events) > 5 and asked == {("create", "selfsubjectaccessreviews")}, asked
