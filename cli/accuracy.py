"""`plan accuracy`: predictions beside published measurements as tables, as JSON and as the page docs/accuracy.md."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from string import Template
from typing import get_args

from cli.options import JSON, Text, options
from cli.output import Screen, cells, print_json
from ground.errors import BadInput, Infeasible
from ground.units import format_count, format_duration, number_of
from planner.accuracy import (
    HELD_OUT,
    Comparison,
    Excluded,
    Group,
    Tier,
    evaluate,
    group,
    groups,
    kind_of,
    load_excluded,
    load_operators,
)
from planner.components import ComponentComparison, compare_components, middle_error
from planner.engines.behaviour import behaviour_names, behaviour_values
from podplan.options import flag, switch
from podplan.prediction import strategy_text
from podplan.readers import read_choice
from podplan.result import picked

ASCEND_RUNS = ("cann-recipes", "vLLM-Ascend")
"""Sources of the runs on Ascend that state all that a prediction needs and are no paper's of its own system."""
LARGE_MISS = 0.1

METRICS = {
    "tpot_seconds": "TPOT",
    "ttft_seconds": "TTFT",
    "iteration_seconds": "iteration",
    "tokens_per_second_per_chip": "tokens/s per chip",
}

PAGE = Path(__file__).with_name("accuracy_page.md")
OF = {"seconds": "layer and microbatch", "share": "share of the step", "step": "step"}


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
        parts = compare_components()
        if json:
            print_json(components_as_json(parts))
            return
        Screen().grid(parts, COMPONENTS)
        Screen().lines(component_summary(parts))
        return
    results, excluded, screen = evaluate(), load_excluded(), Screen()
    if kind is not None:
        word = read_choice(kind, "--kind", tuple(dict.fromkeys(kind_of(result.case) for result in results)))
        results = [result for result in results if kind_of(result.case) == word]
    if json:
        print_json(as_json(results, excluded))
    elif as_markdown:
        screen.lines(*markdown(results, excluded).splitlines())
    else:
        screen.grid(groups(results), GROUPS)
        screen.grid(misses_first(results), CASES, "Largest misses first")
        screen.grid(excluded, EXCLUDED)
        screen.lines(summary(results, excluded))
    compared = [result for result in results if result.case.tier == "A"]
    mape = group("all", "all", compared).mape if compared else 0.0
    if limit is not None and mape > limit:
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


def misses_first(results: Iterable[Comparison]) -> list[Comparison]:
    """Return comparisons by falling |error|, those that are part of a mean first."""
    return sorted(results, key=lambda result: (result.case.tier == "B", -abs(result.error)))


def as_json(results: Sequence[Comparison], excluded: Sequence[Excluded]) -> dict[str, object]:
    """Return the object that ``plan accuracy --json`` prints; errors are predicted/published - 1."""
    return {
        "cases": [
            {
                **picked(result.case, "id source tier metric published source_url=url note"),
                **picked(result.case.configuration, "model=model.name hardware=hardware.name"),
                **picked(result, "predicted relative_error=error inside bottleneck"),
                "kind": kind_of(result.case),
                "strategy": strategy_text(result.case.configuration),
                "interval": {"low": result.low, "high": result.high},
                "believed_cause": result.case.cause or None,
            }
            for result in misses_first(results)
        ],
        "groups": [_group_json(row) for row in groups(results)],
        "overall": _whole_json(results, "A"),
        "held_out": _whole_json(results, "H"),
        "excluded": [picked(row, "what rows reason source_url=url") for row in excluded],
        "excluded_rows": sum(row.rows for row in excluded),
    }


def _whole_json(results: Sequence[Comparison], tier: Tier) -> dict[str, object] | None:
    own = [result for result in results if result.case.tier == tier]
    return _group_json(group("all", "all", own)) if own else None


def _group_json(row: Group) -> dict[str, object]:
    figures = "kind source cases mape median_absolute_error=median bias rank_correlation inside_interval=inside"
    return picked(row, figures)


def _value(result: Comparison, value: float) -> str:
    return format_duration(value) if result.case.metric.endswith("_seconds") else format_count(value)


