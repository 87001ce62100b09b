"""`plan measure`: time kernels on a local accelerator through PyTorch, as the CSV that `plan calibrate` reads."""

import csv
import io
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cli.options import options
from ground.errors import BadInput
from ground.files import check_file, write_files
from hardware.measuring import Timer, measure_all
from podplan.options import flag, switch

FIELDS = [
    "kernel", "dtype", "groups", "rows", "columns", "depth", "flops", "bytes", "mean_keys", "seconds", "version",
    "source",
]  # fmt: skip


@options
def command(
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
    timer = Timer(_torch(device), device, quick=quick, runs=3 if quick else 5, least_seconds=1e-3 if quick else 0.02)
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    rows = list(measure_all(timer))
    for row in rows:
        writer.writerow({name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()})
    write_files({out: text.getvalue()}, force=force)
    sys.stdout.write(f"{len(rows)} times measured on {device}, written to {out}\n")


def _torch(device: str) -> Any:
    """Return PyTorch; BadInput where it or the device is missing."""
    if find_spec("torch") is None:
        raise BadInput("plan measure needs PyTorch, which is not installed; use pip install 'podplan[measure]'")
    torch = import_module("torch")
    kind = device.partition(":")[0]
    if kind == "npu" and find_spec("torch_npu") is not None:
        import_module("torch_npu")
    backend = getattr(torch, kind, None)
    if kind != "cpu" and not (backend is not None and hasattr(backend, "is_available") and backend.is_available()):
        raise BadInput(f"--device: PyTorch finds no {device!r} on this machine; use --device cpu to see that it runs")
    return torch
