"""`podplan.explain`: what binds as arithmetic, what more of each resource buys, and what would be feasible."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.plans.day import over_the_day
from planner.plans.worked import worked_plan
from planner.search.answer import Answer
from planner.search.changes.nearest import Change, nearest_changes
from planner.search.changes.resources import Bought, bought
from podplan.assumptions import assumptions
from podplan.day import day_json
from podplan.plan_data import levels_of, plan_json, question_json
from podplan.planning import solved
from podplan.question import Asked
from podplan.question_files import asked_of, single_question, typed_of
from podplan.result import Result, Row, as_data, picked
from podplan.workers import Executor, executor_of


@dataclass(frozen=True, kw_only=True)
class ExplainResult(Result):
    """A question with its answer, and what would change it.

    Attributes:
        asked: the flags as they were given, and the question that they stand for.
        answer: the planner's answer.
        resources: what a little more of each resource would buy, where there is a plan.
        changes: the nearest change in each direction that would give a plan, where there is none.
        ignored: keys of the question's file that only ``plan check`` reads.
    """

    asked: Asked
    answer: Answer
    resources: tuple[Bought, ...] = ()
    changes: tuple[Change, ...] = ()
    ignored: str | None = None

    @property
    def feasible(self) -> bool:
        """Whether some plan keeps the limits."""
        return self.answer.best is not None

    @property
    def headline(self) -> str:
        """What binds, and why."""
        return f"Binding: {self.answer.binding_limit}. {self.answer.explanation}"

    def rows(self) -> list[Row]:
        """Return a row per resource, or without a plan per change."""
        return [as_data(each) for each in self.resources] or [change_json(each) for each in self.changes]

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``plan explain --json`` prints."""
        best, day = self.answer.best, self.asked.day
        return {
            "question": question_json(self.asked),
            "assumptions": assumptions(self.asked, best),
            "feasible": self.feasible,
            **picked(self.answer, "binding_limit explanation"),
            "best": plan_json(best) if best else None,
            "day": day_json(over_the_day(best, day), levels_of(best)) if best and day else None,
            "pools": as_data(worked_plan(best)) if best else [],
            "resources": as_data(self.resources),
            "nearest_changes": [change_json(change) for change in self.changes],
        }


def change_json(change: Change) -> dict[str, Any]:
    """Return what to ask instead, and whether that has a plan."""
    feasible = {"feasible": change.question is not None}
    return picked(change, "direction flag value") | feasible | {"explanation": change.told}


def explain(question: str, *, workers: int | str | None = None, **flags: object) -> ExplainResult:
    """Show the bottleneck as arithmetic, and what a little more of each resource would buy.

    Args:
        question: a question file, of several questions the one that ``name`` names, or with ``hw`` a model.
        workers: processes that share the searches, or ``dask:ADDRESS`` [the cores].
        flags: the long flags of ``plan explain``.

    Raises:
        BadInput: a keyword that is no flag, or a value that it cannot have.
    """
    return explained(typed_of({"model": question, **flags}), executor_of(workers))


def explained(typed: Mapping[str, str], executor: Executor) -> ExplainResult:
    """Return what is to be told of a question; one search for each resource or direction, and more for the latter."""
    entry = single_question(typed, "explain")
    asked, ignored = asked_of(entry), entry.ignored
    answer = solved(asked, beside=False, play=False).answer
    if answer.best is None:
        changes = tuple(nearest_changes(asked.question, each=executor))
        return ExplainResult(asked=asked, answer=answer, changes=changes, ignored=ignored)
    resources = tuple(bought(answer.best, each=executor))
    asked = replace(asked, question=answer.question)  # for the engine that was chosen
    return ExplainResult(asked=asked, answer=answer, resources=resources, ignored=ignored)
