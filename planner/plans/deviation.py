"""How far predicted service times of a plan may be off, as a relative standard deviation."""

from statistics import NormalDist

from planner.costs.predict import Prediction
from planner.plans.aggregated import AggregatedPlan
from planner.plans.plan import Plan
from planner.plans.pools import PrefillPool

PREDICTED = 0.5
"""Confidence in figures as predicted: the service times may as well be longer as shorter."""


def deviation_of(plan: Plan) -> float:
    """Return that of the pool that is known worst."""
    found = (
        deviation(pool.prediction, pool.prediction.ttft_seconds if isinstance(pool, PrefillPool) else None)
        for _, pool in plan.pools()
    )
    return max(*found, 0.0) if isinstance(plan, AggregatedPlan) else max(found)


def deviation(prediction: Prediction, ttft_seconds: float | None = None) -> float:
    """Return the relative standard deviation behind the central interval of a step, of prefill that of TTFT."""
    known, seconds = prediction.interval, ttft_seconds or prediction.tpot_seconds or prediction.iteration_seconds
    score = NormalDist().inv_cdf(0.5 + known.level / 2)
    return (known.high / seconds - 1) / score
