"""Fit the deviations of measured runs from predictions: python scripts/fit_residuals.py RUNS.csv [--write].

Maximum likelihood of the effects in ``planner.verification.residuals`` on released runs, per metric, and the test:
each family of models is left out in turn, its intervals come from the deviations of the others, and five random runs
of a group are then given back. Writes planner/verification/deviations.yaml.
"""

import math
import sys
from pathlib import Path

import numpy as np
import yaml
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize

from planner.verification.residuals import FEATURES, LEVELS, Deviations, Residual, covariance, expected, shared, weights
from planner.verification.runs import METRICS, read_runs
from planner.verification.verify import FITTED, place_of, point

LEVEL = 0.8


def rows_of(path: Path) -> dict[str, list[Residual]]:
    """Return the residuals of every metric of the runs that can be predicted."""
    found: dict[str, list[Residual]] = {name: [] for name in METRICS}
    skipped = 0
    for run in read_runs(path):
        if run.configuration is None:
            skipped += 1
            continue
        predicted, place = point(run.configuration), place_of(run, run.configuration)
        for name, value in run.measured.items():
            error = math.log(value / predicted[name])
            found[name].append(Residual(labels=place.labels, features=place.features, error=error))
    print(f"{len(found[METRICS[1]])} runs, {skipped} skipped")
    return found


def fit(rows: list[Residual], rng: np.random.Generator, most: int = 320) -> Deviations:
    """Return the deviations that make the runs most likely, a random part of many.

    Three rounds, in each of which runs far off count less (``weights``). A weak prior keeps levels of few keys, of
    which the runs tell little, from vanishing.
    """
    chosen = [rows[i] for i in rng.permutation(len(rows))[:most]]
    count, errors = len(LEVELS), np.array([each.error for each in chosen])
    same = [shared(labels, chosen, chosen) for labels in LEVELS]
    features = np.array([each.features for each in chosen])
    squares = (features[:, None] - features[None]) ** 2

    def made(x: np.ndarray) -> Deviations:
        values = [float(each) for each in np.exp(x)]
        scales = tuple(values[count + 1 : -1])
        return Deviations(levels=tuple(values[:count]), smooth=values[count], scales=scales, own=values[-1])

    def loss(x: np.ndarray) -> float:
        variances = np.exp(2 * x)
        inner = sum(variance * each for variance, each in zip(variances, same, strict=False))
        inner = inner + variances[count] * same[-1] * np.exp(-(squares / variances[count + 1 : -1]).sum(axis=2) / 2)
        factor = cholesky(inner + variances[-1] * np.diag(1 / counts), lower=True)
        whitened = solve_triangular(factor, errors, lower=True)
        prior = ((x[: count + 1] + 2.5) ** 2).sum() / 8 + ((x[count + 1 : -1] - 0.5) ** 2).sum() / 2
        return float(0.5 * whitened @ whitened + np.log(np.diag(factor)).sum() + prior)

    x, counts = np.array([-2.5] * (count + 1) + [0.5] * len(FEATURES) + [-2.5]), np.ones(len(chosen))
    for _ in range(3):
        x = minimize(loss, x, method="L-BFGS-B", options={"maxiter": 15}).x
        counts = weights(made(x), covariance(made(x), chosen, chosen), errors)
    return made(x)


def report(name: str, rows: list[Residual], rng: np.random.Generator) -> None:
    """Print errors and coverage with families left out, before and after five runs of a group."""
    before, after = [], []
    for family in sorted({row.labels["model"] for row in rows}):
        rest = [row for row in rows if row.labels["model"] != family]
        own = [row for row in rows if row.labels["model"] == family]
        deviations = fit(rest, rng)
        before += list(zip(own, expected(deviations, [], own, LEVEL), strict=True))
        groups: dict[tuple[str, ...], list[Residual]] = {}
        for row in own:
            groups.setdefault(tuple(row.labels[label] for label in LEVELS[-1]), []).append(row)
        for group in groups.values():
            for _ in range(4):
                order = rng.permutation(len(group))
                known, asked = [group[i] for i in order[:5]], [group[i] for i in order[5:]]
                after += list(zip(asked, expected(deviations, known, asked, LEVEL), strict=True)) if asked else []
    for what, pairs in (("without runs of its own", before), ("with five", after)):
        errors = [abs(each.factor / math.exp(row.error) - 1) for row, each in pairs]
        inside = [each.low <= math.exp(row.error) <= each.high for row, each in pairs]
        print(f"{name}, {what}: mean error {np.mean(errors):.1%}, {LEVEL:.0%} intervals hold {np.mean(inside):.1%}")


def main() -> None:
    """Fit, test and maybe write."""
    rng, found = np.random.default_rng(0), rows_of(Path(sys.argv[1]))
    data = {}
    for name, rows in found.items():
        report(name, rows, rng)
        fitted = fit(rows, rng)
        data[name] = {
            "levels": [round(float(x), 4) for x in fitted.levels],
            "smooth": round(float(fitted.smooth), 4),
            "scales": [round(float(x), 3) for x in fitted.scales],
            "own": round(float(fitted.own), 4),
        }
        print(name, data[name])
    if "--write" in sys.argv:
        head = {
            "source": "837 measured closed-loop runs of four models under TensorRT-LLM, SGLang and vLLM on H100, H200 "
            "and B200 (AIConfigurator's silicon_sample.csv at 095f58a, Apache-2.0; InferenceX and NVIDIA sweeps)",
            "kind": "measured",
            "what": "standard deviations of ln(measured / predicted), maximum likelihood (scripts/fit_residuals.py)",
            "levels": [" x ".join(labels) or "all" for labels in LEVELS],
            "features": list(FEATURES),
        }
        FITTED.write_text(yaml.safe_dump(head | {"metrics": data}, sort_keys=False, width=120), encoding="utf-8")


if __name__ == "__main__":
    main()
