"""Which command is meant, and what its end means to the shell."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from cli import main
from cli.main import COMMANDS
from ground.errors import BadInput, ExitCode, Fault, Infeasible

ROOT = Path(__file__).parents[2]


def _ran(*words: str, cwd: Path = ROOT, path: str = str(ROOT), **variables: str) -> subprocess.CompletedProcess[str]:
    """Return what a program does with podplan on its path."""
    env = {**os.environ, "PYTHONPATH": path, **variables}
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def _plan(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return _ran(sys.executable, "-m", "cli", *arguments, **variables)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Help leads with what the command does and lines to copy."""
    assert main.main([name, "--help"]) == ExitCode.DONE
    shown = capsys.readouterr()
    assert "Examples:\n" in shown.out
    assert shown.out.index("Examples:") < shown.out.index("Options:")
    assert f"    plan {name}" in shown.out or f"    plan {'MODEL' if name == 'search' else name}" in shown.out
    assert shown.err == ""


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_top_help_lists_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """`plan` alone shows what there is."""
    assert main.main(arguments) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in COMMANDS)


NEVER = ["scipy", "matplotlib", "runtime", "deploy", "ground.traces", "models.huggingface"]
NEVER += ["hardware.measurements", "planner.serving.benchmark"]  # compiled loops, of what is played, look for scipy
HEAVY = ["numpy", "pydantic", "pulp", "highspy", "yaml", "scipy", "rich", *(f"cli.{name}" for name in COMMANDS)]
FOR_A_MANIFEST = ["planner.manifest.schema", "pydantic"]
FOR_A_CERTIFICATE = ["pulp", "highspy"]
SMALL = ["qwen3-8b", "--engine", "reference", "--hw", "h100", "--devices", "2", "--shape", "disaggregated"]


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        (["--help"], HEAVY),
        (SMALL, [*NEVER, *FOR_A_MANIFEST]),
        (["check", *SMALL, "--rate", "1/s", "--json"], [*NEVER, *FOR_A_MANIFEST, *FOR_A_CERTIFICATE, "rich"]),
        (["fleet", str(Path(__file__).parent / "fleet.yaml"), "--json"], NEVER[1:]),
    ],
    ids=["help", "search", "check", "fleet"],
)
def test_a_command_imports_what_it_needs(arguments: list[str], unneeded: list[str]) -> None:
    """A cold start is mostly imports: what a question does not take is not imported for it, and for help nothing is."""
    program = (
        f"import sys; from cli.main import main; code = main({arguments});"
        f"print([name for name in {unneeded} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = _ran(sys.executable, "-c", program)
    assert (done.stderr.strip(), done.returncode) == ("[]", 0)
    if "--json" in arguments:  # alone on standard output: no library has greeted there
        json.loads(done.stdout)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` tells name and version."""
    assert main.main(["--version"]) == ExitCode.DONE
    assert capsys.readouterr().out.startswith("podplan ")


@pytest.mark.parametrize(("typed", "meant"), [("modles", "models"), ("hardwre", "hardware"), ("HARDWARE", "hardware")])
def test_a_mistyped_command_suggests_commands(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence on stderr, exit code 2."""
    assert main.main([typed, "--json"]) == ExitCode.BAD_INPUT
    shown = capsys.readouterr()
    assert shown.err.startswith(f"plan: there is no command '{typed}'; did you mean {meant}")
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_a_file_that_resembles_a_command_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What exists is not a typing mistake."""
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    assert main._with_command(["model"]) == ["search", "model"]


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (BadInput("--isl: too long"), 2, "plan: --isl: too long\n"),
        (Infeasible("memory binds"), 3, "plan: memory binds\n"),
        (Fault("sums differ"), 1, "plan: fault in podplan, Fault: sums differ (PODPLAN_DEBUG=1 shows where)\n"),
        (
            ZeroDivisionError("a\nb"),
            1,
            "plan: fault in podplan, ZeroDivisionError: a b (PODPLAN_DEBUG=1 shows where)\n",
        ),
        (KeyboardInterrupt(), 130, ""),
        (typer.Exit(3), 3, ""),
    ],
)
def test_exit_codes(error, code, told, monkeypatch, capsys):
    """Every way to end has its code and at most one line, without a traceback."""
    failing = typer.Typer(add_completion=False)

    @failing.command()
    def fail() -> None:
        raise error

    monkeypatch.delenv("PODPLAN_DEBUG", raising=False)
    monkeypatch.setattr(main, "import_module", lambda name: type("Module", (), {"app": failing}))
    assert main.main(["models"]) == code
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("name", "how"),
    [("gc", "interrupt()"), ("gc", "refuse()"), ("typer", "interrupt()"), ("ground.errors", "interrupt()")]
    + [("cli.models", how) for how in ("interrupt()", "refuse()", "Interrupting()")],
)
def test_an_interrupt_is_quiet_whatever_is_being_imported(name: str, how: str) -> None:
    """Exit code 130 in a shell, also where a compiled module says that it cannot be imported."""
    text = f"""
import signal, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == {name!r}: {how}
    def __del__(self): interrupt()
def interrupt(): signal.raise_signal(signal.SIGINT)
def refuse():
    try: interrupt()
    except KeyboardInterrupt: raise ImportError
sys.meta_path.insert(0, Interrupting())
sys.modules.pop("gc", None)
from cli.__main__ import run
sys.argv[1:] = ["models"]
run()
"""
    done = _ran(sys.executable, "-c", text)
    assert (done.stdout, done.stderr) == ("", "")
    assert done.returncode in {ExitCode.INTERRUPTED, -signal.SIGINT}  # of both a shell makes 130


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """PODPLAN_DEBUG=1 shows where a fault is."""
    monkeypatch.setenv("PODPLAN_DEBUG", "1")
    monkeypatch.setattr(main, "import_module", lambda name: 1 / 0)
    assert main.main(["models"]) == ExitCode.FAULT
    assert "Traceback" in capsys.readouterr().err


def test_a_closed_pipe_is_quiet() -> None:
    """`plan hardware --check | head -1` ends without a word, as other tools do."""
    command = f"{sys.executable} -m cli hardware cm384 --json | true; echo ${{PIPESTATUS[0]}}"
    done = _ran("bash", "-c", command)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.strip() in {"0", "141"}  # 0 where all fitted into the pipe before the reader left


def test_another_package_in_front_is_told(tmp_path: Path) -> None:
    """Package names are common: a foreign `models` must not be run silently."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = _ran(sys.executable, "-m", "cli", cwd=tmp_path, path=path)
    assert done.returncode == ExitCode.FAULT
    assert done.stderr.startswith(f"plan: package 'models' was found in {tmp_path}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("width", ["0", "²", "-1", "99999999999999999999"])
def test_a_width_that_is_none_is_passed_over(width: str) -> None:
    """A shell may set COLUMNS to anything."""
    done = _plan("models", "qwen3-8b", COLUMNS=width)
    assert (done.returncode, done.stderr) == (0, "") and "Qwen3-8B" in done.stdout


@pytest.mark.parametrize(("closed", "model", "code"), [(1, "qwen3-8b", 0), (2, "qwen3-8b", 0), (2, "none", 2)])
def test_a_closed_stream_leads_nowhere(closed: int, model: str, code: int) -> None:
    """What would stand there is lost; nothing of it goes elsewhere."""
    command = f"'{sys.executable}' -m cli models {model} {closed}>&-"
    done = _ran("bash", "-c", command)
    assert (done.returncode, done.stderr) == (code, "")
    assert bool(done.stdout) == (closed == 2 and code == 0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["models", "a\nb\x1b[31m\udcff"], "model 'a\\nb\\x1b[31m\\udcff' is neither"),
        (["simulate", "a\nb\x1b[31m"], "a b\\x1b[31m: no such file"),
        (["search", "qwen3-8b", "--hw", "h100", "--hw=h200"], "--hw stands twice"),
        (["execute", "x", "--seed", "１０"], "--seed: '１０' is not a whole number"),
        (["execute", "x", "--seed", "1_0"], "--seed: '1_0' is not a whole number"),
        (["search", "qwen3-8b", "--hw", "h100", "--isl", "1_0"], "--isl: '1_0'"),
        (["search", "x" * 9000, "--hw", "h100"], "xxx..."),
    ],
)
def test_a_message_is_one_printable_line(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever is typed, no control character reaches the terminal, and nothing is taken by halves."""
    assert main.main(arguments) == ExitCode.BAD_INPUT
    line = capsys.readouterr().err
    assert told in line and line.count("\n") == 1 and line[:-1].isprintable() and len(line) < 2100


def test_no_color_and_a_narrow_encoding() -> None:
    """Tables come without escapes to a file, and without a failure to a terminal that knows ASCII only."""
    done = _plan("hardware", PYTHONIOENCODING="ascii", NO_COLOR="1")
    assert done.returncode == ExitCode.DONE
    assert "cm384" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("command", [SMALL, ["models"]], ids=["rich", "plain"])
def test_a_reader_that_went_away_ends_a_command_quietly(command: list[str]) -> None:
    """Tables and lines end alike: 141, and nothing on stderr."""
    words, pipe = [sys.executable, "-m", "cli", *command], subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        process.stdout.close()
        told = process.stderr.read()

    assert process.returncode == ExitCode.PIPE_CLOSED and not told


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told_in_a_sentence() -> None:
    """Exit code 2, as for whatever else a user can mend."""
    done = _ran("bash", "-c", f"'{sys.executable}' -m cli models > /dev/full")
    assert done.returncode == ExitCode.BAD_INPUT
    assert done.stderr.startswith("plan: the output cannot be written: No space left")
