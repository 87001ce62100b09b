"""What arrives in `plan simulate`, which part of it is measured, and what is expected of it."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import get_args

import numpy as np

from ground.errors import BadInput, naming
from ground.sessions import with_blocks
from ground.trace_lengths import fitting, fitting_parts
from ground.traces import (
    Trace,
    TraceFormat,
    first_requests,
    read_trace,
    repeat,
    reused_tokens,
    scale_rate,
    stream_trace,
    window,
    with_arrivals,
)
from ground.units import MEBI, counted, format_duration, number_of, parse_count, parse_duration, parse_rate
from planner.manifest.caching import cache_of
from planner.manifest.schema import Manifest
from planner.plans.alone import expect_alone
from planner.plans.expectation import Expectation, expect, mixed_pool, planned_rate, workload_of
from planner.plans.recorded_manifest import expect_recorded
from planner.serving.sessions import session_trace
from planner.workload import Trace as Rows
from planner.workload import Traffic
from podplan.options import SimulateFlags
from podplan.prefixes import with_hits
from podplan.readers import read_choice
from runtime.simulate.options import SimulationOptions
from runtime.simulate.workload import (
    Modulation,
    Requests,
    closed_loop,
    from_trace,
    modulated,
    open_loop,
    open_stream,
    with_running,
)

MOST_SEED = 2**32
# Of an open stream, in residences: the warm-up of a running start, of an empty one, and where nothing is stationary,
# then the measured window and what arrives behind it.
WARM_RESIDENCES, COLD_RESIDENCES, UNSTABLE_RESIDENCES = 1.0, 5.0, 1.5
MEASURED_RESIDENCES, TAIL_RESIDENCES = 0.75, 1.2
FEWEST_MEASURED, MOST_MEASURED = 2_000, 50_000
MOST_SIMULATED = 10_000_000
MOST_AT_ONCE = 300_000
"""Requests of a stream that are drawn at once; longer ones come in parts, so that memory stays flat."""
LONG_TRACE_BYTES = 64 * MEBI
UNKNOWN_RESIDENCE_SECONDS = 60.0
REQUESTS_ALONE = 10
REQUESTS_PER_CONCURRENCY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """The requests of a run, made anew for each, what is expected, and in one sentence what of them is measured."""

    requests: Callable[[], Iterable[Requests]]
    options: SimulationOptions
    expectation: Expectation
    measured: str
    notes: tuple[str, ...] = ()


def read_offered(flags: SimulateFlags, manifest: Manifest, seed: int) -> Offered:
    """Return the traffic that the flags ask for; BadInput naming the flag or the field."""
    warmup = None if flags.warmup is None else parse_duration(flags.warmup, "--warmup", allow_zero=True)
    count = None if flags.requests is None else parse_count(flags.requests, "--requests")
    if count is not None and count > MOST_SIMULATED:
        raise BadInput(f"--requests: {count} are more than the {MOST_SIMULATED} that are simulated; use fewer")
    if flags.trace is not None:
        return _traced(flags, manifest, count, warmup or 0.0, seed)
    if flags.concurrency is not None:
        return _closed(manifest, parse_count(flags.concurrency, "--concurrency"), count, warmup or 0.0, seed)
    rate = planned_rate(manifest) if flags.rate is None else parse_rate(flags.rate, "--rate")
    if flags.bursts is not None:
        return _bursty(flags.bursts, manifest, rate, count, warmup or 0.0, seed)
    if manifest.workload.sessions is not None:
        return _sessions(manifest, rate, count, warmup, seed)
    return _open(flags, manifest, rate, count, warmup, seed)


def _sessions(manifest: Manifest, rate: float, count: int | None, warmup: float | None, seed: int) -> Offered:
    """Let sessions begin at random, and measure requests once the first of them have come to their last turns."""
    workload = workload_of(manifest.workload)
    shape = workload.sessions
    assert shape is not None, "asked for the sessions of a manifest that has none"
    expectation = expect(manifest, workload, rate)
    residence = _residence_seconds(manifest, expectation)
    ramp = 1.5 * shape.turns * (residence + shape.think_seconds) if warmup is None else warmup
    measured = count or min(max(FEWEST_MEASURED, math.ceil(MEASURED_RESIDENCES * residence * rate)), MOST_MEASURED)
    end = ramp + measured / rate
    total = math.ceil(1.2 * (end + residence) * rate)
    if total > MOST_AT_ONCE:
        raise BadInput(
            f"--warmup: until sessions are measured {total} requests come, more than the {MOST_AT_ONCE} that are drawn "
            "at once; give a shorter one, fewer --requests or a lower --rate"
        )
    trace = _fitting(session_trace(workload, shape, rate, total, seed, residence), manifest)
    requests = from_trace(trace, manifest.workload, seed)
    return Offered(
        requests=lambda: [requests],
        options=SimulationOptions(seed=seed, warmup_seconds=ramp, measured_until_seconds=end),
        expectation=expectation,
        measured=(
            f"requests that arrive from {format_duration(ramp)} to {format_duration(end)} of {len(requests)}, in "
            f"sessions of {shape.turns} turns that begin in an empty system"
        ),
    )


def _traced(flags: SimulateFlags, manifest: Manifest, count: int | None, warmup: float, seed: int) -> Offered:
    """Replay a trace from an empty system until all of it is served."""
    path = Path(flags.trace or "")
    names = get_args(TraceFormat)
    format = None if flags.format is None else read_choice(flags.format, "--trace-format", names)
    skip = 0 if flags.skip_bad_rows is None else parse_count(flags.skip_bad_rows, "--skip-bad-rows", allow_zero=True)
    if _is_long(path):
        return _streamed(flags, manifest, format, skip, warmup, seed)
    with naming("--trace"):
        trace = read_trace(path, format, dequantize_seed=seed, skip_bad_rows=skip, seed=seed)
    trace = with_blocks(_fitting(trace, manifest))
    if not trace.timed:
        if flags.rate is None:
            raise BadInput(f"--rate: {trace.name} has lengths only; say how many requests arrive, such as 10/s")
        trace = with_arrivals(trace, parse_rate(flags.rate, "--rate"), manifest.workload.arrival_cv2, seed)
    elif flags.rate is not None:
        raise BadInput("--trace and --rate both say when requests arrive; use --scale-rate to play it faster")
    if flags.window is not None:
        trace = window(trace, *read_window(flags.window))
    trace = trace if count is None else first_requests(trace, count)
    if flags.repeat is not None:
        times = parse_count(flags.repeat, "--repeat")
        if times * len(trace) > MOST_SIMULATED:
            raise BadInput(f"--repeat: {times * len(trace)} requests are more than {MOST_SIMULATED}; use fewer")
        trace = repeat(trace, times)
    trace = with_hits(scale_rate(trace, read_factor(flags.scale_rate)), cache_of(manifest, trace.block_tokens))
    requests = from_trace(trace, manifest.workload, seed)
    return Offered(
        requests=lambda: [requests],
        options=SimulationOptions(seed=seed, warmup_seconds=warmup),
        expectation=_expect_trace(manifest, requests, trace, warmup),
        measured=_from_warmup(len(requests), warmup, "of the trace"),
        notes=_notes(trace),
    )


def _fitting(trace: Trace, manifest: Manifest) -> Trace:
    """Return the requests that the manifest's model has positions for."""
    model = manifest.model.spec
    return fitting(trace, model.max_position, model.name)


