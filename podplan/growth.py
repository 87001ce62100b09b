"""What to buy when, as an answer to `--growth` reports it."""

from collections.abc import Sequence
from typing import Any

from planner.search.growth import HOURS, Month
from podplan.plan_data import POOL, pools_text
from podplan.result import whole


def total_cost(months: Sequence[Month]) -> float | None:
    """Return what the nodes of all months cost in USD; None where a chip has no price."""
    hourly = [month.cost_per_hour for month in months if month.cost_per_hour is not None]
    return sum(hourly) * HOURS if len(hourly) == len(months) else None


def growth_json(months: Sequence[Month]) -> dict[str, Any]:
    """Return what to buy when."""
    return {"cost_usd": total_cost(months), "months": [_month_json(month) for month in months]}


def _month_json(month: Month) -> dict[str, Any]:
    return {
        "month": month.number,
        "requests_per_second": month.requests_per_second,
        "nodes_to_add": sum(month.bought.values()),
        "nodes": sum(month.nodes.values()),
        "nodes_by_budget": month.nodes,
        "chips": whole(month.plan.chips),
        "cost_per_hour": month.cost_per_hour,
        "pools": pools_text(month.plan, POOL),
    }
