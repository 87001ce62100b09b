"""Fit the deviations of measured runs from predictions: python scripts/fit_residuals.py RUNS.csv [--write].

Maximum likelihood of the effects in ``planner.verification.residuals`` on released runs, per metric; then the factors
on its deviations whose intervals score best, without runs of the group and with five. And the test: each family of
models is left out in turn, its intervals come from the deviations of the others, and five random runs of a model,
machine and engine are then given back. What a machine adds that no kernel of an engine was timed on (`untimed`) is what
errors grow by where the measured machines go by another name, so that nothing of an engine is known there. Runs more
than e times off (``ACCIDENT``; 30 of 837, of TTFT alone: servers that compiled kernels while measured) are left out of
fits, not of tests. Writes planner/verification/deviations.yaml. With OMP_NUM_THREADS=1 it takes minutes, for its
matrices are small.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import yaml
from scipy.optimize import minimize

from planner.verification.residuals import (
    EXPERTS,
    FEATURES,
    LEVELS,
    Deviations,
    Residual,
    covariance,
    evened,
    expected,
    shared,
    weights,
)
from planner.verification.runs import METRICS, read_runs
from planner.verification.verify import FITTED, place_of, point

ACCIDENT = 1.0
LEVEL = 0.8
GROUP = ("engine", "hardware", "model")


def rows_of(path: Path, *, timed: bool = True) -> dict[str, list[Residual]]:
    """Return the residuals of every metric of the runs that can be predicted, with engines' kernels or without."""
    found: dict[str, list[Residual]] = {name: [] for name in METRICS}
    skipped = 0
    for run in read_runs(path):
        if run.configuration is None:
            skipped += 1
            continue
        asked, place = run.configuration, place_of(run, run.configuration)
        if not timed:
            asked = replace(asked, hardware=replace(asked.hardware, name=f"{asked.hardware.name}-alone"))
        predicted = point(asked)
        for name, value in run.measured.items():
            error = math.log(value / predicted[name])
            found[name].append(Residual(labels=place.labels, features=place.features, error=error))
    print(f"{len(found[METRICS[1]])} runs, {skipped} skipped")
    return found


def grown(found: Deviations, rows: list[Residual], alone: list[Residual]) -> float:
    """Return the deviation that errors without engines' kernels have beyond those with them, of a dense model."""
    pairs = [pair for pair in zip(rows, alone, strict=True) if max(abs(each.error) for each in pair) < ACCIDENT]
    before, after = (
        np.mean([each.error**2 for each in evened(found, column)[0]]) for column in zip(*pairs, strict=True)
    )
    return math.sqrt(max(after - before, 0.0))


def usual(rows: list[Residual]) -> list[Residual]:
    """Return the runs without accidents."""
    return [row for row in rows if abs(row.error) < ACCIDENT]


