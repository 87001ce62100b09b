"""`plan hardware`: the machines that are known, and where every value of one comes from."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Annotated

import typer

from cli.exit_codes import ExitCode
from cli.options import Json, Text, argument, switch
from cli.output import print_json, print_lines, print_table
from ground.sourced import Sourced, Stated
from ground.units import format_bytes, format_count, format_duration
from ground.validation import plain
from hardware.formats import multiplied, storable
from hardware.gaps import gaps
from hardware.loader import hardware_names, load_hardware, problems_of
from hardware.spec import Fitted, HardwareSpec

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def hardware(
    name: Annotated[Text, argument("HARDWARE", "Catalogue name or path to a hardware YAML.")] = None,
    json: Json = False,
    check: Annotated[bool, switch("--check", "List what is assumed, and what is missing.")] = False,
) -> int:
    """Show the hardware of the catalogue, or one entry with the source of every value.

    \b
    Examples:
      plan hardware
      plan hardware cm384
      plan hardware my-cluster.yaml --check

    With --check alone every entry of the catalogue is checked. Of a file that breaks the schema --check lists every
    field that is missing or wrong, and ends with 2.
    """
    if check and name is not None and (wrong := problems_of(name)):
        return _report_problems(name, wrong, json)
    specs = [load_hardware(known) for known in ([name] if name is not None else hardware_names())]
    if check:
        _check(specs, json)
    elif name is not None:
        _print_one(specs[0], json)
    else:
        _print_all(specs, json)
    return ExitCode.DONE


def sourced_values(spec: Stated, path: str = "") -> Iterator[tuple[str, Sourced | Fitted]]:
    """Yield every value and every fit below ``spec`` with its dotted path, in the order of the schema.

    Items of a list are called by their name, or by what tells them apart.
    """
    for each in fields(spec):
        yield from _sourced(getattr(spec, each.name), f"{path}.{each.name}" if path else each.name)


def _sourced(value: object, path: str) -> Iterator[tuple[str, Sourced | Fitted]]:
    if isinstance(value, Sourced | Fitted):
        yield path, value
    elif isinstance(value, Stated):
        yield from sourced_values(value, path)
    elif isinstance(value, dict):
        for key, held in value.items():
            yield from _sourced(held, f"{path}.{key}")
    elif isinstance(value, list):
        for position, held in enumerate(value):
            yield from _sourced(held, f"{path}[{_called(held, position)}]")


def _called(item: object, position: int) -> str:
    names = [getattr(item, key, None) for key in ("name", "op", "scope", "direction", "mode")]
    return " ".join(str(name) for name in names if isinstance(name, str)) or str(position)


def _report_problems(name: str, wrong: list[str], json: bool) -> int:
    """Write what keeps an entry from loading."""
    if json:
        print_json({"hardware": [{"name": name, "problems": wrong}]})
    else:
        print_lines([f"{name}: {len(wrong)} to mend before it can be used", *(f"  wrong    {each}" for each in wrong)])
    return ExitCode.BAD_INPUT


def _check(specs: list[HardwareSpec], json: bool) -> None:
    if json:
        print_json({"hardware": [_checked(spec) for spec in specs]})
        return
    for spec in specs:
        values = list(sourced_values(spec))
        assumed = [(path, held) for path, held in values if held.kind == "assumed"]
        print_lines([f"{spec.name}: {len(values)} values, {len(assumed)} assumed"])
        if spec.based_on is not None:
            print_lines([f"  based on {spec.based_on.name}: {spec.based_on.why}"])
        print_lines([f"  assumed  {path}: {held.note or held.source}" for path, held in assumed])
        print_lines([f"  missing  {gap.field}: {gap.instead}" for gap in gaps(spec)])


def _checked(spec: HardwareSpec) -> dict[str, object]:
    values = list(sourced_values(spec))
    return {
        "name": spec.name,
        "values": len(values),
        "based_on": plain(spec.based_on) if spec.based_on else None,
        "weights": {"multiplied": list(multiplied(spec)), "dequantised": list(storable(spec)[len(multiplied(spec)) :])},
        "assumed": [
            {"field": path, "source": held.source, "note": held.note} for path, held in values if held.kind == "assumed"
        ],
        "missing": [{"field": gap.field, "instead": gap.instead} for gap in gaps(spec)],
    }


def _print_one(spec: HardwareSpec, json: bool) -> None:
    if json:
        print_json({"name": spec.name, "title": spec.title, "spec": plain(spec, mode="json")})
        return
    rows = [[path, _value(path, held), held.kind, held.source] for path, held in sourced_values(spec)]
    print_table(["field", "value", "kind", "source"], rows, title=f"{spec.title} ({spec.name})")


def _print_all(specs: list[HardwareSpec], json: bool) -> None:
    if json:
        print_json({"hardware": [_summary(spec) for spec in specs]})
        return
    rows = [
        [
            spec.name,
            spec.title,
            f"{spec.nodes.value * spec.devices_per_node.value:.0f}",
            format_bytes(spec.device.memory_bytes.value),
            f"{format_bytes(spec.device.memory_bandwidth_bytes_per_second.value)}/s",
            f"{format_count(spec.device.peak_flops_per_second['bf16'].value)}FLOP/s",
            " ".join(multiplied(spec)),
            ", ".join(spec.aliases),
        ]
        for spec in specs
    ]
    print_table(
        ["name", "title", "devices", "memory", "bandwidth", "bf16 peak", "multiplies", "also called"],
        rows,
        right=["devices", "memory", "bandwidth", "bf16 peak"],
    )


def _summary(spec: HardwareSpec) -> dict[str, object]:
    return {
        "name": spec.name,
        "title": spec.title,
        "aliases": spec.aliases,
        "nodes": int(spec.nodes.value),
        "devices": int(spec.nodes.value * spec.devices_per_node.value),
        "chips": int(spec.nodes.value * spec.devices_per_node.value / spec.devices_per_chip.value),
        "devices_per_chip": int(spec.devices_per_chip.value),
        "memory_bytes_per_device": spec.device.memory_bytes.value,
        "multiplied": list(multiplied(spec)),
    }


def _value(path: str, held: Sourced | Fitted) -> str:
    """Render a value by the unit that its field's name ends in; a fit by how far it is off."""
    if isinstance(held, Fitted):
        off = f", median residual {held.median_residual:.1%}" if held.median_residual is not None else ""
        return f"fit ({held.version}{off})"
    if "flops_per_second" in path:
        return f"{format_count(held.value)}FLOP/s"
    if path.endswith("bytes_per_second"):
        return f"{format_bytes(held.value)}/s"
    if path.endswith("_seconds"):
        return format_duration(held.value)
    return format_bytes(held.value) if path.endswith("_bytes") else f"{held.value:g}"
