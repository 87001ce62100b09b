"""Partial pooling of errors: against simulated effects, and what a few runs of one's own teach."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ground.arrays import student
from planner.verification.residuals import (
    EXPERTS,
    LEVELS,
    UNTIMED,
    Deviations,
    Residual,
    covariance,
    expected,
    posterior,
)

DEVIATIONS = Deviations(levels=(0.05, 0.1, 0.05, 0.05, 0.05, 0.0, 0.1, 0.0), smooth=0.05, scales=(1.0,) * 4, own=0.05)


def _run(model: str, error: float = math.nan, engine: str = "vllm", x: float = 0.0) -> Residual:
    labels = {"engine": engine, "hardware": "h200", "model": model, "weights": "fp8"}
    return Residual(labels=labels, features=(x, 0.0, 0.0, 0.0), error=error)


def test_an_unknown_run_has_the_deviation_of_all_levels_together() -> None:
    """Nothing is known, so nothing is corrected, and the interval holds every effect."""
    (found,) = expected(DEVIATIONS, [], [_run("a")])
    total = math.hypot(*DEVIATIONS.levels, DEVIATIONS.smooth, math.sqrt(2) * DEVIATIONS.own)
    assert found.factor == 1.0
    assert found.deviation == pytest.approx(total)
    shared = math.hypot(*DEVIATIONS.levels, DEVIATIONS.smooth)
    assert math.log(found.high) == pytest.approx(1.5332 * math.hypot(shared, DEVIATIONS.own), rel=1e-3)


def test_runs_of_the_same_group_correct_and_narrow() -> None:
    """Five runs that are 30 % slow move the prediction most of the way, and leave about each run's own deviation."""
    known = [_run("a", math.log(1.3), x=0.1 * i) for i in range(5)]
    (before,), (after,) = (expected(DEVIATIONS, rows, [_run("a")]) for rows in ([], known))
    assert 1.2 < after.factor < 1.3
    assert 0.9 * DEVIATIONS.own < after.deviation < before.deviation / 2


def test_runs_of_another_model_teach_less_than_ones_own() -> None:
    """The engine is shared, the group is not."""
    other, own = (expected(DEVIATIONS, [_run(name, 0.3)], [_run("a")])[0] for name in ("b", "a"))
    assert 1.0 < other.factor < own.factor
    assert own.deviation < other.deviation


def test_intervals_hold_what_they_say() -> None:
    """Errors drawn from the model itself lie inside the 80 % interval four times in five."""
    rng = np.random.default_rng(1)
    runs = [_run(f"m{i % 40}", engine=f"e{i % 3}", x=float(rng.normal())) for i in range(400)]
    chances = covariance(DEVIATIONS, runs, runs) + DEVIATIONS.own**2 * np.eye(len(runs))
    errors = np.linalg.cholesky(chances) @ rng.normal(size=(len(runs), 60))
    known = [
        Residual(labels=run.labels, features=run.features, error=e) for run, e in zip(runs, errors[:, 0], strict=True)
    ]
    found = expected(DEVIATIONS, known[:50], runs[50:], 0.8)
    plain = expected(DEVIATIONS, [], runs[:1], 0.8)[0]
    inside = [each.low <= math.exp(error) <= each.high for each, error in zip(found, errors[50:, 0], strict=True)]
    assert 0.7 < np.mean(inside) < 0.9
    drawn = np.exp(errors[0])
    assert 0.65 < np.mean((drawn > plain.low) & (drawn < plain.high)) < 0.95


def test_every_level_is_fitted() -> None:
    """The shipped deviations name as many levels as there are."""
    from planner.verification.verify import deviations

    assert all(len(each.levels) == len(LEVELS) for each in deviations().values())


def test_a_run_far_off_teaches_little() -> None:
    """Four runs 10 % slow and one 20 times: the sixth is expected a little slow, not twice."""
    made = Deviations(levels=(0.1,) * len(LEVELS), smooth=0.1, scales=(1.0,) * 4, own=0.1)
    known = [Residual(labels={}, features=(0.0, float(i), 0.0, 0.0), error=0.1) for i in range(4)]
    odd = Residual(labels={}, features=(0.0, 4.0, 0.0, 0.0), error=3.0)
    asked = [Residual(labels={}, features=(0.0, 5.0, 0.0, 0.0))]
    assert 1.0 < expected(made, [*known, odd], asked)[0].factor < 1.2


