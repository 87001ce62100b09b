"""The comparison with published measurements as JSON, as table rows and as the page docs/accuracy.md."""

from collections.abc import Iterable, Sequence
from typing import get_args

from cli.components_view import COLUMNS, component_rows, component_summary
from ground.units import format_count, format_duration
from planner.accuracy import HELD_OUT, Comparison, Excluded, Group, Tier, group, groups, kind_of, load_operators
from planner.components import compare_components
from planner.engines.behaviour import behaviour_names, behaviour_values
from planner.strategy import format_strategy
from podplan.result import picked

LARGE_MISS = 0.1

METRICS = {
    "tpot_seconds": "TPOT",
    "ttft_seconds": "TTFT",
    "iteration_seconds": "iteration",
    "tokens_per_second_per_chip": "tokens/s per chip",
}


RELEASED = (
    "All 837 runs, by `plan verify` of November 2026: mean error of TPOT 7.3 %, of throughput 8.7 %, of TTFT 18.3 %;",
    "with the host's constants fitted without a model's family TTFT is 22.9 %. With families left out of the",
    "deviations, too (`scripts/fit_residuals.py`), 80 % intervals hold 83, 83 and 84 %; five random runs of one's own",
    "model, machine and engine make the errors 6.3, 7.5 and 24.4 %, and the intervals hold 76, 78 and 79 %. TPOT",
    "of Qwen3-32B on four 910B3 under vLLM-Ascend 0.13.0rc1 is 7 % off at most, 5 % after three runs of one's own; it",
    "is 2.8 times slower than predicted if no version is named, for later ones do not wait in every layer.",
    "22 of 35 runs of one SGLang version took 5 to 9 s to the first token at any load (kernels compiled while",
    "measured, it seems). InferenceX's recipe lets prompts of Llama-3.1-70B under TensorRT-LLM wait up to 20 steps for",
    "more of them (1K + 1K tokens, TP below 8): TTFT of these 48 runs is 61 % too short without that wait, 5 % off",
    "with it. Qwen3-32B's 156 runs had the token budget of a generator: TTFT is 55 % off without it, 18 % with it.",
    "`scripts/engine_order.py`: of two engines at one load on one machine the better one is predicted to be in 97 % of",
    "685 pairs; the layout that predictions pick is 3.4 % below the best measured, within 3 % in 86 % of 175 loads.",
)
"""What the scripts print of measured runs that are not part of the project."""

PREFACE = (
    "Predictions beside published end-to-end measurements, written by `plan accuracy --markdown`. Kernels,",
    "collectives and exchanges are fitted to measurements of their own; nothing is fitted to the rows below but the",
    "constants of engines at the end of the page.",
    "The error is predicted / published − 1. Tier A: enough is published to predict the row. Tier B: something is",
    "assumed, or the published value is only a bound; those rows are part of no mean. Tier H, held out: as A, but",
    "sought only when the model was finished; its means stand apart. Once they had been seen, three things were",
    "changed, by measured operators and not by these rows: the H20's kernels, lent by the H800 until then, are",
    "fitted on an H20's own; latents kept in FP8 are multiplied in FP8 there; recurrence and convolution of",
    "delta-net layers have the pace that they had on an H20. So the H20's rows of tier H are not blind any more,",
    "and its rows of tier A moved, too; no other did, for none is of a delta-net model. Where a service time has",
    "an interval, it is the central 80 % interval of the prediction.",
)


def misses_first(results: Iterable[Comparison]) -> list[Comparison]:
    """Return comparisons by falling |error|, those that are part of a mean first."""
    return sorted(results, key=lambda result: (result.case.tier == "B", -abs(result.error)))


def as_json(results: Sequence[Comparison], excluded: Sequence[Excluded]) -> dict[str, object]:
    """Return the object that ``plan accuracy --json`` prints; errors are predicted/published - 1."""
    return {
        "cases": [_case_json(result) for result in misses_first(results)],
        "groups": [_group_json(row) for row in groups(results)],
        "overall": _whole_json(results, "A"),
        "held_out": _whole_json(results, "H"),
        "excluded": [picked(row, "what rows reason source_url=url") for row in excluded],
        "excluded_rows": sum(row.rows for row in excluded),
    }


def _whole_json(results: Sequence[Comparison], tier: Tier) -> dict[str, object] | None:
    own = [result for result in results if result.case.tier == tier]
    return _group_json(group("all", "all", own)) if own else None


def _case_json(result: Comparison) -> dict[str, object]:
    return {
        **picked(result.case, "id source tier metric published source_url=url note"),
        **picked(result.case.configuration, "model=model.name hardware=hardware.name"),
        **picked(result, "predicted relative_error=error inside bottleneck"),
        "kind": kind_of(result.case),
        "strategy": strategy_text(result),
        "interval": None if result.low is None else {"low": result.low, "high": result.high},
        "believed_cause": result.case.cause or None,
    }


def _group_json(row: Group) -> dict[str, object]:
    figures = "kind source cases mape median_absolute_error=median bias rank_correlation inside_interval=inside"
    return picked(row, figures)


def strategy_text(result: Comparison) -> str:
    """Return the strategy of a case in MixServe's notation."""
    asked = result.case.configuration
    return format_strategy(asked.strategy, moe=asked.model.moe is not None)


