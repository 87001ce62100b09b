"""From the flags of `plan simulate` to the requests that arrive, the window that is measured and what is expected."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np

from cli.flags import read_choice
from planner.expectation import Expectation, expect, expect_alone, planned_rate, workload_of
from planner.manifest.document import read_manifest
from planner.manifest.schema import Manifest
from planner.workload import Trace as Rows
from planner.workload import Traffic
from podplan.errors import BadInput
from podplan.traces import TraceFormat, first_requests, read_trace, scale_rate
from podplan.units import format_duration, parse_count, parse_duration, parse_rate
from runtime.simulate.run import SimulationOptions
from runtime.simulate.workload import Requests, closed_loop, from_trace, open_loop, with_running

# Of an open stream, in residences: the warm-up of a running start, of an empty one, and where nothing is stationary,
# then the measured window and what arrives behind it.
WARM_RESIDENCES, COLD_RESIDENCES, UNSTABLE_RESIDENCES = 1.0, 5.0, 1.5
MEASURED_RESIDENCES, TAIL_RESIDENCES = 0.75, 1.2
FEWEST_MEASURED, MOST_MEASURED = 2_000, 50_000
MOST_SIMULATED = 2_000_000
UNKNOWN_RESIDENCE_SECONDS = 60.0
REQUESTS_ALONE = 10
REQUESTS_PER_CONCURRENCY = 10
MOST_SEED = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateFlags:
    """The flags as they were typed; None where one was not given."""

    manifest: Path
    trace: str | None = None
    format: str | None = None
    scale_rate: str | None = None
    rate: str | None = None
    concurrency: str | None = None
    requests: str | None = None
    warmup: str | None = None
    cold: bool = False
    seed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A run, what is expected of it, and in one sentence what of it is measured."""

    manifest: Manifest
    requests: Requests
    options: SimulationOptions
    expectation: Expectation
    measured: str


def read_simulation(flags: SimulateFlags) -> Asked:
    """Return the run that the flags ask for; BadInput naming the flag or the field."""
    given = [flag for flag in ("trace", "rate", "concurrency") if getattr(flags, flag) is not None]
    if len(given) > 1:
        raise BadInput(f"--{given[0]} and --{given[1]} both say when requests arrive; leave one of them out")
    for flag in ("format", "scale_rate"):
        if getattr(flags, flag) is not None and flags.trace is None:
            name = "trace-format" if flag == "format" else flag.replace("_", "-")
            raise BadInput(f"--{name} belongs to a trace; give --trace FILE with it or leave it out")
    if flags.cold and given and given[0] != "rate":
        raise BadInput(f"--cold: a run with --{given[0]} always starts empty; leave the flag out")
    seed = 0 if flags.seed is None else parse_count(flags.seed, "--seed", allow_zero=True)
    if seed >= MOST_SEED:
        raise BadInput(f"--seed: {seed} must be below {MOST_SEED}")
    warmup = None if flags.warmup is None else parse_duration(flags.warmup, "--warmup", allow_zero=True)
    count = None if flags.requests is None else parse_count(flags.requests, "--requests")
    if count is not None and count > MOST_SIMULATED:
        raise BadInput(f"--requests: {count} are more than the {MOST_SIMULATED} that are simulated; use fewer")
    manifest = read_manifest(flags.manifest)
    if flags.trace is not None:
        return _traced(flags, manifest, count, warmup or 0.0, seed)
    if flags.concurrency is not None:
        return _closed(manifest, parse_count(flags.concurrency, "--concurrency"), count, warmup or 0.0, seed)
    rate = planned_rate(manifest) if flags.rate is None else parse_rate(flags.rate, "--rate")
    return _open(flags, manifest, rate, count, warmup, seed)


def _traced(flags: SimulateFlags, manifest: Manifest, count: int | None, warmup: float, seed: int) -> Asked:
    """Replay a trace from an empty system until all of it is served."""
    format = None if flags.format is None else read_choice(flags.format, "--trace-format", get_args(TraceFormat))
    trace = read_trace(Path(flags.trace or ""), format, dequantize_seed=seed)
    trace = trace if count is None else first_requests(trace, count)
    trace = scale_rate(trace, _factor(flags.scale_rate))
    requests = from_trace(trace, manifest.workload, seed)
    return Asked(
        manifest=manifest,
        requests=requests,
        options=SimulationOptions(seed=seed, warmup_seconds=warmup),
        expectation=_expect_rows(manifest, requests),
        measured=_from_warmup(len(requests), warmup, "of the trace"),
    )


def _factor(text: str | None) -> float:
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


