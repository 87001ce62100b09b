"""Lengths, reuse, `--sessions` and rate, or `--trace`: what requests are like, how many come, what a cache holds."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, get_args

import numpy as np

from ground.arrays import Floats
from ground.errors import BadInput, naming
from ground.files import csv_table, read_text
from ground.prefix_cache import PrefixCache
from ground.units import number_of, parse_count, parse_duration, parse_rate, parse_size
from hardware.formats import KvDtype
from models.parameters import Pictures
from models.spec import ModelSpec
from planner.costs.cache import find_plane, model_cache
from planner.costs.deployment import Deployment
from planner.plans.day import Window, peak_rate
from planner.question import Machines, PrefixPool, PrefixRouting
from planner.serving.streams import answer_kinds, histogram_kinds
from planner.strategy import Strategy
from planner.workload import Lengths, LengthShape, Offline, Sessions, TraceRows, Traffic, Workload, histogram_lengths
from podplan.day import read_rate_profile
from podplan.options import QuestionFlags, flag_name
from podplan.readers import (
    MOST_TOKENS,
    read_choice,
    read_fraction,
    read_offline_lengths,
    read_pictures,
    read_tokens,
    spaced,
)

if TYPE_CHECKING:
    from ground.traces import Trace

USUAL = Workload(input_tokens=Lengths(mean=4096), output_tokens=Lengths(mean=1024))
# Stamps on a coarse grid are spread over it; the seed makes the same trace give the same plan.
SPREAD_SEED = 0
LENGTH_FIELDS = ("isl", "osl", "isl_cv", "osl_cv", "isl_distribution", "isl_histogram", "osl_histogram")
MOST_CV = 100.0
GROWTH = "--growth"
MOST_MONTHS = 120
MOST_REQUESTS = 300_000  # of a trace that is played; a longer one is told by its moments alone
MOST_IN_A_SESSION = 10_000
_REQUESTS, _SEED = 20_000, 0
_TOKEN_SECONDS = 0.05  # of an answer, by which turns are stamped: the default limit of TPOT
Kinds = TypeVar("Kinds")
Prompts = tuple[tuple[float, float, float], ...] | None
"""Kinds of prompts as (tokens, reused tokens, weight); None where moments tell all."""
Known = tuple[ModelSpec, Callable[["Trace"], "Trace"]]  # a model, and what adds to a trace its hits in the pool


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTraffic:
    """Traffic, the rate that was stated or measured (of a day: the largest), and the trace or day behind it."""

    workload: Workload
    rate_per_second: float | None
    trace: "Trace | None" = None
    day: tuple[Window, ...] = ()
    growth: tuple[float, ...] = ()  # the rate of every month


def read_traffic(
    flags: QuestionFlags, model: ModelSpec, hits: Callable[["Trace"], "Trace"], usual: Workload = USUAL
) -> AskedTraffic:
    """Return the traffic that the flags state or that the trace holds, after ``hits`` in its pool of prefixes.

    What neither gives is as ``usual``.

    Raises BadInput naming the flag, or file, line and field of a trace.
    """
    growth = read_growth(flags.growth) if flags.growth is not None else ()
    flags.check_apart(("growth", "rate", "rate_profile"), "say how many requests come")
    day = () if flags.rate_profile is None else read_rate_profile(flags.rate_profile)
    rate = max(growth) if growth else peak_rate(day) if day else flags.per_second("rate", None)
    reuse = read_fraction(flags.prefix_reuse, "--prefix-reuse", usual.prefix_reuse, below_one=True)
    if flags.trace is not None:
        asked = _from_trace(flags, (model, hits), rate, None if flags.prefix_reuse is None else reuse)
        return replace(asked, day=day, growth=growth)
    if flags.format is not None:
        raise BadInput("--format tells the format of a trace; give --trace FILE with it or leave it out")
    values = asdict(flags)
    prompt = read_lengths("isl", values, usual.input_tokens)
    answer = read_lengths("osl", values, usual.output_tokens)
    pictures = read_pictures(model.vision, model.name, flags.images, flags.video)
    prompt = prompt if pictures is None else with_pictures(prompt, pictures, model)
    check_positions(prompt, answer, model)
    if flags.sessions is not None:
        workload = _of_sessions(flags, (prompt, answer), rate, (model, hits))
        return AskedTraffic(workload=workload, rate_per_second=rate, day=day, growth=growth)
    workload = replace(
        usual,
        pictures=pictures or usual.pictures,
        input_tokens=prompt.lengths,
        output_tokens=answer.lengths,
        prefix_reuse=reuse,
        prompts=_prompts(flags, usual, prompt, reuse),
        answers=answer_kinds(*answer.histogram) if answer.histogram else _kept(flags, "osl", usual.answers),
    )
    return AskedTraffic(workload=workload, rate_per_second=rate, day=day, growth=growth)


def _prompts(flags: QuestionFlags, usual: Workload, stated: "StatedLengths", reuse: float) -> Prompts:
    """Return the kinds of prompts that were given, or the usual ones, with the reuse that was."""
    if stated.histogram is not None:
        return histogram_kinds(*stated.histogram, reuse)
    kept = _kept(flags, "isl", usual.prompts)
    if kept is None or flags.prefix_reuse is None:
        return kept
    lengths, _, weights = (np.array(column) for column in zip(*kept, strict=True))
    tokens, places = np.unique(lengths, return_inverse=True)
    return histogram_kinds(tokens, np.bincount(places, weights) / weights.sum(), reuse)


def _kept(flags: QuestionFlags, side: str, usual: Kinds | None) -> Kinds | None:
    """Return the usual kinds, unless lengths of that side were given."""
    given = (getattr(flags, name) for name in (side, f"{side}_cv", f"{side}_distribution") if hasattr(flags, name))
    return usual if all(text is None for text in given) else None


def read_growth(text: str) -> tuple[float, ...]:
    """Return the rate of every month of ``25/s..100/s:12``, evenly spaced or with ``:log`` behind by equal factors.

    Raises BadInput naming the flag.
    """
    first, dots, rest = text.partition("..")
    last, colon, months = rest.partition(":")
    count, _, how = months.partition(":")
    if not dots or not colon or how not in ("", "log"):
        raise BadInput(
            f"{GROWTH}: {text[:40]!r} is not RATE..RATE:MONTHS, such as 25/s..100/s:12, or with :log behind it"
        )
    number = parse_count(count, GROWTH)
    if number > MOST_MONTHS:
        raise BadInput(f"{GROWTH}: {count[:20]} months are more than the {MOST_MONTHS} that are planned; use fewer")
    ends = parse_rate(first, GROWTH), parse_rate(last, GROWTH)
    try:
        return tuple(spaced(*ends, number, logarithmic=how == "log"))
    except BadInput as error:
        raise BadInput(f"{GROWTH}: {text[:40]!r}: {error}") from None


def _from_trace(flags: QuestionFlags, known: Known, rate: float | None, reuse: float | None) -> AskedTraffic:
    from ground.trace_lengths import fitting  # readers of many formats, for --trace alone
    from ground.traces import TraceFormat, read_trace, reused_tokens, with_blocks

    for field in (*LENGTH_FIELDS, "images", "video", "sessions"):
        flags.check_apart((field, "trace"), "give lengths")
    format = None if flags.format is None else read_choice(flags.format, "--format", get_args(TraceFormat))
    with naming("--trace"):
        trace = read_trace(Path(flags.trace or ""), format, dequantize_seed=SPREAD_SEED)
    model, hits = known
    trace = hits(with_blocks(fitting(trace, model.max_position, model.name)))
    try:
        traffic = Traffic.from_trace(TraceRows.of(trace, reused_tokens(trace)))
    except BadInput as error:
        raise BadInput(f"{flags.trace}: {error}") from None
    workload = traffic.workload
    if reuse is not None:  # instead of the one that an unlimited cache would have
        workload = replace(workload, prefix_reuse=reuse, prompts=None)
    return AskedTraffic(
        workload=workload, rate_per_second=traffic.rate_per_second if rate is None else rate, trace=trace
    )


def _of_sessions(
    flags: QuestionFlags, sides: "tuple[StatedLengths, StatedLengths]", rate: float | None, known: Known
) -> Workload:
    """Return the traffic of sessions, of which the sides tell what is new in a turn and its answer."""
    (prompt, answer), (model, hits) = sides, known
    if flags.prefix_reuse is not None or prompt.histogram or answer.histogram or flags.images or flags.video:
        raise BadInput("--sessions: takes --isl and --osl alone; leave reuse, histograms and pictures out")
    if flags.cache is not None and rate is None:
        raise BadInput("--sessions: what --cache still has of a turn depends on the rate; add for example --rate 100/s")
    shape = read_sessions(flags.sessions or "", prompt.lengths)
    longest = shape.turns * shape.branches * (shape.new_tokens.mean + answer.lengths.mean)
    if longest > model.max_position:
        raise BadInput(
            f"--sessions: a session grows to {longest:.10g} tokens, more than the {model.max_position} positions of "
            f"{model.name}; use fewer turns or branches, or less --isl and --osl"
        )
    return sessions_workload(shape, answer.lengths, rate, hits)


class StatedLengths(NamedTuple):
    """Lengths of prompts or of outputs, and the histogram that they are from: tokens and weights, [rows] each."""

    lengths: Lengths
    histogram: tuple[Floats, Floats] | None = None

    @property
    def longest(self) -> float:
        """Tokens of the longest that are known to occur."""
        return self.lengths.mean if self.histogram is None else float(self.histogram[0].max())


def with_pictures(prompt: StatedLengths, pictures: Pictures, model: ModelSpec) -> StatedLengths:
    """Return the lengths of prompts with the tokens of their pictures; their variance stays that of the text."""
    if pictures.tokens > model.max_position:
        raise BadInput(
            f"--images or --video: their {pictures.tokens} tokens exceed the {model.max_position} positions of "
            f"{model.name}; use fewer or smaller ones"
        )
    if prompt.histogram is not None:
        tokens, weights = prompt.histogram[0] + pictures.tokens, prompt.histogram[1]
        return StatedLengths(lengths=histogram_lengths(tokens, weights), histogram=(tokens, weights))
    text, mean = prompt.lengths, prompt.lengths.mean + pictures.tokens
    return StatedLengths(lengths=replace(text, mean=mean, squared_cv=text.squared_cv * (text.mean / mean) ** 2))


def read_lengths(side: Literal["isl", "osl"], values: Mapping[str, str | None], known: Lengths) -> StatedLengths:
    """Return the lengths that the flags of one side give; what none of them gives is as ``known``.

    Raises BadInput naming the flag, or file and line of a histogram.
    """
    file = values.get(f"{side}_histogram")
    if file is not None:
        for field in (side, f"{side}_cv", f"{side}_distribution"):
            if values.get(field) is not None:
                raise BadInput(f"{flag_name(field)} and --{side}-histogram both tell lengths; leave one of them out")
        if not file:
            raise BadInput(f"--{side}-histogram: give a CSV file with the columns tokens,weight")
        with naming(f"--{side}-histogram"):
            tokens, weights = read_histogram(Path(file))
        return StatedLengths(lengths=histogram_lengths(tokens, weights), histogram=(tokens, weights))
    mean, cv, shape = (values.get(field) for field in (side, f"{side}_cv", f"{side}_distribution"))
    lengths = Lengths(
        mean=known.mean if mean is None else read_tokens(mean, f"--{side}", 1),
        squared_cv=known.squared_cv if cv is None else read_cv(cv, f"--{side}-cv") ** 2,
        shape=known.shape if shape is None else read_choice(shape, f"--{side}-distribution", get_args(LengthShape)),
    )
    if shape is not None and not lengths.squared_cv:
        raise BadInput(f"--{side}-distribution: lengths without spread have none; add --{side}-cv, such as 0.5")
    return StatedLengths(lengths=lengths)


def read_cv(text: str, flag: str) -> float:
    """Return a coefficient of variation: standard deviation over mean."""
    value = number_of(text)
    if not 0 <= value <= MOST_CV:
        raise BadInput(f"{flag}: {text[:40]!r} is not a standard deviation over a mean, such as 0.5")
    return value


def read_histogram(path: Path) -> tuple[Floats, Floats]:
    """Return tokens, rising, and weights of a CSV file with the columns tokens,weight; weights sum to 1.

    Raises BadInput naming file and line: a length that is no count from 1 on or stands twice, a weight below 0, or
    weights that are all 0.
    """
    weights: dict[int, float] = {}
    for where, row in csv_table(read_text(path), str(path), ("tokens", "weight")):
        tokens = parse_count(row["tokens"], where)
        if tokens > MOST_TOKENS:
            raise BadInput(f"{where}: {tokens} tokens are more than can be meant; use at most {MOST_TOKENS}")
        if tokens in weights:
            raise BadInput(f"{where}: {tokens} tokens stand twice; give each length one weight")
        text = row["weight"]
        value = number_of(text)
        if not 0 <= value < math.inf:
            raise BadInput(f"{where}: {text[:40]!r} is not a weight of 0 or more, such as 12 or 0.25")
        weights[tokens] = value
    total = sum(weights.values())
    if not 0 < total < math.inf:
        raise BadInput(f"{path}: the weights must sum to more than 0, and to a finite number")
    kept = sorted(tokens for tokens, weight in weights.items() if weight / total > 0)
    return np.array(kept, dtype=np.float64), np.array([weights[tokens] / total for tokens in kept])


def check_positions(prompt: StatedLengths, answer: StatedLengths, model: ModelSpec) -> None:
    """Raise BadInput where requests are longer than the model's positions, which hold prompt and answer."""
    first, second = prompt.lengths.mean, answer.lengths.mean
    if first + second > model.max_position:
        raise BadInput(
            f"--isl plus --osl: {first:.10g} + {second:.10g} tokens exceed the {model.max_position} positions of "
            f"{model.name}, which hold both"
        )
    for side, stated in (("isl", prompt), ("osl", answer)):
        if stated.longest > model.max_position:
            raise BadInput(
                f"--{side}-histogram: its longest of {stated.longest:.10g} tokens exceeds the {model.max_position} "
                f"positions of {model.name}"
            )


