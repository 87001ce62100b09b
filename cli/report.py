"""A plan as files to read: the printed answer as text, and one page of HTML with pictures."""

from collections.abc import Iterator
from io import StringIO

from cli.output import Screen
from cli.page import Page
from cli.plan_view import show_plan
from cli.plots import Mark, Plot, PlotLine, curves, rank_map, stacked
from ground.units import MILLI, carried_rate, counted, format_bytes, format_duration
from planner.manifest.schema import Manifest
from planner.plans.plan import Plan
from planner.plans.pools import PlannedPool
from podplan.options import command_line
from podplan.plan_data import memory_json
from podplan.planning import PlanResult

TEXT, HTML = "report.txt", "report.html"
TEXT_WIDTH = 140
SHOWN_OPERATORS = 7
RATES = 10  # rates up to what the tighter pool carries at which the plan is asked what its requests see
FRONT_TOLD = (
    "Plans that trade the speed of one user against the output of a chip; the ring is the chosen plan. plan --pareto 4 "
    "searches more of them."
)


def reports(found: PlanResult) -> dict[str, str]:
    """Return the reports of an answer that has a plan, by their names; the same bytes for the same question."""
    text = StringIO()
    show_plan(Screen(text, TEXT_WIDTH), found)
    return {TEXT: text.getvalue(), HTML: html_report(found)}


def html_report(found: PlanResult) -> str:
    """Return one page that needs no other file: the answer, where memory and time go, the ranks, and curves."""
    best, manifest = found.best, found.manifest()
    assert best is not None, "only a plan is reported"
    page = Page(f"{best.question.model.name} on {found.answer.question.prefill.hardware.title}")
    page.command("The command that gives this answer", command_line(found.asked.flags))
    show_plan(page, found)
    breakdown(page, best)
    page.heading("Which device holds which rank")
    for name, cluster in manifest.clusters.items():
        per_node = round(cluster.spec.devices_per_node.value)
        page.figure(
            rank_map(cluster.nodes, per_node, _ranks(manifest, name, per_node)),
            f"{cluster.spec.title}: a column is a node, a square a device; prefill is blue, decode orange, aggregated "
            "green, neighbouring instances differ in shade. The pointer tells the rank.",
        )
    page.heading("What if the load were another, or the limits")
    for plot, told in (*(_load_curves(best) if found.asked.job is None else ()), (front_plot(found), FRONT_TOLD)):
        page.figure(curves(plot), told)
    return page.html()


def breakdown(page: Page, best: Plan) -> None:
    """Write what holds the memory of a device, and what takes the time of a step."""
    page.heading("Where memory and time go")
    memory = {f"{role}, a device": _memory(pool) for role, pool in best.pools()}
    page.figure(stacked("Memory of a device", memory), "Bytes of one device by what holds them, and what is left free.")
    steps = {}
    for role, pool in best.pools():
        seconds = sum(row.exposed_seconds for row in pool.prediction.operators)
        steps[f"{role}, a step of {format_duration(seconds)}"] = _operators(pool)
    page.figure(
        stacked("Time of a step", steps),
        "Time of one step at the plan's batch, by operator; what runs behind another operator counts only where it "
        "makes the step longer.",
    )


def _memory(pool: PlannedPool) -> list[tuple[str, float, str]]:
    """Return what holds a device's bytes, the free ones last."""
    held = {kind.replace("kv_cache", "KV cache"): size for kind, size in memory_json(pool.memory).items()}
    held["free"] = max(held.pop("capacity") - sum(held.values()), 0.0)
    return [(kind, size, format_bytes(size)) for kind, size in held.items()]


def _operators(pool: PlannedPool) -> list[tuple[str, float, str]]:
    """Return the longest operators of a step, the others together."""
    rows = sorted(pool.prediction.operators, key=lambda row: -row.exposed_seconds)
    rest = sum(row.exposed_seconds for row in rows[SHOWN_OPERATORS:])
    shown = [(row.name, row.exposed_seconds) for row in rows[:SHOWN_OPERATORS]] + [("others", rest)]
    return [(name, seconds, format_duration(seconds)) for name, seconds in shown]


