"""Owns what a measurement is: samples per proxy, and how it stands against its target. Plain data, no I/O."""

from dataclasses import dataclass, field
from statistics import median

# Name of another build of the program among the proxies.
BEFORE = "before"


@dataclass(frozen=True)
class Target:
    """Upper limits: a ratio to the lowest peer, a ratio to Envoy, or the figure itself."""

    of_lowest: float | None = None
    of_envoy: float | None = None
    value: float | None = None

    def __str__(self) -> str:
        parts = []
        if self.of_lowest is not None:
            parts.append(f"≤ {self.of_lowest:g} × lowest")
        if self.of_envoy is not None:
            parts.append(f"≤ {self.of_envoy:g} × envoy")
        if self.value is not None:
            parts.append(f"≤ {self.value:g}")
        return ", ".join(parts) or "–"


@dataclass
class Figure:
    """One row of the table. `samples[proxy][round]` is in `unit`; a fault makes a proxy's samples invalid."""

    name: str
    title: str
    unit: str
    target: Target = Target()
    samples: dict[str, list[float]] = field(default_factory=dict)
    details: dict[str, list[dict]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    def add(self, proxy: str, sample: float | None, fault: str = "", **details) -> None:
        if sample is not None:
            self.samples.setdefault(proxy, []).append(sample)
        if details:
            self.details.setdefault(proxy, []).append(details)
        if fault:
            self.faults.setdefault(proxy, fault)

    def median(self, proxy: str) -> float | None:
        return median(self.samples[proxy]) if self.samples.get(proxy) else None

    def lowest(self, ours: str) -> str | None:
        """The peer with the lowest valid median. Another build of the program is no peer."""
        peers = [name for name in self.samples if name not in (ours, BEFORE) and name not in self.faults]
        return min(peers, key=self.median, default=None)

    def ratio(self, ours: str, peer: str | None) -> float | None:
        """The median over the rounds of ours/peer, so that what slows a whole round cancels out."""
        if peer is None or {ours, peer} & set(self.faults):
            return None
        pairs = zip(self.samples.get(ours, []), self.samples.get(peer, []), strict=False)
        ratios = [mine / other for mine, other in pairs if other]
        return median(ratios) if ratios else None

    def passes(self, ours: str) -> bool | None:
        """Whether every limit of the target is kept; None when one of them cannot be judged."""
        checks = [
            (self.target.of_lowest, self.ratio(ours, self.lowest(ours))),
            (self.target.of_envoy, self.ratio(ours, "envoy")),
            (self.target.value, None if ours in self.faults else self.median(ours)),
        ]
        judged = [None if figure is None else figure <= limit for limit, figure in checks if limit is not None]
        if False in judged:
            return False
        return None if None in judged or not judged else True

    def as_json(self, ours: str) -> dict:
        lowest = self.lowest(ours)
        return {
            "name": self.name,
            "title": self.title,
            "unit": self.unit,
            "target": vars(self.target),
            "median": {proxy: self.median(proxy) for proxy in self.samples},
            "lowest_peer": lowest,
            "ratio_to_lowest": self.ratio(ours, lowest),
            "ratio_to_envoy": self.ratio(ours, "envoy"),
            "passes": self.passes(ours),
            "faults": self.faults,
            "samples": self.samples,
            "details": self.details,
        }