def read_sessions(text: str, new_tokens: Lengths) -> Sessions:
    """Return sessions such as ``turns=4,think=30s,branches=3,answers=dropped``; BadInput naming the flag."""
    given = {name.strip(): value.strip() for name, _, value in (part.partition("=") for part in text.split(","))}
    known, answers = {"turns", "think", "branches", "answers"}, given.get("answers", "kept")
    if "turns" not in given or given.keys() - known or answers not in ("kept", "dropped"):
        raise BadInput(f"--sessions: {text[:60]!r} is not such as turns=4,think=30s,branches=3,answers=kept or dropped")
    shape = Sessions(
        turns=parse_count(given["turns"], "--sessions turns"),
        new_tokens=new_tokens,
        think_seconds=parse_duration(given.get("think", "0s"), "--sessions think", allow_zero=True),
        branches=parse_count(given.get("branches", "1"), "--sessions branches"),
        keeps_answers=answers == "kept",
    )
    if shape.turns * shape.branches > MOST_IN_A_SESSION:
        raise BadInput(f"--sessions: turns times branches must be at most {MOST_IN_A_SESSION}")
    return shape


def sessions_workload(
    shape: Sessions, answer: Lengths, rate: float | None, hits: Callable[["Trace"], "Trace"]
) -> Workload:
    """Return the traffic of sessions in full swing: those under way at the ends of what is played do not count.

    Branches come at once: of Poisson groups the variance of counts is their size times the mean, which is the squared
    CV of gaps that queues take.

    Args: ``rate`` of requests, on which depends what a pool of a size still has; ``hits`` in that pool.
    """
    from ground.traces import reused_tokens, select  # only sessions are played to be known
    from planner.serving.sessions import session_trace

    base = Workload(input_tokens=shape.new_tokens, output_tokens=answer)
    turn = _TOKEN_SECONDS * answer.mean
    ramp = shape.turns * (shape.think_seconds + turn)
    per_second = rate or _REQUESTS / (10 * ramp + 1)
    count = _REQUESTS + int(min(2 * ramp * per_second, 5 * _REQUESTS))
    found = hits(session_trace(base, shape, per_second, count, _SEED, turn))
    arrival = found.arrival_seconds
    begun = np.isnan(found.delay_seconds) if found.delay_seconds is not None else np.ones_like(arrival, dtype=bool)
    inside = (arrival >= 2 * ramp) & (arrival <= arrival[begun][-1])
    kept = inside if inside.sum() > _REQUESTS / 10 else np.ones_like(inside)
    traffic = Traffic.from_trace(TraceRows.of(select(found, np.flatnonzero(kept)), reused_tokens(found)[kept])).workload
    branches = float(shape.branches)
    return replace(traffic, output_tokens=answer, length_covariance=0.0, arrival_squared_cv=branches, sessions=shape)


