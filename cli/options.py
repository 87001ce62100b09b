"""Options of commands: made of the flags that podplan declares, or of a command's own parameters."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from podplan.options import QuestionFlags, argument, flag, flag_name, switch

Text = str | None
File = Path | None
Command = Callable[..., Any]
Given = Mapping[str, str]  # what was typed of a question, by field


JSON = switch("Print one JSON object.")
FORCE = switch("Replace files that are there.")
CSV = flag("FILE", "Write the rows as CSV, every figure in SI units.")
VERBOSE = switch(
    "Tell what the bound covers, too, and of one model the arithmetic and the queueing.", "--verbose", "-v"
)
WORKERS = flag("N", "Processes that share the work, or dask:ADDRESS of a scheduler [the cores].")


def takes(kind: type[Any]) -> Callable[[Command], Command]:
    """Return a decorator that turns ``command(flags, ...)`` into one that typer gives every field of ``kind``.

    ``kind`` is a table of flags, as in ``podplan.options``; ``flags`` is one of it.
    """
    return _with(parameters_of(kind), lambda values: kind(**values))


def takes_question(metavar: str, told: str) -> Callable[[Command], Command]:
    """Return a decorator that gives a command the flags of a question as they were typed, ``model`` and ``hw`` too.

    None of them is needed, since a file may stand in place of the model.
    """
    _, *rest = parameters_of(QuestionFlags, optional=True)
    model = _parameter("model", Text, argument(metavar, told), optional=True)
    return _with([model, *rest], lambda values: {name: each for name, each in values.items() if each is not None})


def parameters_of(kind: type[Any], *, optional: bool = False) -> list[inspect.Parameter]:
    """Return the fields of a table of flags as the parameters that typer reads."""
    return [_parameter(each.name, each.type, each, optional) for each in fields(kind)]


def options(command: Command) -> Command:
    """Return a command whose own parameters, declared as flags by their defaults, are those that typer reads."""
    return _with([], lambda _: None)(command)


def _parameter(name: str, kind: Any, stated: "Field[Any]", optional: bool = False) -> inspect.Parameter:
    told = stated.metadata
    needed = told.get("needed", False) and not optional
    if told.get("positional"):
        info = typer.Argument(metavar=told["metavar"], help=told["help"])
    else:
        names = told["names"] or [flag_name(name)]
        info = typer.Option(*names, metavar=told.get("metavar"), help=told["help"])
    given = str if needed and kind == Text else kind
    default = inspect.Parameter.empty if needed else stated.default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[given, info])


def _with(
    parameters: list[inspect.Parameter], made: Callable[[Mapping[str, Any]], Any]
) -> Callable[[Command], Command]:
    """Return a decorator that gives a command what is ``made`` of these parameters, before parameters of its own."""

    def decorate(command: Command) -> Command:
        own = list(inspect.signature(command).parameters.values())[1 if parameters else 0 :]
        every = [*parameters, *(_parameter(each.name, each.annotation, each.default) for each in own)]

        @wraps(command)
        def run(**values: Any) -> Any:
            given = {each.name: values.pop(each.name) for each in parameters}
            return command(made(given), **values) if parameters else command(**values)

        run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in every}
        return run

    return decorate
