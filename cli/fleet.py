"""`plan fleet`: several models and rates on one cluster."""

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Annotated, get_args

import typer

from cli.answer_output import Outputs, read_outputs, write_answers
from cli.answer_rows import Row, plan_row
from cli.flags import read_choice
from cli.output import print_json, print_lines
from cli.progress import progress
from cli.question_file import Entry, read_questions
from cli.question_options import Text, option, search_flags
from cli.search_flags import read_search
from cli.search_json import plan_json
from planner.cluster import Fleet, FleetAnswer, Member, plan_cluster
from planner.fleet import Objective
from planner.question import Machines
from podplan.errors import BadInput, Infeasible
from podplan.units import format_duration

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def fleet(
    file: Annotated[Path, typer.Argument(metavar="FLEET.yaml", help="Models, rates and the cluster that they share.")],
    csv: Annotated[Text, option("--csv", "FILE", "Write a row per model as CSV, every figure in SI units.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the CSV where it exists.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Place several models with their rates and limits on one cluster, with the fewest chips, the least cost or growth.

    \b
    Examples:
      plan fleet examples/fleets/two-models.yaml
      plan fleet fleet.yaml --csv fleet.csv

    The file has the flags that all models share, `models:` with those of each, and `objective:` chips, cost or
    throughput (the largest common growth of all rates). Every model needs a rate. Exit code 3: the cluster does not
    carry them all.
    """
    outputs = read_outputs(csv, None, force)
    entries = read_questions(file, list_key="models")
    asked = _fleet(entries, str(file))
    begin = perf_counter()
    with progress(f"placing {len(asked.members)} models ..."):
        answer = plan_cluster(asked)
    _show(asked, answer, outputs, perf_counter() - begin, json=json)


def _fleet(entries: list[Entry], where: str) -> Fleet:
    """Return the fleet of a file; BadInput names the model and the key."""
    objectives = {entry.get("objective") or "chips" for entry in entries}
    if len(objectives) > 1:
        raise BadInput(f"{where}: objective stands beside models and holds for all; give it once")
    members: list[Member] = []
    devices: dict[str, int] = {}
    for entry in entries:
        try:
            for needed in ("model", "hw", "rate"):
                others = ("rate_profile", "trace") if needed == "rate" else ()
                if all(entry.get(key) is None for key in (needed, *others)):
                    raise BadInput(f"{needed} is missing; every model of a fleet needs model, hw and rate")
            values = {key: value for key, value in entry.values.items() if key != "objective"}
            question = read_search(search_flags(values)).question
        except BadInput as error:
            raise BadInput(f"{entry.where}: {error}") from None
        shared = question.prefill.budget == question.decode.budget
        prefill, decode = _pool(question.prefill, "prefill", shared), _pool(question.decode, "decode", shared)
        for machines in (prefill, decode):
            if devices.setdefault(machines.budget, machines.devices) != machines.devices:
                raise BadInput(f"{entry.where}: {machines.budget} has another size than above; give hw and size once")
        members.append(Member(name=entry.name, question=replace(question, prefill=prefill, decode=decode)))
    objective: Objective = read_choice(objectives.pop(), "objective", get_args(Objective))
    return Fleet(members=tuple(members), devices=devices, objective=objective)


def _pool(machines: Machines, role: str, shared: bool) -> Machines:
    """Return machines whose budget names their hardware, and their role where each has its own."""
    name = machines.hardware.name if shared else f"{role} {machines.hardware.name}"
    return replace(machines, budget=name)


def _show(asked: Fleet, answer: FleetAnswer, outputs: Outputs, seconds: float, *, json: bool) -> None:
    """Print and write what was found; Infeasible where the cluster does not carry the models."""
    rows: list[Row] = [
        {"name": member.name, "model": member.question.model.name, **plan_row(plan)}
        for member, plan in zip(asked.members, answer.plans, strict=False)
    ]
    if json:
        print_json(_as_json(asked, answer, seconds))
    if not answer.feasible:
        raise Infeasible(
            f"the cluster does not carry the fleet (binding limit: {answer.binding_limit}): {answer.explanation}"
        )
    if json and outputs.csv is None:
        return
    if json:
        write_answers(rows, outputs, None, ["name"], quiet=True)
        return
    write_answers(rows, outputs, None, ["name"])
    used = ", ".join(f"{count} of {asked.devices[pool]} {pool}" for pool, count in answer.devices_used.items())
    grown = f" All rates can grow {answer.growth:.3g}-fold." if asked.objective == "throughput" else ""
    print_lines(["", f"Devices: {used}.{grown} {answer.explanation}".rstrip()])
    print_lines([f"{answer.candidates_evaluated:,} candidates costed in {format_duration(seconds)}."])


def _as_json(asked: Fleet, answer: FleetAnswer, seconds: float) -> dict[str, object]:
    """Return the object that ``plan fleet --json`` prints."""
    bound = answer.bound
    return {
        "feasible": answer.feasible,
        "objective": asked.objective,
        "devices": dict(asked.devices),
        "devices_used": dict(answer.devices_used),
        "growth": answer.growth if answer.feasible else None,
        "models": [
            {"name": member.name, "model": member.question.model.name, "best": plan_json(plan, compact=True)}
            for member, plan in zip(asked.members, answer.plans, strict=False)
        ],
        "bound": bound
        and {"objective": bound.objective, "value": bound.value, "gap": bound.gap, "covers": bound.covers},
        "binding_limit": answer.binding_limit,
        "explanation": answer.explanation,
        "candidates_evaluated": answer.candidates_evaluated,
        "search_seconds": seconds,
    }