CASES: dict[str, Callable[[Comparison], str]] = {
    "case": lambda each: each.case.id,
    "metric": lambda each: METRICS[each.case.metric],
    ">predicted": lambda each: _value(each, each.predicted),
    ">published": lambda each: _value(each, each.case.published),
    ">error": lambda each: f"{each.error:+.1%}",
    "80 % interval": lambda each: "inside" if each.inside else "outside",
    "tier": lambda each: each.case.tier,
}
GROUPS: dict[str, Callable[[Group], str]] = {
    "kind": lambda each: each.kind,
    "source": lambda each: each.source,
    ">cases": lambda each: str(each.cases),
    ">mean |error|": lambda each: f"{each.mape:.1%}",
    ">median": lambda each: f"{each.median:.1%}",
    ">mean error": lambda each: f"{each.bias:+.1%}",
    ">rank corr.": lambda each: "" if each.rank_correlation is None else f"{each.rank_correlation:.2f}",
    ">in interval": lambda each: f"{each.inside:.0%}",
}
EXCLUDED: dict[str, Callable[[Excluded], str]] = {
    "not compared": lambda each: each.what,
    ">rows": lambda each: str(each.rows),
    "because": lambda each: each.reason,
}


def summary(results: Sequence[Comparison], excluded: Sequence[Excluded]) -> str:
    """Return the comparison in one line."""
    by_tier = {tier: [result for result in results if result.case.tier == tier] for tier in get_args(Tier)}
    left_out = sum(row.rows for row in excluded)
    parts = [f"{len(by_tier['A'])} published values compared{_errors(by_tier['A'])}"]
    if ascend := [result for result in by_tier["A"] if result.case.source in ASCEND_RUNS]:
        parts.append(f"{len(ascend)} of these are open runs on Ascend A2 and A3{_errors(ascend)}")
    if by_tier["H"]:
        parts.append(f"{len(by_tier['H'])} {HELD_OUT} until the model was finished{_errors(by_tier['H'])}")
    return "; ".join([*parts, f"{len(by_tier['B'])} shown as bounds, {left_out} not compared"])


def _errors(results: Sequence[Comparison]) -> str:
    if not results:
        return ""
    whole = group("all", "all", results)
    return f", mean |error| {whole.mape:.1%}, mean error {whole.bias:+.1%}"


def constants() -> list[list[str]]:
    """Return a table row per constant of an engine that is fitted on runs."""
    return [
        [engine, name, format_duration(value.value), value.note or ""]
        for engine in behaviour_names()
        for name, value in behaviour_values(engine)
        if value.kind == "fitted"
    ]


def markdown(results: Sequence[Comparison], excluded: Sequence[Excluded]) -> str:
    """Return the page docs/accuracy.md; its sentences stand in accuracy_page.md."""
    ranked, parts = misses_first(results), compare_components()
    misses = [[r.case.id, METRICS[r.case.metric], f"{r.error:+.1%}", r.case.cause] for r in ranked if large(r)]
    every = []
    for result, row in zip(ranked, cells(ranked, CASES), strict=True):
        asked, name = result.case.configuration, f"[{row[0]}]({result.case.url})"
        every.append([name, asked.model.name, asked.hardware.name, strategy_text(asked), *row[1:]])
    left_out = [[f"[{row.what}]({row.url})", str(row.rows), row.reason] for row in excluded]
    operators = [[row.what, str(row.rows), row.use] for row in load_operators()]
    return Template(PAGE.read_text(encoding="utf-8")).substitute(
        summary=summary(results, excluded),
        groups=_table(
            "kind|source|cases|mean abs. error|median|mean error|rank corr.|in interval", cells(groups(results), GROUPS)
        ),
        misses=_table("case|metric|error|believed cause", misses),
        cases=_table("case|model|hardware|strategy|metric|predicted|published|error|interval|tier", every),
        component_summary=component_summary(parts),
        components=_table("|".join(COMPONENTS).replace(">", ""), cells(parts, COMPONENTS)),
        constants=_table("engine|constant|value|left out", constants()),
        taken="\n".join(f"- {name}: {note}." for name, note in {r.case.id: r.case.note for r in results}.items()),
        excluded=_table("what|rows|because", left_out),
        operators=_table("what|rows|used in, or why not", operators),
    )


def large(result: Comparison) -> bool:
    """Whether a miss is large enough to be explained: past a tenth, or a bound that is missed."""
    return abs(result.error) > LARGE_MISS and bool(result.case.cause)


def _table(names: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; ``names`` of its columns stand between bars."""
    rule = "|---" * (names.count("|") + 1) + "|"
    return "\n".join([f"| {names.replace('|', ' | ')} |", rule, *(f"| {' | '.join(row)} |" for row in rows)])


def _part(result: ComponentComparison, value: float) -> str:
    return f"{value:.1%}" if result.component.measure == "share" else format_duration(value)


COMPONENTS: dict[str, Callable[[ComponentComparison], str]] = {
    "case": lambda each: each.component.case,
    "part of a step": lambda each: each.component.part,
    "of": lambda each: OF[each.component.measure],
    ">predicted": lambda each: _part(each, each.predicted),
    ">published": lambda each: _part(each, each.component.published),
    ">error": lambda each: f"{each.error:+.0%}",
}


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