def _expect_rows(manifest: Manifest, requests: Requests) -> Expectation:
    """Return what is expected of a stream with a trace's moments, as if it were stationary."""
    rows = Rows(
        arrival_seconds=requests.arrival_seconds,
        input_tokens=requests.input_tokens,
        output_tokens=requests.output_tokens,
        reused_tokens=requests.reused_tokens,
    )
    try:
        traffic = Traffic.from_trace(rows)
    except BadInput:
        return Expectation(prediction=None, basis="a trace needs arrivals at two instants for a rate")
    found = expect(manifest, traffic.workload, traffic.rate_per_second)
    return replace(found, basis=f"{found.basis}, from the trace's moments as if it were stationary")


def _closed(manifest: Manifest, concurrency: int, count: int | None, warmup: float, seed: int) -> Asked:
    """Keep so many requests under way from an empty system on."""
    if concurrency > MOST_SIMULATED:
        raise BadInput(f"--concurrency: {concurrency} are more requests than are simulated; use fewer")
    if count is None:
        count = REQUESTS_ALONE if concurrency == 1 else max(FEWEST_MEASURED, REQUESTS_PER_CONCURRENCY * concurrency)
    if concurrency == 1:
        expectation = expect_alone(manifest, workload_of(manifest.workload))
    else:
        expectation = Expectation(
            prediction=None, basis="a closed loop of several requests over two pools has no closed form here"
        )
    return Asked(
        manifest=manifest,
        requests=closed_loop(manifest.workload, concurrency, count, seed),
        options=SimulationOptions(seed=seed, warmup_seconds=warmup),
        expectation=expectation,
        measured=_from_warmup(count, warmup, f"with {concurrency} under way"),
    )


def _from_warmup(count: int, warmup: float, what: str) -> str:
    if warmup:
        return f"{count} requests {what} from an empty system; measured after {format_duration(warmup)}"
    return f"all {count} requests {what}, from an empty system until it is empty again"


def _open(
    flags: SimulateFlags, manifest: Manifest, rate: float, count: int | None, warmup: float | None, seed: int
) -> Asked:
    """Let requests arrive at random, and measure ``count`` of them while as many come before and after."""
    expectation = expect(manifest, workload_of(manifest.workload), rate)
    residence = _residence_seconds(manifest, expectation)
    measured = count or min(max(FEWEST_MEASURED, math.ceil(MEASURED_RESIDENCES * residence * rate)), MOST_MEASURED)
    if warmup == 0:
        return Asked(
            manifest=manifest,
            requests=open_loop(manifest.workload, rate, measured, seed),
            options=SimulationOptions(seed=seed),
            expectation=expectation,
            measured=_from_warmup(measured, 0.0, "of the stream"),
        )
    warm = expectation.prediction is not None and not flags.cold
    if warmup is None:
        empty = UNSTABLE_RESIDENCES if expectation.prediction is None else COLD_RESIDENCES
        warmup = residence * (WARM_RESIDENCES if warm else empty)
    tail = TAIL_RESIDENCES * residence
    most = measured + (warmup + tail) * rate
    total = math.ceil(most + 6 * math.sqrt(most * max(manifest.workload.arrival_cv2, 1.0))) + 1
    running = round(rate * residence) if warm else 0
    if total + running > MOST_SIMULATED:
        raise BadInput(
            f"--warmup: {total + running:.10g} requests at this rate are more than the {MOST_SIMULATED} "
            "that are simulated; use a shorter one, or --warmup 0 to cut nothing"
        )
    requests = open_loop(manifest.workload, rate, total, seed)
    first = int(np.searchsorted(requests.arrival_seconds, warmup))
    end = float(requests.arrival_seconds[min(first + measured, total) - 1])
    requests = _until(requests, end + tail)
    begun = f"a system with {running} requests in decode, as many as are expected" if running else "an empty system"
    return Asked(
        manifest=manifest,
        requests=with_running(requests, running, seed),
        options=SimulationOptions(seed=seed, warmup_seconds=warmup, measured_until_seconds=end),
        expectation=expectation,
        measured=(
            f"{measured} of {len(requests)} requests, those that arrive from {format_duration(warmup)} to "
            f"{format_duration(end)}; the run starts from {begun}, and the rest only load it"
        ),
    )


def _until(requests: Requests, seconds: float) -> Requests:
    """Return the requests that arrive up to ``seconds``."""
    kept = requests.arrival_seconds <= seconds
    return Requests(
        arrival_seconds=requests.arrival_seconds[kept],
        input_tokens=requests.input_tokens[kept],
        output_tokens=requests.output_tokens[kept],
        reused_tokens=requests.reused_tokens[kept],
    )


def _residence_seconds(manifest: Manifest, expectation: Expectation) -> float:
    """Return how long a request stays: as expected, else as long as the service levels allow."""
    if expectation.prediction is not None and expectation.prediction.e2e_seconds is not None:
        return expectation.prediction.e2e_seconds.mean
    limits = manifest.service_levels
    if limits.tpot_seconds is None:
        return UNKNOWN_RESIDENCE_SECONDS
    return (limits.ttft_seconds or 0.0) + limits.tpot_seconds * manifest.workload.output_tokens
