"""From the flags of `plan search` to one question; every refusal names the flag and what would be right."""

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, get_args

from cli.flags import (
    ExpertBalance,
    ExpertSkew,
    Microbatches,
    MtpAcceptance,
    RedundantExperts,
    SharedExperts,
    read_balance,
    read_choice,
    read_drafts,
    read_engine,
    read_fraction,
    read_microbatches,
    read_redundant,
    read_shared,
)
from cli.formats import with_formats
from cli.machines import SizeFlags, read_machines
from cli.options import Text, argument, option
from cli.traffic import Asked, TrafficFlags, read_traffic
from ground.errors import BadInput
from ground.units import parse_duration
from models.loader import load_model
from models.spec import ModelSpec
from planner.plans.day import Window
from planner.question import Machines, Objective, Question, Queueing, Shape
from planner.survival import Loss

if TYPE_CHECKING:
    from ground.traces import Trace
    from planner.checks.on_trace import OnTrace
    from planner.checks.traced import Round

SHORTEST_LIMIT_SECONDS = 1e-6
DEFAULT_TTFT = "2s"
DEFAULT_TPOT = "50ms"
DEFAULT_PERCENTILE = 99.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFlags:
    """The flags as they were typed; None where one was not given."""

    model: Annotated[str, argument("MODEL", "Catalogue name, config.json or model YAML.")]
    machines: SizeFlags
    traffic: TrafficFlags
    ttft: Annotated[Text, option("--ttft", "DURATION", "Limit of the time to the first token [2s].")] = None
    tpot: Annotated[Text, option("--tpot", "DURATION", "Limit of the time per further token [50ms].")] = None
    percentile: Annotated[Text, option("--percentile", "P", "Percentile of requests that keep each limit [99].")] = None
    objective: Annotated[
        Text,
        option("--objective", "WORD", "throughput, chips, cost or latency [throughput; with a rate chips]."),
    ] = None
    queueing: Annotated[
        Text, option("--queueing", "MODEL", "bulk, or mixserve for the M/M/1 of that paper [bulk].")
    ] = None
    survive: Annotated[
        Text, option("--survive", "LOSS", "node or instance: the limits hold after losing the worst one.")
    ] = None
    shape: Annotated[
        Text,
        option(
            "--shape",
            "WORD",
            "aggregated (on either pool where each role has one), disaggregated, or auto, the better [auto].",
        ),
    ] = None
    weights: Annotated[
        Text,
        option(
            "--weights",
            "DTYPES",
            "bf16, fp8, int8, int4, mxfp4 or nvfp4, a list to choose from such as int8,bf16, or auto for all that run; "
            "each role takes its own, or has what prefill=fp8,decode=int4,fp8 gives it; what the model's answers lose "
            "by it is yours to judge [as shipped, if multiplied].",
        ),
    ] = None
    kv_dtype: Annotated[
        Text, option("--kv-dtype", "DTYPES", "bf16, fp8 or int8, a list to choose from, or auto [bf16].")
    ] = None
    mtp: Annotated[
        Text, option("--mtp", "K", "Drafted tokens per iteration, or a range to search such as 0..3 [0..1].")
    ] = None
    mtp_acceptance: MtpAcceptance = None
    microbatches: Microbatches = None
    expert_balance: ExpertBalance = None
    expert_skew: ExpertSkew = None
    redundant_experts: RedundantExperts = None
    shared_experts: SharedExperts = None
    engine: Annotated[
        Text, option("--engine", "E", "Engine to plan for, such as vllm: what it runs, its host gap [reference].")
    ] = None

    @property
    def defaulted(self) -> frozenset[str]:
        """Fields that were not given or left open."""
        values = {field.name: getattr(part, field.name) for part in self._parts for field in fields(part)}
        return frozenset(
            name
            for name, value in values.items()
            if value is None or (isinstance(value, str) and value.strip().lower() == "auto")
        )

    @property
    def _parts(self) -> tuple["SearchFlags | SizeFlags | TrafficFlags", ...]:
        return self, self.machines, self.traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchInput:
    """What was typed, the question that it stands for, and the trace and the day that it names.

    ``on_trace`` is what the plan that was found does with the trace, ``rounds`` the searches that led to it.
    """

    flags: SearchFlags
    question: Question
    trace: "Trace | None"
    day: tuple[Window, ...] = ()
    on_trace: "OnTrace | None" = None
    rounds: "tuple[Round, ...]" = ()


