"""`plan search`, and `plan MODEL` for short: the best deployment for a load on a machine."""

import json as json_module
from dataclasses import replace
from io import StringIO
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import File, Json, Text, option, switch
from cli.output import check_force, print_json, stderr_console, stdout_console
from cli.progress import progress
from cli.question_options import asks_a_question
from cli.search_flags import SearchFlags, SearchInput, read_search
from cli.search_json import as_json, question_json
from cli.search_render import render
from ground.aside import helped
from ground.errors import Infeasible
from ground.files import check_folder, write_files
from planner.plans.plan import Plan
from planner.search.search import Answer
from planner.search.search import search as search_plan

if TYPE_CHECKING:
    from cli.front import FrontWanted

app = typer.Typer(add_completion=False, rich_markup_mode=None)

FILES = ("manifest.yaml", "plan.json", "report.txt")

REPORT_WIDTH = 140


@app.command()
@asks_a_question()
def search(
    flags: SearchFlags,
    pareto: Annotated[
        Text, option("--pareto", "LEVELS", "A wide front over so many levels of TTFT, TPOT and devices, 2 to 8.")
    ] = None,
    csv: Annotated[Text, option("--csv", "FILE", "Write the Pareto front as CSV, every figure in SI units.")] = None,
    plot: Annotated[
        Text, option("--plot", "FILE", "Draw the front: tokens/s of a user and per chip; .png, .svg.")
    ] = None,
    out: Annotated[File, option("--out", "DIR", "Write manifest.yaml, plan.json and report.txt there.")] = None,
    force: Annotated[bool, switch("--force", "Replace these files where they exist.")] = False,
    json: Json = False,
) -> None:
    """Find the deployment that serves a load best on a machine: pools, strategies, batches, and why.

    \b
    Examples:
      plan deepseek-r1 --hw cm384
      plan qwen3-235b-a22b --hw h800 --nodes 8 --rate 20/s --ttft 1s --tpot 40ms
      plan deepseek-r1 --hw prefill=910b,decode=cm384 --trace conversation.jsonl --out plan-r1
      plan search ./config.json --hw h100 --nodes 2 --json
      plan deepseek-r1 --hw cm384 --rate 200/s --survive node
      plan deepseek-r1 --hw cm384 --pareto 4 --csv front.csv --plot front.svg

    Counts take k and M. Exit code 3: no plan keeps the limits; what binds and the nearest change are told.
    """
    check_force(force, {"--out DIR": out, "--csv FILE": csv, "--plot FILE": plot})
    wanted = _wanted(pareto, csv, plot, force)
    if out is not None:
        check_folder(out, FILES, force=force, flag="--out")
    _answer(flags, out, wanted, force=force, json=json)


def _wanted(pareto: str | None, csv: str | None, plot: str | None, force: bool) -> "FrontWanted | None":
    """Return what is wanted of the front beyond its first plans; the modules for it are read only then."""
    if pareto is None and csv is None and plot is None:
        return None
    from cli.front import read_front

    return read_front(pareto, csv, plot, force)


def _answer(flags: SearchFlags, folder: Path | None, wanted: "FrontWanted | None", *, force: bool, json: bool) -> None:
    """Search, print, and write; Infeasible where there is no plan."""
    asked = read_search(flags)
    begin = perf_counter()
    with progress(f"searching deployments of {asked.question.model.name} ..."), helped():
        asked, answer = _found(asked)
        if wanted is not None:
            answer = wanted.widened(answer)
    seconds = perf_counter() - begin
    asked = replace(asked, question=answer.question)  # in the number format that was chosen
    data = as_json(asked, answer, seconds) if json or folder else {}
    if answer.best is None:
        if json:
            print_json(data)
        raise Infeasible(f"no plan is feasible (binding limit: {answer.binding_limit}): {answer.explanation}")
    if wanted is not None:
        wanted.write(asked, answer)
    if folder is not None:
        texts = {
            "manifest.yaml": _manifest_text(asked, answer.best),
            "plan.json": json_module.dumps(data, indent=2, allow_nan=False) + "\n",
            "report.txt": _report_text(asked, answer, answer.best, seconds),
        }
        # Before anything is printed: a reader that closes the pipe early must not cost the files.
        write_files({folder / name: texts[name] for name in FILES}, force=force)
        stderr_console().print(f"wrote {', '.join(FILES)} to {folder}", markup=False, soft_wrap=True)
    if json:
        print_json(data)
    else:
        wide = wanted is not None and wanted.levels is not None
        render(stdout_console(), asked, answer, answer.best, seconds, runners=not wide)
        if wanted is not None and wide:
            wanted.show(answer)


def _found(asked: SearchInput) -> tuple[SearchInput, Answer]:
    """Return the answer, and what was asked with what the plan does on its trace."""
    if asked.trace is None:
        return asked, search_plan(asked.question)
    from cli.on_trace import traced  # only a trace needs it

    return traced(asked)


def _manifest_text(asked: SearchInput, best: Plan) -> str:
    from planner.manifest.document import dump_manifest
    from planner.plans.assemble import assemble  # only --out needs the layouts

    return dump_manifest(assemble(best, question_json(asked)))


def _report_text(asked: SearchInput, answer: Answer, best: Plan, seconds: float) -> str:
    """Return the printed answer as plain text."""
    from rich.console import Console

    text = StringIO()
    render(Console(file=text, width=REPORT_WIDTH, highlight=False, color_system=None), asked, answer, best, seconds)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())
