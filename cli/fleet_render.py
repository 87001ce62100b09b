"""A fleet's answer as rows, text and JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from cli.answer_output import RIGHT, with_power
from cli.answer_rows import SHOWN, Row, plan_row, shown_cells
from cli.check_render import after_text, bounded_text, loss_json, margin_json, spares_text
from cli.day import day_json, day_text
from cli.fleet_input import FleetInput
from cli.output import table
from cli.prices import basis_lines
from cli.search_json import bound_json, levels_of, plan_json
from planner.checks.check import Limits, Verdict, check_deployed
from planner.checks.deployed import from_plan
from planner.fleets.answer import FleetAnswer
from planner.fleets.floor import Floor
from planner.plans.day import over_the_day
from planner.plans.plan import Plan
from planner.search.proof import Bound

if TYPE_CHECKING:
    from rich.table import Table

PLACED = {"name": "model", "on_nodes": "nodes", "chips": "chips", "prefill": "prefill"}
PLACED |= {"decode": "decode", "mixed": "mixed"}
DOES = ("requests_per_second", "tokens_per_second_per_chip", "cost_per_million_tokens", "power_watts")
DOES_TOO = ("energy_joules_per_million_tokens", "ttft_seconds", "tpot_seconds")
CHECKED = {"confidence": "confidence", "spare": "spare", "after_loss": "after the loss"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What is shown of a fleet: its input and answer, where everything stands, and what was checked of each model."""

    asked: FleetInput
    answer: FleetAnswer
    floor: Floor
    verdicts: tuple[Verdict | None, ...]
    seconds: float


def verdicts_of(asked: FleetInput, answer: FleetAnswer) -> tuple[Verdict | None, ...]:
    """Return what each plan does with the asked confidence and after the loss; None where neither was asked."""
    found: list[Verdict | None] = []
    for plan in answer.plans:
        question, confidence = plan.question, asked.fleet.confidence
        if question.survive is None and confidence is None:
            found.append(None)
            continue
        limits = Limits.of(question, plan.requests_per_second)
        found.append(check_deployed(from_plan(plan), limits, confidence=confidence, loss=question.survive))
    return tuple(found)


def fleet_rows(shown: Shown) -> list[Row]:
    """Return a row per model."""
    rows: list[Row] = []
    for number, (member, plan) in enumerate(zip(shown.asked.fleet.members, shown.answer.plans, strict=True)):
        nodes = shown.floor.nodes(shown.answer.plans, number)
        row: Row = {
            "name": member.name,
            "model": member.question.model.name,
            "pools": pools_text(plan),
            "on_nodes": "; ".join(f"{pool} {ranges_text(own)}" for pool, own in nodes.items()),
            **plan_row(plan),
        }
        verdict = shown.verdicts[number]
        if verdict is not None and verdict.after_loss is not None:
            row |= {"spare": _spares(plan, verdict), "after_loss": after_text(verdict.after_loss)}
        if verdict is not None and shown.asked.fleet.confidence is not None:
            row["confidence"] = bounded_text(verdict.held_confidence or 0.0)
        rows.append(row)
    return rows


def fleet_tables(rows: Sequence[Row]) -> "list[Table]":
    """Return where every model stands, and what it does there."""
    shown = [with_power(row) for row in rows]
    checked = {key: name for key, name in CHECKED.items() if any(key in row for row in rows)}
    does = {key: SHOWN[key] for key in (*DOES, *DOES_TOO) if any(row.get(key) is not None for row in shown)}
    placed = {key: name for key, name in PLACED.items() if any(key in row for row in rows)}
    tables = (placed, {"name": "model", **does, **checked})
    return [
        table(list(keys.values()), [shown_cells(row, list(keys)) for row in shown], right=RIGHT, tight=True)
        for keys in tables
    ]


def _spares(plan: Plan, verdict: Verdict) -> str:
    return spares_text(replace(verdict, plan=plan))


def pools_text(plan: Plan) -> str:
    """Return the pools that a plan stands on, prefill before decode."""
    return " → ".join(dict.fromkeys(pool.machines.budget for _, pool in plan.pools()))


