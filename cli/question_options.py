"""The flags of a question, once for every command that asks one."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import Parameter
from typing import Annotated, Any

from cli.machines import SizeFlags
from cli.options import Command, argument, left_out, parameters_of, with_parameters
from cli.search_flags import SearchFlags
from cli.traffic import TrafficFlags

_MODEL, *_LIMITS = parameters_of(SearchFlags)
_OPTIONS = [*parameters_of(SizeFlags), *parameters_of(TrafficFlags), *_LIMITS]

OPTIONS = tuple(each.name for each in _OPTIONS)
"""Fields of a question beside its model, in the order of the help."""


def asks_a_question(
    *, optional: bool = False, metavar: str | None = None, told: str | None = None
) -> Callable[[Command], Command]:
    """Return a decorator that turns ``command(flags, ...)`` into one that typer gives every flag of a question.

    Where the question is ``optional``, model and hardware may be left out and ``flags`` is a mapping of what was
    typed; otherwise it is ``SearchFlags``.
    """
    parameters = [_model(metavar, told), *_OPTIONS]
    if optional:
        return with_parameters([left_out(each) for each in parameters], lambda values: values)
    return with_parameters(parameters, search_flags)


def _model(metavar: str | None, told: str | None) -> Parameter:
    if metavar is None or told is None:
        return _MODEL
    return _MODEL.replace(annotation=Annotated[str, argument(metavar, told)])


def search_flags(values: Mapping[str, str | None]) -> SearchFlags:
    """Return flags by field as the parts that they belong to."""

    def of(kind: type[SearchFlags] | type[SizeFlags] | type[TrafficFlags]) -> dict[str, Any]:
        return {field.name: values[field.name] for field in fields(kind) if field.name in values}

    machines, traffic = SizeFlags(**of(SizeFlags)), TrafficFlags(**of(TrafficFlags))
    return SearchFlags(machines=machines, traffic=traffic, **of(SearchFlags))
