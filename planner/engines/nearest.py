"""The layout nearest to one that an engine cannot run, and how it is told."""

from collections.abc import Iterator
from dataclasses import replace

from planner.engines.rules import Setup, broken_rule
from planner.engines.spec import EngineProfile
from planner.strategy import Strategy, format_strategy

LARGEST_TENSOR = 64  # TP that is tried but for the whole stage


def nearest_reachable(profile: EngineProfile, setup: Setup) -> Setup | None:
    """Return the reachable setup on as many devices that differs least from ``setup``; None where there is none.

    Attention TP counts most, then expert TP, pipeline stages, redundancy and microbatches: distances are
    factors of two, so that TP 4 is as far from 8 as from 2.
    """
    if broken_rule(profile, setup) is None:
        return setup
    reachable = [other for other in _neighbours(setup) if broken_rule(profile, other) is None]
    return min(reachable, key=lambda other: _distance(setup, other), default=None)


def _neighbours(setup: Setup) -> Iterator[Setup]:
    """Yield setups on the same devices, without what only some engines have."""
    devices, experts = setup.strategy.devices, setup.experts
    for pp in sorted({1, setup.strategy.pp}):
        stage = devices // pp
        degrees = [n for n in range(1, stage + 1) if stage % n == 0 and (n <= LARGEST_TENSOR or n == stage)]
        for tp in degrees:
            for moe_tp in degrees if experts else (tp,):
                strategy = Strategy(
                    attention_tp=tp, attention_dp=stage // tp, moe_tp=moe_tp, moe_ep=stage // moe_tp, pp=pp
                )
                yield from _layouts(setup, strategy)


def _layouts(setup: Setup, strategy: Strategy) -> Iterator[Setup]:
    """Yield the layouts of one strategy: redundancy as asked, least or least and one per rank; fewer extras."""
    least = -setup.experts % strategy.moe_ep if setup.experts else 0
    for redundant in sorted({setup.redundant, least, least + strategy.moe_ep} if setup.experts else {0}):
        for drafts in range(setup.drafts, -1, -1):
            for microbatches in {setup.microbatches, 1}:
                yield replace(
                    setup, strategy=strategy, redundant=redundant, dedicated=0, drafts=drafts, microbatches=microbatches
                )


def _distance(one: Setup, other: Setup) -> tuple[float, ...]:
    """Weighted factors of two between two setups; ties go to the smaller degrees, so the answer is one."""
    a, b = one.strategy, other.strategy
    far = 4 * _octaves(a.attention_tp, b.attention_tp) + 2 * _octaves(a.moe_tp, b.moe_tp) + 3 * _octaves(a.pp, b.pp)
    far += abs(one.redundant - other.redundant) / max(one.experts, 1) + (one.microbatches != other.microbatches)
    far += 2 * (one.drafts - other.drafts)
    return (far, b.attention_tp, b.moe_tp, b.pp, other.redundant)


def _octaves(one: int, other: int) -> float:
    larger, smaller = max(one, other), min(one, other)
    return (larger / smaller - 1) if larger < 2 * smaller else float((larger // smaller).bit_length() - 1)


def describe(setup: Setup) -> str:
    """Print a setup as a planner would ask for it: strategy, redundancy, microbatches."""
    text = format_strategy(setup.strategy, moe=setup.experts > 0)
    parts = [f"{setup.redundant} redundant experts"] if setup.experts else []
    parts += [f"{setup.microbatches} microbatches"] if setup.microbatches > 1 else []
    parts += [f"{setup.drafts} drafts"] if setup.drafts else []
    return f"{text!r}" + (f" with {', '.join(parts)}" if parts else "")
