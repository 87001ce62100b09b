"""What `plan explain` found as text and as JSON."""

from dataclasses import asdict, dataclass
from textwrap import fill
from typing import TYPE_CHECKING

from cli.day import day_json, day_table, day_text
from cli.output import table
from cli.search_assumptions import assumptions
from cli.search_flags import SearchInput
from cli.search_json import levels_of, plan_json, question_json
from cli.search_render import LINE_WIDTH, headline
from ground.units import format_duration, format_rate
from planner.plans.day import over_the_day
from planner.plans.worked import PoolTerms, Worked, worked_plan
from planner.search.nearest import Change
from planner.search.resources import Bought
from planner.search.search import Answer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A question with its answer: what resources buy where there is a plan, what would give one where there is none."""

    asked: SearchInput
    answer: Answer
    resources: tuple[Bought, ...] = ()
    changes: tuple[Change, ...] = ()


def render(console: "Console", explained: Explained) -> None:
    """Write the explanation."""
    best = explained.answer.best
    if best is None:
        _refused(console, explained)
        return
    _line(console, headline(best))
    for pool in worked_plan(best):
        console.print()
        _pool(console, pool)
    console.print()
    _line(console, f"Binding: {explained.answer.binding_limit}. {explained.answer.explanation}")
    if explained.asked.day:
        seen = over_the_day(best, explained.asked.day)
        console.print()
        console.print(day_table(seen, best.question.percentile))
        _line(console, day_text(seen))
    console.print()
    _line(console, "What a little more of each resource would buy on the plan's devices, each solved again:")
    console.print(_resource_table(explained.resources))


def _line(console: "Console", text: str) -> None:
    console.print(fill(text, min(console.width, LINE_WIDTH), subsequent_indent="  "), markup=False, soft_wrap=True)


def _refused(console: "Console", explained: Explained) -> None:
    answer = explained.answer
    _line(console, f"No plan (binding limit: {answer.binding_limit}): {answer.explanation}.")
    console.print()
    rows = [[change.direction, _flag(change), change.told] for change in explained.changes]
    console.print(table(["change alone", "ask instead", "what it means"], rows, tight=True))


def _flag(change: Change) -> str:
    return f"{change.flag} {change.value}" if change.value is not None else "no"


def _pool(console: "Console", pool: PoolTerms) -> None:
    bounds = ", ".join(f"{share:.0%} {bound}" for bound, share in pool.by_bound.items())
    _line(console, f"{pool.role}: a {pool.step} takes {format_duration(pool.step_seconds)}, by what binds {bounds}.")
    rows = [[row.name, row.bound, _arithmetic(row), *_seconds(row)] for row in pool.terms]
    rest = pool.rest_seconds
    rows.append(["others", "", "", "", format_duration(rest), f"{rest / pool.step_seconds:.1%}"])
    columns = ["operator", "bound by", "count × amount / rate", "busy", "exposed", "share"]
    console.print(table(columns, rows, right=["busy", "exposed", "share"], tight=True))
    for line in pool.lines:
        _line(console, line)


def _arithmetic(row: Worked) -> str:
    if row.amount is None or row.rate_per_second is None or row.least_seconds is None:
        return row.told or "start-up of its kernels"
    return (
        f"{row.count} × {row.amount:.3g} {row.unit} / ({row.rate_per_second:.3g} {row.unit}/s) = "
        f"{format_duration(row.least_seconds)} at least"
    )


def _seconds(row: Worked) -> list[str]:
    return [format_duration(row.seconds), format_duration(row.exposed_seconds), f"{row.share:.1%}"]


def _resource_table(resources: tuple[Bought, ...]) -> "Table":
    rows = [
        [each.resource, each.unit, format_rate(each.requests_per_second), f"{each.gain:+.1%}"] for each in resources
    ]
    return table(["resource", "more", "requests", "gain"], rows, right=["requests", "gain"], tight=True)


def as_json(explained: Explained) -> dict[str, object]:
    """Return the object that ``plan explain --json`` prints."""
    answer = explained.answer
    best = answer.best
    return {
        "question": question_json(explained.asked),
        "assumptions": assumptions(explained.asked, best),
        "feasible": best is not None,
        "binding_limit": answer.binding_limit,
        "explanation": answer.explanation,
        "best": plan_json(best) if best else None,
        "day": day_json(over_the_day(best, explained.asked.day), levels_of(best))
        if best and explained.asked.day
        else None,
        "pools": [asdict(pool) for pool in worked_plan(best)] if best else [],
        "resources": [asdict(each) for each in explained.resources],
        "nearest_changes": [_change_json(change) for change in explained.changes],
    }


def _change_json(change: Change) -> dict[str, object]:
    return {
        "direction": change.direction,
        "flag": change.flag,
        "value": change.value,
        "feasible": change.question is not None,
        "explanation": change.told,
    }
