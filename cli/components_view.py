"""Parts of a step beside published breakdowns, as table rows and as JSON."""

from collections.abc import Sequence

from ground.units import format_duration
from planner.components import ComponentComparison, middle_error
from podplan.result import picked

COLUMNS = ["case", "part of a step", "of", "predicted", "published", "error"]
OF = {"seconds": "layer and microbatch", "share": "share of the step", "step": "step"}


def component_rows(results: Sequence[ComponentComparison]) -> list[list[str]]:
    """Return a row per published part, in the order of the file."""
    rows = []
    for result in results:
        one = result.component
        share = one.measure == "share"
        told = [f"{value:.1%}" if share else format_duration(value) for value in (result.predicted, one.published)]
        rows.append([one.case, one.part, OF[one.measure], *told, f"{result.error:+.0%}"])
    return rows


def component_summary(results: Sequence[ComponentComparison]) -> str:
    """Return one line about all parts."""
    return f"{len(results)} published parts of steps, median |error| {middle_error(results):.1%}"


def components_as_json(results: Sequence[ComponentComparison]) -> dict[str, object]:
    """Return every part with its operators, in SI units."""
    parts = [
        {
            **picked(result.component, "case part operators measure"),
            **picked(result, "predicted published=component.published relative_error=error"),
            **picked(result.component, "url note"),
        }
        for result in results
    ]
    return {"components": parts, "median_absolute_relative_error": middle_error(results)}