def fit(rows: list[Residual], rng: np.random.Generator, most: int = 320) -> Deviations:
    """Return the deviations that make the runs most likely, a random part of many.

    Three rounds, in each of which runs far off count less (``weights``). A weak prior keeps levels of few keys, of
    which the runs tell little, from vanishing.
    """
    chosen = [rows[i] for i in rng.permutation(len(rows))[:most]]
    count, errors = len(LEVELS), np.array([each.error for each in chosen])
    same = [shared(labels, chosen, chosen) for labels in LEVELS]
    features = np.array([each.features for each in chosen])
    expert = np.array([EXPERTS in each.labels for each in chosen], dtype=float)
    squares = (features[:, None] - features[None]) ** 2

    def made(x: np.ndarray) -> Deviations:
        *values, experts, own = [float(each) for each in np.exp(x)]
        scales = tuple(values[count + 1 :])
        return Deviations(levels=tuple(values[:count]), smooth=values[count], scales=scales, own=own, experts=experts)

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return minus the logarithm of likelihood and prior, and its gradient (Rasmussen and Williams, Eq. 5.9)."""
        variances, even = np.exp(2 * x), errors * np.exp(-x[-2] * expert)
        scaled = squares / variances[count + 1 : -2]
        smooth = variances[count] * same[-1] * np.exp(-scaled.sum(axis=2) / 2)
        levels = [variance * each for variance, each in zip(variances, same, strict=False)]
        own = variances[-1] * np.diag(1 / counts)
        inverse = np.linalg.inv(inner := sum(levels) + smooth + own)
        left = inverse @ even
        slopes = [2 * each for each in (*levels, smooth)] + [smooth * scaled[:, :, k] for k in range(len(FEATURES))]
        weighed = inverse - np.outer(left, left)
        gradient = np.array([(weighed * each).sum() / 2 for each in (*slopes, 0 * own, 2 * own)])
        gradient[-2] = expert.sum() - (expert * even) @ left
        amplitudes, lengths, likeness = x[: count + 1] + 2.5, x[count + 1 : -2] - 0.5, x[-2]
        gradient[:-1] += np.concatenate([amplitudes / 4, lengths, [likeness]])
        prior = (amplitudes**2).sum() / 8 + ((lengths**2).sum() + likeness**2) / 2
        return float((even @ left + np.linalg.slogdet(inner)[1]) / 2 + x[-2] * expert.sum() + prior), gradient

    x, counts = np.array([-2.5] * (count + 1) + [0.5] * len(FEATURES) + [0.0, -2.5]), np.ones(len(chosen))
    for _ in range(3):
        x = minimize(loss, x, jac=True, method="L-BFGS-B", options={"maxiter": 40}).x
        counts = weights(made(x), covariance(made(x), chosen, chosen), errors * np.exp(-x[-2] * expert))
    return made(x)


def calibrated(found: Deviations, rows: list[Residual], rng: np.random.Generator) -> Deviations:
    """Return the deviations times the factors with the best interval scores, of all groups before and after five runs.

    Few groups with errors of their own kind widen what maximum likelihood makes of all. The score is the width and, for
    a value outside, 2 / (1 - level) times its distance (Gneiting and Raftery, J. Am. Stat. Assoc. 102, 2007, Eq. 43).
    """
    trials = [([], rows[::4]), *((known, asked[:20]) for known, asked in drawn(rows, rng, 5))]
    choices = [
        replace(
            found,
            levels=tuple(each * level for each in found.levels),
            smooth=found.smooth * smooth,
            own=found.own * own,
        )
        for level, smooth, own in product((0.35, 0.6, 1.0), (0.6, 0.8, 1.0), (1.0, 1.25, 1.5))
    ]

    def score(one: Deviations) -> float:
        before, after = [], []
        for known, asked in trials:
            for row, each in zip(asked, expected(one, known, asked, LEVEL), strict=True):
                low, high = math.log(each.low), math.log(each.high)
                outside = max(low - row.error, row.error - high, 0.0)
                (after if known else before).append(high - low + 2 / (1 - LEVEL) * outside)
        return float(np.mean(before) + np.mean(after))

    return min(choices, key=score)


def deviations_of(rows: list[Residual], rng: np.random.Generator) -> Deviations:
    """Return the deviations of runs without accidents, whose share widens the intervals of all."""
    kept = usual(rows)
    return replace(calibrated(fit(kept, rng), kept, rng), accidents=1 - len(kept) / len(rows))


def drawn(
    rows: list[Residual], rng: np.random.Generator, times: int
) -> Iterator[tuple[list[Residual], list[Residual]]]:
    """Yield five random runs of every group, of whatever versions and formats, and the others of it."""
    groups: dict[tuple[str, ...], list[Residual]] = {}
    for row in rows:
        groups.setdefault(tuple(row.labels[label] for label in GROUP), []).append(row)
    for group in groups.values():
        for _ in range(times):
            order = rng.permutation(len(group))
            yield [group[i] for i in order[:5]], [group[i] for i in order[5:]]


def report(name: str, rows: list[Residual], rng: np.random.Generator) -> None:
    """Print errors and coverage with families left out, before and after five runs of a group; families count alike."""
    before, after = {}, {}
    for family in sorted({row.labels["model"] for row in rows}):
        own = [row for row in rows if row.labels["model"] == family]
        deviations = deviations_of([row for row in rows if row.labels["model"] != family], rng)
        before[family] = list(zip(own, expected(deviations, [], own, LEVEL), strict=True))
        drawings = drawn(own, rng, 6)
        after[family] = [
            pair
            for known, asked in drawings
            for pair in zip(asked, expected(deviations, known, asked, LEVEL), strict=True)
        ]
    for what, families in (("without runs of its own", before), ("with five", after)):
        errors = [abs(each.factor / math.exp(row.error) - 1) for pairs in families.values() for row, each in pairs]
        inside = {
            family: [each.low <= math.exp(row.error) <= each.high for row, each in pairs]
            for family, pairs in families.items()
        }
        shares = {family: float(np.mean(own)) for family, own in inside.items()}
        told = ", ".join(f"{family} {share:.1%}" for family, share in shares.items())
        held, mean = np.mean(np.concatenate(list(inside.values()))), np.mean(list(shares.values()))
        print(
            f"{name}, {what}: mean error {np.mean(errors):.1%}, {LEVEL:.0%} intervals hold {held:.1%} of runs", end=""
        )
        print(f", {mean:.1%} in the mean of families ({told})")


def main() -> None:
    """Fit, test and maybe write."""
    path, rng = Path(sys.argv[1]), np.random.default_rng(0)
    found, alone = rows_of(path), rows_of(path, timed=False)
    data = {}
    for name, rows in found.items():
        report(name, rows, rng)
        fitted = deviations_of(rows, rng)
        data[name] = {
            "levels": [round(float(x), 4) for x in fitted.levels],
            "smooth": round(float(fitted.smooth), 4),
            "scales": [round(float(x), 3) for x in fitted.scales],
            "own": round(float(fitted.own), 4),
            "experts": round(float(fitted.experts), 3),
            "untimed": round(grown(fitted, rows, alone[name]), 4),
            "accidents": round(fitted.accidents, 4),
        }
        print(name, data[name])
    if "--write" in sys.argv:
        head = {
            "source": "837 measured closed-loop runs of four models under TensorRT-LLM, SGLang and vLLM on H100, H200 "
            "and B200 (AIConfigurator's silicon_sample.csv at 095f58a, Apache-2.0; InferenceX and NVIDIA sweeps)",
            "kind": "measured",
            "what": "standard deviations of ln(measured / predicted) of runs within a factor of e, maximum likelihood, "
            "then factors by interval score (scripts/fit_residuals.py)",
            "levels": [" x ".join(labels) or "all" for labels in LEVELS],
            "features": list(FEATURES),
        }
        FITTED.write_text(yaml.safe_dump(head | {"metrics": data}, sort_keys=False, width=120), encoding="utf-8")


if __name__ == "__main__":
    main()
