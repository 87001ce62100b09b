"""`--rate-profile`: the rate over the day, as it is typed and as an answer reports its windows."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from os.path import isfile  # unlike pathlib's, no error for a name that no file can have
from pathlib import Path

from ground.errors import BadInput
from ground.files import csv_table, read_text
from ground.units import DAY_SECONDS, HOUR_SECONDS, MINUTE_SECONDS, parse_rate
from planner.instances.space import Role
from planner.plans.day import Seen, Window, mean_rate, peak_rate
from planner.serving.latency import Latency

FLAG = "--rate-profile"
EXAMPLE = "0:00=40/s,8:00=120/s,20:00=70/s"
MOST_WINDOWS = 288  # every five minutes
_CLOCK = re.compile(r"([0-9]{1,2}):([0-5][0-9])")


def read_rate_profile(text: str) -> tuple[Window, ...]:
    """Return the windows of a day, typed as TIME=RATE,... or in a CSV file with the columns time,rate.

    A rate without a unit counts requests per second.

    Raises BadInput naming the flag, or file and line.
    """
    if "=" in text:
        parts = [part.partition("=") for part in text.split(",")]
        rows = [(FLAG, time.strip(), rate.strip()) for time, _, rate in parts]
    elif isfile(text):
        table = csv_table(read_text(Path(text)), text, ("time", "rate"))
        rows = [(where, row["time"], row["rate"]) for where, row in table]
    else:
        raise BadInput(f"{FLAG}: {text[:40]!r} is neither a file nor times with rates, such as {EXAMPLE}")
    if len(rows) > MOST_WINDOWS:
        raise BadInput(f"{FLAG}: {len(rows)} windows are more than the {MOST_WINDOWS} that are solved; join some")
    begins = [_clock(time, where) for where, time, _ in rows]
    for (where, time, _), (before, begin) in zip(rows[1:], pairwise(begins), strict=True):
        if begin <= before:
            raise BadInput(f"{where}: the time {time} must come after the one before it")
    rates = [_rate(rate, where) for where, _, rate in rows]
    if not max(rates):
        raise BadInput(f"{FLAG}: every rate is zero; give at least one above zero")
    ends = [*begins[1:], begins[0] + DAY_SECONDS]
    return tuple(
        Window(begin_seconds=begin, length_seconds=end - begin, rate_per_second=rate)
        for begin, end, rate in zip(begins, ends, rates, strict=True)
    )


def _clock(text: str, where: str) -> float:
    found = _CLOCK.fullmatch(text)
    if found is None or int(found[1]) > 23:
        raise BadInput(f"{where}: {text[:40]!r} is not a time of the day, such as 08:00")
    return int(found[1]) * HOUR_SECONDS + int(found[2]) * MINUTE_SECONDS


def _rate(text: str, where: str) -> float:
    try:
        return parse_rate(text if "/" in text else f"{text}/s", where, allow_zero=True)
    except BadInput:
        if not text:
            raise BadInput(f"{where}: a rate is missing; write for example 40/s") from None
        raise


def day_json(seen: Sequence[Seen], percentiles: Sequence[float]) -> dict[str, object]:
    """Return what every window sees; utilisations are 0 and latencies null where nothing arrives."""
    day = [each.window for each in seen]
    return windows_json(day, [_window_json(each, peak_rate(day), percentiles, roles_of(seen)) for each in seen])


def windows_json(day: Sequence[Window], rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the rates of a day, and a row for each of its windows with when it is."""
    return {
        "peak_requests_per_second": peak_rate(day),
        "mean_requests_per_second": mean_rate(day),
        "windows": [
            {
                "from": clock_text(window.begin_seconds),
                "to": clock_text(window.begin_seconds + window.length_seconds),
                "requests_per_second": window.rate_per_second,
                **row,
            }
            for window, row in zip(day, rows, strict=True)
        ],
    }


def roles_of(seen: Sequence[Seen]) -> list[Role]:
    """Return the roles of the plan that the windows see."""
    return next([role for role, _ in each.plan.pools()] for each in seen if each.plan)


def _window_json(seen: Seen, peak: float, percentiles: Sequence[float], roles: Sequence[Role]) -> dict[str, object]:
    plan, window = seen.plan, seen.window
    busy = {role: pool.utilisation for role, pool in plan.pools()} if plan else {}
    return {
        "share_of_peak": window.rate_per_second / peak,
        **{f"{role}_utilisation": busy.get(role, 0.0) for role in roles},
        "instances_needed": dict(seen.needed),
        "ttft_seconds": plan and latency_json(plan.ttft, percentiles),
        "tpot_seconds": plan and latency_json(plan.tpot, percentiles),
    }


def latency_json(latency: Latency, levels: Sequence[float]) -> dict[str, float]:
    """Return mean and percentiles of a latency in seconds."""
    return {"mean": latency.mean, **{f"p{level:g}": latency.at(level) for level in levels}}


def span_text(window: Window) -> str:
    """Return when a window begins and ends."""
    return f"{clock_text(window.begin_seconds)}–{clock_text(window.begin_seconds + window.length_seconds)}"


def clock_text(seconds: float) -> str:
    """Return a time of the day, such as ``08:00``; midnight at the end of a day is 00:00."""
    minutes = round(seconds % DAY_SECONDS / MINUTE_SECONDS)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"
