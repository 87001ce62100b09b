"""Decode behind its own prefill instances, played together, where answers are short beside prefill passes.

In closed form requests reach decode as a Poisson process, which holds where an answer outlasts many passes. Prompts of
one pass reach decode together, and wait for each other's KV transfers, while prefill near saturation sends them more
evenly than they came. Both move TPOT of short answers: by half and more where an answer takes a tenth of a pass.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from ground.arrays import Bools, Ints
from planner.closed_forms.birth_death import DecodeQueue, DecodeState
from planner.closed_forms.bulk_lattice import Passes
from planner.instances.decode_played import played_state, tpot_of
from planner.serving.capacity import Capacity, Limits, Outcome, Until, capacity
from planner.serving.decode import HandedOver, SeparatePools, hand_over
from planner.serving.played import MANY
from planner.serving.streams import Stream, stationary
from planner.workload import Workload

_PASSES = 10.0
"""Full passes that an answer lasts where the closed form holds. Beside plays of 40 random plans (seven models, six
machines, answers of 8 to 256 tokens) p99 of TPOT was 1 to 15 % above beyond them, -79 to +20 % off before them."""
_LEAST_PLAYED, _MOST_PLAYED = 40_000, 80_000
_FILLED = 12.0  # requests that are played over those in decode, so that what is left out at the stream's begin fills it


def short_answers(workload: Workload, passes: Passes, queue: DecodeQueue) -> bool:
    """Whether answers of a stationary stream, with all batch slots taken, last less than ten full passes."""
    if workload.trace is not None or not workload.decodes:
        return False
    full = float(np.asarray(queue.iteration_seconds(np.array([float(queue.most_requests)])))[0])
    return queue.iterations_per_request.mean * full < _PASSES * passes.full_seconds


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
        cls, pools: Callable[[], SeparatePools], workload: Workload, passes: Passes, queue: DecodeQueue, context: float
    ) -> "Handover | None":
        """Return the pools that are played together; None where answers are long enough for the closed form."""
        if not short_answers(workload, passes, queue):
            return None
        full_per_second = float(queue.tabulated().finished_per_second[-1])
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

            def play(stream: Stream, until: Until | None) -> Outcome:
                _, sent, requests, decoded = self._play(stream, instances)
                return Outcome(ttft_seconds=np.zeros(0), tpot_seconds=tpot_of(len(stream), sent, requests, decoded))

            self._capacities[key] = capacity(play, self._stream(instances), limits, upper)
        return self._capacities[key]

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
