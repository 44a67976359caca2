"""external-dns: records of the hostnames of routes, with the addresses of Gateways."""

import re

import pages
from api import wait_for
from checks import check

PAGE, NS = "external-dns", "names"


def prepare(cluster):
    pages.apply(*pages.objects(PAGE))
    cluster.gateway_is(NS, "web", seconds=60)


def records(cluster) -> dict[str, set[str]]:
    """Addresses by name, from the changes that external-dns has logged."""
    pods = cluster.ready_pods(PAGE, f"app={PAGE}")
    found: dict[str, set[str]] = {}
    if not pods:
        return found
    log = (cluster.logs / "pods" / f"{PAGE}_{pods[0]['metadata']['name']}" / f"{PAGE}.log").read_text()
    for change, name, targets in re.findall(r'msg="(CREATE|UPDATE \(new\)|DELETE): (\S+) \d+ IN A +(\S+) ', log):
        if change == "DELETE":
            found.pop(name, None)
        else:
            found[name] = set(targets.split(";"))
    return found


def become(cluster, wanted: dict[str, set[str]]) -> None:
    try:
        wait_for("the records", lambda: records(cluster) == wanted, 40, every=0.5)
    except AssertionError:
        raise AssertionError(f"the records are {records(cluster)}, not {wanted}") from None


@check("hostnames of routes that a Gateway or a ListenerSet serves have records with the address of the Gateway, others have none")
def made(cluster):
    address = {cluster.address(NS, "web")}
    become(cluster, {"shop.example.org": address, "team.example.org": address})
    return f"{', '.join(sorted(records(cluster)))} at {', '.join(address)}"


@check("a route that is not accepted any more has none")
def refused(cluster):
    address = {cluster.address(NS, "web")}
    route = pages.find(PAGE, "HTTPRoute", "shop")
    pages.apply({**route, "spec": {**route["spec"], "hostnames": ["shop.example.com"]}})
    become(cluster, {"team.example.org": address})
    pages.apply(route)
    become(cluster, {"shop.example.org": address, "team.example.org": address})


@check("an annotation adds a name that a listener has, and none that no listener has")
def annotated(cluster):
    address = {cluster.address(NS, "web")}
    route = pages.find(PAGE, "HTTPRoute", "shop")
    names = {"external-dns.kubernetes.io/hostname": "more.example.org,deep.more.example.com"}
    pages.apply({**route, "metadata": {**route["metadata"], "annotations": names}})
    become(cluster, dict.fromkeys(("more.example.org", "shop.example.org", "team.example.org"), address))
    pages.apply(route)
    become(cluster, {"shop.example.org": address, "team.example.org": address})


@check("records follow another address of the Gateway")
def moved(cluster):
    before = cluster.address(NS, "web")
    gateway = pages.find(PAGE, "Gateway", "web")
    wanted = before.rpartition(".")[0] + ".77"
    pages.apply({**gateway, "spec": {**gateway["spec"], "addresses": [{"type": "IPAddress", "value": wanted}]}})
    become(cluster, {name: {wanted} for name in ("shop.example.org", "team.example.org")})
    assert cluster.address(NS, "web") == wanted
