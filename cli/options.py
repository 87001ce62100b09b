"""Options of commands: made of the flags that podplan declares, or of a command's own parameters."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from podplan.options import WORKERS, QuestionFlags, flag_name

Text = str | None
File = Path | None
Command = Callable[..., Any]
Given = Mapping[str, str]
"""What was typed of a question, by field."""


def option(flag: str, metavar: str, told: str) -> Any:
    """Return a typer option with a value."""
    return typer.Option(flag, metavar=metavar, help=told)


def switch(flag: str, told: str) -> Any:
    """Return a typer option that is given or not."""
    return typer.Option(flag, help=told)


def argument(metavar: str, told: str) -> Any:
    """Return a typer argument."""
    return typer.Argument(metavar=metavar, help=told)


Json = Annotated[bool, switch("--json", "Print one JSON object.")]
Force = Annotated[bool, switch("--force", "Replace files that are there.")]
Csv = Annotated[Text, option("--csv", "FILE", "Write the rows as CSV, every figure in SI units.")]
Workers = Annotated[Text, option("--workers", "N", WORKERS)]


def takes(kind: type[Any]) -> Callable[[Command], Command]:
    """Return a decorator that turns ``command(flags, ...)`` into one that typer gives every field of ``kind``.

    ``kind`` is a table of flags, as in ``podplan.options``; ``flags`` is one of it.
    """
    return _with(parameters_of(kind), lambda values: kind(**values))


def takes_question(metavar: str, told: str) -> Callable[[Command], Command]:
    """Return a decorator that gives a command the flags of a question as they were typed, ``model`` and ``hw`` too.

    None of them is needed, since a file may stand in place of the model.
    """
    model, *rest = parameters_of(QuestionFlags, optional=True)
    model = model.replace(annotation=Annotated[Text, argument(metavar, told)])
    return _with([model, *rest], lambda values: {name: each for name, each in values.items() if each is not None})


def parameters_of(kind: type[Any], *, optional: bool = False) -> list[inspect.Parameter]:
    """Return the fields of a table of flags as the parameters that typer reads."""
    return [_parameter(each, optional) for each in fields(kind)]


def _parameter(each: "Field[Any]", optional: bool) -> inspect.Parameter:
    stated = each.metadata
    needed = stated.get("needed", False) and not optional
    if stated.get("positional"):
        info = argument(stated["metavar"], stated["help"])
    elif "metavar" in stated:
        info = typer.Option(
            *(stated["names"] or [flag_name(each.name)]), metavar=stated["metavar"], help=stated["help"]
        )
    else:
        info = switch(flag_name(each.name), stated["help"])
    given = str if needed and each.type == Text else each.type
    default = inspect.Parameter.empty if needed else each.default
    return inspect.Parameter(
        each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[given, info]
    )


def _with(
    parameters: list[inspect.Parameter], made: Callable[[Mapping[str, Any]], Any]
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
