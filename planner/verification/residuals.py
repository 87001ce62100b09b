"""How far measured runs lie from predictions: errors that runs of one engine, machine or model have in common.

The logarithm of measured over predicted is a sum of independent effects, normal but for the last: one per level (all
runs, engine, machine, engine on machine, model, the group of one model, engine, machine and number format, and its
version), one that changes smoothly with the configuration within a version, and what is each run's own. That has a
heavy tail, of a Student's t with 4 degrees of freedom (some servers compiled kernels while measured), so a run far
off teaches little:

    y_i = sum over levels u_level[key of i] + f_version(x_i) + e_i,   cov f(x, x') = s^2 exp(-|x - x'|^2 / 2)

all of it times `experts` for models with experts, whose kernels and loads are known less surely than dense ones'.
Runs of an engine on a machine on which none of its kernels was timed have one more effect in common (`untimed`), as
large as what predictions of the measured machines lose without their engines' kernels.
x are the logarithms of devices, open requests, prompt and answer tokens, each over its length scale. Partial pooling
follows: a run of a group nobody measured has the deviation of all levels together; a few runs of its own narrow it
to what they leave (kriging, each run's own variance weighted anew until nothing moves). Groups are not equally well
predicted: each has a scale of its own, whose square has an inverse gamma law of as many degrees of freedom, so that
its errors are a Student's t process, and n known runs of a group tell its scale:

    interval = mean +- t_(4 + n) sqrt((4 + sum z_i^2) / (4 + n)) deviation

with z_i the error of a known run from what all others predict of it, over its deviation. The deviations are fitted by
maximum likelihood on released runs (``scripts/fit_residuals.py``), for which families of models are left out in turn
when they are tested.

Ref: A. Gelman and J. Hill, Data Analysis Using Regression and Multilevel/Hierarchical Models, 2007, chapter 12; C. E.
Rasmussen and C. K. I. Williams, Gaussian Processes for Machine Learning, 2006, Eq. (2.25) to (2.26), (5.8) and (5.12);
A. Shah, A. G. Wilson, Z. Ghahramani, Student-t Processes as Alternatives to Gaussian Processes, AISTATS 2014, Lemma 3;
K. L. Lange, R. J. A. Little and J. M. G. Taylor, Robust Statistical Modeling Using the t Distribution, JASA 84, 1989.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ground.arrays import Floats, student

LEVELS: tuple[tuple[str, ...], ...] = (  # labels that runs share at each level; none: all runs
    (),
    ("engine",),
    ("hardware",),
    ("engine", "hardware"),
    ("model",),
    ("engine", "model"),
    ("engine", "hardware", "model", "weights"),
    ("engine", "hardware", "model", "weights", "version"),
)
EXPERTS = "experts"  # label of runs of models with experts
UNTIMED = "untimed"  # label of runs of an engine on a machine on which none of its kernels was timed
GROUP = LEVELS[-2]  # labels of the runs that have one scale
FREEDOM = 4  # degrees of freedom of the error of each run alone, and of the scale of a group
SCALES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Factors by which the deviations of levels may exceed the fitted ones; their odds fall with the fourth power."""
_ROUNDS = 15
FEATURES = ("devices", "concurrency", "prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviations:
    """Standard deviations of ln(measured / predicted) of one metric."""

    levels: tuple[float, ...]  # standard deviation of each of ``LEVELS``
    smooth: float  # standard deviation of the error that changes smoothly with the configuration within a group
    scales: tuple[float, ...]  # length scale of the logarithm of each of ``FEATURES``, over which that error changes
    own: float  # scale of the error of each run alone
    experts: float = 1.0  # how many times as large all of these are for a model with experts
    untimed: float = 0.0  # standard deviation of what runs share whose machine has no kernel of their engine
    accidents: float = 0.0
    """Share of runs so far off that nothing was fitted to them: the others must be inside so much more often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """Labels and features of a run, and ln(measured / predicted) where it was measured."""

    labels: Mapping[str, str]
    features: tuple[float, ...]  # logarithms of ``FEATURES``
    error: float = math.nan


@dataclass(frozen=True, slots=True)
class Expected:
    """The factor that corrects a prediction, and the interval of measured over predicted value."""

    factor: float
    low: float
    high: float
    deviation: float  # standard deviation of the logarithm


def evened(deviations: Deviations, runs: Sequence[Residual]) -> tuple[list[Residual], Floats]:
    """Return the runs with errors as a dense model's would be, and how many times as large theirs are."""
    times = np.array([deviations.experts if EXPERTS in run.labels else 1.0 for run in runs])
    return [replace(run, error=run.error / scale) for run, scale in zip(runs, times, strict=True)], times


def covariance(deviations: Deviations, one: Sequence[Residual], other: Sequence[Residual]) -> Floats:
    """Covariance of the errors that runs share, [one, other]."""
    total = np.zeros((len(one), len(other)))
    for labels, deviation in zip(LEVELS, deviations.levels, strict=True):
        total += deviation**2 * shared(labels, one, other)
    flags = [np.array([float(UNTIMED in run.labels) for run in runs]) for runs in (one, other)]
    total += deviations.untimed**2 * np.outer(*flags) * shared(("engine", "hardware"), one, other)
    x, y = (np.array([each.features for each in runs]) / deviations.scales for runs in (one, other))
    distance = ((x[:, None] - y[None]) ** 2).sum(axis=2)
    return np.asarray(total + deviations.smooth**2 * shared(LEVELS[-1], one, other) * np.exp(-distance / 2))


def shared(labels: tuple[str, ...], one: Sequence[Residual], other: Sequence[Residual]) -> Floats:
    """Return 1 for pairs of runs that share labels, else 0, [one, other]."""
    keys: dict[tuple[str, ...], int] = {}
    codes = [
        np.array([keys.setdefault(tuple(each.labels.get(name, "") for name in labels), len(keys)) for each in runs])
        for runs in (one, other)
    ]
    return np.asarray(codes[0][:, None] == codes[1][None], dtype=np.float64)


def weights(deviations: Deviations, inner: Floats, errors: Floats) -> Floats:
    """Return the weight of each known error, smaller the farther it is from its prediction by the others.

    Args: ``inner``: covariance of the errors that the runs share.
    """
    found = np.ones(errors.size)
    for _ in range(_ROUNDS):
        own = deviations.own**2 * np.diag(1 / found)
        left = errors - inner @ np.linalg.solve(inner + own, errors)
        found = (FREEDOM + 1) / (FREEDOM + (left / deviations.own) ** 2)
    return found


def widened(deviations: Deviations, known: Sequence[Residual]) -> Deviations:
    """Return the deviations with those of the levels scaled by the factor that makes the known errors likeliest.

    Shared errors have a heavy tail too, a mixture of normals of several scales, the wider the rarer. So several runs
    that agree far from zero (such as those of a new engine) are believed, while a single one counts as an accident.
    """
    errors = np.array([each.error for each in known])

    def likelihood(one: Deviations) -> float:
        """Logarithm, with the gamma law of the weights of a Student's t as a scale mixture."""
        inner = covariance(one, known, known)
        counts = weights(one, inner, errors)
        whole = inner + one.own**2 * np.diag(1 / counts)
        normal = -(errors @ np.linalg.solve(whole, errors) + np.linalg.slogdet(whole)[1]) / 2
        return float(normal + ((FREEDOM / 2 - 1) * np.log(counts) - FREEDOM / 2 * counts).sum())

    choices = [replace(deviations, levels=tuple(scale * each for each in deviations.levels)) for scale in SCALES]
    return max(zip(choices, SCALES, strict=True), key=lambda pair: likelihood(pair[0]) - 4 * math.log(pair[1]))[0]


def expected(
    deviations: Deviations, known: Sequence[Residual], asked: Sequence[Residual], level: float = 0.8
) -> list[Expected]:
    """Return the corrections and intervals of runs, given runs with known errors, at a confidence level."""
    if not asked:
        return []
    (known, _), (asked, times) = evened(deviations, known), evened(deviations, asked)
    if known:
        deviations = widened(deviations, known)
    alone = deviations.untimed**2 * np.array([UNTIMED in each.labels for each in asked])
    variance = np.asarray(sum(each**2 for each in deviations.levels) + deviations.smooth**2 + alone)
    mean, scale, freedom = np.zeros(len(asked)), times, np.full(len(asked), float(FREEDOM))
    if known:
        between, solved, told, count = _learnt(deviations, known, asked)
        mean = between @ solved[:, 0]
        variance = variance - np.einsum("ij,ji->i", between, solved[:, 1:])
        freedom = FREEDOM + count
        scale = times * np.sqrt((FREEDOM + told) / freedom)
    variance, tail = np.maximum(variance, 0.0), FREEDOM / (FREEDOM - 2)
    end = (1 + min(level / (1 - deviations.accidents), (1 + level) / 2)) / 2
    reach = scale * np.hypot(student(end, freedom) * np.sqrt(variance), student(end, FREEDOM) * deviations.own)
    spread = scale * np.sqrt(variance + tail * deviations.own**2)
    return [
        Expected(math.exp(m), math.exp(m - r), math.exp(m + r), s)
        for m, r, s in zip((times * mean).tolist(), reach.tolist(), spread.tolist(), strict=True)
    ]


def posterior(deviations: Deviations, known: Sequence[Residual], asked: Sequence[Residual]) -> tuple[Floats, Floats]:
    """Return mean [asked] and covariance [asked, asked] of the shared errors of runs."""
    (known, _), (asked, times) = evened(deviations, known), evened(deviations, asked)
    shared, pairs = covariance(deviations, asked, asked), np.outer(times, times)
    if not known:
        return np.zeros(len(asked)), pairs * shared
    between, solved, *_ = _learnt(deviations, known, asked)
    return times * (between @ solved[:, 0]), pairs * (shared - between @ solved[:, 1:])


def _learnt(
    deviations: Deviations, known: Sequence[Residual], asked: Sequence[Residual]
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return what runs tell of others: the covariance of asked with known ones, the known covariance solved for their
    errors and for it, and of the known runs of each asked one's group the sum of z^2 and the number.
    """
    errors = np.array([each.error for each in known])
    between, inner = covariance(deviations, asked, known), covariance(deviations, known, known)
    inner = inner + deviations.own**2 * np.diag(1 / weights(deviations, inner, errors))
    inverse, alike = np.linalg.inv(inner), shared(GROUP, asked, known)
    solved = inverse @ np.column_stack([errors[:, None], between.T])
    return between, solved, alike @ (solved[:, 0] ** 2 / np.diag(inverse)), alike.sum(axis=1)
