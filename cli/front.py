"""The Pareto front of `plan search`: how wide it is, its table, its CSV and its plot."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cli.answer_output import Outputs, read_outputs
from cli.answer_rows import as_csv, front_rows, power_text
from cli.flags import read_tokens
from cli.output import stdout_console, table
from cli.parallel import spread
from cli.plots import Curve, Plot, plotted
from cli.search_flags import SearchInput
from cli.search_json import strategy_text
from ground.errors import BadInput
from ground.files import write_files
from ground.units import JOULES_PER_KWH, format_count, format_duration, format_rate
from planner.plans.plan import Plan
from planner.search.pareto import MOST_LEVELS, wide_front
from planner.search.search import Answer

if TYPE_CHECKING:
    from rich.table import Table

FLAG = "--pareto"
FIGURES = ("requests", "chips", "mean TTFT", "mean TPOT", "tokens/s per chip", "USD per M", "power", "kWh per M")


def read_levels(text: str | None) -> int | None:
    """Return over how many levels of the limits and of the devices the front reaches; None where not asked."""
    if text is None:
        return None
    levels = read_tokens(text, FLAG, 0)
    if not 2 <= levels <= MOST_LEVELS:
        raise BadInput(f"{FLAG}: {levels} is not from 2 to {MOST_LEVELS} levels of TTFT, TPOT and devices each")
    return levels


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontWanted:
    """How wide a front is asked for, and the files that it goes to."""

    levels: int | None
    outputs: Outputs

    def widened(self, answer: Answer) -> Answer:
        """Return an answer with the front that is asked for; as it is without a plan."""
        if self.levels is None or answer.best is None:
            return answer
        front = wide_front(answer.question, answer.best, self.levels, spread)
        evaluated = answer.candidates_evaluated + front.candidates_evaluated
        return replace(answer, pareto=front.plans, candidates_evaluated=evaluated)

    def write(self, asked: SearchInput, answer: Answer) -> None:
        """Write the front as CSV and as a plot, where asked."""
        files: dict[Path, str | bytes] = {}
        if self.outputs.csv is not None:
            files[self.outputs.csv] = as_csv(front_rows(asked, answer))
        if self.outputs.plot is not None:
            files[self.outputs.plot] = plotted(front_plot(asked.question.model.name, answer.pareto), self.outputs.plot)
        if files:
            write_files(files, force=self.outputs.force)

    def show(self, answer: Answer) -> None:
        """Print the front."""
        console = stdout_console()
        console.print()
        console.print(front_table(answer.pareto))


def read_front(pareto: str | None, csv: str | None, plot: str | None, force: bool) -> FrontWanted:
    """Return what is wanted of the front; BadInput names the flag."""
    levels = read_levels(pareto)
    outputs = read_outputs(csv, plot, force)
    return FrontWanted(levels=levels, outputs=outputs)


def front_plot(title: str, plans: tuple[Plan, ...]) -> Plot:
    """Return each plan as a point: what a user gets against what a chip gives, a colour for each number of chips."""
    sizes = sorted({plan.chips for plan in plans})
    curves = []
    for size in sizes:
        own = sorted((plan for plan in plans if plan.chips == size), key=lambda plan: plan.tpot.mean)
        curves.append(
            Curve(
                f"{size:g} chips",
                [1 / plan.tpot.mean for plan in own],
                [plan.output_tokens_per_second / plan.chips for plan in own],
            )
        )
    return Plot(title, "output tokens/s of a user", "output tokens/s per chip", curves, points=True)


def front_table(plans: tuple[Plan, ...]) -> "Table":
    """Return every plan of a front, most carried first."""
    rows = [[*figure_cells(plan), *shape_cells(plan)] for plan in plans]
    return table([*FIGURES, "pools", ""], rows, title="Pareto front", right=list(FIGURES), tight=True)


def figure_cells(plan: Plan) -> list[str]:
    """Return the figures of a plan that a front trades, and what follows from them."""
    cost, joules = plan.cost_per_million_tokens, plan.joules_per_million_tokens
    return [
        format_rate(plan.requests_per_second),
        f"{plan.chips:g}",
        format_duration(plan.ttft.mean),
        format_duration(plan.tpot.mean),
        format_count(plan.output_tokens_per_second / plan.chips),
        "" if cost is None else f"{cost:.3g}",
        power_text(plan.power_watts, plan.chip_power_watts),
        "" if joules is None else f"{joules / JOULES_PER_KWH:.3g}",
    ]


def shape_cells(plan: Plan) -> list[str]:
    """Return the pools of a plan in a cell each, two at least."""
    cells = [f"{pool.instances} × {strategy_text(pool)}" for _, pool in plan.pools()]
    return [*cells, *[""] * (2 - len(cells))]
