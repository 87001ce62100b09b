"""`plan place`: expert placement from measured loads."""

from pathlib import Path

from cli.options import FORCE, JSON, File, takes
from cli.output import Screen, check_force, print_json, progress
from cli.place_view import PLOTS, dense_line, plot_files, show_placement
from cli.plots import check_matplotlib
from ground.files import check_folder, write_files
from podplan.options import flag
from podplan.place_input import PlaceFlags
from podplan.placement import FILES, placed


@takes(PlaceFlags)
def command(
    flags: PlaceFlags,
    out: File = flag("DIR", "Write the map in every engine's format."),
    plot: File = flag("DIR", "Draw loads per device, and the curve; podplan[plot]."),
    force: bool = FORCE,
    json: bool = JSON,
) -> None:
    """Place experts and their replicas on devices from measured loads.

    \b
    Examples:
      plan place loads.csv --devices 32 --nodes 4 --redundant-experts 32
      plan place slices.csv --devices 8 --slots-per-device 9 --holdout alternate
      plan place counts.npy --devices 32 --nodes 4 --redundant-experts 32 --groups 8 --keep-groups
      plan place counts.npy --devices 32 --redundant-experts auto --model deepseek-r1 --hw h800 --batch 64

    Imbalance is the busiest device's load over the mean; the bound is the least that any placement could reach.
    """
    check_force(force, {"--out DIR": out, "--plot DIR": plot})
    _check_folders(out, plot, force)
    with progress("placing experts ..."):
        found = placed(flags)
    drawn = {} if plot is None else plot_files(plot, found)
    written = {} if out is None else {out / name: text for name, text in found.files().items()}
    write_files({**written, **drawn}, force=force)
    if json:
        print_json(found.to_dict())
        return
    show_placement(Screen(), found)
    if drawn:
        Screen().lines(f"drew {', '.join(path.name for path in drawn)} in {plot}")
    if out is not None:
        Screen().lines(f"wrote {', '.join(FILES)} to {out}", dense_line(flags, found))


def _check_folders(out: Path | None, plot: Path | None, force: bool) -> None:
    """Raise BadInput before any work where the files could not be made or written."""
    if out is not None:
        check_folder(out, FILES, force=force, flag="--out")
    if plot is not None:
        check_folder(plot, PLOTS, force=force, flag="--plot")
        check_matplotlib()
