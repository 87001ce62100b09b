"""A plan over the windows of a day as text."""

from collections.abc import Sequence

from cli.output import Screen
from ground.units import format_duration, format_rate
from planner.plans.day import Seen, busy_share, mean_rate, peak_rate
from podplan.day import roles_of, span_text


def day_text(seen: Sequence[Seen]) -> str:
    """Say which window the plan is sized for."""
    windows = [each.window for each in seen]
    peak = max(windows, key=lambda window: window.rate_per_second)
    mean = mean_rate(windows)
    return (
        f"Sized for the worst window, {span_text(peak)} with {format_rate(peak.rate_per_second)}; the mean over the "
        f"day is {format_rate(mean)}, {mean / peak.rate_per_second:.0%} of it."
    )


def show_day(screen: Screen, seen: Sequence[Seen], percentile: float) -> None:
    """Write rate, load and latencies of every window."""
    peak, busy = peak_rate([each.window for each in seen]), roles_of(seen)
    tail = f"p{percentile:g}"
    rows = []
    for each in seen:
        rate, plan = each.window.rate_per_second, each.plan
        cells = [span_text(each.window), format_rate(rate), f"{rate / peak:.0%}"]
        cells += [str(each.needed[role]) for role in busy]
        if plan is None:
            cells += [*("0%" for _ in busy), "", "", "", ""]
        else:
            cells += [f"{pool.utilisation:.0%}" for _, pool in plan.pools()]
            for latency in (plan.ttft, plan.tpot):
                cells += [format_duration(latency.mean), format_duration(latency.at(percentile))]
        rows.append(cells)
    needed = [f"{role} needed" for role in busy]
    names = [
        "rate",
        "of peak",
        *needed,
        *(f"{role} load" for role in busy),
        "TTFT",
        f"TTFT {tail}",
        "TPOT",
        f"TPOT {tail}",
    ]
    screen.table(["window", *names], rows, right=names)
    screen.text(day_text(seen))
    largest = max((each.plan for each in seen if each.plan), key=lambda plan: plan.requests_per_second)
    screen.text(
        f"Needed are the fewest instances of the plan that keep the limits: to stop the others in each window leaves "
        f"{busy_share(largest, seen):.0%} of the device-hours."
    )