def read_prefix_pool(text: str | None, machines: Machines) -> PrefixPool | None:
    """Return the pool of ``ub=8TB`` or ``ub=8TB,ssd=100TB``; BadInput naming the flag."""
    if text is None:
        return None
    first, *others = (part.strip() for part in text.split(","))
    name, given, size = first.partition("=")
    if not given or len(others) > 1 or any(not each.startswith("ssd=") for each in others):
        raise BadInput(f"--cache: {text[:40]!r} is not PLANE=SIZE, such as ub=8TB or ub=8TB,ssd=100TB")
    return PrefixPool(
        plane=find_plane(machines.hardware, name, "--cache").name,
        capacity_bytes=parse_size(size, "--cache"),
        ssd_bytes=parse_size(others[0].removeprefix("ssd="), "--cache") if others else 0.0,
    )


@dataclass(slots=True)
class AskedPool:
    """The pool that was asked for of a model's prefill, and the cache of its size that the trace went through."""

    model: ModelSpec
    machines: Machines
    kv_dtype: KvDtype
    pool: PrefixPool | None
    cache: PrefixCache | None = None

    @property
    def token_bytes(self) -> float:
        """Bytes of a token in the pool: every layer once."""
        deployment = Deployment(
            model=self.model,
            hardware=self.machines.hardware,
            strategy=Strategy(),
            phase="prefill",
            weights=self.machines.weights,
            kv_dtype=self.kv_dtype,
        )
        return float(model_cache(deployment).token_bytes)

    def with_hits(self, trace: "Trace") -> "Trace":
        """Return the trace with what each prompt finds in the pool."""
        if self.pool is None or trace.hash_ids is None:
            return trace
        size, ssd = self.pool.capacity_bytes, self.pool.ssd_bytes
        self.cache = PrefixCache.of_bytes(trace.block_tokens, self.token_bytes, size, ssd)
        return with_hits(trace, self.cache)

    @property
    def measured(self) -> PrefixPool | None:
        """The pool with the share of hits that comes from SSD."""
        if self.pool is None or self.cache is None:
            return self.pool
        return replace(self.pool, ssd_share=self.cache.ssd_hit_tokens / max(self.cache.hit_tokens, 1))


