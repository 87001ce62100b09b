"""Time to first token of prefill instances, and the rate that they carry within a limit.

The queue of one instance is elastic bulk service (``queues.bulk_queue``): a pass takes what waits, up to its budget. A
router in front of several instances thins the arrivals of each.
"""

import math
from dataclasses import dataclass
from typing import Literal

from ground.errors import BadInput
from planner.queues.bulk_queue import sojourn
from planner.queues.prefill_service import PassSeconds, Service, by_share
from planner.serving.capacity import largest_rate
from planner.serving.latency import Latency

Policy = Literal["random", "round_robin", "least_load"]

MOST_UTILISATION = 0.98


def prefill_latency(
    *,
    arrival_rate_per_second: float,
    pass_seconds: PassSeconds,
    most_prompts: int,
    extra_seconds: float = 0.0,
    service_squared_cv: float = 0.0,
    arrival_squared_cv: float = 1.0,
) -> Latency | None:
    """Time to first token of one instance, scheduled arrival to the end of the prompt's own pass; None if unstable.

    Exact for Poisson arrivals, alone or dealt in turn, and fixed lengths, but for the lattices of waiting prompts and
    time (1 % of p99). Bursts have the asymptotic dispersion of their counts (``queues.arrival_counts``). Variable
    lengths: a pass of n prompts has variance n c^2 share^2 with the share the slope of the pass time, gamma
    distributed; own pass and own length are taken as independent.

    Args:
        arrival_rate_per_second: prompts per second at this instance.
        pass_seconds: duration of passes with n prompts, array to array, not falling in n.
        most_prompts: the cap of a pass; 1 for prompts longer than a pass, with all their passes as one.
        extra_seconds: added after the own pass, such as the other stages of a pipeline.
        service_squared_cv: squared coefficient of variation of one prompt's share of a pass.
        arrival_squared_cv: squared coefficient of variation of the gaps between arrivals.

    Raises:
        BadInput: a rate below 0 or a cap below 1.
    """
    service = by_share(pass_seconds, most_prompts, service_squared_cv, extra_seconds)
    return latency_of(service, arrival_rate_per_second, arrival_squared_cv)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCapacity:
    """What a pool of prefill instances carries within its limit."""

    rate_per_second: float
    """Of the whole pool."""
    ttft: Latency


def prefill_capacity(
    *,
    pass_seconds: PassSeconds,
    most_prompts: int,
    limit_seconds: float,
    percentile: float,
    instances: int = 1,
    policy: Policy = "round_robin",
    extra_seconds: float = 0.0,
    service_squared_cv: float = 0.0,
) -> PrefillCapacity | None:
    """Largest Poisson rate of a pool whose TTFT at ``percentile`` keeps the limit; None where no rate does.

    Each of c instances is a queue of its own, with gaps of squared CV 1 at random and 1/c round robin (every c-th
    arrival of a renewal process). ``least_load`` is counted as round robin, which it is at least as good as. At most 98
    % of the saturation rate, beyond which no plan should run. Within 1 % of the limit, see ``largest_rate``.

    Raises:
        BadInput: fewer than one instance, or as ``prefill_latency``.
    """
    if instances < 1:
        raise BadInput(f"A pool of {instances} prefill instances must have at least 1.")
    service = by_share(pass_seconds, most_prompts, service_squared_cv, extra_seconds)
    return capacity_of(service, limit_seconds, percentile, instances, policy=policy)


def capacity_of(
    service: Service,
    limit_seconds: float,
    percentile: float,
    instances: int = 1,
    *,
    policy: Policy = "round_robin",
    arrival_squared_cv: float = 1.0,
) -> PrefillCapacity | None:
    """Largest rate of a pool of instances of a service, as ``prefill_capacity``."""
    squared_cv = thinned_squared_cv(arrival_squared_cv, instances, policy)
    found: dict[float, Latency] = {}

    def seconds(rate: float) -> float:
        if rate not in found:
            latency = latency_of(service, rate, squared_cv)
            if latency is None:
                return math.inf
            found[rate] = latency
        return found[rate].at(percentile)

    rate = largest_rate(seconds, limit_seconds, MOST_UTILISATION * service.saturation_per_second)
    return None if rate is None else PrefillCapacity(rate_per_second=rate * instances, ttft=found[rate])


def thinned_squared_cv(arrival_squared_cv: float, instances: int, policy: Policy) -> float:
    """Squared CV of the gaps at one of c instances: c2/c round robin, 1 + (c2 - 1)/c at random.

    Ref: W. Whitt, The Queueing Network Analyzer, Bell Syst. Tech. J. 62:2779, 1983, Eq. (36) for the split at random.
    """
    if policy == "random":
        return 1 + (arrival_squared_cv - 1) / instances
    return arrival_squared_cv / instances


def latency_of(service: Service, rate: float, arrival_squared_cv: float = 1.0) -> Latency | None:
    """TTFT of one instance at its rate of prompts, as ``prefill_latency``; None if unstable."""
    if rate < 0:
        raise BadInput(f"An arrival rate of {rate:g} prompts per second must not be negative.")
    if service.sample is not None:
        return service.sample.ttft(rate, arrival_squared_cv)
    rate *= service.units_per_prompt
    if rate * service.full_seconds >= service.most:
        return None
    found = sojourn(service, max(rate, 1e-12), arrival_squared_cv)
    seconds = found.seconds + service.extra_seconds
    return Latency.from_masses(seconds, found.masses, found.mean_seconds + service.extra_seconds)