def _ranks(manifest: Manifest, hardware: str, per_node: int) -> Iterator[tuple[str, int, int, int, str]]:
    """Yield the ranks that stand on a cluster: role, number of the instance, node, device in it, and words."""
    for pool in manifest.pools:
        for number, instance in enumerate(pool.instances if pool.hardware == hardware else ()):
            for place in pool.rank_table.places:
                node, device = instance.where(place, per_node)
                degrees = {key: getattr(place, key) for key in ("tp", "dp", "ep", "pp")}
                own = ", ".join(f"{key} {degree}" for key, degree in degrees.items() if degree >= 0)
                yield pool.role, number, node, device, f"{instance.name} rank {place.rank}, {own}; node {node}.{device}"


def _load_curves(plan: Plan) -> Iterator[tuple[Plot, str]]:
    """Yield what requests of this plan see at other rates."""
    question, most = plan.question, min(pool.capacity_per_second for _, pool in plan.pools())
    at, level = plan.under(question), question.percentile
    rates = sorted({most * step / RATES for step in range(1, RATES)} | {plan.requests_per_second})
    seen = [(rate, plan if rate == plan.requests_per_second else at(rate)) for rate in rates]
    known = [(rate, found) for rate, found in seen if found is not None]
    x = [rate for rate, _ in known]
    for name, limit in (("ttft", question.ttft_seconds), ("tpot", question.tpot_seconds)):
        latencies = [getattr(found, name) for _, found in known]
        own, told = getattr(plan, name).at(level) / MILLI, f"{name.upper()} of this plan at other rates"
        plot = Plot(
            title=told,
            x_label="requests/s",
            y_label=f"{name.upper()} in ms",
            curves=[
                PlotLine("mean", x, [each.mean / MILLI for each in latencies]),
                PlotLine(f"p{level:g}", x, [each.at(level) / MILLI for each in latencies]),
            ],
            y_limits=[(limit / MILLI, f"limit {format_duration(limit)}")],
            marks=[Mark(plan.requests_per_second, own, carried_rate(plan.requests_per_second))],
        )
        yield plot, f"{told}, each solved with the same pools; the ring is the plan's own rate."


def _of_user(plan: Plan) -> float:
    """Return the tokens per second of a user, whose only token comes at the end where answers have one."""
    return 1 / (plan.tpot.mean or plan.e2e_mean_seconds)


def front_plot(found: PlanResult) -> Plot:
    """Return each plan as a point: what a user gets against what a chip gives, the frontier as a line through it."""
    best = found.best
    assert best is not None, "only a plan has a front"
    question = best.question
    points = [(_of_user(plan), plan.output_tokens_per_second / plan.chips, plan) for plan in found.pareto]
    chosen = (_of_user(best), best.output_tokens_per_second / best.chips)
    frontier: list[tuple[float, float]] = []
    for user, chip, _ in sorted([*points, (*chosen, best)], key=lambda each: (-each[0], -each[1])):
        if not frontier or chip > frontier[-1][1]:
            frontier.append((user, chip))
    bare = []
    for size in sorted({plan.chips for *_, plan in points if plan is not best}):
        own = [(x, y) for x, y, plan in points if plan is not best and plan.chips == size]
        bare.append(PlotLine(counted(size, "chip"), [x for x, _ in own], [y for _, y in own], False))
    return Plot(
        title=f"{question.model.name}: what a user gets against what a chip gives",
        question=command_line(found.asked.flags),
        x_label="output tokens/s of a user",
        y_label="output tokens/s per chip",
        curves=[PlotLine("frontier", [x for x, _ in frontier], [y for _, y in frontier]), *bare],
        x_limits=[(1 / question.tpot_seconds, f"TPOT limit {format_duration(question.tpot_seconds)}")],
        marks=[Mark(*chosen, f"the plan: {counted(best.chips, 'chip')}, {carried_rate(best.requests_per_second)}")],
    )
