"""What to buy when: a size for each month of a growing rate, in the engine and formats of the largest size."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from planner.plans.places import paid_devices
from planner.plans.plan import Plan
from planner.plans.quantised import as_planned
from planner.question import Question
from planner.search.search import search


class Month(NamedTuple):
    """A month's rate, its plan, and the nodes of each machine in use, those of earlier months included."""

    number: int
    requests_per_second: float
    plan: Plan
    nodes: dict[str, int]
    bought: dict[str, int]  # nodes that this month adds, by machine
    cost_per_hour: float | None  # price of all nodes in USD per hour; None where a chip has no price


def by_month(
    question: Question,
    best: Plan,
    rates: Sequence[float],
    each: Callable[[Callable[[Question], Plan | None], list[Question]], Iterable[Plan | None]] = map,
) -> list[Month]:
    """Return the smallest plan of each month and the nodes that it adds.

    ``best`` is the plan at the largest rate; it also serves a month whose rate has no plan. ``each`` maps over the
    searches, perhaps in several processes. Offline requests keep their rate.
    """
    asked, most = as_planned(question, best), max(rates)
    distinct = [rate for rate in dict.fromkeys(rates) if rate != best.requests_per_second]
    questions = [replace(asked.beside_times(most / rate), rate_per_second=rate) for rate in distinct]
    found = dict(zip(distinct, each(_smallest, questions), strict=True))
    plans = [found.get(rate) or best for rate in rates]
    machines = {each.budget: each for each, _ in best.occupied}
    held = list(accumulate(({each.budget: count for each, count in plan.occupied} for plan in plans), _more))
    nodes = [{name: machines[name].nodes_of(count) for name, count in now.items()} for now in held]
    priced = all(each.hardware.price_usd_per_chip_hour for each in machines.values())
    return [
        Month(
            number=number + 1,
            requests_per_second=rate,
            plan=plan,
            nodes=nodes[number],
            bought={name: count - (nodes[number - 1][name] if number else 0) for name, count in nodes[number].items()},
            cost_per_hour=sum(
                paid_devices(machines[name], count) * machines[name].device_cost for name, count in now.items()
            )
            if priced
            else None,
        )
        for number, (rate, plan, now) in enumerate(zip(rates, plans, held, strict=True))
    ]


def _smallest(question: Question) -> Plan | None:
    return search(question, beside=False).best


def _more(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in one | other}
