"""What arrives in `plan simulate`, which part of it is measured, and what is expected of it."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from os.path import getsize, isfile  # unlike pathlib's, no error for a name that no file can have
from pathlib import Path
from typing import get_args

import numpy as np

from ground.errors import BadInput, naming
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
    with_blocks,
)
from ground.units import MEBI, counted, format_duration, number_of, parse_count, parse_duration, parse_rate
from models.spec import ModelSpec
from planner.manifest.schema import Manifest
from planner.plans.expectation import Expectation, expect, mixed_pool, planned_rate
from planner.plans.recorded import expect_alone, expect_recorded
from planner.serving.deployed import workload_of
from planner.serving.sessions import session_trace
from planner.workload import TraceRows, Traffic
from podplan.options import SimulateFlags
from podplan.readers import read_choice
from podplan.traffic import with_hits
from runtime.simulate.engine import NEVER
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
LONG_MEASURED = 200_000
"""Of aggregated instances in the compiled loops, where they take a second or two. Close to saturation a fuller batch
serves hardly more, so it fills and empties over tens of residences, and its longest waits are met as seldom."""
_SLOWER = (
    *("policies", "offline", "fail", "migration", "autoscale", "expert_loads", "rebalance"),
    *("each_iteration", "requests_csv", "timeseries", "timeline"),
)
MOST_SIMULATED = 10_000_000
MOST_AT_ONCE = 300_000  # requests of a stream that are drawn at once; longer ones come in parts, so memory stays flat
LONG_TRACE_BYTES = 64 * MEBI
UNKNOWN_RESIDENCE_SECONDS = 60.0
REQUESTS_ALONE = 10
REQUESTS_PER_CONCURRENCY = 10
NO_FORM = Expectation(prediction=None, basis="a closed loop of several requests over two pools has no closed form here")
NO_RATE = Expectation(prediction=None, basis="a trace needs arrivals at two instants for a rate")


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
    warmup, count = flags.seconds("warmup", None, zero=True), flags.count("requests", None)
    check_most("--requests", count or 0)
    asked = _Asked(flags=flags, manifest=manifest, count=count, warmup=warmup, seed=seed)
    if flags.trace is not None:
        size = getsize(flags.trace) if isfile(flags.trace) else 0
        return asked.streamed() if size > LONG_TRACE_BYTES else asked.traced()
    if flags.concurrency is not None:
        return asked.closed(flags.count("concurrency", 0))
    rate = flags.per_second("rate", None) or planned_rate(manifest)
    if flags.bursts is not None:
        return asked.bursty(flags.bursts, rate)
    return asked.open(rate) if manifest.workload.sessions is None else asked.in_sessions(rate)


def check_most(flag: str, count: int) -> None:
    """Raise BadInput where more requests are asked for than are simulated."""
    if count > MOST_SIMULATED:
        raise BadInput(f"{flag}: {count} are more than the {MOST_SIMULATED} that are simulated; use fewer")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What the flags ask of a manifest; each method is a kind of traffic."""

    flags: SimulateFlags
    manifest: Manifest
    count: int | None
    warmup: float | None
    seed: int

    @property
    def path(self) -> Path:
        return Path(self.flags.trace or "")

    def options(self, warmup: float | None = None, until: float = NEVER) -> SimulationOptions:
        """Return options that measure from a warm-up on, the asked one where none is given."""
        begin = (self.warmup or 0.0) if warmup is None else warmup
        return SimulationOptions(seed=self.seed, warmup_seconds=begin, measured_until_seconds=until)

    def in_sessions(self, rate: float) -> Offered:
        """Let sessions begin at random, and measure requests once the first of them have come to their last turns."""
        workload = workload_of(self.manifest.workload)
        shape = workload.sessions
        assert shape is not None, "asked for the sessions of a manifest that has none"
        expectation = expect(self.manifest, workload, rate)
        residence = _residence_seconds(self.manifest, expectation)
        ramp = 1.5 * shape.turns * (residence + shape.think_seconds) if self.warmup is None else self.warmup
        end = ramp + self._measured(residence * rate) / rate
        total = math.ceil(1.2 * (end + residence) * rate)
        if total > MOST_AT_ONCE:
            raise BadInput(
                f"--warmup: until sessions are measured {total} requests come, more than the {MOST_AT_ONCE} that are "
                "drawn at once; give a shorter one, fewer --requests or a lower --rate"
            )
        trace = _fitting(session_trace(workload, shape, rate, total, self.seed, residence), self.manifest)
        requests = from_trace(trace, self.manifest.workload, self.seed)
        return Offered(
            requests=lambda: [requests],
            options=self.options(ramp, end),
            expectation=expectation,
            measured=(
                f"requests that arrive from {format_duration(ramp)} to {format_duration(end)} of {len(requests)}, in "
                f"sessions of {shape.turns} turns that begin in an empty system"
            ),
        )

    def _measured(self, running: float) -> int:
        """Return how many requests are measured: as asked, else those of most of a residence."""
        return self.count or min(max(FEWEST_MEASURED, math.ceil(MEASURED_RESIDENCES * running)), MOST_MEASURED)

    def _format(self) -> tuple[TraceFormat | None, int]:
        """Return the format of the trace where one is given, and how many of its rows may be wrong."""
        format, names = self.flags.format, get_args(TraceFormat)
        skip = self.flags.count("skip_bad_rows", 0, zero=True)
        return None if format is None else read_choice(format, "--trace-format", names), skip

    def traced(self) -> Offered:
        """Replay a trace from an empty system until all of it is served."""
        flags, manifest, seed, (format, skip) = self.flags, self.manifest, self.seed, self._format()
        with naming("--trace"):
            trace = read_trace(self.path, format, dequantize_seed=seed, skip_bad_rows=skip, seed=seed)
        trace = with_blocks(_fitting(trace, manifest))
        if not trace.timed:
            if flags.rate is None:
                raise BadInput(f"--rate: {trace.name} has lengths only; say how many requests arrive, such as 10/s")
            trace = with_arrivals(trace, parse_rate(flags.rate, "--rate"), manifest.workload.arrival_cv2, seed)
        elif flags.rate is not None:
            raise BadInput("--trace and --rate both say when requests arrive; use --scale-rate to play it faster")
        if flags.window is not None:
            trace = window(trace, *read_window(flags.window))
        trace = trace if self.count is None else first_requests(trace, self.count)
        if flags.repeat is not None:
            times = parse_count(flags.repeat, "--repeat")
            if times * len(trace) > MOST_SIMULATED:
                raise BadInput(f"--repeat: {times * len(trace)} requests are more than {MOST_SIMULATED}; use fewer")
            trace = repeat(trace, times)
        trace = with_hits(scale_rate(trace, read_factor(flags.scale_rate)), manifest.cache(trace.block_tokens))
        requests = from_trace(trace, manifest.workload, seed)
        notes = list(trace.notes)
        if trace.spread_seconds:
            notes.append(f"stamps on a grid of {format_duration(trace.spread_seconds)} are spread over it")
        if trace.skipped:
            notes.append(f"{len(trace.skipped)} bad rows are left out, the first: {trace.skipped[0]}")
        return Offered(
            requests=lambda: [requests],
            options=self.options(),
            expectation=self._expect_trace(requests, trace),
            measured=self._from_warmup(len(requests), "of the trace"),
            notes=tuple(notes),
        )

    def streamed(self) -> Offered:
        """Replay a long trace part by part."""
        flags, workload, (format, skip) = self.flags, self.manifest.workload, self._format()
        for flag in ("window", "repeat", "requests", "rate"):
            if getattr(flags, flag) is not None:
                raise BadInput(f"--{flag}: {flags.trace} is too long for it (it is read in parts); cut the file first")
        factor, model = read_factor(flags.scale_rate), _model(self.manifest)

        def traces() -> Iterator[Trace]:
            whole = stream_trace(self.path, format, skip_bad_rows=skip)
            return (scale_rate(part, factor) for part in fitting_parts(whole, model.max_position))

        start = next(traces(), None)
        if start is None:
            lost = f"the {model.max_position} positions of {model.name}"
            raise BadInput(f"--trace: no request of {flags.trace} fits {lost}")
        first = from_trace(start, workload, self.seed)
        return Offered(
            requests=lambda: (from_trace(part, workload, self.seed + at) for at, part in enumerate(traces())),
            options=self.options(),
            expectation=self._expect_rows(_rows(first, start)),
            measured="all requests of the trace, read in parts, from an empty system until it is empty again",
            notes=(
                "the prediction rests on the moments of the trace's first part",
                f"requests longer than the {model.max_position} positions of {model.name} are left out",
            ),
        )

    def _expect_trace(self, requests: Requests, trace: Trace) -> Expectation:
        """Return what is expected of a trace's own requests, or of a stream with its moments.

        Moments only where there is no other way: turns of a session arrive when those before them are answered, which
        is not known before, and a recursion over a very long trace takes long.
        """
        rows = _rows(requests, trace)
        follows = requests.delay_seconds is not None and bool(np.isfinite(requests.delay_seconds).any())
        return self._expect_rows(rows) if follows or len(requests) > MOST_AT_ONCE else self._expect_recorded(rows)

    def _expect_recorded(self, rows: TraceRows) -> Expectation:
        """Return what is expected of the requests themselves, or where they cannot be played of their moments."""
        try:
            found = expect_recorded(self.manifest, rows, self.warmup or 0.0)
        except BadInput:
            return NO_RATE
        moments = found.prediction is None and mixed_pool(self.manifest) is not None
        return self._expect_rows(rows) if moments else found

    def _expect_rows(self, rows: TraceRows) -> Expectation:
        """Return what is expected of a stream with a trace's moments, as if it were stationary."""
        try:
            traffic = Traffic.from_trace(rows)
        except BadInput:
            return NO_RATE
        found = expect(self.manifest, traffic.workload, traffic.rate_per_second)
        return replace(found, basis=f"{found.basis}, from the trace's moments as if it were stationary")

    def closed(self, concurrency: int) -> Offered:
        """Keep so many requests under way from an empty system on."""
        if concurrency > MOST_SIMULATED:
            raise BadInput(f"--concurrency: {concurrency} are more requests than are simulated; use fewer")
        usual = REQUESTS_ALONE if concurrency == 1 else max(FEWEST_MEASURED, REQUESTS_PER_CONCURRENCY * concurrency)
        count, workload = self.count or usual, self.manifest.workload
        expectation = NO_FORM if concurrency > 1 else expect_alone(self.manifest, workload_of(workload))
        context = _model(self.manifest).max_position
        return Offered(
            requests=lambda: [closed_loop(workload, concurrency, count, self.seed).within(context)],
            options=self.options(),
            expectation=expectation,
            measured=self._from_warmup(count, f"with {concurrency} under way"),
        )

    def _from_warmup(self, count: int, what: str) -> str:
        if self.warmup:
            return f"{count} requests {what} from an empty system; measured after {format_duration(self.warmup)}"
        return f"all {count} requests {what}, from an empty system until it is empty again"

    def open(self, rate: float) -> Offered:
        """Let requests arrive at random, and measure some of them while as many come before and after."""
        asked = workload_of(self.manifest.workload)
        expectation = expect(self.manifest, asked, rate)
        residence = _residence_seconds(self.manifest, expectation)
        slower = self.manifest.workload.offline is not None or any(getattr(self.flags, name) for name in _SLOWER)
        long = not slower and [pool.role for pool in self.manifest.pools] == [
            "mixed"
        ]  # goes through the compiled loops
        measured = self.count or (LONG_MEASURED if long else self._measured(residence * rate))
        if self.warmup == 0:
            told = self._from_warmup(measured, "of the stream")
            made = self._drawn(rate, measured)
            return Offered(requests=made, options=self.options(), expectation=expectation, measured=told)
        warm = expectation.prediction is not None and not self.flags.cold
        empty = UNSTABLE_RESIDENCES if expectation.prediction is None else COLD_RESIDENCES
        warmup = residence * (WARM_RESIDENCES if warm else empty) if self.warmup is None else self.warmup
        workload, tail = self.manifest.workload, TAIL_RESIDENCES * residence
        most = measured + (warmup + tail) * rate
        total = math.ceil(most + 6 * math.sqrt(most * max(workload.arrival_cv2, 1.0))) + 1
        running = round(rate * residence) if warm and asked.decodes else 0
        if total + running > MOST_SIMULATED:
            raise BadInput(
                f"--warmup: until the stream is measured {total + running:.3g} requests come, more than the "
                f"{MOST_SIMULATED} that are simulated; give a shorter one (0s cuts nothing), fewer --requests or a "
                "lower --rate"
            )
        decoded = counted(running, "request")
        begun = f"a system with {decoded} in decode, as many as are expected" if running else "an empty system"
        made, share, end = self._drawn(rate, total, running), f"about {measured} of {total}", warmup + measured / rate
        if total <= MOST_AT_ONCE:
            (requests,) = made()
            arrivals = requests.arrival_seconds
            end = float(arrivals[min(int(np.searchsorted(arrivals, warmup)) + measured, total) - 1])
            kept = requests.piece(0, int(np.searchsorted(arrivals, end + tail, side="right")))
            whole = with_running(kept, running, self.seed, _drafts(self.manifest))
            made, share = lambda: [whole], f"{measured} of {len(whole) - whole.under_way}"
        return Offered(
            requests=made,
            options=self.options(warmup, end),
            expectation=expectation,
            measured=(
                f"{share} requests, those that arrive from {format_duration(warmup)} to "
                f"{format_duration(end)}; the run starts from {begun}, and the rest only load it"
            ),
        )

    def _drawn(self, rate: float, count: int, running: int = 0) -> Callable[[], Iterable[Requests]]:
        """Return an open loop, in parts where it is long; requests that run already are in the first of them."""
        workload, context, drafts = self.manifest.workload, _model(self.manifest).max_position, _drafts(self.manifest)

        def parts() -> Iterator[Requests]:
            for number, part in enumerate(open_stream(workload, rate, count, self.seed)):
                own = part.within(context)
                yield with_running(own, running, self.seed, drafts) if running and not number else own

        if count > MOST_AT_ONCE:
            return parts
        requests = open_loop(workload, rate, count, self.seed).within(context)
        return lambda: [requests]  # without those that run: what arrives late is cut first

    def bursty(self, text: str, rate: float) -> Offered:
        """Let requests arrive in calm and in bursts, from an empty system until all are served."""
        count = self.count or MOST_MEASURED // 10
        drawn = modulated(self.manifest.workload, rate, count, read_bursts(text), self.seed)
        requests = drawn.within(_model(self.manifest).max_position)
        return Offered(
            requests=lambda: [requests],
            options=self.options(),
            expectation=self._expect_recorded(_rows(requests)),
            measured=self._from_warmup(len(requests), "of the stream"),
        )


