"""Lengths, reuse and rate, or `--trace`: what the requests are like and how many come."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

from cli.day import read_rate_profile
from cli.flags import flag_name, read_choice, read_fraction
from cli.lengths import check_positions, read_lengths
from cli.options import Text, option
from ground.errors import BadInput
from ground.units import parse_rate
from models.spec import ModelSpec
from planner.plans.day import Window, peak_rate
from planner.queues.prompts import answer_kinds, histogram_kinds
from planner.workload import Lengths, Traffic, Workload
from planner.workload import Trace as Rows

if TYPE_CHECKING:
    from ground.traces import Trace

DEFAULT_INPUT_TOKENS = 4096
DEFAULT_OUTPUT_TOKENS = 1024
# Stamps on a coarse grid are spread over it; the seed makes the same trace give the same plan.
SPREAD_SEED = 0
LENGTH_FIELDS = ("isl", "osl", "isl_cv", "osl_cv", "isl_distribution", "isl_histogram", "osl_histogram")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficFlags:
    """Traffic flags as they were typed; None where one was not given."""

    isl: Annotated[Text, option("--isl", "TOKENS", "Mean prompt tokens [4096].")] = None
    osl: Annotated[Text, option("--osl", "TOKENS", "Mean output tokens [1024].")] = None
    isl_cv: Annotated[Text, option("--isl-cv", "CV", "Standard deviation of prompts over their mean [0].")] = None
    osl_cv: Annotated[Text, option("--osl-cv", "CV", "The same of outputs [0].")] = None
    isl_distribution: Annotated[
        Text, option("--isl-distribution", "NAME", "lognormal or gamma, of prompts with --isl-cv [lognormal].")
    ] = None
    isl_histogram: Annotated[
        Text, option("--isl-histogram", "FILE", "CSV tokens,weight of prompts, in place of --isl and --isl-cv.")
    ] = None
    osl_histogram: Annotated[Text, option("--osl-histogram", "FILE", "The same of outputs.")] = None
    prefix_reuse: Annotated[Text, option("--prefix-reuse", "SHARE", "Cached share of prompts [0].")] = None
    rate: Annotated[Text, option("--rate", "RATE", "Requests to serve, such as 100/s.")] = None
    rate_profile: Annotated[
        Text,
        option(
            "--rate-profile",
            "DAY",
            "Rates over the day, 0:00=40/s,8:00=120/s or a CSV time,rate: sized for the worst.",
        ),
    ] = None
    trace: Annotated[
        Text, option("--trace", "FILE", "Lengths, arrivals and rate of a trace, in any of its formats.")
    ] = None
    format: Annotated[Text, option("--format", "NAME", "azure or mooncake [as the file looks].")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Traffic, the rate that was stated or measured (of a day: the largest), and the trace or day behind it."""

    workload: Workload
    rate_per_second: float | None
    trace: "Trace | None" = None
    day: tuple[Window, ...] = ()


def read_traffic(flags: TrafficFlags, model: ModelSpec) -> Asked:
    """Return the traffic that the flags state or that the trace holds.

    Raises BadInput naming the flag, or file, line and field of a trace.
    """
    rate, day = read_rate(flags.rate, flags.rate_profile)
    reuse = read_fraction(flags.prefix_reuse, "--prefix-reuse", 0.0, below_one=True)
    if flags.trace is not None:
        asked = _from_trace(flags, model, rate, None if flags.prefix_reuse is None else reuse)
        return replace(asked, day=day)
    if flags.format is not None:
        raise BadInput("--format tells the format of a trace; give --trace FILE with it or leave it out")
    values = asdict(flags)
    prompt = read_lengths("isl", values, Lengths(mean=DEFAULT_INPUT_TOKENS))
    answer = read_lengths("osl", values, Lengths(mean=DEFAULT_OUTPUT_TOKENS))
    check_positions(prompt, answer, model)
    workload = Workload(
        input_tokens=prompt.lengths,
        output_tokens=answer.lengths,
        prefix_reuse=reuse,
        prompts=prompt.histogram and histogram_kinds(*prompt.histogram, reuse),
        answers=answer.histogram and answer_kinds(*answer.histogram),
    )
    return Asked(workload=workload, rate_per_second=rate, day=day)


def read_rate(rate: str | None, profile: str | None) -> tuple[float | None, tuple[Window, ...]]:
    """Return the rate to serve and the day that it is the largest rate of; None and no windows where not given."""
    if profile is None:
        return None if rate is None else parse_rate(rate, "--rate"), ()
    if rate is not None:
        raise BadInput("--rate and --rate-profile both say how many requests come; leave one of them out")
    day = read_rate_profile(profile)
    return peak_rate(day), day


def _from_trace(flags: TrafficFlags, model: ModelSpec, rate: float | None, reuse: float | None) -> Asked:
    from ground.trace_lengths import fitting  # readers of many formats, for --trace alone
    from ground.traces import TraceFormat, read_trace, reused_tokens

    for field in LENGTH_FIELDS:
        if getattr(flags, field) is not None:
            raise BadInput(f"{flag_name(field)} and --trace both give lengths; leave one of them out")
    format = None if flags.format is None else read_choice(flags.format, "--format", get_args(TraceFormat))
    trace = read_trace(Path(flags.trace or ""), format, dequantize_seed=SPREAD_SEED)
    trace = fitting(trace, model.max_position, model.name)
    try:
        traffic = Traffic.from_trace(
            Rows(
                arrival_seconds=trace.arrival_seconds,
                input_tokens=trace.input_tokens,
                output_tokens=trace.output_tokens,
                reused_tokens=reused_tokens(trace),
            )
        )
    except BadInput as error:
        raise BadInput(f"{flags.trace}: {error}") from None
    workload = traffic.workload if reuse is None else _with_reuse(traffic.workload, reuse)
    return Asked(workload=workload, rate_per_second=traffic.rate_per_second if rate is None else rate, trace=trace)


def _with_reuse(workload: Workload, reuse: float) -> Workload:
    """Return the workload with a stated reuse instead of the one that an unlimited cache would have."""
    return Workload(
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        prefix_reuse=reuse,
        arrival_squared_cv=workload.arrival_squared_cv,
        length_covariance=workload.length_covariance,
    )
