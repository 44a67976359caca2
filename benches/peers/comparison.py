"""Owns how one instance of a proxy is compared with another: under the same load in turn, as a ratio in each round."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from figure import Figure
from lab import Lab, Running, Sample
from proxies import OURS

WARM_UP_SECONDS = 0.3


def compare(lab: Lab, tell, figure: Figure, both: dict[str, Running], run) -> Figure:
    """Adds to `figure` how the cost of the second of two instances compares with that of the first, under one load."""
    for running in both.values():
        run(lab.generator, running.site, WARM_UP_SECONDS)
    for turn in range(lab.options.rounds):
        compare_once(lab, figure, both, run, turn)
        tell(figure, turn)
    return figure


def compare_once(
    lab: Lab,
    figure: Figure,
    both: dict[str, Running],
    run,
    turn: int,
    around_second: Callable[[], AbstractContextManager] = nullcontext,
) -> None:
    """Adds one round. What is open `around_second` is so only while the second instance has its load."""
    first, second = both
    samples: dict[str, Sample] = {}
    for name in rotated([first, second], turn):
        with around_second() if name == second else nullcontext():
            samples[name] = lab.sample(both[name], run)
    costs = {name: cost(sample, 1e-3) for name, sample in samples.items()}
    ratio = costs[second] / costs[first] if costs[first] and costs[second] else None
    details = {name: sample.details() for name, sample in samples.items()}
    figure.add(OURS, ratio, samples[first].fault or samples[second].fault, us_per_request=costs, **details)


def rotated(names: list[str], turn: int) -> list[str]:
    """Another one goes first in each round."""
    start = turn % len(names)
    return names[start:] + names[:start]


def cost(sample: Sample, scale: float) -> float | None:
    return sample.cpu_ns / sample.outcome.requests * scale if sample.outcome.requests else None
