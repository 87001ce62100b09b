"""`podplan.fleet`: several models and rates on one cluster."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ground.names import file_names
from planner.checks.check import Limits, Verdict, check_deployed
from planner.checks.deployed import from_plan
from planner.plans.day import Seen, over_the_day
from planner.plans.plan import Plan
from planner.search.answer import Answer
from planner.search.cluster import plan_cluster
from planner.search.floor import Floor, fleet_floor
from podplan.checking import loss_json, margin_json
from podplan.day import day_json
from podplan.fleet_files import FleetInput, read_fleet
from podplan.plan_data import bound_json, levels_of, plan_json, plan_row, question_json
from podplan.question_files import typed_of
from podplan.result import Result, Row, as_json, picked

if TYPE_CHECKING:
    from planner.manifest.schema import Manifest


SUMMARY = ("fleet.json", "fleet.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One model of a fleet: its plan, the nodes of each pool that it stands on, and what was checked of it.

    ``verdict`` is None where neither a confidence nor a loss was asked for, ``day`` empty without a rate profile.
    """

    name: str
    plan: Plan
    nodes: dict[str, list[int]]
    verdict: Verdict | None
    day: tuple[Seen, ...]


@dataclass(frozen=True, kw_only=True)
class FleetResult(Result):
    """Several models on one cluster.

    Attributes:
        asked: the fleet that the file describes.
        answer: the planner's answer.
        placed: each model with its plan; none where the cluster does not carry them all.
        floor: where everything stands; None where it does not.
        seconds: how long the search took.
    """

    asked: FleetInput
    answer: Answer
    placed: tuple[Placed, ...]
    floor: Floor | None
    seconds: float

    @property
    def feasible(self) -> bool:
        """Whether the cluster carries them all."""
        return self.answer.feasible

    @property
    def headline(self) -> str:
        """What the cluster carries, or what binds."""
        answer = self.answer
        if not answer.feasible:
            start = "the cluster does not carry the fleet"
            return f"{start} (binding limit: {answer.binding_limit}): {answer.explanation}"
        used = (
            f"{answer.devices_used.get(pool, 0)} of {count} {pool}" for pool, count in self.asked.fleet.devices.items()
        )
        return f"Devices: {', '.join(used)}"

    def rows(self) -> list[Row]:
        """Return a row per model."""
        return [
            {
                "name": each.name,
                "model": each.plan.question.model.name,
                "pools": " → ".join(dict.fromkeys(pool.machines.budget for _, pool in each.plan.pools())),
                "on_nodes": "; ".join(f"{pool} {ranges_text(own)}" for pool, own in each.nodes.items()),
                **plan_row(each.plan),
            }
            for each in self.placed
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``plan fleet --json`` prints."""
        answer, fleet = self.answer, self.asked.fleet
        feasible = answer.feasible
        return {
            "feasible": feasible,
            **picked(fleet, "objective share_nodes devices"),
            "devices_used": answer.devices_used,
            "growth": answer.growth if feasible else None,
            "carried_share": None if feasible else answer.growth,
            "cost_per_hour": answer.cost_per_hour if feasible else None,
            "power_watts": answer.power_watts if feasible else None,
            "models": [_placed_json(each) for each in self.placed],
            "bound": bound_json(answer.bound) if answer.bound else None,
            **picked(answer, "binding_limit explanation"),
            "changes": [picked(change, "direction told") for change in answer.changes],
            "not_tried": list(self.asked.notes),
            "candidates_evaluated": answer.candidates_evaluated,
            "search_seconds": self.seconds,
        }

    def manifests(self) -> "dict[str, Manifest]":
        """Return the manifest of every model by its file; together they stand on the machines at once."""
        from planner.plans.assemble import assemble  # takes 0.1 s to import

        assert self.floor is not None, "only a fleet that is carried has manifests"
        return {
            name: assemble(each.plan, question_json(replace(asked, question=each.plan.question)), places)
            for name, each, asked, places in zip(
                manifest_names(self.asked), self.placed, self.asked.asked, self.floor.places, strict=True
            )
        }

    def files(self) -> dict[str, str]:
        """Return the manifest of every model, fleet.json and fleet.csv."""
        from planner.manifest.document import dump_manifest

        texts = {name: dump_manifest(made) for name, made in self.manifests().items()}
        return texts | dict(zip(SUMMARY, (as_json(self.to_dict()), self.to_csv()), strict=True))


def _placed_json(each: Placed) -> dict[str, object]:
    plan, verdict = each.plan, each.verdict
    return {
        "name": each.name,
        "model": plan.question.model.name,
        **picked(plan.question, "confidence headroom"),
        "pools": {role: pool.machines.budget for role, pool in plan.pools()},
        "nodes": each.nodes,
        "margins": [margin_json(margin) for margin in verdict.margins] if verdict else None,
        "held_confidence": verdict.held_confidence if verdict else None,
        "after_loss": loss_json(verdict.after_loss) if verdict and verdict.after_loss else None,
        "day": day_json(each.day, levels_of(plan)) if each.day else None,
        "best": plan_json(plan, compact=True),
    }


def fleet(file: str | Path, **flags: object) -> FleetResult:
    """Place several models with rates and limits on one cluster.

    Args:
        file: a fleet file: pools, models, their rates and limits.
        flags: ``objective``, ``survive`` and ``confidence``, which hold for all models whatever the file says.

    Raises:
        BadInput: the file or a flag is wrong, with its place.
    """
    return placed_on(read_fleet(Path(file), typed_of(flags)))


def placed_on(asked: FleetInput) -> FleetResult:
    """Return the answer to a fleet that was read."""
    begin = perf_counter()
    answer = plan_cluster(asked.fleet)
    seconds = perf_counter() - begin
    if not answer.feasible:
        return FleetResult(asked=asked, answer=answer, placed=(), floor=None, seconds=seconds)
    floor = fleet_floor(asked.fleet, answer.plans)
    placed = []
    for number, (member, plan, one) in enumerate(zip(asked.fleet.members, answer.plans, asked.asked, strict=True)):
        day = tuple(over_the_day(plan, one.day)) if one.day and not asked.fleet.goal.maximised else ()
        verdict = _verdict(plan)
        nodes = floor.nodes(answer.plans, number)
        placed.append(Placed(name=member.name, plan=plan, nodes=nodes, verdict=verdict, day=day))
    return FleetResult(asked=asked, answer=answer, placed=tuple(placed), floor=floor, seconds=seconds)


def _verdict(plan: Plan) -> Verdict | None:
    """Return what a plan does with the asked confidence and after the loss; None where neither was asked."""
    question = plan.question
    if question.survive is None and question.confidence is None:
        return None
    limits = Limits.of(question, plan.requests_per_second * (1 + question.headroom))
    return check_deployed(from_plan(plan), limits, confidence=question.confidence, loss=question.survive)


def manifest_names(asked: FleetInput) -> list[str]:
    """Return a file for each model, named as the model is in the fleet."""
    return [f"{name}/manifest.yaml" for name in file_names((each.name for each in asked.fleet.members), SUMMARY)]


def ranges_text(nodes: Sequence[int]) -> str:
    """Return ascending numbers as ranges: 0–3, 7."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(nodes), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
