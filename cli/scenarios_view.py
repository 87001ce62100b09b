"""What `plan MODEL --scenarios FILE` shows."""

from collections.abc import Callable

from cli.output import Screen
from cli.rows_view import number
from ground.units import format_count, format_rate
from podplan.result import Row
from podplan.scenarios import ScenariosResult, layout_text


def show_scenarios(screen: Screen, found: ScenariosResult) -> None:
    """Print the scenarios with what is best for each, the one plan and the policy."""
    screen.text(f"{found.headline}.")
    screen.lines("")
    windows = found.policy
    holds: dict[object, str] = {None: "", True: "yes", False: "no"}
    columns: dict[str, Callable[[Row], str]] = {
        "scenario": lambda row: str(row["scenario"]),
        **({"model": lambda row: str(row["model"])} if len(found.space.layouts) > 1 else {}),
        ">rate": lambda row: format_rate(number(row["requests_per_second"]) or 0.0),
        ">weight": lambda row: f"{row['weight']:g}",
        ">chips alone": lambda row: format_count(chips) if (chips := number(row["chips_alone"])) else "none",
        "one plan holds": lambda row: holds[row["one_plan_holds"]],
        **({"policy": lambda row: str(row["policy"] or "no plan")} if windows else {}),
    }
    screen.grid(found.rows(), columns)
    for _, _, each in found.asked():
        if each.relaxed is not None:
            screen.text(f"{each.name}: nothing keeps the limits; planned is what comes nearest, {each.relaxed}.")
    if found.robust is not None:
        screen.text(f"One plan: {' beside '.join(layout_text(each) for each in found.robust.layouts)}.")
    if windows is not None:
        screen.text(
            f"Policy: {format_count(windows.chip_hours)} chip-hours, {windows.moving_chip_hours:.3g} of them to move; "
            f"bound {format_count(windows.bound_chip_hours)} (proven for each window, moves free), gap "
            f"{windows.gap:.1%}; re-planning at every window {format_count(windows.replanned_chip_hours)}, "
            f"{windows.replanned_moving_chip_hours:.3g} of them to move; one plan for the peak "
            f"{format_count(windows.peak_chip_hours) if windows.peak else 'is not there'}."
        )
