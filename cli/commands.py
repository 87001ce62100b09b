"""The commands of `plan` as a static table, so that its help imports none of them."""

import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from ground.errors import BadInput

DEFAULT = "search"

HOMES = {"sweep": "compare", "supernode": "hardware", "measure": "calibrate"}
"""Commands that stand in another's module, under their own names."""
# name -> one line of help; the command itself is `command` in cli/<name>.py
COMMANDS = {
    "search": "Find the best deployment for a load on a machine; `plan MODEL` for short.",
    "check": "Say whether limits hold, by how much and with which confidence; for CI.",
    "explain": "Show what binds as arithmetic, what more of each resource buys, and what would be feasible.",
    "fleet": "Place several models and their rates on one cluster.",
    "compare": "Compare the best plans of several models, machines or questions.",
    "sweep": "Find the best plan at every point of one or two ranges; tables, CSV, plots.",
    "predict": "Predict one configuration, with every operator.",
    "deploy": "Write the files that start a manifest with a serving engine.",
    "import": "Read a running deployment as a manifest, with its headroom and what is wrong with it.",
    "simulate": "Run a manifest in virtual time and compare what it does with what was predicted.",
    "migrate": "Find the cheapest safe steps from a manifest that runs to another one.",
    "watch": "Compare the metrics of a running system with its plan; exit 3 when a change pays.",
    "calibrate": "Fit efficiency curves to measured times and write them over a catalogue entry.",
    "measure": "Time kernels on a local accelerator, as the CSV that calibrate reads.",
    "place": "Place experts and their replicas on devices from measured loads.",
    "execute": "Run a manifest's plan on real tensors and check it against an unsharded run.",
    "accuracy": "Compare predictions with published measurements, the largest misses first.",
    "verify": "Compare measured runs with their predictions, and learn from them.",
    "supernode": "Compare sizes of a supernode by their switches and by how full jobs fill them.",
    "ui": "Ask what-if questions in a browser on this machine.",
    "models": "Show the models of the catalogue, or one of them with its parameters.",
    "hardware": "Show the hardware of the catalogue, or one entry with the source of every value.",
    "manifest": "Check a manifest, or print the JSON Schema of manifests.",
}


_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


class StdoutClosed(Exception):
    """The reader of stdout went away."""


def _strict_parser(made: Callable[[Any], Any], context: Any) -> Any:
    """Return a command's parser that refuses a flag given twice, of which the last would win, and 1_0 for a number."""
    parser = made(context)
    parse = parser.parse_args

    def parse_once(args: list[str]) -> Any:
        values, rest, order = parse(args)
        for option in order:
            value = values.get(option.name)
            if isinstance(value, str) and order.count(option) > 1:
                raise BadInput(f"{option.opts[0]} stands twice; give it once")
            if isinstance(value, str) and option.type.name == "int" and not _WHOLE.fullmatch(value):
                raise BadInput(f"{option.opts[0]}: {value[:40]!r} is not a whole number, such as 8")
        return values, rest, order

    parser.parse_args = parse_once
    return parser


def app_of(name: str) -> typer.Typer:
    """Return a command: the ``app`` of its module where it has commands of its own, else of its function."""
    module = import_module(f"cli.{HOMES.get(name, name)}")
    if hasattr(module, "app"):
        own: typer.Typer = module.app
        return own
    made = typer.Typer(add_completion=False, rich_markup_mode=None)
    made.command()(getattr(module, name if name in HOMES else "command"))
    return made


class LazyCommands(TyperGroup):
    """A group that imports a command when it is run, not when it is listed."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order in which the help lists them."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import cli/<name>.py and return its command; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(app_of(cmd_name))
        command.name = cmd_name
        command.make_parser = partial(_strict_parser, command.make_parser)  # type: ignore[method-assign]
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a closed pipe must not look like a failure of typer's own."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise StdoutClosed from None