def ranges_text(nodes: Sequence[int]) -> str:
    """Return ascending numbers as ranges: 0–3, 7."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(nodes), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def fleet_lines(shown: Shown) -> list[str]:
    """Return what is said under the table."""
    fleet, answer = shown.asked.fleet, shown.answer
    used = ", ".join(f"{answer.devices_used.get(pool, 0)} of {count} {pool}" for pool, count in fleet.devices.items())
    lines = [f"Devices: {used}. {_sentence(answer.explanation, [m.name for m in fleet.members])}"]
    if shown.floor.shared:
        lines.append(f"Models share nodes of {', '.join(shown.floor.shared)}: give each other ports (site.yaml).")
    lines += basis_lines(plan.question for plan in answer.plans)
    lines += [f"Not tried: {note}." for note in shown.asked.notes]
    for member, plan, asked in zip(fleet.members, answer.plans, shown.asked.asked, strict=True):
        if asked.day and fleet.objective != "throughput":
            lines.append(f"{member.name}: {day_text(over_the_day(plan, asked.day))}")
    lines.append(
        f"{_bound_text(answer.bound)} {answer.candidates_evaluated:,} candidates costed in {shown.seconds:.2g} s."
        if answer.bound
        else ""
    )
    return lines


def _bound_text(bound: Bound) -> str:
    units = {"throughput": "times every rate", "chips": "chips", "cost": "USD/h", "latency": "s"}
    return f"Bound: {bound.value:.4g} {units[bound.objective]}, gap {bound.gap:.2%}, over {bound.covers}."


def _sentence(text: str, names: Sequence[str]) -> str:
    """Return a text as a sentence; one that begins with a model's name keeps it."""
    named = any(text.startswith(name) for name in names)
    return f"{text if named else text[:1].upper() + text[1:]}."


def fleet_json(asked: FleetInput, answer: FleetAnswer, shown: Shown | None, seconds: float) -> dict[str, object]:
    """Return the object that ``plan fleet --json`` prints; without ``shown`` of a fleet that does not fit."""
    fleet = asked.fleet
    return {
        "feasible": answer.feasible,
        "objective": fleet.objective,
        "confidence": fleet.confidence,
        "share_nodes": fleet.share_nodes,
        "devices": dict(fleet.devices),
        "devices_used": answer.devices_used,
        "growth": answer.growth if answer.feasible else None,
        "carried_share": None if answer.feasible else answer.growth,
        "cost_per_hour": answer.cost_per_hour if answer.feasible else None,
        "power_watts": answer.power_watts if answer.feasible else None,
        "models": _models_json(shown) if shown else [],
        "bound": bound_json(answer.bound) if answer.bound else None,
        "binding_limit": answer.binding_limit,
        "explanation": answer.explanation,
        "changes": [{"direction": change.direction, "told": change.told} for change in answer.changes],
        "not_tried": list(asked.notes),
        "candidates_evaluated": answer.candidates_evaluated,
        "search_seconds": seconds,
    }


def _models_json(shown: Shown) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for number, (member, plan) in enumerate(zip(shown.asked.fleet.members, shown.answer.plans, strict=True)):
        verdict, day = shown.verdicts[number], shown.asked.asked[number].day
        windows = over_the_day(plan, day) if day and shown.asked.fleet.objective != "throughput" else []
        found.append(
            {
                "name": member.name,
                "model": member.question.model.name,
                "pools": {role: pool.machines.budget for role, pool in plan.pools()},
                "nodes": shown.floor.nodes(shown.answer.plans, number),
                "margins": [margin_json(margin) for margin in verdict.margins] if verdict else None,
                "held_confidence": verdict.held_confidence if verdict else None,
                "after_loss": loss_json(verdict.after_loss) if verdict and verdict.after_loss else None,
                "day": day_json(windows, levels_of(plan)) if windows else None,
                "best": plan_json(plan, compact=True),
            }
        )
    return found
