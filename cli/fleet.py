"""`plan fleet`: several models and rates on one cluster."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from cli.options import CSV, FORCE, JSON, VERBOSE, File, Text, takes
from cli.output import Outputs, Screen, print_json, progress
from cli.plan_parts import day_text, show_keys
from cli.plan_view import proof_text
from cli.search import show_scenarios
from ground.errors import BadInput, Infeasible
from ground.files import check_folder
from podplan.fleets import SUMMARY, FleetInput, FleetResult, manifest_names, placed_on, read_fleet
from podplan.machines import basis_lines
from podplan.options import FleetFlags, argument, flag

PLACED = {"name": "model", "on_nodes": "nodes", "chips": "chips"}
PLACED |= {role: role for role in ("encode", "prefill", "decode", "mixed")}
DOES = (
    "requests_per_second", "tokens_per_second_per_chip", "cost_per_million_tokens", "power_watts",
    "energy_joules_per_million_tokens", "ttft_seconds", "tpot_seconds",
)  # fmt: skip
CHECKED = {"confidence": "confidence", "spare": "spare", "after_loss": "after the loss"}


@takes(FleetFlags)
def command(
    flags: FleetFlags,
    file: Path = argument("FLEET.yaml", "Models, rates and the cluster that they share."),
    out: File = flag("DIR", "Write a manifest per model, fleet.json and fleet.csv there."),
    csv: Text = CSV,
    force: bool = FORCE,
    verbose: bool = VERBOSE,
    json: bool = JSON,
) -> None:
    """Place several models with rates and limits on one cluster: fewest chips, least cost, most growth or least time.

    \b
    Examples:
      plan fleet examples/fleets/two-models.yaml
      plan fleet examples/fleets/two-pools.yaml --survive node --out fleet/
      plan fleet fleet.yaml --objective throughput --csv fleet.csv

    The file has the flags that all models share, `models:` with those of each, `objective:` chips, cost, throughput
    (the largest common growth of all rates) or latency (the least mean time of all requests, on all devices),
    `survive:`, `confidence:`, `share_nodes:` no where no two models may stand on one node, and `switch:` yes where
    models with a `rate_profile:` take turns on the same devices. `pools:` lists machines of several kinds; then `hw:`
    of a model names pools, one per role, or any: podplan chooses. Every model needs a rate. Exit code 3: the cluster
    does not carry them all.
    """
    outputs = Outputs(force, {"--out DIR": out, "--csv FILE": csv}, {"--out": SUMMARY})
    asked = read_fleet(file, {key: value for key, value in asdict(flags).items() if value is not None})
    if out is not None:
        check_folder(out, manifest_names(asked), force=force, flag="--out")
    if asked.switches:
        _switching(asked, out, csv, force, json)
        return
    with progress(f"placing {len(asked.fleet.members)} models ..."):
        found = placed_on(asked)
    if not found.feasible:
        if json:
            print_json(found.to_dict())
        raise Infeasible(found.headline)
    outputs.write(found)
    print_json(found.to_dict()) if json else show_fleet(Screen(), found, verbose=verbose)


def _switching(asked: FleetInput, out: Path | None, csv: str | None, force: bool, json: bool) -> None:
    """Answer a fleet whose models take turns on the same devices."""
    from podplan.scenarios import taking_turns

    if csv is not None:
        raise BadInput("--csv: models that switch have a plan for each window; give --out DIR")
    outputs = Outputs(force, {"--out DIR": out}, {"--out": ("scenarios.json",)})
    with progress("searching every window ..."):
        found = taking_turns(asked)
    outputs.write(found)
    print_json(found.to_dict()) if json else show_scenarios(Screen(), found)


def show_fleet(screen: Screen, found: FleetResult, *, verbose: bool = False) -> None:
    """Write where every model stands, what it does there, and what is proven."""
    rows = found.rows()
    for names in (PLACED, {"name": "model", **dict.fromkeys(DOES, ""), **CHECKED}):
        show_keys(screen, rows, names)
    screen.text(*_lines(found, verbose))


def _lines(found: FleetResult, verbose: bool) -> list[str]:
    """Return what is said under the tables."""
    fleet, answer = found.asked.fleet, found.answer
    lines = [f"{found.headline}. {_sentence(answer.explanation, [member.name for member in fleet.members])}"]
    if found.floor and found.floor.shared:
        lines.append(f"Models share nodes of {', '.join(found.floor.shared)}: give each other ports (site.yaml).")
    lines += basis_lines([plan.question for plan in answer.plans])
    lines += [f"Not tried: {note}." for note in found.asked.notes]
    lines += [f"{each.name}: {day_text(each.day)}" for each in found.placed if each.day]
    if sum(bool(each.day) for each in found.placed) > 1:
        lines.append("Rates differ over the day: with switch: yes models take turns on the same devices.")
    return [*lines, proof_text(answer, found.seconds, verbose=verbose, growth="times every rate")]


def _sentence(text: str, names: Sequence[str]) -> str:
    """Return a text as a sentence; one that begins with a model's name keeps it."""
    named = any(text.startswith(name) for name in names)
    return f"{text if named else text[:1].upper() + text[1:]}."
