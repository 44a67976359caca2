"""An upgrade and its end: controllers and pods of an older version are replaced by those of this one, in both orders, and back, under
load. `run --from` has the older version."""

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import guarded
from api import Refused, condition, has, wait_for
from checks import check
from cluster import GATEWAY_LABEL, SYSTEM, redirect_of
from instances import Instances, Requests
from objects import CONTROLLER, access_policy, gateway, namespace, on_path, parameters, parameters_ref, redirect, to_backend

NS = "upgrade"
GATEWAY, DEPLOYMENT = "edge", "edge-portcullis"
# The image of a container, and that of the pods of Gateways in a variable.
IMAGE = re.compile(r'\b(image|value): "[^"]*/portcullis:[^"]*"')
# A field of AccessPolicies that the CRD of a later version has.
LATER = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/later"


@dataclass
class Release:
    """A version: its name, its manifests, and the image of its program in the test cluster."""

    name: str
    manifest: Path
    image: str

    def crds(self) -> str:
        return self._documents(are_crds=True)

    def controller(self, pods: "Release") -> str:
        """All but the CRDs, for controllers of this version and pods of another."""
        images = {"image": self.image, "value": pods.image}
        text, count = IMAGE.subn(lambda found: f'{found[1]}: "{images[found[1]]}"', self._documents(are_crds=False))
        assert count == len(images), f"{self.manifest} names {count} images"
        return text

    def _documents(self, are_crds: bool) -> str:
        documents = self.manifest.read_text().split("\n---\n")
        return "\n---\n".join(one for one in documents if ("kind: CustomResourceDefinition" in one.splitlines()) == are_crds)


def apply(manifests: str) -> None:
    subprocess.run(["kubectl", "apply", "--server-side", "-f", "-"], input=manifests.encode(), check=True, stdout=subprocess.DEVNULL)


def patch_crd(change: dict) -> None:
    command = ["kubectl", "patch", "crd", "accesspolicies.portcullis.dev", "--type=json", "-p", json.dumps([change])]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def later_policy(**fields) -> dict:
    return access_policy(NS, "later", "", targetRefs=[guarded.target("later")], **fields)


class Upgrade:
    """The Gateway under load while controllers and pods are replaced."""

    def __init__(self, cluster):
        self.cluster, self.marks = cluster, 0
        self.traffic = guarded.Traffic(cluster, NS, GATEWAY)

    def run(self, controllers: Release, pods: Release) -> None:
        """Replaces controllers and pods by those of these versions. Waits until only these run, and judges what happened meanwhile."""
        when, cluster = f"controllers {controllers.name}, pods {pods.name}", self.cluster
        apply(controllers.controller(pods))
        cluster.is_rolled_out(SYSTEM, "portcullis-controller", guarded.SECONDS)
        leads = lambda: cluster.leader() in {pod["metadata"]["name"] for pod in cluster.controllers()}  # noqa: E731
        wait_for(f"{when}: one of the controllers leads", leads, guarded.SECONDS)
        wait_for(f"{when}: the pods are to be replaced", lambda: image(cluster.api.get("Deployment", DEPLOYMENT, NS)["spec"]["template"]) == pods.image, guarded.SECONDS)
        cluster.is_rolled_out(NS, DEPLOYMENT, guarded.SECONDS)
        found = {image(pod) for pod in cluster.replicas(NS, GATEWAY, guarded.PODS, guarded.SECONDS)}
        assert found == {pods.image}, f"{when}: there are pods of {found}"
        found = {image(pod) for pod in cluster.controllers()}
        assert found == {controllers.image}, f"{when}: there are controllers of {found}"
        self.follow(when)
        guarded.in_force(cluster, NS, {GATEWAY: CONTROLLER})
        self.traffic.are_refused()
        self.traffic.judge(when)

    def follow(self, when: str) -> None:
        """Changes a route, and waits until all pods serve the change."""
        self.marks += 1
        mark = f"mark-{self.marks}.test"
        self.cluster.apply(redirect(NS, "mark", [GATEWAY], mark, "/mark"))

        def look():
            pods = self.cluster.ready_pods(NS, f"{GATEWAY_LABEL}={GATEWAY}")
            return pods and all(mark in location(pod) for pod in pods)

        wait_for(f"{when}: all pods serve {mark}", look, guarded.SECONDS)

    def write_later_object(self) -> None:
        """Writes a field that neither controllers nor pods know: the status says so, and the policy refuses its requests until the field
        is gone. Others are served."""
        cluster = self.cluster
        patch_crd({"op": "add", "path": LATER, "value": {"type": "string"}})
        instances = Instances(cluster.api, NS, GATEWAY)
        with Requests(instances, ["later"], passes=200, protected=False) as requests:
            requests.all_respond(200, guarded.PODS)

            def is_kept():
                # Until it serves the new schema, the API server refuses the field.
                try:
                    cluster.apply(later_policy(later="a"))
                except Refused:
                    return False
                return "later" in cluster.api.get("AccessPolicy", "later", NS)["spec"]

            wait_for("the API server keeps the field", is_kept)
            wait_for("the status names the field", lambda: names_field(cluster), guarded.SECONDS)
            requests.all_respond(500, guarded.PODS)
            requests.protect("later", instances.present())
            self.follow("with an object of a later version")
            requests.judge("with an object of a later version")
        cluster.apply(later_policy())
        patch_crd({"op": "remove", "path": LATER})
        with Requests(Instances(cluster.api, NS, GATEWAY), ["later"], passes=200, protected=False) as requests:
            requests.all_respond(200, guarded.PODS)
        guarded.in_force(cluster, NS, {GATEWAY: CONTROLLER})
        self.traffic.judge("after an object of a later version")


