"""The `plan` command: which command is meant, and what its end means to the shell."""

import errno
import gc
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from io import TextIOWrapper
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from cli.commands import COMMANDS, DEFAULT, LazyCommands, StdoutClosed
from cli.exit_codes import ExitCode
from ground.errors import BadInput, Infeasible
from ground.names import close_names, suggest
from ground.units import read_index
from ground.version import VERSION
from ground.workers import spare_threads

PACKAGES = ["ground", "hardware", "models", "planner", "runtime", "deploy", "podplan", "cli"]
MOST_SHOWN = 2000
LEAST_WIDTH, MOST_WIDTH = 10, 10_000
MEANT = {
    **dict.fromkeys(("--hardware", "--machine", "--gpu", "--system"), "--hw"),
    **dict.fromkeys(("--qps", "--request-rate", "--rps"), "--rate"),
    **dict.fromkeys(("--input-len", "--input-tokens", "--prompt-tokens"), "--isl"),
    **dict.fromkeys(("--output-len", "--output-tokens"), "--osl"),
    **dict.fromkeys(("--gpus", "--num-gpus", "--world-size"), "--devices"),
    **dict.fromkeys(("--backend", "--framework"), "--engine"),
    **dict.fromkeys(("--output", "--save-dir", "-o"), "--out"),
    **dict.fromkeys(("--quantization", "--dtype"), "--weights"),
}
"""What other tools call a flag of ours."""
TOP_OPTIONS = {"--help", "-h", "--version", "--install-completion", "--show-completion"}


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


def run() -> None:
    """Entry point of the console script."""
    spare_threads()
    gc.set_threshold(500_000, 50, 50)  # imports and rows are objects that stay: to look through 100,000 costs 30 ms
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a table in a terminal without UTF-8 is no reason to fail
    code = main(sys.argv[1:])
    gc.freeze()  # at exit Python looks for cycles among all that was made: 0.1 s
    sys.exit(code)


def _open_streams() -> None:
    """Let a closed stream lead nowhere, lest files take its number; a width that is none says nothing."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
    for name in ("COLUMNS", "LINES"):
        if not LEAST_WIDTH <= (read_index(os.environ.get(name, "")) or 0) <= MOST_WIDTH:
            os.environ.pop(name, None)


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
        # Python flushes stdout once more at exit; it must find something that is open.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.PIPE_CLOSED
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return _fault(error)
        return _fail(ExitCode.BAD_INPUT, f"the output cannot be written: {error.strerror}; give it more room")
    except Exception as error:  # noqa: BLE001 - the last handler: what comes here is a defect of podplan
        return _fault(error)


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
    line = "".join(each if each.isprintable() else repr(each)[1:-1] for each in " ".join(message.split()))
    shown = line if len(line) <= MOST_SHOWN else f"{line[: MOST_SHOWN // 2]} ... {line[-MOST_SHOWN // 2 :]}"
    print(f"plan: {shown}", file=sys.stderr)
    return code


if __name__ == "__main__":
    run()
