"""What to buy when, as text."""

from collections.abc import Sequence

from cli.output import Screen
from ground.units import counted, format_count, format_rate
from planner.search.growth import HOURS, Month
from podplan.growth import total_cost
from podplan.plan_data import POOL, pools_text


def show_growth(screen: Screen, months: Sequence[Month]) -> None:
    """Write a row for every month: its rate, what to add, what is there then, and how it is used."""
    rows = [
        [
            str(month.number),
            format_rate(month.requests_per_second),
            _counts(month.bought, month) or "none",
            _counts(month.nodes, month),
            f"{month.plan.chips:g}",
            "" if month.cost_per_hour is None else format_count(month.cost_per_hour * HOURS),
            pools_text(month.plan, POOL),
        ]
        for month in months
    ]
    names = ["month", "rate", "nodes to add", "nodes", "chips in use", "USD a month", "pools"]
    screen.table(names, rows, right=["rate", "chips in use", "USD a month"])
    screen.text(growth_text(months))


def _counts(nodes: dict[str, int], month: Month) -> str:
    """Return nodes, by machine where there are several."""
    if len(nodes) == 1:
        return "".join(str(count) for count in nodes.values() if count)
    return ", ".join(f"{count} {name}" for name, count in nodes.items() if count)


def growth_text(months: Sequence[Month]) -> str:
    """Say how much is bought in which months, and what all of it costs."""
    bought = [(month.number, sum(month.bought.values())) for month in months]
    first, *later = [(number, count) for number, count in bought if count]
    told = "; ".join(f"{counted(count, 'node')} in month {number}" for number, count in later) or "nothing later"
    cost = total_cost(months)
    paid = "" if cost is None else f" All {len(months)} months cost {format_count(cost)} USD."
    start = f"Buy {counted(first[1], 'node')} for the first month; then {told}."
    return f"{start}{paid} Each month has the smallest plan for its rate; nodes that are there stay."
