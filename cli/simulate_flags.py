"""The flags of `plan simulate` as they were typed, and those of one value each read."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cli.flags import flag_name
from cli.options import File, Text, argument, option, switch
from cli.output import check_force
from ground.errors import BadInput
from ground.units import parse_count, parse_duration
from runtime.simulate.workload import Modulation

MOST_SEED = 2**32
OF_A_TRACE = ("format", "scale_rate", "window", "repeat", "skip_bad_rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateFlags:
    """None where a flag was not given."""

    manifest: Annotated[Path, argument("MANIFEST", "The manifest, such as out/manifest.yaml.")]
    trace: Annotated[Text, option("--trace", "FILE", "Replay a trace of any serving tool, or a ServeGen set.")] = None
    format: Annotated[Text, option("--trace-format", "NAME", "Format of the trace [as it looks].", "--format")] = None
    skip_bad_rows: Annotated[Text, option("--skip-bad-rows", "N", "Leave out so many wrong rows at most [0].")] = None
    scale_rate: Annotated[Text, option("--scale-rate", "X", "Play the trace X times as fast [1].")] = None
    window: Annotated[Text, option("--window", "A..B", "Only what arrives from A to B, such as 5min..10min.")] = None
    repeat: Annotated[Text, option("--repeat", "N", "Play the trace N times, one after the other [1].")] = None
    rate: Annotated[Text, option("--rate", "RATE", "Requests that arrive, such as 100/s [as planned].")] = None
    bursts: Annotated[Text, option("--bursts", "X,P,T", "Bursts of X times the calm rate, a share P of the time.")] = (
        None
    )
    concurrency: Annotated[Text, option("--concurrency", "C", "Requests always under way, instead of a rate.")] = None
    requests: Annotated[Text, option("--requests", "N", "Requests that are measured [enough].")] = None
    warmup: Annotated[Text, option("--warmup", "DURATION", "Measure from then on; 0s cuts nothing [as told].")] = None
    cold: Annotated[bool, switch("--cold", "Start a stream empty, not with requests in decode.")] = False
    policies: Annotated[Text, option("--policies", "A,B,C", "Compare policies on the same requests.")] = None
    offline: Annotated[Text, option("--offline", "N", "So many offline requests stand behind the online ones.")] = None
    fail: Annotated[list[str] | None, option("--fail", "FAULT", "Such as 'node 3 at 10s for 1min'; repeatable.")] = None
    expert_loads: Annotated[
        Text, option("--expert-loads", "FILE", "CSV, layers x experts, or lognormal:0.5, zipf:1.")
    ] = None
    each_iteration: Annotated[bool, switch("--each-iteration", "Step every iteration: slow, the same.")] = False
    requests_csv: Annotated[File, option("--requests-csv", "FILE", "Write a row per request.")] = None
    timeseries: Annotated[File, option("--timeseries", "FILE", "Write the system's state over time as CSV.")] = None
    timeseries_step: Annotated[Text, option("--timeseries-step", "DURATION", "Time between its rows [1s].")] = None
    timeline: Annotated[File, option("--timeline", "FILE", "Write every step for Perfetto (Chrome trace).")] = None
    force: Annotated[bool, switch("--force", "Replace files that are there.")] = False
    seed: Annotated[Text, option("--seed", "N", "Seed of arrivals, lengths and accepted drafts [0].")] = None


def check_together(flags: SimulateFlags) -> None:
    """Raise BadInput where flags contradict each other."""
    given = [flag for flag in ("trace", "rate", "concurrency") if getattr(flags, flag) is not None]
    if "concurrency" in given and len(given) > 1:
        raise BadInput(f"--{given[0]} and --{given[1]} both say when requests arrive; leave one of them out")
    for flag in OF_A_TRACE:
        if getattr(flags, flag) is not None and flags.trace is None:
            name = "--trace-format" if flag == "format" else flag_name(flag)
            raise BadInput(f"{name} belongs to a trace; give --trace FILE with it or leave it out")
    if flags.bursts is not None and (flags.trace is not None or flags.concurrency is not None):
        raise BadInput("--bursts: is for arrivals at a --rate; leave the flag out")
    if flags.cold and given and given != ["rate"]:
        raise BadInput(f"--cold: a run with --{given[0]} always starts empty; leave the flag out")
    if flags.timeseries_step is not None and flags.timeseries is None:
        raise BadInput("--timeseries-step: belongs to --timeseries FILE; give it or leave the step out")
    if flags.policies is not None and (flags.requests_csv or flags.timeseries or flags.timeline):
        raise BadInput("--policies: compares several runs; files are written for one run, so leave them out")
    files = {"--requests-csv": flags.requests_csv, "--timeseries": flags.timeseries, "--timeline": flags.timeline}
    check_force(flags.force, files)


def read_seed(text: str | None) -> int:
    """Return the seed, 0 by default."""
    seed = 0 if text is None else parse_count(text, "--seed", allow_zero=True)
    if seed >= MOST_SEED:
        raise BadInput(f"--seed: {seed} must be below {MOST_SEED}")
    return seed


def read_factor(text: str | None) -> float:
    """Return how many times as fast a trace is played."""
    try:
        value = 1.0 if text is None else float(text.strip().lower().removesuffix("x"))
    except ValueError:
        value = math.nan
    if not 1e-6 <= value <= 1e6:
        raise BadInput(
            f"--scale-rate: {(text or '')[:40]!r} is not a factor such as 2, which plays the trace twice as fast"
        )
    return value


def read_window(text: str) -> tuple[float, float]:
    """Return start and end of a part of a trace, such as ``60s..10min``; an open end is the trace's."""
    first, dots, last = text.partition("..")
    if not dots:
        raise BadInput(f"--window: {text[:40]!r} must be START..END, such as 60s..10min")
    start = parse_duration(first, "--window", allow_zero=True) if first.strip() else 0.0
    end = parse_duration(last, "--window") if last.strip() else math.inf
    if start >= end:
        raise BadInput(f"--window: {text[:40]!r} ends before it begins")
    return start, end


def read_bursts(text: str) -> Modulation:
    """Return bursts such as ``5x,0.1,30s``: factor on the calm rate, share of the time, mean length."""
    parts = [part.strip() for part in text.split(",")]
    try:
        if len(parts) == 3:
            return Modulation(
                burst=float(parts[0].lower().removesuffix("x")),
                share=float(parts[1]),
                mean_burst_seconds=parse_duration(parts[2], "--bursts"),
            )
    except ValueError:
        pass
    raise BadInput(f"--bursts: {text[:40]!r} must be FACTOR,SHARE,LENGTH, such as 5x,0.1,30s")
