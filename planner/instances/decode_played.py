"""Decode instances, played on the requests of a trace, whose bursts no stationary queue models.

Requests reach decode in their order of arrival, as the prefill instances, which may change it, are not known yet.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from ground.arrays import Bools, Floats, Ints
from planner.closed_forms.birth_death import DecodeState
from planner.manifest.drafts import Acceptance, drawn_iterations
from planner.serving.capacity import Limits, Outcome, Play
from planner.serving.decode import Decoded, DecodePool, DecodeRequests, play_decode
from planner.serving.latency import Latency
from planner.serving.played import Player
from planner.serving.streams import Stream, traced
from planner.workload import TraceRows, Workload


@dataclass(frozen=True, kw_only=True, eq=False)
class PlayedDecode(Player):
    """The player of decode instances; each request goes to the rank with least reserved KV."""

    pool: DecodePool
    trace: TraceRows
    reserved: Callable[[Floats], Floats]  # KV tokens reserved for requests of so many tokens, [requests]
    full_per_second: float  # requests per second that a full instance finishes
    _states: dict[tuple[float, int], DecodeState] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        pool: DecodePool,
        reserved: Callable[[Floats], Floats],
        workload: Workload,
        limits: Limits,
        full_per_second: float,
    ) -> "PlayedDecode":
        """Return the player of one instance."""
        trace = workload.trace
        assert trace is not None, "only a trace is played"

        def together(instances: int) -> Play:
            played = replace(pool, instances=instances)
            return lambda stream, _: _outcome(played, reserved, stream, trace)  # always played to its end

        return cls(
            play=together(1),
            together=together,
            workload=workload,
            limits=limits,
            most_tokens=np.inf,
            pool=pool,
            trace=trace,
            reserved=reserved,
            full_per_second=full_per_second,
        )

    def state(self, rate_per_second: float, instances: int) -> DecodeState:
        """Return the state of one of ``instances`` at its rate."""
        key = rate_per_second, instances
        if key not in self._states:
            self._states[key] = self._state(*key)
        return self._states[key]

    def _state(self, rate_per_second: float, instances: int) -> DecodeState:
        stream = traced(self.trace, instances).at_rate(rate_per_second)
        sent, decoded = _decoded(replace(self.pool, instances=instances), self.reserved, stream, self.trace)
        return played_state(self.pool, sent, decoded, rate_per_second, rate_per_second / self.full_per_second)


def played_state(
    pool: DecodePool,
    requests: DecodeRequests,
    decoded: Decoded,
    rate_per_second: float,
    utilisation: float,
    counting: Bools | slice = slice(None),
) -> DecodeState:
    """Return the state of a decode instance from a play, over the requests that count.

    Args: ``rate_per_second`` of answers with more than one token, at one instance; its ``utilisation``.
    """
    known = pool.latency_seconds + requests.transfer_seconds + decoded.link_wait_seconds
    waits = np.maximum(decoded.there_seconds - requests.ready_seconds - known, 0.0)[counting]
    span = (decoded.left_seconds - requests.ready_seconds)[counting]
    residence = (decoded.left_seconds - decoded.there_seconds)[counting]
    return DecodeState(
        rate_per_second=rate_per_second,
        mean_requests=rate_per_second * float(residence.mean()),
        utilisation=utilisation,
        waiting_probability=float((waits > 1e-9).mean()),
        mean_wait_seconds=float(waits.mean()),
        tpot=Latency.from_samples(span / requests.answer_tokens[counting]),
        span=Latency.from_samples(span),
    )


def _decoded(
    pool: DecodePool, reserved: Callable[[Floats], Floats], stream: Stream, trace: TraceRows
) -> tuple[DecodeRequests, Decoded]:
    """Return the trace's requests with more than one token and their times in decode, as if prefill took no time."""
    stream = stream.select(np.flatnonzero(stream.answer_tokens > 1))
    prompts = stream.prompt_tokens.astype(np.float64)
    sent = DecodeRequests(
        ready_seconds=stream.arrival_seconds,
        cached_tokens=prompts,
        answer_tokens=stream.answer_tokens - 1,
        reserved_tokens=reserved(prompts + stream.answer_tokens),
        transfer_seconds=np.zeros(len(stream)),
        source=np.zeros(len(stream), dtype=np.int64),
        iterations=_iterations(trace, pool.drafts, pool.acceptance),
    )
    return sent, play_decode(pool, sent)


@lru_cache(maxsize=4)
def _iterations(trace: TraceRows, drafts: int, acceptance: Acceptance) -> Ints:
    """Return the iterations of each answer with more than one token, which do not depend on the rate."""
    answers = Stream.from_trace(trace).answer_tokens
    return drawn_iterations(answers[answers > 1] - 1, drafts, acceptance, np.random.default_rng(0))


def _outcome(pool: DecodePool, reserved: Callable[[Floats], Floats], stream: Stream, trace: TraceRows) -> Outcome:
    """Return TPOT of a trace's stream; decode has no TTFT."""
    requests, decoded = _decoded(pool, reserved, stream, trace)
    sent = np.flatnonzero(stream.answer_tokens > 1)
    return Outcome(ttft_seconds=np.zeros(0), tpot_seconds=tpot_of(len(stream), sent, requests, decoded))


def tpot_of(count: int, sent: Ints, requests: DecodeRequests | None, decoded: Decoded | None) -> Floats:
    """Return TPOT of so many requests, [requests]; not a number of all but those that were ``sent`` to decode."""
    tpot = np.full(count, np.nan)
    if requests is not None and decoded is not None:
        tpot[sent] = (decoded.left_seconds - requests.ready_seconds) / requests.answer_tokens
    return tpot
