"""Options of commands, declared once: a field of a data class is a flag's name, its type, its help and its value."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

Text = str | None
File = Path | None
Command = Callable[..., Any]


def option(flag: str, metavar: str, told: str, *more: str) -> Any:
    """Return a typer option with a value; ``more`` are other names of the flag."""
    return typer.Option(flag, *more, metavar=metavar, help=told)


def switch(flag: str, told: str) -> Any:
    """Return a typer option that is given or not."""
    return typer.Option(flag, help=told)


def argument(metavar: str, told: str) -> Any:
    """Return a typer argument."""
    return typer.Argument(metavar=metavar, help=told)


Json = Annotated[bool, switch("--json", "Print one JSON object.")]


def takes(kind: type[Any]) -> Callable[[Command], Command]:
    """Return a decorator that turns ``command(flags, ...)`` into one that typer gives every field of ``kind``.

    ``kind`` is a data class whose fields are annotated as parameters of a typer command are; ``flags`` is one of it.
    """
    return with_parameters(parameters_of(kind), lambda values: kind(**values))


def parameters_of(kind: type[Any]) -> list[inspect.Parameter]:
    """Return the fields of a data class that are flags, as the parameters that typer reads."""
    return [
        _parameter(each.name, each.type, inspect.Parameter.empty if each.default is MISSING else each.default)
        for each in fields(kind)
        if hasattr(each.type, "__metadata__")
    ]


def left_out(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter of text that need not be given."""
    return _parameter(parameter.name, Annotated[Text, parameter.annotation.__metadata__[0]], None)


def with_parameters(
    parameters: Sequence[inspect.Parameter], made: Callable[[Mapping[str, Any]], Any]
) -> Callable[[Command], Command]:
    """Return a decorator that gives a command what is ``made`` of these parameters, before parameters of its own."""

    def decorate(command: Command) -> Command:
        _, *own = inspect.signature(command).parameters.values()
        every = [*parameters, *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own)]

        @wraps(command)
        def run(**values: Any) -> Any:
            given = {each.name: values.pop(each.name) for each in parameters}
            return command(made(given), **values)

        run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in every}
        return run

    return decorate


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
