"""Neighbours of a plan: one size less, one size more, narrower instances, fewer failure domains; each is solved."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from planner.plans.plan import Plan
from planner.plans.servers import PREDICTED
from planner.question import Pin, Question
from planner.search.changes.resources import Each, Size, on_plan_devices, size_of
from planner.search.search import search
from planner.search.sure import rate_with

Beside = tuple[str, str, bool, Question]
"""Name, flag, ``less`` and question of a neighbour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """A neighbouring question and its best plan; None where it has none."""

    name: str
    flag: str
    less: bool
    """Whether the neighbour has one unit of machines less."""
    plan: Plan | None

    @property
    def requests_per_second(self) -> float:
        """Rate within the limits."""
        return 0.0 if self.plan is None else self.plan.requests_per_second


def headroom_of(plan: Plan) -> float:
    """Return the relative rise of the rate at which a plan's pools first miss a limit with its confidence."""
    return rate_with(plan, plan.question.confidence or PREDICTED) / plan.requests_per_second - 1


def sizes_of(near: Iterable[Near]) -> dict[Size, float]:
    """Return the largest rates of other sizes."""
    sized = [(one.plan, one) for one in near if one.flag.startswith("--devices")]
    return {size_of(plan.question): one.requests_per_second for plan, one in sized if plan is not None}


def near_plans(plan: Plan, each: Each = map) -> list[Near]:
    """Return the neighbours of a plan; ``each`` maps over the searches, perhaps in several processes."""
    return list(each(_solved, list(_beside(plan))))


def _solved(asked: Beside) -> Near:
    name, flag, less, question = asked
    return Near(name=name, flag=flag, less=less, plan=search(question, beside=False).best)


def _beside(plan: Plan) -> Iterator[Beside]:
    """Yield other sizes, for their largest rates, and other instances, for the asked objective."""
    yield from _sizes(plan)
    question, pools = plan.question, plan.pools()
    widest = max(pool.candidate.devices for _, pool in pools)
    if widest > 1:
        narrower = replace(question, max_instance_devices=widest - 1)
        yield "narrower instances", f"--max-instance-devices {widest - 1}", False, narrower
    role, pool = max(pools, key=lambda each: each[1].instances)
    given = dict(question.pins)
    if pool.instances > 1 and given.get(role, Pin()).instances is None:
        pin = replace(given.get(role, Pin()), instances=pool.instances - 1)
        shape = "aggregated" if role == "mixed" else "disaggregated"
        fewer = replace(question, pins=tuple({**given, role: pin}.items()), shape=shape)  # type: ignore[arg-type]
        yield f"fewer {role} instances", f"--instances {role}={pool.instances - 1}", False, fewer


def _sizes(plan: Plan) -> Iterator[Beside]:
    """Yield the question for the largest rate on one unit less and one more than the plan takes, for each pool."""
    base = on_plan_devices(plan)
    roles = (("prefill", "decode"),) if base.one_pool else (("prefill",), ("decode",))
    for own in roles:
        machines = base.prefill if own[0] == "prefill" else base.decode
        unit = machines.unit(machines.devices - 1)
        for step in (-1, 1):
            devices = (-(-machines.devices // unit) + step) * unit
            if devices <= 0:
                continue
            question = base.on_roles(partial(replace, devices=devices), own)
            counts = f"{devices}" if base.one_pool else f"{own[0]}={devices}"
            what = "node" if unit == machines.devices_per_node else "chip"
            name = f"a {what} {'more' if step > 0 else 'less'}{'' if base.one_pool else f' of {own[0]}'}"
            yield name, f"--devices {counts}", step < 0, question
