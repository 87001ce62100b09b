"""`podplan.explain`: what binds as arithmetic, what more of each resource buys, and what would be feasible."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ground.units import carried_rate, counted
from ground.workers import Executor, Workers, aside, executor_of
from planner.plans.day import over_the_day
from planner.plans.plan import Plan
from planner.plans.worked import worked_plan
from planner.search.answer import Change
from planner.search.changes.nearest import nearest_changes
from planner.search.changes.resources import Bought, Near, bought, headroom_of, near_plans, sizes_of
from planner.search.search import Aside, at_need
from podplan.assumptions import assumptions
from podplan.day import day_json
from podplan.plan_data import levels_of, limit_text, plan_json, plan_row, question_json, sure_json
from podplan.planning import Answered, solved
from podplan.question_files import Entry, asked_of, single_question, typed_of
from podplan.result import Row, as_data, picked


@dataclass(frozen=True, kw_only=True)
class ExplainResult(Answered):
    """A question with its answer, and what would change it.

    Attributes:
        resources: what a little more of each resource would buy, where there is a plan.
        near: what lies near the plan: a size less and more, and other instances.
        changes: the nearest change in each direction that would give a plan, where there is none.
        ignored: keys of the question's file that only ``plan check`` reads.
    """

    resources: tuple[Bought, ...] = ()
    near: tuple[Near, ...] = ()
    changes: tuple[Change, ...] = ()
    ignored: str | None = None

    @property
    def headline(self) -> str:
        """What binds, and why."""
        best = self.best
        if best is None:
            return f"Binding: {self.answer.binding_limit}. {self.answer.explanation}"
        limit, told = limit_text(best, self.asked.job, self.answer.bound), self.answer.explanation
        return f"Binding: {limit}. {told} {room_text(best, self.near)}"

    def rows(self) -> list[Row]:
        """Return a row per resource, or without a plan per change."""
        return [as_data(each) for each in self.resources] or [change_json(each) for each in self.changes]

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``plan explain --json`` prints."""
        best, day = self.best, self.asked.day
        return {
            "question": question_json(self.asked),
            "assumptions": assumptions(self.asked, best),
            "feasible": self.feasible,
            **picked(self.answer, "binding_limit explanation"),
            "best": plan_json(best) | sure_json(self.sureness) if best else None,
            "day": day_json(over_the_day(best, day), levels_of(best)) if best and day else None,
            "pools": as_data(worked_plan(best)) if best else [],
            "resources": as_data(self.resources),
            "headroom": headroom_of(best) if best else None,
            "near": [near_json(one) for one in self.near],
            "nearest_changes": [change_json(change) for change in self.changes],
        }


def change_json(change: Change) -> dict[str, Any]:
    """Return what to ask instead, and whether that has a plan."""
    feasible = {"feasible": change.question is not None}
    return picked(change, "direction flag value") | feasible | {"explanation": change.told}


def near_json(near: Near) -> dict[str, Any]:
    """Return what was asked beside the question, and what its plan takes and carries."""
    pools = near.plan and plan_row(near.plan)
    return {"name": near.name, "flag": near.flag, "requests_per_second": near.requests_per_second} | {
        key: pools[key] if pools and key in pools else None for key in ("chips", "prefill", "decode", "mixed")
    }


def room_text(plan: Plan, near: Sequence[Near]) -> str:
    """Say by how much the rate of a plan may rise, and by how little the next smaller size misses it."""
    asked, survive = plan.requests_per_second, plan.question.survive
    told, few = list[str](), "less" if plan.question.goal.maximised else "too few"
    if not plan.question.goal.maximised:
        room, pools = headroom_of(plan), f"After losing any one {survive} its pools" if survive else "Its pools"
        told.append(f"{pools} carry {carried_rate(asked * (1 + room))}, {max(room, 0.0):.1%} more than its rate.")
    for one in near:
        if not one.less:
            continue
        if not one.plan:
            told.append(f"With {one.name} there is no plan.")
            continue
        short = 1 - one.requests_per_second / asked
        missed = f"{short:.1%} {few}" if short > 0 else "enough"
        size = counted(one.plan.question.devices, "device")
        told.append(f"With {one.name}, {size} carry {carried_rate(one.requests_per_second)}: {missed}.")
    return " ".join(told)


def explain(question: str | None = None, *, workers: Workers = None, **flags: object) -> ExplainResult:
    """Show the bottleneck as arithmetic, and what a little more of each resource would buy.

    Args:
        question: a question file, of several questions the one that ``name`` names, or with ``hw`` a model.
        workers: processes that share the searches, or ``dask:ADDRESS`` [the cores].
        flags: the long flags of ``plan explain``.
    """
    entry = single_question(typed_of({"model": question, **flags}), "explain")
    return explained(entry, executor_of(workers), aside if workers is None else at_need)


def explained(entry: Entry, executor: Executor, beside: Aside = at_need) -> ExplainResult:
    """Return the explanation of a question; ``executor`` shares what-ifs, ``beside`` searches half of the engines."""
    asked, ignored = asked_of(entry), entry.ignored
    answer = solved(asked, beside=False, play=False, aside=beside).answer
    if answer.best is None:
        ends = asked.job.ends if asked.job and asked.job.seconds else None
        changes = tuple(nearest_changes(asked.question, answer.changes, ends, each=executor))
        return ExplainResult(asked=asked, answer=answer, changes=changes, ignored=ignored)
    near = tuple(near_plans(answer.best, each=executor))
    resources = tuple(bought(answer.best, each=executor, sizes=sizes_of(near)))
    asked = replace(asked, question=answer.question)  # for the engine that was chosen
    return ExplainResult(asked=asked, answer=answer, resources=resources, near=near, ignored=ignored)
