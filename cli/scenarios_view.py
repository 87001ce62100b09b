"""What `plan MODEL --scenarios FILE` shows."""

from cli.output import Screen
from ground.units import format_count, format_rate
from podplan.scenarios import ScenariosResult, layout_text


def show_scenarios(screen: Screen, found: ScenariosResult) -> None:
    """Print the scenarios with what is best for each, the one plan and the policy."""
    screen.text(f"{found.headline}.")
    screen.lines("")
    rows = []
    for number, each in enumerate(found.scenarios):
        layout = found.policy.layouts[number] if found.policy else None
        rows.append(
            [
                each.name,
                format_rate(each.question.rate_per_second or 0.0),
                f"{each.weight:g}",
                format_count(each.best.chips) if each.best else "none",
                "" if found.robust is None else "yes" if found.robust.holds[number] else "no",
                *([layout_text(layout) if layout else "no plan"] if found.policy else []),
            ]
        )
    columns = ["scenario", "rate", "weight", "chips alone", "one plan holds", *(["policy"] if found.policy else [])]
    screen.table(columns, rows, right=["rate", "weight", "chips alone"])
    if found.robust is not None:
        screen.text(f"One plan: {layout_text(found.robust.layout)}.")
    windows = found.policy
    if windows is not None:
        screen.text(
            f"Policy: {format_count(windows.chip_hours)} chip-hours, {windows.moving_chip_hours:.3g} of them to move; "
            f"bound {format_count(windows.bound_chip_hours)} (each window's own best plan, moves free), gap "
            f"{windows.gap:.1%}; one plan for the peak {format_count(windows.peak_chip_hours)}."
        )
