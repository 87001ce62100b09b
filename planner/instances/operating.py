"""One pool in operation: service times of a candidate by its load, and its queues."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from ground.arrays import Floats
from planner.balance.imbalance import expected_maximum_normal
from planner.closed_forms.birth_death import DecodeQueue, DecodeState
from planner.closed_forms.bulk_lattice import Passes, most_waiting
from planner.closed_forms.bulk_service import latency_of, thinned_squared_cv
from planner.closed_forms.fullest import FullestRank
from planner.closed_forms.mixserve import full_batch_state, memoryless_ttft
from planner.costs.latency import balanced_cost
from planner.costs.memory import granted_tokens, kv_capacity_tokens
from planner.instances.candidates import (
    DecodeCandidate,
    PrefillCandidate,
    row_microbatches,
)
from planner.instances.handover import Handover, PlayedDecode
from planner.instances.prefill_passes import (
    Dealing,
    dealt_pass_seconds,
    is_played,
    mean_passes,
    offline_seconds,
    pass_times,
)
from planner.loops.arrays import TableArrays
from planner.manifest.drafts import Acceptance, tokens_per_iteration, tokens_squared_cv
from planner.manifest.stacks import stacked
from planner.manifest.stepcost import evaluate_each
from planner.manifest.terms import Number, StepCost, StepLoad
from planner.question import Question
from planner.serving.capacity import Capacity, Limits, largest_rate
from planner.serving.decode import DecodePool, iteration_times
from planner.serving.latency import Latency
from planner.serving.played import MANY, PlayedPrefill
from planner.serving.prefill import PrefillPool
from planner.workload import Lengths, Workload, running_kv_tokens

_MARGIN = 0.05  # part of the KV over which its slope is taken
_LIKELY = 0.7  # share of a full instance's rate at which the search for its capacity on a trace begins


class Decoding(NamedTuple):
    """A decode instance whose requests are dealt to the rank with fewest: its iteration cost and its queue."""

    cost: StepCost
    workload: Workload
    ranks: int
    slots: int  # batch slots of a rank
    microbatches: int
    drafts: int
    acceptance: Acceptance

    @property
    def accepted(self) -> float:
        """Tokens per request and iteration."""
        return tokens_per_iteration(self.drafts, self.acceptance)

    @property
    def iterations(self) -> Lengths:
        """Iterations of one request: its tokens after the first over those accepted per iteration."""
        return replace(self.workload.output_tokens, mean=self.workload.decoded_tokens / self.accepted)

    def busiest(self, requests: Floats) -> Floats:
        """Return the running requests of the fullest rank of an instance; shaped like ``requests``.

        Ranks differ by the remainder of the division, (R - 1) / 2R above the mean on average, and by the requests that
        ended since the last were dealt, on each rank a Poisson number with mean u = n / I. The rank that lost fewest of
        R lost z sqrt(u) fewer than the mean, z the expected maximum of R standard normals, and at most u fewer. No rank
        holds more than its slots. Derived here; tests/planner/instances/test_operating.py compares with dealing.
        """
        mean = requests / self.ranks
        ended = mean / self.iterations.mean
        uneven = (self.ranks - 1) / (2 * self.ranks)
        kept = np.minimum(ended, expected_maximum_normal(self.ranks) * np.sqrt(ended))
        return np.maximum(np.minimum(mean + uneven + kept, np.minimum(requests, self.slots)), np.minimum(requests, 1.0))

    def seconds(self, requests: Floats, kv_times: Number = 1.0) -> Floats:
        """Seconds of iterations with ``requests`` running on all ranks; as wide as ``iteration_seconds``."""
        numbers = self.busiest(requests), self.slots
        return iteration_seconds(self.cost, self.workload, self.ranks, self.microbatches, requests, numbers, kv_times)

    def kv_seconds(self, requests: Floats) -> Floats:
        """Seconds by which iterations are longer for KV, at the margin; shaped like ``requests``."""
        usual, more = self.seconds(requests, np.array([[1.0], [1 + _MARGIN]]))
        return np.asarray((more - usual) / _MARGIN)

    def table(self) -> Floats:
        """Seconds of an iteration with 1, 2, ... up to the most running requests, [requests]."""
        return self.seconds(np.arange(1.0, self.ranks * self.slots + 1))

    def queue(self, transfer_seconds: float) -> DecodeQueue:
        """Return the closed-form queue of the instance."""
        return DecodeQueue(
            iterations_per_request=self.iterations,
            iteration_seconds=self.seconds,
            most_requests=self.ranks * self.slots,
            transfer_seconds=transfer_seconds,
            tokens_per_iteration=self.accepted,
            tokens_squared_cv=tokens_squared_cv(self.drafts, self.acceptance),
            joining_iterations=0.5,
            kv_squared_cv=self.workload.input_tokens.variance / running_kv_tokens(self.workload).mean_tokens ** 2,
            kv_seconds=self.kv_seconds if self.workload.input_tokens.squared_cv else None,
        )


def iteration_seconds(
    cost: StepCost,
    workload: Workload,
    ranks: Number,
    microbatches: int,
    requests: Floats,
    numbers: tuple[Floats, Number],
    kv_times: Number = 1.0,
) -> Floats:
    """Seconds of iterations with so many ``requests`` in all, [..., rows]: those of the slowest rank.

    With a stacked cost, ``ranks`` is [rows]; else the cost and ``ranks`` are those of one instance.

    Args: ``numbers``: requests of the rank with most if equal ones are dealt, [..., rows], and the most that one may
    have; ``kv_times``: KV over what the workload says, [..., 1] or a number.
    """
    requests, busiest, _ = np.broadcast_arrays(requests, numbers[0], kv_times)
    mean, fullest = requests / ranks, FullestRank.of(workload, ranks)

    def seconds(sequences: Number, kv_tokens: Number) -> Number:
        load = StepLoad(
            decode_sequences=sequences,
            decode_kv_tokens=kv_times * kv_tokens,
            mean_tokens=mean * cost.queries_per_sequence,
        )
        single, *double = (each.seconds for each in evaluate_each(cost, load, range(1, microbatches + 1)))
        return np.where(busiest >= 2, np.minimum(single, double[0]), single) if double else np.asarray(single)

    if not fullest.differ:
        return np.asarray(seconds(busiest, fullest.kv_tokens(busiest)))
    unequal = np.maximum(busiest - (ranks - 1) / (2 * ranks), mean)  # no remainder of a division
    return np.asarray(fullest.slowest(unequal, numbers[1], seconds))


@dataclass(frozen=True)
class PrefillServer:
    """A prefill instance: TTFT and capacity, in closed form where prompts are equal, else played."""

    question: Question
    candidate: PrefillCandidate
    known_cost: StepCost | None = field(default=None, repr=False, compare=False)
    """The step cost, stacked, where it is known already."""
    known_times: TableArrays | None = field(default=None, repr=False, compare=False)
    """The pass times up to a larger budget, off whose knots they are read less exactly; None: up to this one."""
    _solved: dict[tuple[float, int, int | None], Latency | None] = field(
        default_factory=dict, repr=False, compare=False
    )
    """TTFT by rate of one instance, number of instances and requests of the stream."""

    independent = False  # arrivals dealt in turn are more even the more instances there are

    @cached_property
    def cost(self) -> StepCost:
        """Step cost of the instance, for many loads at once."""
        return self.known_cost or stacked(balanced_cost(self.candidate.deployment, self.question.balance))

    @property
    def most_prompts(self) -> int:
        """Most prompts of one pass, or of one run of passes over chunked prompts, one per DP group."""
        return self.candidate.prompts * self.candidate.row.strategy.attention_dp

    @property
    def _dealing(self) -> Dealing:
        candidate = self.candidate
        ranks = candidate.row.strategy.attention_dp
        return Dealing(self.cost, self.question.workload, ranks, candidate.microbatches)

    def pass_seconds(self, prompts: Floats) -> Floats:
        """Seconds of a pass with so many prompts of mean length; shaped like ``prompts``."""
        return dealt_pass_seconds(self._dealing, prompts, self.candidate.chunks)

    @cached_property
    def passes(self) -> Passes:
        """Pass times of prompts of mean length."""
        return mean_passes(self._dealing, self.most_prompts, self.candidate.chunks)

    @cached_property
    def player(self) -> PlayedPrefill | None:
        """The player of the instance; None where a closed form is exact."""
        question = self.question
        if not is_played(question, self.candidate.chunks):
            return None
        limits = Limits(percentile=question.percentile, ttft_seconds=question.ttft_seconds)
        return PlayedPrefill.of(self.pool, question.workload, limits, float(question.model.max_position))

    @cached_property
    def pool(self) -> PrefillPool:
        """The instance as it is played."""
        ranks = self.candidate.row.strategy.attention_dp
        times, beside = self.known_times or self.times, self.question.beside
        return PrefillPool(times=times, ranks=ranks, budget_tokens=self.budget_tokens, beside=beside)

    @cached_property
    def times(self) -> TableArrays:
        """Seconds of its passes."""
        microbatches = max(row_microbatches(self.question, self.candidate.row))
        dealing = self._dealing._replace(microbatches=microbatches)
        return pass_times(dealing, self.budget_tokens, self.question.model.max_position)

    @property
    def budget_tokens(self) -> int:
        """Prompt tokens of a DP group and pass."""
        strategy = self.candidate.row.strategy
        return self.candidate.tokens_per_device * strategy.attention_tp * strategy.pp

    @property
    def saturation_per_second(self) -> float:
        """Prompts per second of passes that are always full, of which offline ones have their part."""
        return self._alone_per_second * self.left_share

    @cached_property
    def left_share(self) -> float:
        """Share of the time of full passes that offline prompts leave."""
        question, row = self.question, self.candidate.row
        counts, held = row_microbatches(question, row), (self.budget_tokens, row.strategy.attention_dp)
        each = [float(np.min(offline_seconds(question, self.cost, *held, count))) for count in counts]
        return 1.0 / (1.0 + self._alone_per_second * min(each))

    @property
    def _alone_per_second(self) -> float:
        if self.question.queueing == "mixserve":
            return self.candidate.requests_per_second
        return self.player.saturation_per_second if self.player else self.passes.saturation_per_second

    @property
    def most_per_second(self) -> float:
        """The largest rate of one instance that is planned with."""
        return self.question.most_utilisation * self.saturation_per_second

    def most_waiting(self, rate_per_second: float, instances: int = 1) -> float:
        """Most prompts that wait at the start of a pass of one of ``instances`` at its rate, but for rare cases.

        A cap above that number never binds.
        """
        if self.question.queueing == "mixserve":
            return math.inf
        return most_waiting(self.passes, rate_per_second, self._squared_cv(instances))

    def pool_capacity(self, instances: int, about: float | None = None) -> float:
        """Largest rate of a pool of so many instances, dealt requests in turn, within the TTFT limit; 0: none.

        At most the question's utilisation limit times saturation. More instances make the arrivals at each more even,
        so the rate is not a multiple of that of one instance. ``about``: a first guess.
        """
        upper, each = self.most_per_second, None if about is None else about / instances
        if self.player:
            found = self.player.capacity(upper, instances, each)
            return 0.0 if found is None else found.rate_per_second * instances
        limit = self.question.ttft_seconds
        rate = largest_rate(lambda rate: self.tail_seconds(rate, instances), limit, upper, each)
        return 0.0 if rate is None else rate * instances

    def tail_seconds(self, rate_per_second: float, instances: int = 1) -> float:
        """TTFT at the percentile, at the rate of one of ``instances``; infinite beyond saturation."""
        latency = self.ttft(rate_per_second, instances)
        return math.inf if latency is None else latency.at(self.question.percentile)

    def pool_carries(self, instances: int, rate_per_second: float) -> bool:
        """Whether a pool of so many instances carries a rate within the TTFT and the utilisation limit."""
        each = rate_per_second / instances
        if self.player and self.player.surely_late(each, instances):
            return False
        if each > self.most_per_second * (1 + 1e-9):
            return False
        if self.player:
            return self.player.keeps(each, instances)
        return self.tail_seconds(each, instances) <= self.question.ttft_seconds

    def pool_reaches(self, instances: int, rate_per_second: float) -> bool:
        """Whether ``pool_capacity`` is at least a rate that few requests do not show to be late; where played."""
        assert self.player is not None, "asked only where instances are played"
        return self.player.reaches(rate_per_second / instances, instances, lambda: self.most_per_second)

    def ttft(self, rate_per_second: float, instances: int = 1, requests: int | None = MANY) -> Latency | None:
        """TTFT of one of ``instances`` that are dealt requests in turn, at the rate of one; None beyond saturation.

        Args: ``requests`` of the stream that is played, see ``Player.trial``.
        """
        if self.question.queueing == "mixserve":
            return memoryless_ttft(rate_per_second, self.most_prompts, self.candidate.pass_seconds)
        key, player = (rate_per_second, instances, requests), self.player
        if key not in self._solved:
            if player is None:
                found = latency_of(self.passes, rate_per_second, self._squared_cv(instances))
            else:
                late = rate_per_second >= self.saturation_per_second
                found = None if late else player.trial(rate_per_second, instances, requests).ttft
            self._solved[key] = found
        return self._solved[key]

    def lasting(self, rate_per_second: float, instances: int) -> int:
        """Return the requests of a stream that tells TTFT of one of ``instances`` closely; many where it is exact."""
        return self.player.lasting(rate_per_second, instances) if self.player else MANY

    def _squared_cv(self, instances: int) -> float:
        """Squared CV of the gaps between arrivals at one of so many instances."""
        return thinned_squared_cv(self.question.workload.arrival_squared_cv, instances, "round_robin")


@dataclass(frozen=True)
class DecodeServer:
    """A decode instance with its queue: iteration time by running requests."""

    question: Question
    candidate: DecodeCandidate
    transfer_seconds: float
    known_cost: StepCost | None = field(default=None, repr=False, compare=False)
    """The step cost, stacked, where it is known already."""
    known_queue: DecodeQueue | None = field(default=None, repr=False, compare=False)
    handover: Handover | None = None  # its prefill instances, where it is played behind them

    def after(self, transfer_seconds: float) -> "DecodeServer":
        """Return the instance behind other transfers."""
        known = self.queue if self.question.decoded.decodes else None
        return replace(self, transfer_seconds=transfer_seconds, known_queue=known)

    @property
    def independent(self) -> bool:
        """Whether each instance has a queue of its own, or none: several that are filled alike vary less than one."""
        return self.question.queueing == "mixserve" or (self.player is None and not self.question.decoded.decodes)

    @cached_property
    def player(self) -> PlayedDecode | None:
        """The player of the instance on a trace; None where the closed form applies."""
        question, candidate = self.question, self.candidate
        if question.queueing == "mixserve" or question.workload.trace is None:
            return None
        reserved = partial(granted_tokens, candidate.deployment)
        full = candidate.requests_per_second
        return PlayedDecode.of(self.pool, reserved, question.workload, self._limits, full_per_second=full)

    @property
    def pool(self) -> DecodePool:
        """The instance in the form that is played, with the mean transfer time of KV."""
        question, candidate, ranks = self.question, self.candidate, self.candidate.row.strategy.attention_groups
        return DecodePool(
            times=iteration_times(
                self.cost,
                ranks=ranks,
                slots=candidate.batch,
                kv_tokens_per_request=running_kv_tokens(question.decoded).mean_tokens,
                microbatches=candidate.microbatches,
            ),
            ranks=ranks,
            slots=candidate.batch,
            capacity_tokens=float(kv_capacity_tokens(candidate.deployment, candidate.memory(question.decoded))),
            drafts=candidate.drafts,
            acceptance=question.acceptance,
            latency_seconds=self.transfer_seconds,
        )

    @cached_property
    def cost(self) -> StepCost:
        """Step cost of the instance, for many loads at once."""
        return self.known_cost or stacked(balanced_cost(self.candidate.deployment, self.question.balance))

    @cached_property
    def decoding(self) -> Decoding:
        """Iteration cost and queue of the instance."""
        question, candidate = self.question, self.candidate
        return Decoding(
            cost=self.cost,
            workload=question.decoded,
            ranks=candidate.row.strategy.attention_groups,
            slots=candidate.batch,
            microbatches=candidate.microbatches,
            drafts=candidate.drafts,
            acceptance=question.acceptance,
        )

    def pool_capacity(self, instances: int) -> float:
        """Largest rate of a pool of so many instances within the TPOT limit; 0 for none."""
        if self.player is not None:
            found = self.player.capacity(self.most_per_second, instances, _LIKELY * self.most_per_second)
            return 0.0 if found is None else instances * found.rate_per_second
        if self.handover is not None:
            carried = self.played(self.most_per_second, instances)
            return 0.0 if carried is None else instances * carried.rate_per_second
        asked = self.question
        if asked.queueing == "mixserve":
            keeps = self.candidate.iteration_seconds <= asked.tpot_seconds * self.decoding.accepted
            return instances * self.most_per_second if keeps else 0.0
        if not asked.decoded.decodes:
            return instances * self.most_per_second
        most = self.queue.capacity(asked.tpot_seconds, asked.percentile, asked.most_utilisation, instances)
        return instances * (most or 0.0) / asked.requests_each

    def played(self, most_per_second: float, instances: int) -> Capacity | None:
        """Return the rate of one of so many instances within the TPOT limit, if it is played behind prefill."""
        return self.handover.capacity(most_per_second, self._limits, instances) if self.handover else None

    def lasting(self, rate_per_second: float, instances: int, least: int) -> int:
        """Return the requests, at least so many, of a stream that tells TPOT closely where it is played so."""
        return self.handover.lasting(rate_per_second, self._limits, instances, least) if self.handover else least

    @property
    def _limits(self) -> Limits:
        return Limits(percentile=self.question.percentile, tpot_seconds=self.question.tpot_seconds)

    def pool_carries(self, instances: int, rate_per_second: float) -> bool:
        """Whether a pool of so many instances carries a rate within the TPOT limit."""
        if self.player is not None:
            each = rate_per_second / instances
            return each <= self.most_per_second * (1 + 1e-9) and self.player.keeps(each, instances)
        return self.pool_capacity(instances) >= rate_per_second

    @property
    def most_per_second(self) -> float:
        """The largest rate of one instance that is planned with."""
        return self.question.most_utilisation * self.candidate.requests_per_second

    @cached_property
    def queue(self) -> DecodeQueue:
        """The closed-form queue of the instance."""
        known, later = self.known_queue, self.transfer_seconds
        return known.after(later) if known else self.decoding.queue(later)

    def state(self, rate_per_second: float, instances: int = 1, requests: int = MANY) -> DecodeState | None:
        """Occupancy and TPOT of one of so many instances at its rate of online requests; None beyond saturation.

        Requests go to the rank with least reserved KV, which balances instances. Args: ``requests``: see
        ``Handover.state``.
        """
        if self.question.queueing == "mixserve":
            full, own = (self.candidate.requests_per_second, self.candidate.iteration_seconds), self.decoding
            return full_batch_state(rate_per_second, own.iterations, full, self.transfer_seconds, own.accepted)
        if not self.question.decoded.decodes:
            return DecodeState.idle(rate_per_second)
        if self.player is not None:
            return self.player.state(rate_per_second, instances)
        if self.handover is not None:
            return self.handover.state(rate_per_second, instances, requests)
        return self.queue.state(rate_per_second * self.question.requests_each, instances)
