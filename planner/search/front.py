"""The Pareto front: plans that no other beats in rate, devices, cost, TTFT and TPOT at once."""

from collections.abc import Iterable

from planner.plans.plan import Plan


def front_of(best: Plan, others: Iterable[Plan]) -> list[Plan]:
    """Return the best plan and those of the others that nothing dominates, most carried first."""
    plans = [best, *others]
    kept = [plan for plan in plans if plan is best or not any(dominates(other, plan) for other in plans)]
    return sorted(distinct(kept), key=lambda plan: -plan.requests_per_second)


def dominates(one: Plan, other: Plan) -> bool:
    """Whether ``one`` is nowhere worse and somewhere better."""
    ours, theirs = figures(one), figures(other)
    return all(a <= b * (1 + 1e-6) for a, b in zip(ours, theirs, strict=True)) and any(
        a < b * (1 - 1e-6) for a, b in zip(ours, theirs, strict=True)
    )


def figures(plan: Plan) -> tuple[float, ...]:
    """What the front compares, all to be made small: 1/rate, chips, cost of a token, mean TTFT, mean TPOT."""
    cost = plan.cost_per_million_tokens
    return 1 / plan.requests_per_second, plan.chips, 0.0 if cost is None else cost, plan.ttft.mean, plan.tpot.mean


def distinct(plans: list[Plan]) -> list[Plan]:
    """Drop plans with about the same rate, chips, TTFT and TPOT as an earlier one."""
    seen: dict[tuple[float, ...], Plan] = {}
    for plan in plans:
        rate, chips, _, ttft, tpot = figures(plan)
        seen.setdefault((float(f"{rate:.3g}"), chips, float(f"{ttft:.2g}"), float(f"{tpot:.3g}")), plan)
    return list(seen.values())
