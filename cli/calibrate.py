"""`plan measure`: time kernels on a local accelerator through PyTorch; `plan calibrate`: fit curves to such times."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from cli.options import JSON, File, Text, options
from cli.output import Outputs, Screen, print_json
from ground.errors import BadInput
from ground.files import check_file, to_yaml, write_files
from ground.units import format_duration
from ground.validation import plain
from hardware.calibrate import Calibrated, calibrate, overlay
from hardware.loader import load_hardware
from hardware.measurements import Timer, measure_all, read_measurements
from hardware.spec import Fitted, HardwareSpec
from podplan.options import argument, flag, switch
from podplan.result import as_csv, picked

FIELDS = [
    "kernel", "dtype", "groups", "rows", "columns", "depth", "flops", "bytes", "mean_keys", "seconds", "version",
    "source",
]  # fmt: skip


@options
def command(
    measurements: list[Path] = argument("MEASUREMENTS.csv", "Measured times, with the columns above."),
    hw: str = flag("NAME", "Entry whose fits are to be replaced.", needed=True),
    out: File = flag("FILE", "YAML to write, which --hw then takes."),
    name: Text = flag("NAME", "Name of the new entry [the old one-calibrated]."),
    force: bool = switch("Replace the file."),
    json: bool = JSON,
) -> None:
    """Fit efficiency curves to measured times, and write them as an overlay of a catalogue entry.

    \b
    Examples:
      plan measure --device cuda --out mine.csv
      plan calibrate mine.csv --hw h100 --out mine.yaml
      plan predict qwen3-32b --hw mine.yaml --phase decode --strategy TP=4 --batch 32

    A row is one measured time. Columns: seconds, and for matrix products (kernel gemm, grouped_gemm, feed_forward)
    dtype, groups, rows (per group), columns, depth; for attention (mla_decode, gqa_decode, prefill_attention) flops,
    bytes, mean_keys; for memory_copy bytes; for collectives op, scope, in_graph, ranks, message_bytes; for expert
    exchanges direction, mode, degree, payload_bytes. Kernels eager_launch and graph_launch need seconds alone.
    """
    Outputs(force, {"--out FILE": out})
    if out is not None and out.suffix.lower() not in (".yaml", ".yml"):
        raise BadInput(f"--out: {out} must end in .yaml, so that --hw takes it for a file")
    entry = load_hardware(hw)
    families = calibrate(entry, read_measurements(measurements, entry.name))
    document = overlay(entry, _name(name, entry), families)
    if out is not None:
        write_files({out: to_yaml(document)}, force=force)
    if json:
        print_json(as_json(entry, families, out))
        return
    columns: dict[str, Callable[[Calibrated], str]] = {
        "measured": lambda each: each.family,
        ">rows": lambda each: str(len(each.rows)),
        ">median error before": lambda each: f"{each.median_before:.1%}",
        ">after": lambda each: f"{each.median_after:.1%}",
        "worst row": lambda each: f"{each.worst.text} ({format_duration(each.worst.seconds)})",
        ">its error": lambda each: f"{each.after[each.rows.index(each.worst)]:+.1%}",
    }
    Screen().grid(families, columns)
    rows = sum(len(family.rows) for family in families)
    Screen().lines(
        f"{rows} measured times, {len(families)} fits over {entry.name}; errors are fitted / measured - 1.",
        f"Written to {out}; use it as --hw {out}."
        if out
        else "Nothing was written; --out FILE.yaml writes the overlay that --hw takes.",
    )


def _name(given: str | None, entry: HardwareSpec) -> str:
    if given is None:
        return f"{entry.name}-calibrated"
    if not given.strip() or len(given) > 60:
        raise BadInput("--name: must have 1 to 60 characters")
    return given.strip().lower()


def as_json(entry: HardwareSpec, families: Sequence[Calibrated], out: Path | None) -> dict[str, object]:
    """Return the object that ``plan calibrate --json`` prints."""
    return {
        "hardware": entry.name,
        "written": None if out is None else str(out),
        "fits": [
            {
                **picked(family, "family median_error_before=median_before median_error_after=median_after"),
                "rows": len(family.rows),
                "fit": plain(family.fit, mode="json", exclude_none=True),
                "residuals": [
                    {"shape": row.shape, "measured_seconds": row.seconds, "error": float(error)}
                    for row, error in zip(family.rows, family.after, strict=True)
                ],
            }
            for family in families
            if isinstance(family.fit, Fitted) or family.fit
        ],
    }


@options
def measure(
    out: Path = flag("FILE", "CSV to write.", needed=True),
    device: str = flag("DEVICE", "cuda, npu, cpu, or cuda:1.", default="cuda"),
    quick: bool = switch("Tiny shapes: whether it runs, not how fast."),
    force: bool = switch("Replace the file."),
) -> None:
    """Time matrix products, attention, memory copies and launches on this machine's accelerator.

    \b
    Examples:
      plan measure --device cuda --out mine.csv
      plan calibrate mine.csv --hw h100 --out mine.yaml

    Needs PyTorch (pip install 'podplan[measure]'), and one device that nothing else uses. Takes a minute or two.
    """
    check_file(out, force=force, flag="--out")
    if find_spec("torch") is None:
        raise BadInput("plan measure needs PyTorch, which is not installed; use pip install 'podplan[measure]'")
    torch = import_module("torch")
    kind = device.partition(":")[0]
    if kind == "npu" and find_spec("torch_npu") is not None:
        import_module("torch_npu")
    backend = getattr(torch, kind, None)
    if kind != "cpu" and not (backend is not None and hasattr(backend, "is_available") and backend.is_available()):
        raise BadInput(f"--device: PyTorch finds no {device!r} on this machine; use --device cpu to see that it runs")
    timer = Timer(torch, device, quick=quick, runs=3 if quick else 5, least_seconds=1e-3 if quick else 0.02)
    rows = [dict.fromkeys(FIELDS, None) | row for row in measure_all(timer)]
    shown = [{name: f"{each:.6g}" if isinstance(each, float) else each for name, each in row.items()} for row in rows]
    write_files({out: as_csv(shown)}, force=force)
    sys.stdout.write(f"{len(rows)} times measured on {device}, written to {out}\n")
