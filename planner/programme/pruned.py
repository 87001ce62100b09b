"""Alternatives that were never solved in full, and the bounds that show that none of them is better."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner.objective import Objective
from planner.programme.columns import Side


class Pruned(NamedTuple):
    """Alternatives that were never solved in full, and the bound that shows that none is better."""

    what: str
    number: int
    bound: float | None
    unit: str
    why: str


def together(pruned: Sequence[Pruned]) -> list[Pruned]:
    """Return what is pruned alike in several sides together."""
    found: dict[tuple[str, str], Pruned] = {}
    for each in pruned:
        known = found.setdefault((each.what, each.why), each)
        if known is not each:
            bounds = [bound for bound in (known.bound, each.bound) if bound is not None]
            most = (max if each.unit == "requests/s" else min)(bounds, default=None)
            found[each.what, each.why] = known._replace(number=known.number + each.number, bound=most)
    return list(found.values())


def never_costed(model: str, rows: int, rate_per_second: float) -> list[Pruned]:
    """Return the decode rows beyond the grid that were not costed in full, with their bound."""
    what = "decode rows beyond the grid, by split into attention and expert nodes, domains, layout and MTP depth"
    why = "beside prefill for that rate their steps miss the TPOT limit with what they have to run"
    return _counted(f"{model}: {what}" if model else what, rows, rate_per_second, "requests/s", why)


def never_queued(model: str, rows: int, rate_per_second: float, goal: Objective) -> list[Pruned]:
    """Return the aggregated instances whose queues were not solved, with the rate that they do not reach."""
    fewer = "" if goal.maximised or goal.timed else ", or not on fewer devices than separate pools take there"
    why = f"no number of running requests whose mean step keeps the TPOT limit brings a pool to that rate{fewer}"
    return _counted(_aggregated(model), rows, rate_per_second, "requests/s", why)


def late_alone(model: str, rows: int, seconds: float) -> list[Pruned]:
    """Return the aggregated instances that are too slow with one request to be quickest."""
    beside = ", all other models at their quickest" if model else ""
    why = f"a request alone takes as long as in what was found before, or longer{beside}"
    return _counted(_aggregated(model), rows, seconds, "s", why)


def _aggregated(model: str) -> str:
    return f"aggregated instances{f' of {model}, by pool' if model else ', by'} strategy, layout and MTP depth".replace(
        "pool strategy", "pool, strategy"
    )


def _counted(what: str, number: int, bound: float | None, unit: str, why: str) -> list[Pruned]:
    return [Pruned(what=what, number=number, bound=bound, unit=unit, why=why)] if number else []


def small_columns(side: Side, reached: float) -> list[Pruned]:
    """Return the columns of a side that were never solved, with their bound."""
    left = ~side.exact
    small = left & (side.rate < reached)
    large = left & ~small
    alone = side.role == "mixed"
    return [
        *_counted(
            f"{side.label} columns that carry less than the plan",
            int(small.sum()),
            float(side.rate[small].max()) * side.unit if small.any() else None,
            "requests/s",
            "98 % of saturation, passes in time, or a queue tried at the plan's rate bound what they carry: their own "
            "or, of prompts that differ, one whose passes are nowhere slower",
        ),
        *_counted(
            f"{side.label} columns that {'take too many devices' if alone else 'leave the other role too few devices'}",
            int(large.sum()),
            float(side.devices[large].min()) if large.any() else None,
            "devices",
            "a smaller column carries as much, or nothing that fits beside them carries more than the plan",
        ),
    ]


def slow_columns(side: Side) -> list[Pruned]:
    """Return the columns of a side that were never timed, with their bound."""
    alone, left = side.role == "mixed", ~side.timed
    slow, weak = left & np.isfinite(side.seconds), left & ~np.isfinite(side.seconds)
    return [
        *_counted(
            f"{side.label} columns that take longer{'' if alone else ' with what fits beside them'}",
            int(slow.sum()),
            float(side.seconds[slow].min()) if slow.any() else None,
            "s",
            "a request alone, and Little's law at the rate, bound its mean time from below",
        ),
        *_counted(
            f"{side.label} columns that do not carry the rate",
            int(weak.sum()),
            side.unit,
            "requests/s",
            f"{90 if alone else 98} % of saturation bounds what they carry",
        ),
    ]