def _model(manifest: Manifest) -> ModelSpec:
    return manifest.model.spec


def _fitting(trace: Trace, manifest: Manifest) -> Trace:
    """Return the requests that the manifest's model has positions for."""
    model = _model(manifest)
    return fitting(trace, model.max_position, model.name)


def _drafts(manifest: Manifest) -> int:
    return max(pool.mtp.drafts for pool in manifest.pools)


def _rows(requests: Requests, trace: Trace | None = None) -> TraceRows:
    """Return the requests with what each reuses: of an unlimited cache where a trace has blocks."""
    blocks = trace is not None and trace.hash_ids is not None
    return TraceRows.of(requests, reused_tokens(trace) if trace is not None and blocks else requests.reused_tokens)


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
        meant = "a factor such as 2, which plays the trace twice as fast"
        raise BadInput(f"--scale-rate: {(text or '')[:40]!r} is not {meant}")
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
    try:
        burst, share, length = (part.strip() for part in text.split(","))
        factor, seconds = number_of(burst.lower().removesuffix("x")), parse_duration(length, "--bursts")
        return Modulation(burst=factor, share=number_of(share), mean_burst_seconds=seconds)
    except ValueError:
        raise BadInput(f"--bursts: {text[:40]!r} must be FACTOR,SHARE,LENGTH, such as 5x,0.1,30s") from None
