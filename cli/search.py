"""`plan search`, and `plan MODEL` for short: the best deployment for a load on a machine."""

import json as json_module
from io import StringIO
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from cli.machines import SizeFlags
from cli.output import print_json, stderr_console, stdout_console
from cli.progress import progress
from cli.search_flags import SearchFlags, SearchInput, read_search
from cli.search_json import as_json, question_json
from cli.search_render import render
from cli.traffic import TrafficFlags
from planner.plan import Plan
from planner.search import Answer
from planner.search import search as search_plan
from podplan.errors import BadInput, Infeasible
from podplan.files import write_files

app = typer.Typer(add_completion=False, rich_markup_mode=None)

FILES = ("manifest.yaml", "plan.json", "report.txt")

REPORT_WIDTH = 140

Text = str | None


def _option(flag: str, metavar: str, told: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=told)


@app.command()
def search(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Catalogue name, config.json or model YAML.")],
    hw: Annotated[str, _option("--hw", "HW", "Catalogue name or YAML, or one per role: prefill=910b,decode=cm384.")],
    nodes: Annotated[Text, _option("--nodes", "N", "Nodes, or prefill=N,decode=N [the catalogue entry].")] = None,
    chips: Annotated[Text, _option("--chips", "N", "Chips instead of nodes.")] = None,
    devices: Annotated[Text, _option("--devices", "N", "Devices instead of nodes.")] = None,
    isl: Annotated[Text, _option("--isl", "TOKENS", "Mean prompt tokens [4096].")] = None,
    osl: Annotated[Text, _option("--osl", "TOKENS", "Mean output tokens [1024].")] = None,
    isl_cv: Annotated[Text, _option("--isl-cv", "CV", "Standard deviation of prompts over their mean [0].")] = None,
    osl_cv: Annotated[Text, _option("--osl-cv", "CV", "The same of outputs [0].")] = None,
    prefix_reuse: Annotated[Text, _option("--prefix-reuse", "SHARE", "Cached share of prompts [0].")] = None,
    rate: Annotated[Text, _option("--rate", "RATE", "Requests to serve, such as 100/s.")] = None,
    trace: Annotated[
        Text, _option("--trace", "FILE", "Lengths, arrivals and rate of an Azure or Mooncake trace.")
    ] = None,
    format: Annotated[Text, _option("--format", "NAME", "azure or mooncake [as the file looks].")] = None,
    ttft: Annotated[Text, _option("--ttft", "DURATION", "Limit of the time to the first token [2s].")] = None,
    tpot: Annotated[Text, _option("--tpot", "DURATION", "Limit of the time per further token [50ms].")] = None,
    percentile: Annotated[
        Text, _option("--percentile", "P", "Percentile of requests that keep each limit [99].")
    ] = None,
    objective: Annotated[
        Text, _option("--objective", "WORD", "throughput, chips, cost or latency [throughput; with a rate chips].")
    ] = None,
    weights: Annotated[Text, _option("--weights", "DTYPE", "int8, fp8 or bf16 [as shipped, if multiplied].")] = None,
    kv_dtype: Annotated[Text, _option("--kv-dtype", "DTYPE", "bf16, fp8 or int8 [bf16].")] = None,
    mtp: Annotated[Text, _option("--mtp", "K", "Drafted tokens per iteration [best of 0 and 1].")] = None,
    mtp_acceptance: Annotated[Text, _option("--mtp-acceptance", "A", "Acceptance per draft [0.7].")] = None,
    microbatches: Annotated[Text, _option("--microbatches", "M", "1, 2 or auto [auto].")] = None,
    expert_balance: Annotated[
        Text, _option("--expert-balance", "B", "perfect, measured, none or a factor [measured].")
    ] = None,
    redundant_experts: Annotated[
        Text, _option("--redundant-experts", "N", "Slots beyond one per expert, or auto [auto].")
    ] = None,
    shared_experts: Annotated[Text, _option("--shared-experts", "WHERE", "local, dedicated=N or auto [auto].")] = None,
    engine: Annotated[Text, _option("--engine", "E", "Engine whose costs are taken [reference].")] = None,
    out: Annotated[Text, _option("--out", "DIR", "Write manifest.yaml, plan.json and report.txt there.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace these files where they exist.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find the deployment that serves a load best on a machine: pools, strategies, batches, and why.

    \b
    Examples:
      plan deepseek-r1 --hw cm384
      plan qwen3-235b-a22b --hw h800 --nodes 8 --rate 20/s --ttft 1s --tpot 40ms
      plan deepseek-r1 --hw prefill=910b,decode=cm384 --trace conversation.jsonl --out plan-r1
      plan search ./config.json --hw h100 --nodes 2 --json

    Counts take k and M. Exit code 3: no plan keeps the limits; what binds and the nearest change are told.
    """
    flags = SearchFlags(
        model=model,
        machines=SizeFlags(hw=hw, nodes=nodes, chips=chips, devices=devices, weights=weights),
        traffic=TrafficFlags(
            isl=isl,
            osl=osl,
            isl_cv=isl_cv,
            osl_cv=osl_cv,
            prefix_reuse=prefix_reuse,
            rate=rate,
            trace=trace,
            format=format,
        ),
        ttft=ttft,
        tpot=tpot,
        percentile=percentile,
        objective=objective,
        engine=engine,
        kv_dtype=kv_dtype,
        mtp=mtp,
        mtp_acceptance=mtp_acceptance,
        microbatches=microbatches,
        expert_balance=expert_balance,
        redundant_experts=redundant_experts,
        shared_experts=shared_experts,
    )
    _answer(flags, _folder(out, force), force=force, json=json)


def _folder(out: str | None, force: bool) -> Path | None:
    """Return the folder to write to; BadInput before the search where something stands in the way."""
    if out is None:
        if force:
            raise BadInput("--force replaces files of --out; give --out DIR with it or leave it out")
        return None
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"--out: {out} is a file; give a folder")
    for name in FILES:
        if (folder / name).exists() and not force:
            raise BadInput(f"--out: {folder / name} exists already; give --force to replace it")
    return folder


def _answer(flags: SearchFlags, folder: Path | None, *, force: bool, json: bool) -> None:
    """Search, print, and write; Infeasible where there is no plan."""
    asked = read_search(flags)
    begin = perf_counter()
    with progress(f"searching deployments of {asked.question.model.name} ..."):
        answer = search_plan(asked.question)
    seconds = perf_counter() - begin
    data = as_json(asked, answer, seconds)
    if answer.best is None:
        if json:
            print_json(data)
        raise Infeasible(f"no plan is feasible (binding limit: {answer.binding_limit}): {answer.explanation}")
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
        render(stdout_console(), asked, answer, answer.best, seconds)


def _manifest_text(asked: SearchInput, best: Plan) -> str:
    from planner.assemble import assemble  # only --out needs the layouts
    from planner.manifest.document import dump_manifest

    return dump_manifest(assemble(best, question_json(asked)))


def _report_text(asked: SearchInput, answer: Answer, best: Plan, seconds: float) -> str:
    """Return the printed answer as plain text."""
    from rich.console import Console

    text = StringIO()
    render(Console(file=text, width=REPORT_WIDTH, highlight=False, color_system=None), asked, answer, best, seconds)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())
