"""Owns the loads that train a profile: the cases of ../peers, TCP, TLS and UDP that is forwarded, request bodies, routes with filters, and starts with many routes."""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cases
import forwarding
import process
import proxies
from lab import Lab, Options
from load import Generator, Outcome
from proxies import Portcullis, Site
from proxies.portcullis import many_hostnames, many_routes

ROUTES, HOSTNAMES = 500, 1000
FILTERS = """\
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: filters, namespace: default}
spec:
  parentRefs: [{name: bench}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /api/v2}, method: GET}]
    filters:
    - type: URLRewrite
      urlRewrite: {hostname: api.internal, path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}
    - type: RequestHeaderModifier
      requestHeaderModifier: {set: [{name: X-Api, value: v2}], add: [{name: X-More, value: more}], remove: [X-Debug]}
    timeouts: {request: 10s, backendRequest: 5s}
    backendRefs: [{name: backend, port: 80}]
  - matches: [{path: {type: RegularExpression, value: '/images/.*[.](png|jpg)'}}]
    filters:
    - type: ResponseHeaderModifier
      responseHeaderModifier: {set: [{name: Cache-Control, value: no-store}], remove: [Server]}
    backendRefs: [{name: backend, port: 80, weight: 9}, {name: backend, port: 80, weight: 1}]
  - matches: [{headers: [{name: X-Canary, value: 'true'}]}, {queryParams: [{name: preview, value: 'true'}]}]
    backendRefs: [{name: backend, port: 80}]
  - backendRefs: [{name: backend, port: 80}]
"""
# Requests of wrk: bodies, and one for each rule of the route above.
REQUESTS = """\
local requests, next = {}, 0
init = function()
  requests = {
    wrk.format("POST", "/", nil, string.rep("x", 4096)),
    wrk.format("GET", "/api/v2/items", {["Host"] = "localhost", ["X-Debug"] = "1", ["Accept"] = "*/*"}),
    wrk.format("GET", "/images/logo.png"),
    wrk.format("GET", "/other", {["Host"] = "localhost", ["X-Canary"] = "true"}),
    wrk.format("GET", "/other?preview=true"),
    wrk.format("GET", "/other"),
  }
end
request = function()
  next = next % #requests + 1
  return requests[next]
end
"""


class TrainingError(Exception):
    """A load did not do what it should: the profile would be that of something else."""


def start(program: str) -> None:
    """A start, one request, and the time until the memory that starting needed has been returned."""
    _prepare()
    with _lab(program, 1) as lab:
        running = lab.start(Portcullis(program), "start")
        time.sleep(cases.RELEASE_SECONDS)
        lab.stop(running)


def loads(program: str, seconds: float) -> None:
    """Each load has a start of its own."""
    _prepare()
    with _lab(program, seconds) as lab:
        for case in cases.ALL:
            if isinstance(case, cases.LoadCase):
                _load(lab, Portcullis(program), case.name, case.run, case.logs)
        _load(lab, Portcullis(program, [FILTERS]), "filters", _filters)
        _forwarded(lab)
        for label, routes in (("routes", many_routes(ROUTES)), ("hostnames", many_hostnames(HOSTNAMES))):
            print(f"training: {label}", flush=True)
            lab.stop(lab.start(Portcullis(program, routes), label))


def _prepare() -> None:
    # The profile is written at the end of the program, for which a run of the bench has little patience.
    os.environ["PORTCULLIS_DRAIN_DELAY"] = "0s"


@contextlib.contextmanager
def _lab(program: str, seconds: float) -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="portcullis-pgo-") as folder, process.Group() as group:
        yield Lab(group, Path(folder), _options(seconds), {proxies.OURS: Portcullis(program)}, proxies.ALL["nginx"]().path)


def _options(seconds: float) -> Options:
    return Options(
        rounds=1, seconds=seconds, idle_connections=0, idle_wait=0, routes=0, hostnames=0,
        proxy_core="0", second_core="", load_cores="1", same_headers=False, haproxy_splice=False, patience=0,
    )


def _load(lab: Lab, proxy: Portcullis, name: str, load: Callable[[Generator, Site, float], Outcome], logs: bool = False) -> None:
    print(f"training: {name}", flush=True)
    running = lab.start(proxy, name, logs)
    sample = lab.sample(running, load)
    lab.stop(running)
    if sample.fault:
        raise TrainingError(f"{name}: {sample.fault}")


def _forwarded(lab: Lab) -> None:
    """All loads of connections and datagrams that are forwarded without a look at the content."""
    running = lab.forwarding(proxies.OURS)
    for case in forwarding.ALL:
        for load in case.loads:
            print(f"training: {load.name}", flush=True)
            outcome = lab.sample(running, load.run).outcome
            if outcome.fault or not outcome.requests:
                raise TrainingError(f"{load.name}: {outcome.fault or 'nothing came back'}")
    lab.stop(running)


def _filters(generator: Generator, site: Site, seconds: float) -> Outcome:
    return generator.wrk(f"http://localhost:{site.http}/", seconds, script=REQUESTS)
