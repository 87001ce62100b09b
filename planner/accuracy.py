"""How far predictions are from published measurements; nothing in podplan is fitted to these rows.

``planner/published/cases.csv`` holds what the catalogue can express, with the configuration as it was
published; ``excluded.csv`` what it cannot, with the reason.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import correlation, fmean, median
from typing import Any, Literal, Self, get_args

from ground.errors import BadInput, Fault
from ground.files import csv_table, read_text
from hardware.formats import KvDtype
from hardware.loader import load_hardware
from hardware.spec import Dtype
from models.loader import load_model
from planner.balance.imbalance import parse_balance
from planner.costs.deployment import Phase, Shared, default_weights
from planner.costs.predict import Configuration, Prediction, predict
from planner.engines.behaviour import DEFAULT_BUDGET, host_costs
from planner.strategy import parse_strategy

PUBLISHED = Path(__file__).parent / "published"

Tier = Literal["A", "B", "H"]
HELD_OUT = "held out"
Metric = Literal["tpot_seconds", "ttft_seconds", "iteration_seconds", "tokens_per_second_per_chip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One published value and the configuration that it was measured with.

    ``tier`` A: enough is published to predict it. B: something is assumed, as ``note`` says, or the
    value is only a bound; shown, but not part of any mean. H, held out: as A, but sought only when the
    model was finished, with means of its own. ``cause`` is what a miss is believed to come from, ``row``
    its name in the collection of measurements that the cases were taken from.
    """

    id: str
    source: str
    tier: Tier
    configuration: Configuration
    metric: Metric
    published: float
    url: str
    note: str
    cause: str = ""
    row: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """Published rows that are not compared, and why; ``ids`` are patterns of their names in the collection."""

    what: str
    ids: tuple[str, ...]
    rows: int
    reason: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """Published operator measurements: which fit uses them, or why none does."""

    what: str
    ids: tuple[str, ...]
    rows: int
    use: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A case beside its prediction and the ends of the prediction's central interval."""

    case: Case
    predicted: float
    low: float
    high: float
    bottleneck: str

    @property
    def error(self) -> float:
        """predicted / published - 1."""
        return self.predicted / self.case.published - 1

    @property
    def inside(self) -> bool:
        """Whether the published value lies in the interval."""
        return self.low <= self.case.published <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of some predictions: mean and median |error|, mean error, Spearman's rank correlation of predicted and
    measured values (three at least, not all alike), and the share inside the interval.
    """

    cases: int
    mape: float
    median: float
    bias: float
    rank_correlation: float | None
    inside: float

    @classmethod
    def of(cls, found: Sequence[tuple[float, float, bool]], **more: Any) -> Self:
        """Return the errors of (predicted, measured, inside its interval), at least one of them."""
        errors = [predicted / measured - 1 for predicted, measured, _ in found]
        return cls(
            cases=len(errors),
            mape=fmean(map(abs, errors)),
            median=median(map(abs, errors)),
            bias=fmean(errors),
            rank_correlation=spearman([pair[:2] for pair in found]),
            inside=fmean(inside for _, _, inside in found),
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Errors):
    """Errors of cases of one kind and source; the rank correlation is of one metric."""

    kind: str
    source: str


def load_cases(path: Path = PUBLISHED / "cases.csv") -> list[Case]:
    """Return the published cases in the order of the file.

    Raises BadInput naming the file and the line of a row that cannot be read.
    """
    return [_case(row, where) for where, row in csv_table(read_text(path), str(path))]


def load_excluded(path: Path = PUBLISHED / "excluded.csv") -> list[Excluded]:
    """Return what is published and not compared."""
    return [
        Excluded(
            what=row["what"], ids=tuple(row["ids"].split()), rows=int(row["rows"]), reason=row["reason"], url=row["url"]
        )
        for _, row in csv_table(read_text(path), str(path))
    ]


def load_operators(path: Path = PUBLISHED / "operators.csv") -> list[Operators]:
    """Return the published operator measurements and what became of them."""
    return [
        Operators(what=row["what"], ids=tuple(row["ids"].split()), rows=int(row["rows"]), use=row["use"])
        for _, row in csv_table(read_text(path), str(path))
    ]


def evaluate(cases: Sequence[Case] | None = None) -> list[Comparison]:
    """Return every case beside its prediction."""
    cases = load_cases() if cases is None else cases
    answers = predictions([case.configuration for case in cases])
    return [_compare(case, answer) for case, answer in zip(cases, answers, strict=True)]


def predictions(configurations: Sequence[Configuration]) -> list[Prediction]:
    """Return the prediction of each configuration, made once where several are alike."""
    known: list[tuple[Configuration, Prediction]] = []
    for each in configurations:
        same = (answer for asked, answer in known if asked == each)
        known.append((each, next(same, None) or predict(each)))
    return [answer for _, answer in known]


def kind_of(case: Case) -> str:
    """Return what is compared: the phase and the metric, rates and times of an iteration together."""
    phase = case.configuration.phase
    return f"{phase} ttft" if phase == "mixed" and case.metric == "ttft_seconds" else phase


def groups(results: Sequence[Comparison]) -> list[Group]:
    """Return errors by kind and source, and over all sources of a kind: tier A, then what was held out."""
    held_out = _grouped([result for result in results if result.case.tier == "H"])
    named = [replace(row, kind=f"{row.kind}, {HELD_OUT}") for row in held_out]
    return [*_grouped([result for result in results if result.case.tier == "A"]), *named]


def _grouped(compared: Sequence[Comparison]) -> list[Group]:
    table = []
    for kind in dict.fromkeys(kind_of(result.case) for result in compared):
        own = [result for result in compared if kind_of(result.case) == kind]
        sources = list(dict.fromkeys(result.case.source for result in own))
        table += [group(kind, source, [r for r in own if r.case.source == source]) for source in sources]
        if len(sources) > 1:
            table.append(group(kind, "all", own))
    return table


def group(kind: str, source: str, results: Sequence[Comparison]) -> Group:
    """Return the errors of some comparisons, at least one."""
    found = [(result.predicted, result.case.published, result.inside) for result in results]
    return replace(Group.of(found, kind=kind, source=source), rank_correlation=rank_correlation(results))


def rank_correlation(results: Sequence[Comparison]) -> float | None:
    """Return how far predictions order cases as publications do (Spearman): the metric with most cases, None below 3.

    Durations of an iteration and per token are one metric, rates another.
    """
    rates = [result for result in results if result.case.metric == "tokens_per_second_per_chip"]
    times = [result for result in results if result.case.metric != "tokens_per_second_per_chip"]
    chosen = max(times, rates, key=len)
    return spearman([(result.predicted, result.case.published) for result in chosen])


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the rank correlation of pairs of values; None below three, and where the ones or the others are alike."""
    predicted, measured = ([pair[side] for pair in pairs] for side in (0, 1))
    if len(pairs) < 3 or len(set(predicted)) < 2 or len(set(measured)) < 2:
        return None
    return correlation(ranks(predicted), ranks(measured))


