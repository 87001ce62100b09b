"""The queues of a plan's pools: capacities of other numbers of instances, and the uncertainty of service times."""

import math
from statistics import NormalDist

from planner.costs.interval import Interval
from planner.instances.aggregated import AggregatedServer
from planner.instances.operating import DecodeServer, PrefillServer
from planner.plans.aggregated import PlannedAggregated
from planner.plans.plan import DisaggregatedPlan, Plan
from planner.plans.pools import PlannedDecode, PlannedPool, PlannedPrefill
from planner.question import Question

PREDICTED = 0.5  # confidence in the predicted figures: service times are as likely longer as shorter


_STEP = 0.002
"""Of deviations, which are known no better; so neither one request more in a batch nor how it is solved moves them."""


def server_of(plan: Plan, pool: PlannedPool, question: Question) -> PrefillServer | DecodeServer | AggregatedServer:
    """Return the server of one of a pool's instances under a question."""
    if isinstance(pool, PlannedPrefill):
        return pool.server(question)
    if isinstance(pool, PlannedDecode):
        assert isinstance(plan, DisaggregatedPlan), "decode instances stand beside prefill instances"
        return plan.decoder(question)
    assert isinstance(pool, PlannedAggregated), "pools are of three roles"
    return AggregatedServer(question, pool.candidate)


def spare_instances(plan: Plan, pool: PlannedPool) -> int:
    """Return the instances of a pool beyond those that carry the plan's rate within the limits.

    Fewer instances carry no more each, as arrivals dealt to fewer are less even. So the proportional number of spares
    is an upper bound, and the queue of the remaining instances decides.
    """
    return pool.instances - needed_instances(plan, pool, plan.question, plan.requests_per_second)


def needed_instances(plan: Plan, pool: PlannedPool, question: Question, rate_per_second: float) -> int:
    """Return the fewest of a pool's instances that carry a rate within the limits.

    Args: ``question``: the plan's, or one with more offline requests for each online one.
    """
    least = math.ceil(rate_per_second / (pool.capacity_per_second / pool.instances) * (1 - 1e-9))
    server = server_of(plan, pool, question)
    for count in range(max(least, 1), pool.instances):
        if server.pool_carries(count, rate_per_second):
            return count
    return pool.instances


def times_with(confidence: float, deviation: float) -> float:
    """Return the factor on predicted service times that real ones do not exceed with a confidence.

    Service times are normal with the relative ``deviation``, and at least a twentieth of the prediction. Those of all
    pools vary together, each with its own deviation.
    """
    return max(1 + NormalDist().inv_cdf(confidence) * deviation, 0.05)


def confidence_with(times: float, deviation: float) -> float:
    """Return the confidence with which real service times do not exceed ``times`` times the predicted ones."""
    return NormalDist().cdf((times - 1) / deviation)


def deviation_of(pool: PlannedPool) -> float:
    """Return the relative standard deviation of the predicted times of a pool."""
    return deviation_behind(pool.prediction.interval, pool.prediction.about_seconds)


def deviation_behind(known: Interval, seconds: float) -> float:
    """Return the relative standard deviation behind the central interval of a duration, up to a whole step."""
    exact = (known.high / seconds - 1) / NormalDist().inv_cdf(0.5 + known.level / 2)
    return math.ceil(exact / _STEP * (1 - 1e-9)) * _STEP
