"""`plan explain`: what binds as arithmetic, what more of each resource buys, and what would be feasible."""

from collections.abc import Callable

from cli.options import JSON, WORKERS, Given, Text, takes_question
from cli.output import Screen, note, print_json, progress, with_bar
from cli.plan_parts import show_day
from cli.plan_view import show_first
from ground.errors import ExitCode
from ground.units import carried_rate, format_duration
from ground.workers import aside, executor_of
from planner.plans.day import over_the_day
from planner.plans.worked import PoolTerms, Worked, worked_plan
from planner.search.answer import Change
from planner.search.changes.resources import Bought, Near
from planner.search.search import at_need
from podplan.explaining import ExplainResult, explained
from podplan.options import flag
from podplan.plan_data import pools_text
from podplan.question_files import single_question


@takes_question("QUESTION.yaml | MODEL", "A question file, or with --hw a model as for plan search.")
def command(
    given: Given, name: Text = flag("NAME", "Which question of the file."), workers: Text = WORKERS, json: bool = JSON
) -> int:
    """Show the bottleneck as arithmetic, and what a little more of each resource would buy.

    \b
    Examples:
      plan explain deepseek-r1 --hw cm384
      plan explain examples/questions/supernode.yaml
      plan explain examples/questions/capacity.yaml --name chat --json

    Every figure of a changed machine or question comes from solving it again. Exit code 3: no plan keeps the limits;
    then the nearest change in each direction is told, each solved as printed.
    """
    entry = single_question(given if name is None else {**given, "name": name}, "explain")
    with progress("searching deployments ..."):
        executor = with_bar("solving changed questions", executor_of(workers))
        found = explained(entry, executor, aside if workers is None else at_need)
    if found.ignored:
        note(found.ignored)
    print_json(found.to_dict()) if json else _show(Screen(), found)
    return ExitCode.DONE if found.feasible else ExitCode.INFEASIBLE


def _show(screen: Screen, found: ExplainResult) -> None:
    """Write the explanation."""
    answer, best = found.answer, found.answer.best
    if best is None:
        screen.text(f"No plan (binding limit: {answer.binding_limit}): {answer.explanation}.")
        screen.lines("")
        screen.grid(found.changes, CHANGES)
        return
    show_first(screen, found.answer, found.sureness, found.asked.job)
    for pool in worked_plan(best):
        _pool(screen, pool)
        screen.lines("")
    screen.text(found.headline)
    if found.asked.day:
        screen.lines("")
        show_day(screen, over_the_day(best, found.asked.day), best.question.percentile)
    screen.lines("")
    screen.grid(found.near, NEAR)
    now = carried_rate(found.resources[0].requests_per_second / (1 + found.resources[0].gain))
    what = "nodes" if best.spread else "devices"
    screen.text(f"The plan's {what} carry {now}. With a little more of a resource, solved again, they would carry:")
    screen.grid(found.resources, MORE)


NEAR: dict[str, Callable[[Near], str]] = {
    "near it": lambda one: one.name,
    "ask instead": lambda one: one.flag,
    ">requests": lambda one: carried_rate(one.requests_per_second) if one.plan else "no plan",
    ">chips": lambda one: f"{one.plan.chips:g}" if one.plan else "",
    "pools": lambda one: pools_text(one.plan, "{count} × {devices} {role}") if one.plan else "",
}
MORE: dict[str, Callable[[Bought], str]] = {
    "resource": lambda one: one.resource,
    "more": lambda one: one.unit,
    ">requests": lambda one: carried_rate(one.requests_per_second),
    ">gain": lambda one: f"{one.gain:+.1%}",
}
CHANGES: dict[str, Callable[[Change], str]] = {
    "change alone": lambda each: each.direction,
    "ask instead": lambda each: "no" if each.value is None else f"{each.flag} {each.value}".strip(),
    "what it means": lambda each: each.told,
}


def _pool(screen: Screen, pool: PoolTerms) -> None:
    bounds = ", ".join(f"{share:.0%} by {bound}" for bound, share in pool.by_bound.items() if share >= 5e-3)
    screen.text(f"{pool.role}: a {pool.step} takes {format_duration(pool.step_seconds)}, bound {bounds}.")
    rows = []
    for row in pool.terms:
        seconds = map(format_duration, (row.seconds, row.exposed_seconds))
        rows.append([row.name, row.bound, _arithmetic(row), *seconds, f"{row.share:.1%}"])
    rest = pool.rest_seconds
    rows.append(["others", "", "", "", format_duration(rest), f"{rest / pool.step_seconds:.1%}"])
    columns = ["operator", "bound by", "count × amount / rate", "busy", "exposed", "share"]
    screen.table(columns, rows, right=["busy", "exposed", "share"])
    screen.text(*pool.lines)


def _arithmetic(row: Worked) -> str:
    if row.amount is not None and row.rate_per_second is None:
        return f"{row.count} × {row.amount:.3g} {row.unit}, kernels measured together"
    if row.amount is None or row.least_seconds is None:
        return row.told or "start-up of its kernels"
    return (
        f"{row.count} × {row.amount:.3g} {row.unit} / ({row.rate_per_second:.3g} {row.unit}/s) = "
        f"{format_duration(row.least_seconds)} at least"
    )
