"""The text exposition format of Prometheus endpoints, version 0.0.4."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isnan
from typing import TypeVar

from ground.errors import BadInput

Key = TypeVar("Key")
MOST_LINES = 2_000_000
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LE = re.compile(r'(?:^|,)\s*le="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations of all instances together: how many, their sum, and (upper edge, how many up to it)."""

    count: float
    total: float
    buckets: tuple[tuple[float, float], ...]

    @property
    def mean(self) -> float:
        """Mean of the observations; 0 without any."""
        return self.total / self.count if self.count else 0.0

    def at(self, percentile: float) -> float | None:
        """Return a percentile, linear inside its bucket; None without observations or beyond the last edge."""
        wanted, below, edge = self.count * percentile / 100, 0.0, 0.0
        for upper, held in self.buckets:
            if held >= wanted and self.count:
                share = (wanted - below) / (held - below) if held > below else 1.0
                return None if upper == inf else edge + share * (upper - edge)
            below, edge = held, upper
        return None

    @property
    def squared_cv(self) -> float:
        """Squared coefficient of variation, every observation in the middle of its bucket; 0 without buckets."""
        if not self.buckets or self.count < 2 or not self.mean:
            return 0.0
        below, edge, moment, first = 0.0, 0.0, 0.0, 0.0
        for upper, held in self.buckets:
            middle = edge if upper == inf else (edge + upper) / 2
            moment, first = moment + (held - below) * middle**2, first + (held - below) * middle
            below, edge = held, upper
        mean = first / self.count
        return max(moment / self.count / mean**2 - 1, 0.0) if mean else 0.0


@dataclass(frozen=True, slots=True)
class Scrape:
    """Sums over all labels but ``le``, by series; bucket counts by series and upper edge."""

    values: Mapping[str, float]
    edges: Mapping[tuple[str, float], float]

    def __sub__(self, other: "Scrape") -> "Scrape":
        """Return the counts since an earlier scrape."""
        return Scrape(_since(self.values, other.values), _since(self.edges, other.edges))

    def __add__(self, other: "Scrape") -> "Scrape":
        """Return the sums of two endpoints."""
        return Scrape(_summed(self.values, other.values), _summed(self.edges, other.edges))

    def histogram(self, name: str) -> Histogram | None:
        """Return a histogram; None where there is none of that name."""
        if f"{name}_count" not in self.values:
            return None
        buckets = sorted((edge, value) for (own, edge), value in self.edges.items() if own == f"{name}_bucket")
        return Histogram(self.values[f"{name}_count"], self.values.get(f"{name}_sum", 0.0), tuple(buckets))


def _since(now: Mapping[Key, float], before: Mapping[Key, float]) -> dict[Key, float]:
    """Return how far counters rose; one that fell was restarted."""
    return {key: value - old if value >= (old := before.get(key, 0.0)) else value for key, value in now.items()}


def _summed(one: Mapping[Key, float], other: Mapping[Key, float]) -> dict[Key, float]:
    return {key: one.get(key, 0.0) + other.get(key, 0.0) for key in {**one, **other}}


def parse_scrape(text: str, where: str) -> Scrape:
    """Return the samples of an endpoint; BadInput naming the line that is none."""
    values, edges = defaultdict[str, float](float), defaultdict[tuple[str, float], float](float)
    for number, line in enumerate(text.splitlines()[:MOST_LINES], start=1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _SAMPLE.fullmatch(line)
        value = _number(found[3]) if found else None
        if found is None or value is None:
            raise BadInput(f"{where}:{number}: {line[:40]!r} is no sample of Prometheus' text format, such as name 1.5")
        if isnan(value):
            continue
        name, edge = found[1], _LE.search(found[2] or "")
        upper = None if edge is None else _number(edge[1])
        if upper is not None:
            edges[name, upper] += value
        else:
            values[name] += value
    return Scrape(values, edges)


def _number(text: str) -> float | None:
    try:
        return float(text.replace("Inf", "inf"))
    except ValueError:
        return None
