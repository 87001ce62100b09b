"""How far measured runs lie from predictions: errors that runs of one engine, machine or model have in common.

The logarithm of measured over predicted is a sum of independent normal effects, one per level (all runs, engine,
machine, engine on machine, model, and the group of one model, engine, machine and number format), of an effect that
changes smoothly with the configuration within a group, and of what is each run's own:

    y_i = sum over levels u_level[key of i] + f_group(x_i) + e_i,   cov f(x, x') = s^2 exp(-|x - x'|^2 / 2)

x are the logarithms of devices, open requests, prompt and answer tokens, each over its length scale. Partial pooling
follows: a run of a group nobody measured has the deviation of all levels together; a few runs of its own narrow it
to what they leave (kriging). The deviations are fitted by maximum likelihood on released runs
(``scripts/fit_residuals.py``), for which families of models are left out in turn when they are tested.

Ref: A. Gelman and J. Hill, Data Analysis Using Regression and Multilevel/Hierarchical Models, 2007, chapter 12; C. E.
Rasmussen and C. K. I. Williams, Gaussian Processes for Machine Learning, 2006, Eq. (2.25) to (2.26) and (5.8).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEVELS: tuple[tuple[str, ...], ...] = (
    (),
    ("engine",),
    ("hardware",),
    ("engine", "hardware"),
    ("model",),
    ("engine", "model"),
    ("engine", "hardware", "model", "weights"),
)
"""Labels that runs share at each level; none: all runs."""
FEATURES = ("devices", "concurrency", "prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviations:
    """Standard deviations of ln(measured / predicted) of one metric."""

    levels: tuple[float, ...]
    """Of each of ``LEVELS``."""
    smooth: float
    """Of what changes with the configuration within a group."""
    scales: tuple[float, ...]
    """Of the logarithm of each of ``FEATURES``, over which it changes."""
    own: float
    """Of each run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """One run's place among others, and ln(measured / predicted) where it was measured."""

    labels: Mapping[str, str]
    features: tuple[float, ...]
    """Logarithms of ``FEATURES``."""
    error: float = math.nan


@dataclass(frozen=True, slots=True)
class Expected:
    """What a prediction is multiplied by, and between which factors the measured value lies."""

    factor: float
    low: float
    high: float
    deviation: float
    """Of the logarithm."""


def covariance(deviations: Deviations, one: Sequence[Residual], other: Sequence[Residual]) -> Array:
    """Covariance of the errors of runs without what is each one's own, [one, other]."""
    total = np.zeros((len(one), len(other)))
    for labels, deviation in zip(LEVELS, deviations.levels, strict=True):
        total += deviation**2 * shared(labels, one, other)
    x, y = (np.array([each.features for each in runs]) / deviations.scales for runs in (one, other))
    distance = ((x[:, None] - y[None]) ** 2).sum(axis=2)
    return np.asarray(total + deviations.smooth**2 * shared(LEVELS[-1], one, other) * np.exp(-distance / 2))


def shared(labels: tuple[str, ...], one: Sequence[Residual], other: Sequence[Residual]) -> Array:
    """Return which pairs share labels, as 0 and 1."""
    keys: dict[tuple[str, ...], int] = {}
    codes = [
        np.array([keys.setdefault(tuple(each.labels.get(name, "") for name in labels), len(keys)) for each in runs])
        for runs in (one, other)
    ]
    return np.asarray(codes[0][:, None] == codes[1][None], dtype=np.float64)


def expected(
    deviations: Deviations, known: Sequence[Residual], asked: Sequence[Residual], level: float = 0.8
) -> list[Expected]:
    """Return what to expect of runs beside those whose errors are known, at a confidence level each."""
    if not asked:
        return []
    prior = np.diag(covariance(deviations, asked, asked)) if len(asked) < 64 else _variance(deviations, len(asked))
    mean, variance = np.zeros(len(asked)), prior + deviations.own**2
    if known:
        errors = np.array([each.error for each in known])
        between = covariance(deviations, asked, known)
        inner = covariance(deviations, known, known) + deviations.own**2 * np.eye(len(known))
        solved = np.linalg.solve(inner, np.column_stack([errors[:, None], between.T]))
        mean = between @ solved[:, 0]
        variance = variance - np.einsum("ij,ji->i", between, solved[:, 1:])
    score = NormalDist().inv_cdf((1 + level) / 2)
    spread = np.sqrt(np.maximum(variance, deviations.own**2 / 1000))
    return [
        Expected(math.exp(m), math.exp(m - score * s), math.exp(m + score * s), s)
        for m, s in zip(mean.tolist(), spread.tolist(), strict=True)
    ]


def _variance(deviations: Deviations, count: int) -> Array:
    """Variance of any run's error without its own, [count]."""
    return np.full(count, sum(each**2 for each in deviations.levels) + deviations.smooth**2)