def test_models_with_experts_err_by_a_multiple() -> None:
    """Their intervals are as many times as wide, and what a run of theirs tells of itself stays."""
    made, expert = replace(DEVIATIONS, experts=2.0), replace(_run("a"), labels={**_run("a").labels, EXPERTS: "yes"})
    dense, moe = expected(made, [], [_run("a"), expert])
    assert math.log(moe.high) == pytest.approx(2 * math.log(dense.high)) and moe.deviation == 2 * dense.deviation
    known = [replace(expert, error=0.2)] * 50
    alike = expected(made, [replace(_run("a"), error=0.1)] * 50, [_run("a")])[0]
    assert math.log(expected(made, known, [expert])[0].factor) == pytest.approx(2 * math.log(alike.factor))
    shift, shared = posterior(made, known, [expert])
    assert shift[0] == pytest.approx(2 * math.log(alike.factor))
    assert shared[0, 0] == pytest.approx(
        4 * posterior(made, [replace(_run("a"), error=0.1)] * 50, [_run("a")])[1][0, 0]
    )


@pytest.mark.parametrize(
    ("level", "freedom", "value"),
    [(0.5, 4, 0.0), (0.9, 4, 1.5332), (0.975, 4, 2.7764), (0.1, 4, -1.5332), (0.9, 9, 1.3830)],
)
def test_quantiles_of_students_t(level: float, freedom: float, value: float) -> None:
    """Tables of Student's t."""
    assert student(level, freedom) == pytest.approx(value, rel=3e-3)


def test_a_group_has_a_scale_of_its_own() -> None:
    """Five runs that scatter more than others did leave a wider interval, in their own group alone."""
    calm, wild = ([_run("a", size * sign, x=float(place)) for place, sign in enumerate((1, -1, 1, -1, 1))]
                  for size in (0.02, 0.2))  # fmt: skip
    here, there = ([expected(DEVIATIONS, known, [_run(name)])[0] for known in (calm, wild)] for name in ("a", "b"))
    assert here[1].deviation > 1.5 * here[0].deviation
    assert there[1].deviation == pytest.approx(there[0].deviation, rel=0.25)


def test_accidents_that_were_left_out_widen_all_intervals() -> None:
    """One run in ten far off: eight of the nine others must be inside for an interval of 80 %."""
    made = replace(DEVIATIONS, accidents=0.1)
    (one,), (other,) = (
        expected(*given) for given in ((made, [], [_run("a")], 0.8), (DEVIATIONS, [], [_run("a")], 8 / 9))
    )
    assert one == other


def test_a_machine_without_timed_kernels_is_known_less_surely() -> None:
    """Its runs have one more deviation in common, and a few of them teach it."""
    made = replace(DEVIATIONS, untimed=0.3)
    asked = replace(_run("a"), labels={**_run("a").labels, "hardware": "mi300x", UNTIMED: "yes"})
    known = [replace(asked, error=0.3, features=(float(place), 0.0, 0.0, 0.0)) for place in range(1, 6)]
    (timed, alone), (taught,) = expected(made, [], [_run("a"), asked]), expected(made, known, [asked])
    assert alone.deviation == pytest.approx(math.hypot(timed.deviation, 0.3))
    assert taught.deviation < alone.deviation / 2 and taught.factor > 1.2


def test_runs_that_agree_far_off_are_believed_and_one_alone_is_not() -> None:
    """Three runs of an engine that none was fitted on, all 2.7 times the prediction, bring a fourth there."""
    known = [_run("qwen", 1.0, engine="new", x=float(place)) for place in range(3)]
    assert expected(DEVIATIONS, known, [_run("qwen", engine="new", x=4.0)])[0].factor == pytest.approx(2.7, rel=0.1)
    tame = [_run("qwen", 0.0, engine="new", x=float(place)) for place in range(1, 6)]
    assert expected(DEVIATIONS, [known[0], *tame], [_run("qwen", engine="new", x=4.0)])[0].factor < 1.1
