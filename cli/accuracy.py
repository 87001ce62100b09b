"""`plan accuracy`: predictions beside published measurements."""

from cli.accuracy_view import (
    COLUMNS,
    as_json,
    case_rows,
    component_rows,
    component_summary,
    components_as_json,
    excluded_rows,
    group_rows,
    markdown,
    misses_first,
    summary,
)
from cli.options import JSON, Text, options
from cli.output import Screen, print_json
from ground.errors import BadInput, Infeasible
from ground.units import number_of
from planner.accuracy import Comparison, evaluate, group, groups, kind_of, load_excluded
from planner.components import compare_components
from podplan.options import flag, switch
from podplan.readers import read_choice

CASE_COLUMNS = ["case", "metric", "predicted", "published", "error", "80 % interval", "tier"]
GROUP_COLUMNS = ["kind", "source", "cases", "mean |error|", "median", "mean error", "rank corr.", "in interval"]


@options
def command(
    max_mape: Text = flag("P", "Exit 3 past this mean |error|, such as 15% or 0.15."),
    kind: Text = flag("K", 'Only one kind: decode, prefill, mixed or "mixed ttft".'),
    json: bool = JSON,
    components: bool = switch("Operators within a step beside published breakdowns."),
    as_markdown: bool = switch("Print the page docs/accuracy.md.", "--markdown"),
) -> None:
    """Compare predictions with published measurements, the largest misses first.

    \b
    Examples:
      plan accuracy
      plan accuracy --kind decode --max-mape 15%
      plan accuracy --components

    Nothing in podplan is fitted to these rows. Tier A: enough is published. H: held out until the model was finished.
    B: part of no mean. --max-mape is about tier A.
    """
    limit = None if max_mape is None else _limit(max_mape)
    if components:
        _print_components(json)
        return
    results = _selected(evaluate(), kind)
    if json:
        print_json(as_json(results, load_excluded()))
    elif as_markdown:
        Screen().lines(*markdown(results, load_excluded()).splitlines())
    else:
        _print(results)
    if limit is not None:
        _check(results, limit)


def _print_components(json: bool) -> None:
    """Print parts of steps, which have tables of their own."""
    results = compare_components()
    if json:
        print_json(components_as_json(results))
        return
    Screen().table(COLUMNS, component_rows(results), right=COLUMNS[3:])
    Screen().lines(component_summary(results))


def _check(results: list[Comparison], limit: float) -> None:
    """Raise Infeasible where the mean |error| of tier A is past the limit."""
    compared = [result for result in results if result.case.tier == "A"]
    mape = group("all", "all", compared).mape if compared else 0.0
    if mape > limit:
        worst = misses_first(compared)[0]
        raise Infeasible(
            f"--max-mape: the mean |error| of {len(compared)} published values is {mape:.1%}, past {limit:.1%}; "
            f"the largest miss is {worst.case.id} with {worst.error:+.0%}"
        )


def _limit(text: str) -> float:
    """Return a share, from ``15%``, ``0.15`` or, above 1, from ``15``."""
    stripped = text.strip()
    value = number_of(stripped.removesuffix("%"))
    if not value >= 0:
        raise BadInput(f"--max-mape: {text[:40]!r} is not a share such as 15% or 0.15")
    return value / 100 if stripped.endswith("%") or value > 1 else value


def _selected(results: list[Comparison], kind: str | None) -> list[Comparison]:
    if kind is None:
        return results
    word = read_choice(kind, "--kind", tuple(dict.fromkeys(kind_of(result.case) for result in results)))
    return [result for result in results if kind_of(result.case) == word]


def _print(results: list[Comparison]) -> None:
    excluded = load_excluded()
    Screen().table(GROUP_COLUMNS, group_rows(groups(results)), right=GROUP_COLUMNS[2:])
    right = ["predicted", "published", "error"]
    Screen().table(CASE_COLUMNS, case_rows(misses_first(results)), title="Largest misses first", right=right)
    Screen().table(["not compared", "rows", "because"], excluded_rows(excluded), right=["rows"])
    Screen().lines(summary(results, excluded))