def image(pod: dict) -> str:
    return pod["spec"]["containers"][0]["image"]


def location(pod: dict) -> str:
    """What a pod redirects to; empty if it does not respond."""
    try:
        return redirect_of(pod["status"]["podIP"], 8080, "/mark")
    except OSError:
        return ""


def names_field(cluster) -> bool:
    """Whether the status of the policy says that a field is not known."""
    policy = cluster.api.get("AccessPolicy", "later", NS)
    ancestors, generation = policy.get("status", {}).get("ancestors", []), policy["metadata"]["generation"]
    refused = (has(one["conditions"], "Accepted", "False", generation) and "spec.later" in condition(one["conditions"], "Accepted")["message"] for one in ancestors)
    return bool(ancestors) and all(refused)


def prepare(cluster) -> None:
    """Installs the older version, and a Gateway with protected routes."""
    apply(cluster.old.crds())
    # Objects of a kind can be written once its CRD is established.
    subprocess.run(["kubectl", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"], check=True, stdout=subprocess.DEVNULL)
    apply(cluster.old.controller(cluster.old))
    wait_for("two controllers are ready", lambda: len(cluster.controllers()) == 2)
    settings = parameters(NS, GATEWAY, workload={"replicas": guarded.PODS}, drain={"delay": "2s", "deadline": "5s"})
    cluster.apply(namespace(NS), settings, *guarded.objects(NS, [GATEWAY]), later_policy(), on_path(to_backend(NS, "later", [GATEWAY], "echo"), "later"))
    cluster.apply(gateway(NS, GATEWAY, parametersRef=parameters_ref(GATEWAY)))
    cluster.is_rolled_out(NS, "echo")
    guarded.in_force(cluster, NS, {GATEWAY: CONTROLLER})


def under_load(cluster, steps: Callable[[Upgrade], None]) -> str:
    upgrade = Upgrade(cluster)
    with upgrade.traffic as traffic:
        traffic.are_refused()
        steps(upgrade)
    traffic.judge("in the end")
    return traffic.figures()


@check("CRDs, then controllers, then pods, and back: no request fails, no policy is open, and statuses are true")
def controllers_first(cluster):
    old, new = cluster.old, cluster.new

    def steps(upgrade: Upgrade) -> None:
        apply(new.crds())
        upgrade.run(controllers=new, pods=old)
        upgrade.write_later_object()
        upgrade.run(controllers=new, pods=new)
        upgrade.write_later_object()
        upgrade.run(controllers=old, pods=new)
        upgrade.run(controllers=old, pods=old)

    return under_load(cluster, steps)


@check("pods, then controllers, with the CRDs of the older version, and back: the same")
def pods_first(cluster):
    old, new = cluster.old, cluster.new

    def steps(upgrade: Upgrade) -> None:
        apply(old.crds())
        upgrade.run(controllers=old, pods=new)
        upgrade.run(controllers=new, pods=new)
        upgrade.run(controllers=new, pods=old)
        upgrade.run(controllers=old, pods=old)

    return under_load(cluster, steps)
