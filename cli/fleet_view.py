"""A fleet's answer as rows and text."""

from collections.abc import Sequence
from dataclasses import replace

from cli.check_view import after_text, bounded_text, spares_text
from cli.day_view import day_text
from cli.output import Screen
from cli.plan_view import bound_text
from cli.rows_view import basis_lines, show_keys
from podplan.fleets import FleetResult
from podplan.result import Row

PLACED = {"name": "model", "on_nodes": "nodes", "chips": "chips", "prefill": "prefill", "decode": "decode"}
PLACED |= {"mixed": "mixed"}
DOES = (
    "requests_per_second", "tokens_per_second_per_chip", "cost_per_million_tokens", "power_watts",
    "energy_joules_per_million_tokens", "ttft_seconds", "tpot_seconds",
)  # fmt: skip
CHECKED = {"confidence": "confidence", "spare": "spare", "after_loss": "after the loss"}


def fleet_rows(found: FleetResult) -> list[Row]:
    """Return a row per model, with what was checked of it."""
    rows = found.rows()
    for row, each in zip(rows, found.placed, strict=True):
        verdict = each.verdict
        if verdict is not None and verdict.after_loss is not None:
            spare = spares_text(replace(verdict, plan=each.plan))
            row |= {"spare": spare, "after_loss": after_text(verdict.after_loss)}
        if verdict is not None and found.asked.fleet.confidence is not None:
            row["confidence"] = bounded_text(verdict.held_confidence or 0.0)
    return rows


def show_fleet(screen: Screen, found: FleetResult, rows: Sequence[Row]) -> None:
    """Write where every model stands, what it does there, and what is proven."""
    for names in (PLACED, {"name": "model", **dict.fromkeys(DOES, ""), **CHECKED}):
        show_keys(screen, rows, names)
    screen.text(*_lines(found))


def _lines(found: FleetResult) -> list[str]:
    """Return what is said under the tables."""
    fleet, answer = found.asked.fleet, found.answer
    lines = [f"{found.headline}. {_sentence(answer.explanation, [member.name for member in fleet.members])}"]
    if found.floor and found.floor.shared:
        lines.append(f"Models share nodes of {', '.join(found.floor.shared)}: give each other ports (site.yaml).")
    lines += basis_lines(plan.question for plan in answer.plans)
    lines += [f"Not tried: {note}." for note in found.asked.notes]
    lines += [f"{each.name}: {day_text(each.day)}" for each in found.placed if each.day]
    costed = f"{answer.candidates_evaluated:,} candidates costed in {found.seconds:.2g} s."
    return [*lines, f"{bound_text(answer.bound, 'times every rate')} {costed}" if answer.bound else ""]


def _sentence(text: str, names: Sequence[str]) -> str:
    """Return a text as a sentence; one that begins with a model's name keeps it."""
    named = any(text.startswith(name) for name in names)
    return f"{text if named else text[:1].upper() + text[1:]}."
