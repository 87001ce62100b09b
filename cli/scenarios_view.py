"""What `plan MODEL --scenarios FILE` shows."""

from cli.output import Screen
from ground.units import format_count, format_rate
from podplan.scenarios import ScenariosResult, layout_text


def show_scenarios(screen: Screen, found: ScenariosResult) -> None:
    """Print the scenarios with what is best for each, the one plan and the policy."""
    screen.text(f"{found.headline}.")
    screen.lines("")
    rows, several, windows = [], len(found.space.layouts) > 1, found.policy
    for number, model, each in found.asked():
        joint = windows.layouts[number] if windows else None
        rows.append(
            [
                each.name,
                *([each.question.model.name] if several else []),
                format_rate(each.question.rate_per_second or 0.0),
                f"{each.weight:g}",
                format_count(each.best.chips) if each.best else "none",
                "" if found.robust is None else "yes" if found.robust.holds[number] else "no",
                *([layout_text(joint[model]) if joint else "no plan"] if windows else []),
            ]
        )
    model_column = ["model"] if several else []
    columns = [
        "scenario",
        *model_column,
        "rate",
        "weight",
        "chips alone",
        "one plan holds",
        *(["policy"] if windows else []),
    ]
    screen.table(columns, rows, right=["rate", "weight", "chips alone"])
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
