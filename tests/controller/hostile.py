#!/usr/bin/env python3
"""A namespace that costs others as much as it can, with the rights of an application team: `hostile.py NAMESPACE VICTIM ROUTES ATTACK`.

Creates and changes objects until standard input ends: routes full of regular expressions, references to Secrets that do not
exist, thousands of routes, Gateways that cannot be programmed, conditions that change all the time, and large credentials. ATTACK
is a part of the names of attacks, or empty. A separate process, so that its own work is not counted as a delay of others.
"""

import os
import sys
import threading

from api import Api, Refused
from objects import GATEWAY_API, access_policy, gateway, listener_set, parameters, parameters_ref, redirect

# Limits of the CRDs: rules of a route, matches of all its rules, listeners of a Gateway, certificates of a listener.
RULES, MATCHES_OF_RULE, LISTENERS, CERTIFICATES = 16, 8, 64, 64
HEADERS = QUERY_PARAMS = 16
# A class of Unicode is large when it is compiled.
PATTERN = r"\w{{6}}-{0}"
RENAMED_EVERY_SECONDS = 1.5
UNPROGRAMMABLE = 10
# Objects with large values, and the length of these: a Secret has 1 MiB at most.
LARGE_OBJECTS, LARGE = 4, 900_000


class Hostile:
    def __init__(self, namespace: str, victim: str, routes: int, only: str):
        self._namespace, self._victim, self._routes, self._only = namespace, victim, routes, only
        self._api = Api()
        self._ends = threading.Event()
        self._writes, self._refused = 0, 0

    def run(self) -> None:
        """Runs the attacks until standard input ends."""
        attacks = [self._patterns, self._references, self._unprogrammable, self._status_churn, self._many_routes, self._credentials]
        chosen = (attack for attack in attacks if self._only in attack.__name__)
        threads = [threading.Thread(target=self._repeat, args=(attack,), daemon=True) for attack in chosen]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        self._ends.set()
        for thread in threads:
            thread.join(30)
        print(f"{self._writes} writes, {self._refused} refused by the API server")

    def _repeat(self, attack) -> None:
        round_number = 0
        while not self._ends.is_set():
            attack(round_number)
            round_number += 1

    def _apply(self, *objects: dict) -> None:
        for one in objects:
            if self._ends.is_set():
                return
            try:
                self._api.apply(one)
                self._writes += 1
            except Refused:
                self._refused += 1

    def _patterns(self, number: int) -> None:
        """Routes whose patterns are as large as permitted: one at the victim's Gateway, which does not admit them, and some at
        a Gateway of their own."""
        routes = [_patterns_of(self._namespace, f"patterns-{one}", ["own"], f"{number}-{one}") for one in range(4)]
        refused = _patterns_of(self._namespace, "patterns-elsewhere", [], str(number))
        refused["spec"]["parentRefs"] = [{"namespace": self._victim, "name": "edge", "sectionName": "own-8080"}]
        self._apply(gateway(self._namespace, "own"), refused, *routes)
        self._ends.wait(2)

    def _references(self, number: int) -> None:
        """A Gateway with thousands of certificates that do not exist, and that have other names each time."""
        names = [[{"name": f"missing-{number}-{one}-{two}"} for two in range(CERTIFICATES)] for one in range(LISTENERS)]
        wanting = gateway(self._namespace, "wanting")
        wanting["spec"]["listeners"] = [
            {
                "name": f"https-{one}",
                "port": 8443,
                "protocol": "HTTPS",
                "hostname": f"host-{one}.test",
                "tls": {"certificateRefs": references},
            }
            for one, references in enumerate(names)
        ]
        self._apply(wanting)
        self._ends.wait(RENAMED_EVERY_SECONDS)

    def _unprogrammable(self, number: int) -> None:
        """Gateways that cannot be programmed: an address of an unknown type, parameters that do not exist or that are not
        permitted, and an image that no node has."""
        absent = parameters(self._namespace, "absent", workload={"image": f"nowhere.test/absent:{number}"})
        self._apply(absent)
        for one in range(UNPROGRAMMABLE):
            broken = gateway(self._namespace, f"broken-{one}", parametersRef=parameters_ref(["absent", "none", f"none-{number}"][one % 3]))
            if one % 2:
                broken["spec"]["addresses"] = [{"type": "example.com/Unknown", "value": str(number)}]
            self._apply(broken)
        self._ends.wait(1)

    def _status_churn(self, number: int) -> None:
        """Routes whose conditions change each time: their parent exists or not."""
        for one in range(20):
            self._apply(redirect(self._namespace, f"churn-{one}", ["own" if (number + one) % 2 else "nobody"], "any.test"))
        self._ends.wait(0.2)

    def _many_routes(self, number: int) -> None:
        """Thousands of routes, each changed in turn."""
        for one in range(self._routes):
            self._apply(redirect(self._namespace, f"many-{one}", ["own"], f"round-{number}.test", f"/{one}"))

    def _credentials(self, number: int) -> None:
        """Large Secrets and ConfigMaps, policies that name them, and what these are on: a route and a ListenerSet at the victim's
        Gateway, which does not admit them. The ListenerSet comes last."""
        own, names = self._namespace, [f"large-{one}" for one in range(LARGE_OBJECTS)]
        text = f"{number}:" + "x" * LARGE
        metadata = [{"namespace": own, "name": name} for name in names]
        secrets = [{"apiVersion": "v1", "kind": "Secret", "metadata": one, "type": "Opaque", "stringData": {"auth": text}} for one in metadata]
        maps = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": one, "data": {"ca.crt": text}} for one in metadata]
        kinds = (("ListenerSet", "stranger"), ("HTTPRoute", "stranger"))
        targets = [{"group": "gateway.networking.k8s.io", "kind": kind, "name": name} for kind, name in kinds]
        policies = [access_policy(own, name, "edge", targetRefs=targets, basic={"secretRef": {"name": name}}) for name in names]
        route = redirect(own, "stranger", [], f"round-{number}.test")
        route["spec"]["parentRefs"] = [
            {"namespace": self._victim, "name": "edge"},
            {"group": "gateway.networking.k8s.io", "kind": "ListenerSet", "name": "stranger"},
        ]
        refused = listener_set(own, "stranger", "edge", 9000 + number)
        refused["spec"]["parentRef"]["namespace"] = self._victim
        self._apply(*secrets, *maps, *policies, route, refused)
        self._ends.wait(10)