def with_hits(trace: "Trace", cache: PrefixCache) -> "Trace":
    """Return the trace with what each prompt finds in a cache that all of them go through in turn."""
    from ground.traces import reused_tokens  # readers of many formats, for a trace alone

    return replace(trace, reused_tokens=reused_tokens(trace, cache)) if trace.hash_ids else trace


def read_offline(flags: QuestionFlags, asked: AskedTraffic, model: ModelSpec) -> Offline | None:
    """Return the offline requests beside the online ones; BadInput naming the flag."""
    if flags.offline is None:
        return None
    flags.check_apart(("offline", "job"), "say what is to be done when")
    if not all(window.rate_per_second for window in asked.day):
        raise BadInput("--rate-profile: beside --offline something arrives in every window; give rates above zero")
    if asked.rate_per_second is None:
        raise BadInput("--offline: is planned beside a stream; add for example --rate 100/s, or --trace FILE")
    if flags.prefix_routing is not None:
        raise BadInput("--offline: beside it no trace is played, which --prefix-routing needs; leave one of them out")
    if asked.workload.pictures is not None:
        raise BadInput("--offline: is planned beside prompts of text alone; leave pictures out")
    rate, _, lengths = flags.offline.partition(",")
    usual = asked.workload.input_tokens.mean, asked.workload.output_tokens.mean
    prompt, answer = read_offline_lengths(lengths, model.max_position) if lengths else usual
    per_request = parse_rate(rate, "--offline") / (asked.rate_per_second or 1.0)
    return Offline(per_request=per_request, input_tokens=prompt, output_tokens=answer)


def read_prefix_routing(flags: QuestionFlags, asked: AskedTraffic) -> PrefixRouting | None:
    """Return who is sent where, for requests whose blocks tell what they find there; BadInput for others."""
    if flags.prefix_routing is None:
        return None
    for name in ("cache", "prefix_reuse"):
        flags.check_apart(("prefix_routing", name), "say what prompts find")
    trace = asked.trace
    if trace is None or trace.hash_ids is None or not trace.timed or len(trace) > MOST_REQUESTS:
        raise BadInput(
            f"--prefix-routing: needs the blocks of prompts and when they come, of at most {MOST_REQUESTS} requests; "
            "add --trace FILE with such, as Mooncake's"
        )
    return read_choice(flags.prefix_routing, "--prefix-routing", get_args(PrefixRouting))
