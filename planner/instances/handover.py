"""Decode played: on a trace, and behind its own prefill instances where answers are short beside prefill passes.

Bursts of a trace no stationary queue models; its requests reach decode in their order of arrival, as the prefill
instances, which may change it, are not known yet.

In closed form requests reach decode as a Poisson process, which holds where an answer outlasts many passes. Prompts of
one pass reach decode together, and wait for each other's KV transfers, while prefill near saturation sends them more
evenly than they came. Both move TPOT of short answers: by half and more where an answer takes a tenth of a pass.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import numpy as np

from ground.arrays import Bools, Floats, Ints
from planner.closed_forms.birth_death import DecodeState
from planner.instances.kv_links import Sink, Source
from planner.manifest.drafts import Acceptance, drawn_iterations
from planner.serving.capacity import Capacity, Limits, Outcome, Play, Trial, Until, capacity, trial
from planner.serving.decode import (
    Decoded,
    DecodePool,
    DecodeRequests,
    HandedOver,
    SeparatePools,
    hand_over,
    play_decode,
)
from planner.serving.latency import Latency
from planner.serving.played import MANY, Player, told_closely
from planner.serving.streams import Stream, stationary, traced
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


_PASSES = 10.0
"""Longest passes that an answer lasts where the closed form holds. Beside plays of 40 random plans (seven models, six
machines, answers of 8 to 256 tokens) p99 of TPOT was 1 to 15 % above beyond them, -79 to +20 % off before them."""
_LEAST_PLAYED, _MOST_PLAYED = 40_000, 80_000
_MOST_TIMES = 8  # most times as many requests that a plan is told over
_FILLED = 12.0  # requests that are played over those in decode, so that what is left out at the stream's begin fills it


def short_answers(workload: Workload, source: Source, sink: Sink) -> bool:
    """Whether answers of a stationary stream, with all batch slots taken, last less than ten of the longest passes.

    Those are as long as what full decode instances finish meanwhile fills.
    """
    if workload.trace is not None or not workload.decodes:
        return False
    passes, queue = source.passes, sink.queue
    full = float(np.asarray(queue.iteration_seconds(np.array([float(queue.most_requests)])))[0])
    each = sink.instances / source.instances * float(queue.tabulated().finished_per_second[-1])
    longest = float(passes.seconds[each * passes.seconds >= passes.prompts].max(initial=passes.seconds[0]))
    return queue.iterations_per_request.mean * full < _PASSES * longest


@dataclass(frozen=True, kw_only=True, eq=False)
class Handover:
    """Separate pools whose decode instances are fed by their prefill instances."""

    pools: SeparatePools
    workload: Workload
    context: float  # tokens at which a prompt and its answer end
    full_per_second: float  # requests per second that a full decode instance finishes
    _states: dict[tuple[float, int, int], DecodeState | None] = field(default_factory=dict, repr=False)
    _capacities: dict[tuple[float, Limits, int], Capacity | None] = field(default_factory=dict, repr=False)
    _last: dict[tuple[str, int], HandedOver] = field(default_factory=dict, repr=False)
    """The last play, by when its stream ends and by the number of instances."""

    @classmethod
    def of(
        cls, pools: Callable[[], SeparatePools], workload: Workload, source: Source, sink: Sink, context: float
    ) -> "Handover | None":
        """Return the pools that are played together; None where answers are long enough for the closed form."""
        if not short_answers(workload, source, sink):
            return None
        full_per_second = float(sink.queue.tabulated().finished_per_second[-1])
        return cls(pools=pools(), workload=workload, context=context, full_per_second=full_per_second)

    def state(self, rate_per_second: float, instances: int, requests: int = MANY) -> DecodeState | None:
        """Return the state of one of so many decode instances at its rate; None beyond saturation.

        Args: ``requests`` that tell TTFT of a prefill instance, see ``_stream``.
        """
        key = rate_per_second, instances, requests
        if key not in self._states:
            self._states[key] = self._state(*key) if rate_per_second < self.full_per_second else None
        return self._states[key]

    def capacity(self, upper: float, limits: Limits, instances: int) -> Capacity | None:
        """Return the largest rate, up to ``upper``, of one of so many decode instances that keeps TPOT's limit."""
        key = upper, limits, instances
        if key not in self._capacities:
            self._capacities[key] = capacity(partial(self._tried, limits, instances, MANY), upper)
        return self._capacities[key]

    def _tried(self, limits: Limits, instances: int, requests: int, rate_per_second: float) -> Trial:
        """Return the trial of one of so many decode instances at its rate, with TPOT alone; see ``state``."""

        def play(stream: Stream, until: Until | None) -> Outcome:
            _, sent, handed, decoded = self._play(stream, instances)
            return Outcome(ttft_seconds=np.zeros(0), tpot_seconds=tpot_of(len(stream), sent, handed, decoded))

        return trial(play, self._stream(instances, requests), rate_per_second, limits)

    def lasting(self, rate_per_second: float, limits: Limits, instances: int, least: int) -> int:
        """Return the requests, at least so many, over which TPOT at the percentile is told closely; see ``state``."""
        if rate_per_second >= self.full_per_second:
            return least
        tried = partial(self._tried, limits, instances, rate_per_second=rate_per_second)
        return told_closely(tried, least // MANY, _MOST_TIMES)

    def link_wait_seconds(self, rate_per_second: float, instances: int, requests: int = MANY) -> float:
        """Return the mean wait for links, given the rate of one of so many decode instances; see ``state``."""
        stream = self._stream(instances, requests).at_rate(rate_per_second)
        _, sent, _, decoded = self._play(stream, instances)
        assert decoded is not None, "answers have more than one token"
        return float(decoded.link_wait_seconds[_counting(stream, sent)].mean())

    def _stream(self, instances: int, requests: int = MANY) -> Stream:
        """Return the stream of one request a second for each of so many decode instances.

        It is as many times as long as a prefill instance's of so many requests: decode follows the queue of prefill.
        """
        decode = self.pools.decode
        count = min(max(_LEAST_PLAYED, int(_FILLED * decode.ranks * decode.slots * instances)), _MOST_PLAYED)
        count *= max(requests // MANY, 1)
        return stationary(self.workload, count, most_tokens=self.context).at_rate(instances)

    def _play(self, stream: Stream, instances: int) -> HandedOver:
        """Play a stream; the rate that is told of a plan is often the one that its capacity was played at last."""
        key = f"{stream.arrival_seconds[-1]:.12g}", instances
        if key not in self._last:
            self._last.clear()
            decode = replace(self.pools.decode, instances=instances)
            self._last[key] = hand_over(replace(self.pools, decode=decode), stream)
        return self._last[key]

    def _state(self, rate_per_second: float, instances: int, requests: int) -> DecodeState:
        stream = self._stream(instances, requests).at_rate(rate_per_second)
        _, sent, handed, decoded = self._play(stream, instances)
        assert handed is not None and decoded is not None, "answers have more than one token"
        answering, utilisation = rate_per_second * sent.size / len(stream), rate_per_second / self.full_per_second
        return played_state(self.pools.decode, handed, decoded, answering, utilisation, _counting(stream, sent))


def _counting(stream: Stream, sent: Ints) -> Bools:
    """Return which of the requests that reach decode count."""
    return np.isin(sent, np.arange(len(stream))[stream.counting])