def ranks(values: Sequence[float]) -> list[float]:
    """Return each value's place among them from 0, equal values sharing the mean of their places.

    >>> ranks([3.0, 1.0, 3.0])
    [1.5, 0.0, 1.5]
    """
    held = sorted(values)
    return [(bisect_left(held, value) + bisect_right(held, value) - 1) / 2 for value in values]


def metric_value(answer: Prediction, metric: Metric) -> float:
    """Return the prediction's value of a metric. Raises Fault for one that its phase does not have."""
    if metric == "tokens_per_second_per_chip":
        return answer.tokens_per_second / answer.chips
    value: float | None = getattr(answer, metric)
    if value is None:
        raise Fault(f"a prediction of phase {answer.configuration.phase} has no {metric}")
    return value


def _compare(case: Case, answer: Prediction) -> Comparison:
    value = metric_value(answer, case.metric)
    loop = kind_of(case) == "mixed ttft"
    about = answer.ttft_seconds if loop or answer.configuration.phase == "prefill" else answer.tpot_seconds
    known = answer.ttft_interval if loop else answer.interval
    assert about is not None and known is not None, "every phase has the time that its interval is about"
    low, high = known.low / about, known.high / about
    if case.metric == "tokens_per_second_per_chip":
        low, high = 1 / high, 1 / max(low, 1e-12)
    return Comparison(case=case, predicted=value, low=value * low, high=value * high, bottleneck=answer.bottleneck)


def _case(row: dict[str, str], where: str) -> Case:
    try:
        return Case(
            id=row["id"],
            source=row["source"],
            tier=next(tier for tier in get_args(Tier) if tier == row["tier"]),
            configuration=_configuration(row),
            metric=next(metric for metric in get_args(Metric) if metric == row["metric"]),
            published=float(row["published"]),
            url=row["url"],
            note=row["note"],
            cause=row["cause"],
            row=row["row"],
        )
    except (KeyError, ValueError, StopIteration) as error:
        raise BadInput(f"{where}: {error!r} is not a published case") from None


def _configuration(row: dict[str, str]) -> Configuration:
    model, hardware = load_model(row["model"]), load_hardware(row["hardware"])
    shared: Shared = "auto"
    if row["shared_experts"]:
        kind, _, ranks = row["shared_experts"].partition("=")
        shared = int(ranks) if kind == "dedicated" else "local"
    prompt, concurrency, spread = (
        _number(row[name], usual) for name, usual in (("isl", 4096.0), ("concurrency", 1.0), ("length_spread", 0.0))
    )
    return Configuration(
        model=model,
        hardware=hardware,
        phase=next(phase for phase in get_args(Phase) if phase == row["phase"]),
        strategy=parse_strategy(row["strategy"], moe=model.moe is not None),
        weights=next((d for d in get_args(Dtype) if d == row["weights"]), default_weights(hardware, model)),
        kv_dtype=next(dtype for dtype in get_args(KvDtype) if dtype == row["kv_dtype"]),
        balance=parse_balance(row["expert_balance"] or "measured"),
        redundant=int(row["redundant_experts"]) if row["redundant_experts"] else None,
        shared=shared,
        drafts=int(row["mtp"] or 0),
        requests=int(row["requests"]) if row["requests"] else None,
        batch=_number(row["batch"], 1.0),
        kv_tokens=_number(row["kv_len"], 4096.0),
        tokens=_number(row["tokens"], 8192.0),
        prompt_tokens=prompt,
        output_tokens=_number(row["osl"], 1024.0),
        concurrency=concurrency,
        batched_tokens=_number(row["max_batched_tokens"], DEFAULT_BUDGET),
        prefix_reuse=_number(row["prefix_reuse"], 0.0),
        length_spread=spread,
        wait_steps=int(row["wait_steps"] or 0),
        wait_share=_number(row["wait_share"], 0.0),
        microbatches=int(row["microbatches"]) if row["microbatches"] else None,
        host=host_costs(row["system"] or None),
        acceptance=_number(row["mtp_acceptance"], 0.7),
    )


def _number(cell: str, default: float) -> float:
    return float(cell) if cell else default
