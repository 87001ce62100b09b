"""The `plan` command: which command is meant, and what its end means to the shell.

Commands stand in a static table, so that its help imports none of them.
"""

import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cli.interrupts import interrupted
from ground.errors import BadInput, ExitCode, Infeasible, close_names, suggest
from ground.version import VERSION

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
PACKAGES = ["ground", "hardware", "models", "planner", "runtime", "deploy", "podplan", "cli"]
MOST_SHOWN = 2000
MEANT = {  # what other tools call a flag of ours
    **dict.fromkeys(("--hardware", "--machine", "--gpu", "--system"), "--hw"),
    **dict.fromkeys(("--qps", "--request-rate", "--rps"), "--rate"),
    **dict.fromkeys(("--input-len", "--input-tokens", "--prompt-tokens"), "--isl"),
    **dict.fromkeys(("--output-len", "--output-tokens"), "--osl"),
    **dict.fromkeys(("--gpus", "--num-gpus", "--world-size"), "--devices"),
    **dict.fromkeys(("--backend", "--framework"), "--engine"),
    **dict.fromkeys(("--output", "--save-dir", "-o"), "--out"),
    **dict.fromkeys(("--quantization", "--dtype"), "--weights"),
}
TOP_OPTIONS = {"--help", "-h", "--version", "--install-completion", "--show-completion"}


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
        return module.app
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


class ShadowedPackage(Exception):
    """Another distribution's package stands in front of one of podplan's."""


app = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=False,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"podplan {VERSION}")
        raise typer.Exit


@app.callback()
def top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Plan the deployment of a large language model on an accelerator cluster.

    \b
    Examples:
      plan deepseek-r1 --hw cm384
      plan deepseek-r1 --hw h800 --nodes 8 --isl 4096 --osl 1024 --ttft 2s --tpot 50ms
      plan models

    `plan MODEL ...` is short for `plan search MODEL ...`.

    \b
    Exit codes: 0 done or feasible, 1 a fault in podplan, 2 bad input,
    3 a valid question with no feasible answer, 130 interrupted.
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: Sequence[str]) -> int:
    """Run ``plan`` with ``arguments`` and return its exit code; errors become one line on stderr."""
    try:
        _check_installation()
        _check_given(arguments)
        result = app(_with_command(list(arguments)), prog_name="plan", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else ExitCode.DONE
    except typer.TyperException as error:
        return _fail(ExitCode.BAD_INPUT, _usage_sentence(error))
    except BadInput as error:
        return _fail(ExitCode.BAD_INPUT, str(error))
    except ShadowedPackage as error:
        return _fail(ExitCode.FAULT, str(error))
    except Infeasible as error:
        return _fail(ExitCode.INFEASIBLE, str(error))
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except (StdoutClosed, BrokenPipeError):
        _leave_stdout()
        return ExitCode.PIPE_CLOSED
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return _fault(error)
        _leave_stdout()
        return _fail(ExitCode.BAD_INPUT, f"the output cannot be written: {error.strerror}; give it more room")
    except Exception as error:  # noqa: BLE001 - the last handler: what comes here is a defect of podplan
        return _fault(error)


def _leave_stdout() -> None:
    """Let stdout lead nowhere: Python flushes it once more at exit, and must find something that can be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fault(error: Exception) -> int:
    """Tell a defect of podplan in one line, with its trace where that is asked for."""
    if os.environ.get("PODPLAN_DEBUG") == "1":
        traceback.print_exc()
    return _fail(ExitCode.FAULT, f"fault in podplan, {type(error).__name__}: {error} (PODPLAN_DEBUG=1 shows where)")


def _with_command(arguments: list[str]) -> list[str]:
    """Insert ``search`` where no command is named; BadInput where the first word is rather a mistyped command."""
    if not arguments or arguments[0] in COMMANDS or arguments[0].split("=")[0] in TOP_OPTIONS:
        return arguments
    first = arguments[0]
    if not first.startswith("-") and close_names(first, COMMANDS) and not _may_be_model(first):
        raise BadInput(f"there is no command {first!r}{suggest(first, COMMANDS)}")
    return [DEFAULT, *arguments]


def _check_given(arguments: Sequence[str]) -> None:
    """Raise BadInput where a flag's value is empty, as an unset variable of a script leaves it."""
    for flag, value in pairwise([*arguments, "end"]):
        name, given, told = flag.partition("=")
        if flag.startswith("--") and not (told if given else value).strip():
            raise BadInput(f"{name} is followed by an empty word; give a value, or leave the flag out")


def _may_be_model(word: str) -> bool:
    from models.loader import model_names  # imports YAML, which only a doubtful word is worth

    return bool(close_names(word, model_names())) or os.path.exists(word)


def _check_installation() -> None:
    """Raise ShadowedPackage unless all packages lie in one directory: others may install the same common names."""
    folders = {}
    for name in PACKAGES:
        spec = find_spec(name)
        locations = list(spec.submodule_search_locations or []) if spec else []
        folders[name] = Path(locations[0]).resolve().parent if locations else None
    home = folders["ground"]
    for name, folder in folders.items():
        if folder != home:
            found = f"was found in {folder}" if folder else "is missing"
            raise ShadowedPackage(
                f"package {name!r} {found} and not beside podplan in {home}; install podplan in its own environment"
            )


def _usage_sentence(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "plan"
    mistyped = getattr(error, "option_name", None)
    meant = MEANT.get(mistyped or "")
    if mistyped and meant and context and any(meant in each.opts for each in context.command.params):
        return f"no such option: {mistyped}; did you mean {meant}?"
    told = " ".join(error.format_message().split()).rstrip(".")
    return f"{told[:1].lower()}{told[1:]}; see {command} --help"


def _fail(code: ExitCode, message: str) -> int:
    """Tell what ends the command on one line, whatever a name or a solver's word in it holds."""
    if interrupted():  # which is why
        return ExitCode.INTERRUPTED
    line = "".join(each if each.isprintable() else repr(each)[1:-1] for each in " ".join(message.split()))
    shown = line if len(line) <= MOST_SHOWN else f"{line[: MOST_SHOWN // 2]} ... {line[-MOST_SHOWN // 2 :]}"
    print(f"plan: {shown}", file=sys.stderr)
    return code