def _patterns_of(namespace: str, name: str, parents: list[str], mark: str) -> dict:
    """A route with the largest number of regular expressions that the CRD permits, all different."""

    def values(place: str, count: int) -> list[dict]:
        return [
            {"name": f"x-{number}", "type": "RegularExpression", "value": PATTERN.format(f"{mark}-{place}-{number}")}
            for number in range(count)
        ]

    def match(rule: int, one: int) -> dict:
        place = f"{rule}-{one}"
        path = {"type": "RegularExpression", "value": "/" + PATTERN.format(f"{mark}-{place}")}
        return {"path": path, "headers": values(f"{place}-h", HEADERS), "queryParams": values(f"{place}-q", QUERY_PARAMS)}

    rules = [{"matches": [match(rule, one) for one in range(MATCHES_OF_RULE)]} for rule in range(RULES)]
    spec = {"parentRefs": [{"name": parent} for parent in parents], "rules": rules}
    return {"apiVersion": GATEWAY_API, "kind": "HTTPRoute", "metadata": {"namespace": namespace, "name": name}, "spec": spec}


if __name__ == "__main__":
    # Its own work must not take the processor from those that are measured.
    os.nice(10)
    _, own, victim, count, only = sys.argv
    Hostile(own, victim, int(count), only).run()
