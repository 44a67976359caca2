"""Owns the cases of budgets: the CPU time of Portcullis with a feature against the same without, and what traces must have reached."""

import math
from dataclasses import dataclass
from statistics import quantiles

import admin
import features
from comparison import WARM_UP_SECONDS, compare_once
from features import Feature
from figure import Figure, Target
from lab import Lab, Running
from load import Generator, Outcome
from proxies import OURS, Restricted, Site
from report import MARKS

# Processes are started anew after as many rounds: where their memory lies makes a difference that lasts as long as they do.
ROUNDS_OF_A_PAIR = 3
# The share of the requests per second that the proxy can serve which both get. With all of them, the slower one leaves the load's core idle
# more often, and pays for each time that a response wakes that core.
SHARE_OF_CAPACITY = 0.8
# A request that is traced has a span, and one for its attempt.
SPANS_PER_REQUEST = 2
# By then the exporter has sent what waits.
EXPORT_SECONDS = 5.0
# The share of spans that may be dropped when the load takes all of the cores: the exporter makes no request wait, and what is not sent
# changes the figure by less than its rounds differ.
DROPPED = 0.01
# Standard deviations by which the number of sampled requests, which is random, may differ; and requests that the end of a load cuts off.
DEVIATIONS, CUT_OFF = 5, 64


@dataclass(frozen=True)
class BudgetCase:
    """CPU time of requests with a feature, against the same requests to another instance without it."""

    feature: Feature

    @property
    def name(self) -> str:
        return f"budget-{self.feature.name}"

    @property
    def title(self) -> str:
        return f"CPU with {self.feature.title} against without"

    def measure(self, lab: Lab, tell) -> list[Figure]:
        if OURS not in lab.proxies:
            return []
        figure = Figure(self.name, self.title, "ratio", Target(value=1 + self.feature.limit))
        for first in range(0, lab.options.rounds, ROUNDS_OF_A_PAIR):
            turns = range(first, min(first + ROUNDS_OF_A_PAIR, lab.options.rounds))
            self._measure_a_pair(lab, tell, figure, turns)
        return [figure]

    def _measure_a_pair(self, lab: Lab, tell, figure: Figure, turns: range) -> None:
        feature, path = self.feature, lab.proxies[OURS].path
        collector = lab.collector() if feature.sampled is not None else 0
        both = {
            "without": lab.start(Restricted(path, features.routes()), f"{self.name} without"),
            "with": lab.start(Restricted(path, feature.documents(collector), arguments=feature.arguments()), f"{self.name} with"),
        }
        site = both["with"].site
        headers = feature.headers() | (feature.given(site.http) if feature.given else {})

        # They warm the instances up, too.
        found = [lab.generator.wrk(_url(running.site), WARM_UP_SECONDS, headers=headers) for running in both.values()]
        rate = SHARE_OF_CAPACITY * min(outcome.requests / (outcome.seconds or 1) for outcome in found)

        def run(generator: Generator, site: Site, seconds: float) -> Outcome:
            return generator.paced_http1(_url(site), site.http, max(seconds, feature.seconds), rate, headers)

        opened = {"around_second": lambda: feature.opened(site.admin)} if feature.opened else {}
        for turn in turns:
            compare_once(lab, figure, both, run, turn, **opened)
            tell(figure, turn)
        fault = next((outcome.fault for outcome in found if outcome.fault), "") or feature.fault(site) or self._traces_fault(both["with"])
        if fault:
            figure.add(OURS, None, fault)
        for running in both.values():
            lab.stop(running)

    def _traces_fault(self, running: Running) -> str:
        """Why what the collector got is not what was sampled; empty if it is."""
        sampled = self.feature.sampled
        if sampled is None:
            return ""
        port = running.site.admin
        requests = admin.counter(port, "portcullis_requests_total")
        exported = admin.stable(lambda: admin.counter(port, "portcullis_trace_exported_spans_total"), EXPORT_SECONDS)
        dropped = admin.counter(port, "portcullis_trace_dropped_spans_total")
        expected = requests * sampled
        tolerance = DEVIATIONS * math.sqrt(expected * (1 - sampled)) + CUT_OFF * math.ceil(sampled)
        if dropped > DROPPED * expected * SPANS_PER_REQUEST:
            return f"{dropped} spans were dropped"
        if abs((exported + dropped) / SPANS_PER_REQUEST - expected) > tolerance:
            return f"{exported} spans of {requests} requests were exported, {sampled:.0%} of which are sampled"
        return ""


def _url(site: Site) -> str:
    return f"http://localhost:{site.http}/"


def spread(figure: Figure) -> str:
    """The middle half of the rounds, which says how sure their median is."""
    samples = figure.samples.get(OURS, [])
    if len(samples) < 4:
        return ""
    first, _median, third = quantiles(samples, n=4)
    return f"{first:.3f} to {third:.3f}"


def table(figures: list[Figure]) -> list[list[str]]:
    """The rows of the table of budgets, the headline first."""
    rows = [["case", "CPU per request of that without", "half of the rounds", "budget", ""]]
    for figure in figures:
        median = figure.median(OURS)
        shown = "invalid" if OURS in figure.faults or median is None else f"{median:.3f}"
        rows.append([figure.name, shown, spread(figure), f"≤ {figure.target.value:g}", MARKS[figure.passes(OURS)]])
    return rows


ALL = [BudgetCase(feature) for feature in features.ALL]