def read_search(flags: SearchFlags) -> SearchInput:
    """Return the question that the flags ask, with the defaults of the command line.

    Raises BadInput naming the flag.
    """
    model = load_model(flags.model)
    prefill, decode = read_machines(flags.machines, flags.weights, model)
    asked = read_traffic(flags.traffic, model)
    objective = _objective(flags, asked, (prefill, decode))
    question = Question(
        model=model,
        prefill=prefill,
        decode=decode,
        engine=read_engine(flags.engine, (prefill.hardware, decode.hardware)),
        workload=asked.workload,
        ttft_seconds=read_limit(DEFAULT_TTFT if flags.ttft is None else flags.ttft, "--ttft"),
        tpot_seconds=read_limit(DEFAULT_TPOT if flags.tpot is None else flags.tpot, "--tpot"),
        percentile=DEFAULT_PERCENTILE if flags.percentile is None else read_percentile(flags.percentile),
        rate_per_second=None if objective == "throughput" else asked.rate_per_second,
        objective=objective,
        queueing="bulk" if flags.queueing is None else read_choice(flags.queueing, "--queueing", get_args(Queueing)),
        drafts=_drafts(flags.mtp, model),
        acceptance=read_fraction(flags.mtp_acceptance, "--mtp-acceptance", 0.7),
        balance=read_balance(flags.expert_balance, flags.expert_skew, model),
        microbatches=_microbatches(flags.microbatches, model),
        redundant=read_redundant(flags.redundant_experts, model),
        shared=read_shared(flags.shared_experts, model),
        survive=read_survive(flags.survive),
        shape="auto" if flags.shape is None else read_choice(flags.shape, "--shape", get_args(Shape)),
    )
    question = with_formats(question, flags.weights, flags.kv_dtype)
    check_shape(question)
    return SearchInput(flags=flags, question=question, trace=asked.trace, day=asked.day)


def read_survive(text: str | None) -> Loss | None:
    """Return what the limits must outlive."""
    return None if text is None else read_choice(text, "--survive", get_args(Loss))


def check_shape(question: Question) -> None:
    """Raise BadInput where aggregated instances alone are asked for and cannot be had."""
    if question.shape != "aggregated":
        return
    from planner.plans.quantised import in_formats  # few ask for it, and it takes time to import
    from planner.search.shapes import not_aggregated

    why = not_aggregated(in_formats(question)[0])
    if why is not None:
        raise BadInput(f"--shape aggregated: {why}; leave --shape out, or use disaggregated")


def read_limit(text: str, flag: str) -> float:
    """Return the seconds of a latency limit; no machine comes near one below a microsecond."""
    seconds = parse_duration(text, flag)
    if seconds < SHORTEST_LIMIT_SECONDS:
        raise BadInput(f"{flag}: {text[:40]!r} is shorter than any machine can keep; give at least 1us")
    return seconds


def _objective(flags: SearchFlags, asked: Asked, machines: tuple[Machines, Machines]) -> Objective:
    """Return the objective: chips where a rate was given or measured, else throughput."""
    rated = asked.rate_per_second is not None
    if flags.objective is None:
        return "chips" if rated else "throughput"
    objective: Objective = read_choice(flags.objective, "--objective", get_args(Objective))
    if objective == "throughput":
        if flags.traffic.rate is not None or asked.day:
            given = "--rate-profile" if asked.day else "--rate"
            raise BadInput(
                f"{given} and --objective throughput contradict, for that objective finds the largest rate; "
                "leave one out"
            )
        return objective
    if not rated:
        raise BadInput(f"--objective: {objective} needs the rate to serve; add for example --rate 100/s")
    if objective == "cost":
        _check_prices(machines)
    return objective


def _check_prices(machines: tuple[Machines, Machines]) -> None:
    """Two kinds of chips can be weighed against each other only if both have a price."""
    prefill, decode = (machine.hardware for machine in machines)
    if prefill is decode:
        return
    for spec in (prefill, decode):
        if spec.price_usd_per_chip_hour is None:
            raise BadInput(
                f"--objective: cost needs price_usd_per_chip_hour, which hardware {spec.name} does not state; "
                "give a YAML that does, or use --objective chips"
            )


def read_percentile(text: str) -> float:
    """Return a percentile within 0 and 100."""
    try:
        value = float(text.strip().lower().removeprefix("p"))
    except ValueError:
        value = math.nan
    if not 0 < value < 100:
        raise BadInput(f"--percentile: {text[:40]!r} is not a percentile between 0 and 100, such as 99")
    return value


def _drafts(text: str | None, model: ModelSpec) -> tuple[int, ...]:
    """Return the MTP depths to search: none and one where the model has a head, unless one or a range is given."""
    if text is None:
        return (0, 1) if model.mtp_layers else (0,)
    first, dots, last = text.partition("..")
    if not dots:
        return (read_drafts(text, model),)
    low, high = read_drafts(first, model), read_drafts(last, model)
    if low > high:
        raise BadInput(f"--mtp: {text[:20]!r} must rise, such as 0..3")
    return tuple(range(low, high + 1))


def _microbatches(text: str | None, model: ModelSpec) -> tuple[int, ...]:
    given = read_microbatches(text, model)
    return (1, 2) if given is None else (given,)
