"""From what happened to what is reported: the keys of ``plan simulate --json``."""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from planner.manifest.schema import ServiceLevels, Statistics
from runtime.simulate.ledger import Ledger

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """Counts and latencies of the requests offered in the measured window, and the rates in it.

    requests = completed + failed + running. Latencies are over completed requests, None where
    there is none (TPOT needs an output of two tokens). ``slo_attainment`` is the share of all offered
    requests that completed within every limit; ``goodput_requests_per_second`` counts those.
    ``wall_seconds`` is the event loop alone.
    """

    requests: int
    completed: int
    failed: int
    running: int
    duration_seconds: float
    requests_per_second: float
    output_tokens_per_second: float
    ttft_seconds: Statistics | None
    tpot_seconds: Statistics | None
    e2e_seconds: Statistics | None
    slo_attainment: float
    goodput_requests_per_second: float
    utilisation: dict[str, float]
    steps: dict[str, int]
    wall_seconds: float

    def to_dict(self) -> dict[str, object]:
        """Return the result as plain data."""
        latencies = ("ttft_seconds", "tpot_seconds", "e2e_seconds")
        plain = {key: value for key, value in asdict(self).items() if key not in latencies}
        return plain | {key: value.model_dump() if (value := getattr(self, key)) else None for key in latencies}


def statistics(values: Floats) -> Statistics | None:
    """Return mean and percentiles (linear interpolation), None without values."""
    if not values.size:
        return None
    p50, p90, p99 = np.percentile(values, [50, 90, 99])
    return Statistics(mean=float(values.mean()), p50=float(p50), p90=float(p90), p99=float(p99))


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Per request; not a number where it does not exist."""

    ttft: Floats
    tpot: Floats
    e2e: Floats


def latencies(ledger: Ledger) -> Latencies:
    """Return TTFT = first token - arrival, E2E = completion - arrival, TPOT = (E2E - TTFT)/(output - 1)."""
    outputs = ledger.requests.output_tokens
    ttft, e2e = ledger.first_token - ledger.arrival, ledger.completion - ledger.arrival
    tpot = np.where(outputs > 1, (e2e - ttft) / np.maximum(outputs - 1, 1), np.nan)
    return Latencies(ttft=ttft, tpot=tpot, e2e=e2e)


def within(times: Latencies, limits: ServiceLevels) -> NDArray[np.bool_]:
    """Return which requests completed within every limit; a single-token output has no TPOT to miss."""
    good = ~np.isnan(times.e2e)
    if limits.ttft_seconds is not None:
        good &= times.ttft <= limits.ttft_seconds
    if limits.tpot_seconds is not None:
        good &= np.isnan(times.tpot) | (times.tpot <= limits.tpot_seconds)
    return good


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What is measured: requests that arrive, and completions that happen, from ``start`` to ``end``."""

    start_seconds: float
    end_seconds: float

    @property
    def seconds(self) -> float:
        """Its length, not below 0."""
        return max(self.end_seconds - self.start_seconds, 0.0)


def summarise(
    ledger: Ledger,
    limits: ServiceLevels,
    window: Window,
    *,
    utilisation: dict[str, float],
    steps: dict[str, int],
    wall_seconds: float,
) -> SimulationResult:
    """Return latencies of the requests that arrived in the window, and rates of what completed in it.

    A rate counts completions whenever their requests arrived: while a system fills up or falls behind it differs
    from the arrivals.
    """
    everything = latencies(ledger)
    good = within(everything, limits)
    offered = (ledger.arrival >= window.start_seconds) & (ledger.arrival <= window.end_seconds)
    finished = (ledger.completion >= window.start_seconds) & (ledger.completion <= window.end_seconds)
    completed = offered & ~np.isnan(everything.e2e)
    failed = int(ledger.failed[offered].sum())
    tokens = ledger.requests.output_tokens.copy()
    tokens[: ledger.requests.under_way] += ledger.requests.begun_tokens
    per_second = 1.0 / window.seconds if window.seconds > 0 else 0.0
    count, done = int(offered.sum()), int(completed.sum())
    tpot = everything.tpot[completed]
    return SimulationResult(
        requests=count,
        completed=done,
        failed=failed,
        running=count - done - failed,
        duration_seconds=window.seconds,
        requests_per_second=float(finished.sum()) * per_second,
        output_tokens_per_second=float(tokens[finished].sum()) * per_second,
        ttft_seconds=statistics(everything.ttft[completed]),
        tpot_seconds=statistics(tpot[~np.isnan(tpot)]),
        e2e_seconds=statistics(everything.e2e[completed]),
        slo_attainment=float(good[offered].sum()) / count if count else 0.0,
        goodput_requests_per_second=float((good & finished).sum()) * per_second,
        utilisation=utilisation,
        steps=steps,
        wall_seconds=wall_seconds,
    )
