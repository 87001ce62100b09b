"""The flags of a question, once for every command that asks one."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Annotated, Any

import typer

from cli.machines import SizeFlags
from cli.search_flags import SearchFlags
from cli.traffic import TrafficFlags

Text = str | None
Command = Callable[..., Any]

MODEL_HELP = "Catalogue name, config.json or model YAML."

# field -> what stands for its value in the help, and what it means; the flag is the field's name
OPTIONS: dict[str, tuple[str, str]] = {
    "hw": ("HW", "Catalogue name or YAML, or one per role: prefill=910b,decode=cm384."),
    "nodes": ("N", "Nodes, or prefill=N,decode=N [the catalogue entry]."),
    "chips": ("N", "Chips instead of nodes."),
    "devices": ("N", "Devices instead of nodes."),
    "price": ("USD", "Price of a chip and hour, or prefill=P,decode=P [the catalogue's]."),
    "power": ("WATTS", "Power of a chip with its share of the machine, 1.4kW, or one per role [the catalogue's]."),
    "isl": ("TOKENS", "Mean prompt tokens [4096]."),
    "osl": ("TOKENS", "Mean output tokens [1024]."),
    "isl_cv": ("CV", "Standard deviation of prompts over their mean [0]."),
    "osl_cv": ("CV", "The same of outputs [0]."),
    "isl_distribution": ("NAME", "lognormal or gamma, of prompts with --isl-cv [lognormal]."),
    "isl_histogram": ("FILE", "CSV tokens,weight of prompts, in place of --isl and --isl-cv."),
    "osl_histogram": ("FILE", "The same of outputs."),
    "prefix_reuse": ("SHARE", "Cached share of prompts [0]."),
    "rate": ("RATE", "Requests to serve, such as 100/s."),
    "rate_profile": ("DAY", "Rates over the day, 0:00=40/s,8:00=120/s or a CSV time,rate: sized for the worst."),
    "trace": ("FILE", "Lengths, arrivals and rate of a trace, in any of its formats."),
    "format": ("NAME", "azure or mooncake [as the file looks]."),
    "ttft": ("DURATION", "Limit of the time to the first token [2s]."),
    "tpot": ("DURATION", "Limit of the time per further token [50ms]."),
    "percentile": ("P", "Percentile of requests that keep each limit [99]."),
    "objective": ("WORD", "throughput, chips, cost or latency [throughput; with a rate chips]."),
    "queueing": ("MODEL", "bulk, or mixserve for the M/M/1 of that paper [bulk]."),
    "survive": ("LOSS", "node or instance: the limits hold after losing the worst one."),
    "shape": (
        "WORD",
        "aggregated (on either pool where each role has one), disaggregated, or auto, the better [auto].",
    ),
    "weights": (
        "DTYPES",
        "bf16, fp8, int8, int4, mxfp4 or nvfp4, a list to choose from such as int8,bf16, or auto for all that run; "
        "each role takes its own, or has what prefill=fp8,decode=int4,fp8 gives it; what the model's answers lose by "
        "it is yours to judge [as shipped, if multiplied].",
    ),
    "kv_dtype": ("DTYPES", "bf16, fp8 or int8, a list to choose from, or auto [bf16]."),
    "mtp": ("K", "Drafted tokens per iteration, or a range to search such as 0..3 [0..1]."),
    "mtp_acceptance": ("A", "Acceptance per draft [0.7]."),
    "microbatches": ("M", "1, 2 or auto [auto]."),
    "expert_balance": ("B", "perfect, measured, none or a factor [measured]."),
    "expert_skew": (
        "D",
        "mixed-domains, single-domain, log-normal=S, power-law=A, or a file of loads [mixed-domains].",
    ),
    "redundant_experts": ("N", "Slots beyond one per expert, or auto [auto]."),
    "shared_experts": ("WHERE", "local, dedicated=N or auto [auto]."),
    "engine": ("E", "Engine to plan for, such as vllm: what it runs, its host gap [reference]."),
}


def option(flag: str, metavar: str, told: str) -> Any:
    """Return a typer option with a value."""
    return typer.Option(flag, metavar=metavar, help=told)


def asks_a_question(
    *, optional: bool = False, metavar: str = "MODEL", told: str = MODEL_HELP
) -> Callable[[Command], Command]:
    """Return a decorator that turns ``command(flags, ...)`` into one that typer gives every flag of a question.

    Where the question is ``optional``, model and hardware may be left out and ``flags`` is a mapping of what was
    typed; otherwise it is ``SearchFlags``.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command).parameters.values()
        own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in list(signature)[1:]]

        @wraps(command)
        def run(**values: Any) -> Any:
            given = {name: values.pop(name) for name in ("model", *OPTIONS)}
            return command(given if optional else search_flags(given), **values)

        parameters = [*_parameters(optional, metavar, told), *own]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _parameters(optional: bool, metavar: str, told: str) -> list[inspect.Parameter]:
    """Return the model's argument and the options, as typer reads them."""
    needed: Any = str if not optional else Text
    found = [_parameter("model", needed, typer.Argument(metavar=metavar, help=told), optional)]
    for name, (value, meaning) in OPTIONS.items():
        flag = "--" + name.replace("_", "-")
        is_needed = name == "hw" and not optional
        found.append(_parameter(name, str if is_needed else Text, option(flag, value, meaning), not is_needed))
    return found


def _parameter(name: str, kind: Any, info: Any, optional: bool) -> inspect.Parameter:
    default = None if optional else inspect.Parameter.empty
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def search_flags(values: Mapping[str, str | None]) -> SearchFlags:
    """Return flags by field as the parts that they belong to."""

    def of(kind: type[SearchFlags] | type[SizeFlags] | type[TrafficFlags]) -> dict[str, Any]:
        return {field.name: values[field.name] for field in fields(kind) if field.name in values}

    machines, traffic = SizeFlags(**of(SizeFlags)), TrafficFlags(**of(TrafficFlags))
    return SearchFlags(machines=machines, traffic=traffic, **of(SearchFlags))
