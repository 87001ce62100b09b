"""Measured runs beside their predictions: errors, intervals, and their summary."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ground.errors import BadInput
from planner.accuracy import Errors
from planner.costs.predict import Configuration, predict
from planner.verification.residuals import Deviations, Expected, Residual, expected
from planner.verification.runs import METRICS, Run

LEVEL = 0.8
FITTED = Path(__file__).parent / "deviations.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One run beside its prediction, by metric where it was measured."""

    run: Run
    predicted: dict[str, float]
    interval: dict[str, tuple[float, float]]
    reason: str | None = None  # why it was skipped

    @property
    def error(self) -> dict[str, float]:
        """predicted / measured - 1."""
        return {name: self.predicted[name] / value - 1 for name, value in self._compared}

    @property
    def inside(self) -> dict[str, bool]:
        """Whether the measured value lies in the interval."""
        return {name: self.interval[name][0] <= value <= self.interval[name][1] for name, value in self._compared}

    @property
    def _compared(self) -> list[tuple[str, float]]:
        return [(name, value) for name, value in self.run.measured.items() if name in self.predicted]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of some runs, by metric."""

    count: int
    mape: dict[str, float]
    median: dict[str, float]
    bias: dict[str, float]
    coverage: dict[str, float]  # share inside the interval
    rank_correlation: dict[str, float]  # spearman's, of three runs at least


@cache
def deviations() -> dict[str, Deviations]:
    """Return the fitted deviations of every metric."""
    data = yaml.safe_load(FITTED.read_text(encoding="utf-8"))["metrics"]
    return {n: Deviations(**each | {h: tuple(each[h]) for h in ("levels", "scales")}) for n, each in data.items()}


def point(configuration: Configuration) -> dict[str, float]:
    """Return the predicted value of every metric; answers of one token have no TPOT."""
    answer = predict(configuration)
    assert answer.ttft_seconds is not None and answer.tpot_seconds is not None, "an aggregated instance has both"
    values = (answer.ttft_seconds, answer.tpot_seconds, answer.tokens_per_second / answer.chips)
    return {name: value for name, value in zip(METRICS, values, strict=True) if value > 0}


def place_of(run: Run, configuration: Configuration) -> Residual:
    """Return the labels and features of a run, without its error."""
    features = run.features or (
        float(configuration.strategy.devices),
        configuration.concurrency,
        configuration.prompt_tokens,
        configuration.output_tokens,
    )
    return Residual(labels=run.labels, features=tuple(math.log(each) for each in features))


def verify_runs(
    runs: Sequence[Run],
    known: Sequence[tuple[str, Residual]] = (),
    level: float = LEVEL,
    predicted: Callable[[Configuration], dict[str, float]] = point,
) -> list[Verified]:
    """Return every run beside its prediction.

    Args: ``runs``: the runs of ``read_runs``; ``known``: errors of earlier runs (``calibration``), each with its
    metric, which correct predictions; ``level``: confidence level of the intervals; ``predicted``: returns the metrics
    of a configuration.
    """
    raw: dict[int, dict[str, float]] = {}
    reasons: dict[int, str] = {}
    for place, run in enumerate(runs):
        if run.configuration is None:
            reasons[place] = run.reason or "cannot be predicted"
            continue
        try:
            raw[place] = predicted(run.configuration)
        except BadInput as error:
            reasons[place] = f"{run.where}: {error}"
    factors = _factors(runs, list(raw), known, level)
    found = []
    for place, run in enumerate(runs):
        held = {name: (value, factors[name][place]) for name, value in raw.get(place, {}).items()}
        own = {name: value * by.factor for name, (value, by) in held.items()}
        interval = {name: (value * by.low, value * by.high) for name, (value, by) in held.items()}
        found.append(Verified(run=run, predicted=own, interval=interval, reason=reasons.get(place)))
    return found


def _factors(
    runs: Sequence[Run], places: list[int], known: Sequence[tuple[str, Residual]], level: float
) -> dict[str, dict[int, Expected]]:
    asked = [place_of(run, run.configuration) for place in places if (run := runs[place]).configuration is not None]
    found = {}
    for metric in METRICS:
        rows = [row for name, row in known if name == metric]
        found[metric] = dict(zip(places, expected(deviations()[metric], rows, asked, level), strict=True))
    return found


def calibration(verified: Sequence[Verified]) -> list[tuple[str, Residual]]:
    """Return the errors of measured runs, by metric, which correct later predictions of similar runs.

    The runs must have been verified without calibration.
    """
    found = []
    for each in verified:
        if each.run.configuration is None:
            continue
        place = place_of(each.run, each.run.configuration)
        for name, value in each.run.measured.items():
            if name in each.predicted:
                error = math.log(value / each.predicted[name])
                found.append((name, Residual(labels=place.labels, features=place.features, error=error)))
    return found


def summarise(verified: Sequence[Verified]) -> Summary:
    """Return the joint errors of runs, without metrics that no run has."""
    rows = [each for each in verified if each.predicted]
    found = {}
    for name in METRICS:
        own = [each for each in rows if name in each.error]
        if own:
            found[name] = Errors.of([(e.predicted[name], e.run.measured[name], e.inside[name]) for e in own])

    def by(figure: str) -> dict[str, Any]:
        return {name: each for name, own in found.items() if (each := getattr(own, figure)) is not None}

    mape, middle, bias, inside, ordered = map(by, ("mape", "median", "bias", "inside", "rank_correlation"))
    return Summary(count=len(rows), mape=mape, median=middle, bias=bias, coverage=inside, rank_correlation=ordered)


def by_label(verified: Sequence[Verified], label: str) -> dict[str, Summary]:
    """Return the errors of the runs that share an engine, a machine or a model."""
    groups: dict[str, list[Verified]] = {}
    for each in verified:
        if each.predicted:
            groups.setdefault(each.run.labels.get(label) or "unknown", []).append(each)
    return {name: summarise(group) for name, group in sorted(groups.items())}
