"""Decode behind its own prefill instances, played together, where answers are short beside prefill passes.

In closed form requests reach decode as a Poisson process, which holds where an answer outlasts many passes. Prompts of
one pass reach decode together, and wait for each other's KV transfers, while prefill near saturation sends them more
evenly than they came. Both move TPOT of short answers: by half and more where an answer takes a tenth of a pass.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from planner.closed_forms.birth_death import DecodeQueue, DecodeState
from planner.closed_forms.bulk_lattice import Passes
from planner.instances.decode_played import played_state
from planner.serving.capacity import Capacity, Limits, Outcome, Play, capacity
from planner.serving.decode import SeparatePools, hand_over, play_separate
from planner.serving.streams import Stream, stationary
from planner.workload import Workload

_PASSES = 10.0
"""Full passes that an answer lasts where the closed form holds. Beside plays of 40 random plans (seven models, six
machines, answers of 8 to 256 tokens) p99 of TPOT was 1 to 15 % above beyond them, -79 to +20 % off before them."""
_LEAST_PLAYED, _MOST_PLAYED = 40_000, 80_000
_FILLED = 12.0
"""Requests that are played over those in decode, so that what is left out at the stream's begin fills it."""


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
    context: float
    """Tokens at which a prompt and its answer end."""
    full_per_second: float
    """Requests per second that a full decode instance finishes."""
    _states: dict[tuple[float, int], DecodeState | None] = field(default_factory=dict, repr=False)
    _capacities: dict[tuple[float, Limits, int], Capacity | None] = field(default_factory=dict, repr=False)

    def state(self, rate_per_second: float, instances: int) -> DecodeState | None:
        """Return the state of one of so many decode instances at its rate; None beyond saturation."""
        key = rate_per_second, instances
        if key not in self._states:
            self._states[key] = self._state(*key) if rate_per_second < self.full_per_second else None
        return self._states[key]

    def capacity(self, upper: float, limits: Limits, instances: int) -> Capacity | None:
        """Return the largest rate, up to ``upper``, of one of so many decode instances that keeps TPOT's limit."""
        key = upper, limits, instances
        if key not in self._capacities:
            self._capacities[key] = capacity(self._outcome(instances), self._stream(instances), limits, upper)
        return self._capacities[key]

    def _stream(self, instances: int) -> Stream:
        """Return the stream of one request a second for each of so many decode instances."""
        decode = self.pools.decode
        count = min(max(_LEAST_PLAYED, int(_FILLED * decode.ranks * decode.slots * instances)), _MOST_PLAYED)
        return stationary(self.workload, count, most_tokens=self.context).at_rate(instances)

    def _pools(self, instances: int) -> SeparatePools:
        return replace(self.pools, decode=replace(self.pools.decode, instances=instances))

    def _outcome(self, instances: int) -> Play:
        pools = self._pools(instances)
        return lambda stream, _: Outcome(
            ttft_seconds=np.zeros(0), tpot_seconds=play_separate(pools, stream).tpot_seconds
        )

    def _state(self, rate_per_second: float, instances: int) -> DecodeState:
        pools, stream = self._pools(instances), self._stream(instances).at_rate(rate_per_second)
        _, sent, requests, decoded = hand_over(pools, stream)
        assert requests is not None and decoded is not None, "answers have more than one token"
        counting = np.isin(sent, np.arange(len(stream))[stream.counting])
        answering, utilisation = rate_per_second * sent.size / len(stream), rate_per_second / self.full_per_second
        return played_state(pools.decode, requests, decoded, answering, utilisation, counting)