def case_rows(results: Iterable[Comparison]) -> list[list[str]]:
    """Return a table row per comparison."""
    return [
        [
            result.case.id,
            METRICS[result.case.metric],
            _value(result, result.predicted),
            _value(result, result.case.published),
            f"{result.error:+.1%}",
            {True: "inside", False: "outside", None: ""}[result.inside],
            result.case.tier,
        ]
        for result in results
    ]


def _value(result: Comparison, value: float) -> str:
    return format_duration(value) if result.case.metric.endswith("_seconds") else format_count(value)


def group_rows(table: Iterable[Group]) -> list[list[str]]:
    """Return a table row per kind and source."""
    return [
        [
            row.kind,
            row.source,
            str(row.cases),
            f"{row.mape:.1%}",
            f"{row.median:.1%}",
            f"{row.bias:+.1%}",
            "" if row.rank_correlation is None else f"{row.rank_correlation:.2f}",
            "" if row.inside is None else f"{row.inside:.0%}",
        ]
        for row in table
    ]


def excluded_rows(excluded: Iterable[Excluded]) -> list[list[str]]:
    """Return a table row per reason for which published values are not compared."""
    return [[row.what, str(row.rows), row.reason] for row in excluded]


def summary(results: Sequence[Comparison], excluded: Sequence[Excluded]) -> str:
    """Return the comparison in one line."""
    by_tier = {tier: [result for result in results if result.case.tier == tier] for tier in get_args(Tier)}
    left_out = sum(row.rows for row in excluded)
    parts = [f"{len(by_tier['A'])} published values compared{_errors(by_tier['A'])}"]
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


def markdown(results: Sequence[Comparison], excluded: Sequence[Excluded]) -> list[str]:
    """Return the page docs/accuracy.md."""
    ranked, parts = misses_first(results), compare_components()
    return [
        "# Accuracy",
        "",
        *PREFACE,
        "",
        f"{summary(results, excluded)}.",
        "",
        "## By kind and source",
        "",
        *_table(
            ["kind", "source", "cases", "mean abs. error", "median", "mean error", "rank corr.", "in interval"],
            group_rows(groups(results)),
        ),
        "",
        "`mixed ttft` is the time to first token in a closed loop, mostly waiting: it depends on how the load",
        "generator starts and spaces its requests, which the sources do not state. Rank corr. is Spearman's, of the",
        "metric that most of a group's cases have.",
        "",
        "## Large misses, and what is believed to be behind them",
        "",
        *_table(
            ["case", "metric", "error", "believed cause"],
            [[r.case.id, METRICS[r.case.metric], f"{r.error:+.1%}", r.case.cause] for r in ranked if large(r)],
        ),
        "",
        "## Every row, the largest misses first",
        "",
        *_table(
            ["case", "model", "hardware", "strategy", "metric", "predicted", "published", "error", "interval", "tier"],
            [
                [f"[{row[0]}]({result.case.url})", *_subject(result), *row[1:]]
                for result, row in zip(ranked, case_rows(ranked), strict=True)
            ],
        ),
        "",
        "## Operators within a step",
        "",
        "`plan accuracy --components`: what was published of the parts of a step, since a total may be right because",
        "errors cancel. Seconds are busy time, without waiting unless said. DeepSeek's decode profile is taken with",
        "its draft layer on, which its step of 96 ms and the time of its attention kernel ask for; the row above is",
        "CloudMatrix384's reading of it. What stands out: EP288's attention is too slow and its exchange too fast, by",
        "waiting that the spread of the published times tells; small kernels (the gate) are too fast by launches.",
        "",
        f"{component_summary(parts)}.",
        "",
        *_table(COLUMNS, component_rows(parts)),
        "",
        "## Constants of engines that no operator gives",
        "",
        "Fitted by `scripts/fit_engines.py` on the 837 measured runs of `engine_runs.csv` (AIConfigurator's samples of",
        "InferenceX and NVIDIA's sweeps), of which some rows above are a part. What groups of runs that a fit did not",
        "see gain by it stands beside it.",
        "",
        *_table(["engine", "constant", "value", "left out"], constants()),
        "",
        *RELEASED,
        "",
        "## What was taken for each case",
        "",
        *[f"- {name}: {note}." for name, note in {r.case.id: r.case.note for r in results}.items()],
        "",
        "## Published and not compared",
        "",
        *_table(
            ["what", "rows", "because"],
            [[f"[{row.what}]({row.url})", str(row.rows), row.reason] for row in excluded],
        ),
        "",
        "## Published operator measurements",
        "",
        *_table(["what", "rows", "used in, or why not"], [[o.what, str(o.rows), o.use] for o in load_operators()]),
    ]


def large(result: Comparison) -> bool:
    """Whether a miss is large enough to be explained: past a tenth, or a bound that is missed."""
    return abs(result.error) > LARGE_MISS and bool(result.case.cause)


def _subject(result: Comparison) -> list[str]:
    asked = result.case.configuration
    return [asked.model.name, asked.hardware.name, strategy_text(result)]


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
        *[f"| {' | '.join(row)} |" for row in rows],
    ]
