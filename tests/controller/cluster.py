"""Owns the running cluster as checks see it: its API, the pods behind a Gateway, their processes, and their ways to the API
server and to the controllers."""

import http.client
import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

from api import Api, condition, has, wait_for

SYSTEM = "portcullis-system"
CONTROLLER_PODS = "app.kubernetes.io/component=controller"
GATEWAY_LABEL = "gateway.networking.k8s.io/gateway-name"


class Cluster:
    def __init__(self, state: Path):
        self.api = Api()
        self.audit_log = state / "audit.log"
        self.logs = state / "logs"

    def apply(self, *objects: dict) -> None:
        self.api.apply(*objects)

    def gateway_is(self, namespace: str, name: str, programmed: str = "True", seconds: float = 30) -> dict:
        """Waits until the Gateway's Programmed has its current generation; returns the Gateway."""

        def look():
            gateway = self.api.get("Gateway", name, namespace)
            conditions = gateway.get("status", {}).get("conditions", [])
            return has(conditions, "Programmed", programmed, gateway["metadata"]["generation"]) and gateway

        try:
            return wait_for(f"Gateway {namespace}/{name} has Programmed {programmed} for its generation", look, seconds)
        except AssertionError as error:
            found = self.api.get("Gateway", name, namespace).get("status", {}).get("conditions", [])
            raise AssertionError(f"{error}; it is {condition(found, 'Programmed')}") from None

    def ready_pods(self, namespace: str, labels: str) -> list[dict]:
        pods = self.api.list("Pod", namespace, labels)
        return [pod for pod in pods if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]

    def replicas(self, namespace: str, gateway: str, count: int, seconds: float = 30) -> list[dict]:
        """Waits until a Gateway has exactly this number of ready pods and no others; returns them."""

        def look():
            pods = self.api.list("Pod", namespace, f"{GATEWAY_LABEL}={gateway}")
            ready = [pod for pod in pods if is_ready(pod)]
            return len(pods) == len(ready) == count and ready

        return wait_for(f"Gateway {namespace}/{gateway} has {count} ready pods", look, seconds)

    def is_rolled_out(self, namespace: str, name: str, seconds: float = 60) -> dict:
        """Waits until a Deployment's rollout is complete: all replicas are updated and ready, and there are no others; returns the Deployment."""

        def look():
            deployment = self.api.get("Deployment", name, namespace)
            status, wanted = deployment.get("status", {}), deployment["spec"]["replicas"]
            counts = (status.get(field, 0) for field in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"))
            is_seen = status.get("observedGeneration") == deployment["metadata"]["generation"]
            return is_seen and all(count == wanted for count in counts) and deployment

        return wait_for(f"Deployment {namespace}/{name} is rolled out", look, seconds)

    def address(self, namespace: str, gateway: str) -> str:
        """Address of a Gateway for clients."""
        return wait_for(
            f"Gateway {namespace}/{gateway} has an address",
            lambda: self.api.get("Gateway", gateway, namespace).get("status", {}).get("addresses"),
            30,
        )[0]["value"]

    def controllers(self) -> list[dict]:
        return self.ready_pods(SYSTEM, CONTROLLER_PODS)

    def leader(self) -> str:
        """Name of the controller pod that holds the Lease, if any."""
        lease = self.api.get("Lease", "portcullis-controller", SYSTEM)
        return (lease or {"spec": {}})["spec"].get("holderIdentity") or ""

    def log(self, pod: str, namespace: str = SYSTEM) -> str:
        """Log of a pod, also of a deleted one."""
        return (self.logs / "pods" / f"{namespace}_{pod}" / "portcullis.log").read_text()

    @contextmanager
    def without_api_server(self, verdict: str, *addresses: str):
        """Cuts off pods at these addresses, or all pods, from the API server. `drop` discards packets, as when its machine
        fails. `reject` refuses and resets connections, as when its process fails."""
        pods = f"{{ {', '.join(addresses)} }}" if addresses else "10.244.0.0/16"
        to, back = {"drop": ("drop", "drop"), "reject": ("reject with tcp reset", "accept")}[verdict]
        _nft(f"""table inet away {{
            chain input {{ type filter hook input priority 0; ip saddr {pods} tcp dport 6443 {to}; }}
            chain output {{ type filter hook output priority 0; ip daddr {pods} tcp sport 6443 {back}; }}
        }}""")
        if verdict == "reject":
            subprocess.run(["ss", "-K", "-tn", "sport = :6443", "dst 10.244.0.0/16"], check=True, stdout=subprocess.DEVNULL)
        try:
            yield
        finally:
            _nft("delete table inet away")


@contextmanager
def without_controllers(*addresses: str):
    """Drops traffic between pods at these addresses and all controllers, without closing connections."""
    name = "cut_" + "_".join(address.replace(".", "_") for address in addresses)
    pods = f"{{ {', '.join(addresses)} }}"
    _nft(f"""table inet {name} {{
        chain forward {{ type filter hook forward priority 0;
            ip saddr {pods} tcp dport 19443 drop
            ip daddr {pods} tcp sport 19443 drop
        }}
    }}""")
    try:
        yield
    finally:
        _nft(f"delete table inet {name}")


def _nft(rules: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=rules.encode(), check=True)


def is_ready(pod: dict) -> bool:
    return has(pod.get("status", {}).get("conditions", []), "Ready", "True")


def send(pod: dict, signal_number: int) -> None:
    """Sends a signal to the first process of a pod's first container."""
    os.kill(process(pod), signal_number)


def process(pod: dict) -> int:
    """The process id of a pod's first container. The test cluster appends it to the container id."""
    return int(pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2])


@contextmanager
def frozen(pod: dict):
    """Stops the pod's process with all its threads."""
    send(pod, signal.SIGSTOP)
    threads = Path(f"/proc/{process(pod)}/task")
    stopped = lambda: all((one / "stat").read_text().rpartition(")")[2].split()[0] == "T" for one in threads.iterdir())  # noqa: E731
    wait_for("the process stands still", stopped, 5, every=0.005)
    try:
        yield
    finally:
        send(pod, signal.SIGCONT)


def redirect_of(address: str, port: int, path: str = "/") -> str:
    """Location of the redirect on a new connection; empty for another response."""
    connection = http.client.HTTPConnection(address, port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.getheader("location") or ""
    finally:
        connection.close()


def answers(address: str, port: int, mark: str) -> bool:
    """Whether the response is a redirect to `mark`."""
    try:
        return mark in redirect_of(address, port)
    except OSError:
        return False


def metrics(pod: dict) -> dict[str, float]:
    """Metrics of a pod, by name and labels as in the text format."""
    connection = http.client.HTTPConnection(pod["status"]["podIP"], 19000, timeout=5)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}