def _notes(trace: Trace) -> tuple[str, ...]:
    notes = list(trace.notes)
    if trace.spread_seconds:
        notes.append(f"stamps on a grid of {format_duration(trace.spread_seconds)} are spread over it")
    if trace.skipped:
        notes.append(f"{len(trace.skipped)} bad rows are left out, the first: {trace.skipped[0]}")
    return tuple(notes)


def _is_long(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size > LONG_TRACE_BYTES
    except (OSError, ValueError):
        return False


def _streamed(
    flags: SimulateFlags, manifest: Manifest, format: TraceFormat | None, skip: int, warmup: float, seed: int
) -> Offered:
    """Replay a long trace part by part."""
    for flag in ("window", "repeat", "requests", "rate"):
        if getattr(flags, flag) is not None:
            raise BadInput(f"--{flag}: {flags.trace} is too long for it (it is read in parts); cut the file first")
    factor, model = read_factor(flags.scale_rate), manifest.model.spec

    def traces() -> Iterator[Trace]:
        whole = stream_trace(Path(flags.trace or ""), format, skip_bad_rows=skip)
        return (scale_rate(part, factor) for part in fitting_parts(whole, model.max_position))

    def parts() -> Iterator[Requests]:
        for number, part in enumerate(traces()):
            yield from_trace(part, manifest.workload, seed + number)

    start = next(traces(), None)
    if start is None:
        raise BadInput(f"--trace: no request of {flags.trace} fits the {model.max_position} positions of {model.name}")
    first = from_trace(start, manifest.workload, seed)
    return Offered(
        requests=parts,
        options=SimulationOptions(seed=seed, warmup_seconds=warmup),
        expectation=_expect_rows(manifest, _rows(first, start)),
        measured="all requests of the trace, read in parts, from an empty system until it is empty again",
        notes=(
            "the prediction rests on the moments of the trace's first part",
            f"requests longer than the {model.max_position} positions of {model.name} are left out",
        ),
    )


def _expect_trace(manifest: Manifest, requests: Requests, trace: Trace, warmup: float) -> Expectation:
    """Return what is expected of a trace's own requests, or of a stream with its moments.

    Moments only where there is no other way: turns of a session arrive when those before them are answered, which is
    not known before, and a recursion over a very long trace takes long.
    """
    rows = _rows(requests, trace)
    follows = requests.delay_seconds is not None and bool(np.isfinite(requests.delay_seconds).any())
    if follows or len(requests) > MOST_AT_ONCE:
        return _expect_rows(manifest, rows)
    return _expect_recorded(manifest, rows, warmup)


def _expect_recorded(manifest: Manifest, rows: Rows, warmup: float) -> Expectation:
    """Return what is expected of the requests themselves, or where they cannot be played of their moments."""
    try:
        found = expect_recorded(manifest, rows, warmup)
    except BadInput:
        return NO_RATE
    return _expect_rows(manifest, rows) if found.prediction is None and mixed_pool(manifest) is not None else found


def _rows(requests: Requests, trace: Trace | None = None) -> Rows:
    """Return the requests with what each reuses: of an unlimited cache where a trace has blocks."""
    blocks = trace is not None and trace.hash_ids is not None
    return Rows(
        arrival_seconds=requests.arrival_seconds,
        input_tokens=requests.input_tokens,
        output_tokens=requests.output_tokens,
        reused_tokens=reused_tokens(trace) if trace is not None and blocks else requests.reused_tokens,
    )


NO_RATE = Expectation(prediction=None, basis="a trace needs arrivals at two instants for a rate")


def _expect_rows(manifest: Manifest, rows: Rows) -> Expectation:
    """Return what is expected of a stream with a trace's moments, as if it were stationary."""
    try:
        traffic = Traffic.from_trace(rows)
    except BadInput:
        return NO_RATE
    found = expect(manifest, traffic.workload, traffic.rate_per_second)
    return replace(found, basis=f"{found.basis}, from the trace's moments as if it were stationary")


def _closed(manifest: Manifest, concurrency: int, count: int | None, warmup: float, seed: int) -> Offered:
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
    return Offered(
        requests=lambda: [closed_loop(manifest.workload, concurrency, count, seed).within(_context(manifest))],
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
) -> Offered:
    """Let requests arrive at random, and measure ``count`` of them while as many come before and after."""
    expectation = expect(manifest, workload_of(manifest.workload), rate)
    residence = _residence_seconds(manifest, expectation)
    measured = count or min(max(FEWEST_MEASURED, math.ceil(MEASURED_RESIDENCES * residence * rate)), MOST_MEASURED)
    if warmup == 0:
        drawn = _drawn(manifest, rate, measured, seed)
        return Offered(
            requests=drawn,
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
    decodes = manifest.workload.output_tokens > 1 or manifest.workload.output_cv2 > 0
    running = round(rate * residence) if warm and decodes else 0
    _check_total(total + running)
    decoded = counted(running, "request")
    begun = f"a system with {decoded} in decode, as many as are expected" if running else "an empty system"
    if total > MOST_AT_ONCE:
        end = warmup + measured / rate
        made = _in_parts(manifest, rate, total, running, seed)
        share = f"about {measured} of {total}"
    else:
        requests = open_loop(manifest.workload, rate, total, seed).within(_context(manifest))
        first = int(np.searchsorted(requests.arrival_seconds, warmup))
        end = float(requests.arrival_seconds[min(first + measured, total) - 1])
        whole = with_running(_until(requests, end + tail), running, seed)
        made = lambda: [whole]  # noqa: E731
        share = f"{measured} of {len(whole) - whole.under_way}"
    return Offered(
        requests=made,
        options=SimulationOptions(seed=seed, warmup_seconds=warmup, measured_until_seconds=end),
        expectation=expectation,
        measured=(
            f"{share} requests, those that arrive from {format_duration(warmup)} to "
            f"{format_duration(end)}; the run starts from {begun}, and the rest only load it"
        ),
    )


def _check_total(count: int) -> None:
    """Raise BadInput where more requests come until all are measured than are simulated."""
    if count > MOST_SIMULATED:
        raise BadInput(
            f"--warmup: until the stream is measured {count:.3g} requests come, more than the {MOST_SIMULATED} that "
            "are simulated; give a shorter one (0s cuts nothing), fewer --requests or a lower --rate"
        )


def _drawn(manifest: Manifest, rate: float, count: int, seed: int) -> Callable[[], Iterable[Requests]]:
    """Return an open loop, in parts where it is long."""
    if count > MOST_AT_ONCE:
        return lambda: _stream(manifest, rate, count, seed)
    requests = open_loop(manifest.workload, rate, count, seed).within(_context(manifest))
    return lambda: [requests]


def _stream(manifest: Manifest, rate: float, count: int, seed: int) -> Iterator[Requests]:
    return (part.within(_context(manifest)) for part in open_stream(manifest.workload, rate, count, seed))


def _context(manifest: Manifest) -> int:
    """Return the positions of a manifest's model."""
    return manifest.model.spec.max_position


def _in_parts(manifest: Manifest, rate: float, count: int, running: int, seed: int) -> Callable[[], Iterable[Requests]]:
    """Return an open loop in parts whose first one holds the requests that run already."""

    def parts() -> Iterator[Requests]:
        drawn = _stream(manifest, rate, count, seed)
        first = next(drawn)
        yield from chain([with_running(first, running, seed)], drawn)

    return parts


def _bursty(text: str, manifest: Manifest, rate: float, count: int | None, warmup: float, seed: int) -> Offered:
    """Let requests arrive in calm and in bursts, from an empty system until all are served."""
    drawn = modulated(manifest.workload, rate, count or MOST_MEASURED // 10, read_bursts(text), seed)
    requests = drawn.within(_context(manifest))
    return Offered(
        requests=lambda: [requests],
        options=SimulationOptions(seed=seed, warmup_seconds=warmup),
        expectation=_expect_recorded(manifest, _rows(requests), warmup),
        measured=_from_warmup(len(requests), warmup, "of the stream"),
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


def read_seed(text: str | None) -> int:
    """Return the seed, 0 by default."""
    seed = 0 if text is None else parse_count(text, "--seed", allow_zero=True)
    if seed >= MOST_SEED:
        raise BadInput(f"--seed: {seed} must be below {MOST_SEED}")
    return seed


def read_factor(text: str | None) -> float:
    """Return how many times as fast a trace is played."""
    value = 1.0 if text is None else number_of(text.strip().lower().removesuffix("x"))
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
                burst=number_of(parts[0].lower().removesuffix("x")),
                share=number_of(parts[1]),
                mean_burst_seconds=parse_duration(parts[2], "--bursts"),
            )
    except ValueError:
        pass
    raise BadInput(f"--bursts: {text[:40]!r} must be FACTOR,SHARE,LENGTH, such as 5x,0.1,30s")
