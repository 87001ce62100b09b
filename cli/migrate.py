"""`plan migrate`: the cheapest safe steps from one manifest to another."""

from collections.abc import Callable
from dataclasses import asdict

from cli.options import FORCE, JSON, File, takes
from cli.output import Outputs, Screen, print_json, progress
from ground.units import format_bytes, format_duration, format_rate
from planner.manifest.migration import Step
from podplan.migrating import MIGRATION, MigrateFlags, MigrateResult, migrate
from podplan.options import flag

MOST_NAMES = 4


@takes(MigrateFlags)
def command(
    flags: MigrateFlags,
    out: File = flag("DIR", "Write migration.yaml and the manifest of every stage there."),
    force: bool = FORCE,
    json: bool = JSON,
) -> None:
    """Find the cheapest safe steps from a manifest that runs to another one, or to the plan of a question.

    \b
    Examples:
      plan migrate now/manifest.yaml next/manifest.yaml
      plan migrate now/manifest.yaml question.yaml --rate 200/s --confidence 0.9 --out change/
      plan simulate now/manifest.yaml --migration change/migration.yaml
      plan deploy now/manifest.yaml --migration change/migration.yaml --engine vllm --platform kubernetes --out files/

    A step drains instances and starts others on the devices that are free; instances that both manifests have stay.
    The order has the least time in which the limits of OLD are not promised, then the least time; docs/changes.md.
    """
    outputs = Outputs(force, {"--out DIR": out}, {"--out": (MIGRATION,)})
    with progress("looking for the cheapest steps ..."):
        found = migrate(**asdict(flags))
    outputs.write(found)
    print_json(found.to_dict()) if json else _show(Screen(), found)


def _show(screen: Screen, found: MigrateResult) -> None:
    screen.text(f"{found.headline}.")
    screen.lines("")
    steps = list(enumerate(found.change.migration.steps, start=1))
    columns: dict[str, Callable[[tuple[int, Step]], str]] = {
        ">step": lambda row: str(row[0]),
        "drain": lambda row: _names(row[1].drain),
        "start": lambda row: _names([each.name for each in row[1].start]),
        "how": lambda row: _how(row[1]),
        ">takes": lambda row: format_duration(row[1].seconds),
        ">carries": lambda row: format_rate(row[1].carries_per_second),
        ">limits not promised": lambda row: format_duration(row[1].below_seconds) if row[1].below_seconds else "",
    }
    if steps:
        screen.grid(steps, columns)
    change, promise, asked = found.change, found.change.migration.promise, found.asked
    ends = f"OLD carries {format_rate(change.carries_before)}, NEW {format_rate(change.carries_after)}"
    screen.text(
        f"Promised: at least {promise.attainment_within:.0%} of requests within both limits at "
        f"{format_rate(promise.requests_per_second)}, if predicted times hold, which they do with a confidence of "
        f"{promise.confidence:g}; {ends}; {change.kept} instances stay.",
        f"Bound: {found.bound}.",
        f"Assumed: {format_duration(change.terms.startup_seconds)} from weights to the first request; a step's "
        "instances start when all that it drains is empty.",
    )
    wanted = asked.rate_per_second or 0.0
    if promise.requests_per_second < wanted * (1 - 1e-9):
        screen.text(f"Note: {format_rate(wanted)} is more than one end of the change carries, so no order can hold it.")


def _names(names: list[str]) -> str:
    """Return instances by name, the first and the last of many."""
    return ", ".join(names) if len(names) <= MOST_NAMES else f"{len(names)}: {names[0]}, {names[1]} .. {names[-1]}"


def _how(step: Step) -> str:
    """Return what starting takes: how, the bytes, and the plane that carries them."""
    told = []
    for how in ("flip", "experts", "load"):
        own = [each for each in step.start if each.how == how]
        if own and how == "flip":
            told.append(f"{len(own)} flip")
        elif own:
            size, plane = format_bytes(sum(each.bytes for each in own)), f" over {own[0].plane}" if own[0].plane else ""
            told.append(f"{len(own)} {how}: {size} from {own[0].source}{plane}")
    return "; ".join(told)
