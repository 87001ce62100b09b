"""Rows of several answers to where they are asked for: files first, then a table or JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.answer_rows import SHOWN, Row, as_csv, power_text, shown_cells
from cli.output import print_json, stdout_console, table
from cli.plots import Plot, check_plot, plotted
from ground.files import check_file, write_files

RIGHT = (
    "chips",
    "requests",
    "tokens/s per chip",
    "USD per M tokens",
    "power",
    "kWh per M tokens",
    "TTFT",
    "TPOT",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Files that were asked for; checked before the work begins."""

    csv: Path | None = None
    plot: Path | None = None
    force: bool = False


def read_outputs(csv: str | None, plot: str | None, force: bool) -> Outputs:
    """Return the files to write; BadInput where one cannot be or is there already."""
    outputs = Outputs(csv=Path(csv) if csv else None, plot=Path(plot) if plot else None, force=force)
    for flag, path in (("--csv", outputs.csv), ("--plot", outputs.plot)):
        if path is not None:
            check_file(path, force=force, flag=flag)
    if outputs.plot is not None:
        check_plot(outputs.plot)
    return outputs


def write_answers(
    rows: Sequence[Row],
    outputs: Outputs,
    plot: Plot | None,
    extra: Sequence[str],
    *,
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Write the files, then the table or the JSON; ``extra`` keys stand before the usual columns of the table.

    ``quiet`` writes the files only.
    """
    files: dict[Path, str | bytes] = {}
    if outputs.csv is not None:
        files[outputs.csv] = as_csv(rows)
    if outputs.plot is not None and plot is not None:
        files[outputs.plot] = plotted(plot, outputs.plot)
    if files:
        write_files(files, force=outputs.force)
    if quiet:
        return
    if json:
        print_json({"rows": [dict(row) for row in rows]})
        return
    rows = [with_power(row) | ({"prefill": "no plan"} if row.get("feasible") is False else {}) for row in rows]
    keys = [*extra, *(key for key in SHOWN if key not in extra and any(row.get(key) is not None for row in rows))]
    names = [SHOWN.get(key, key.replace("_", "-")) for key in keys]
    cells = [shown_cells(row, keys) for row in rows]
    stdout_console().print(table(names, cells, right=[name for name in names if name in RIGHT], tight=True))


def with_power(row: Row) -> Row:
    """Return a row in which power says of what it is."""
    watts, alone = (row.get(key) for key in ("power_watts", "chip_power_watts"))
    power = power_text(*(float(value) if isinstance(value, int | float) else None for value in (watts, alone)))
    return {**row, "power_watts": power or None}
