"""One pool at work: service times of a candidate as functions of what it holds, and its queues."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.balance.imbalance import expected_maximum_normal
from planner.costs.cache import model_cache
from planner.costs.deployment import Deployment
from planner.costs.latency import balanced_cost, tokens_per_iteration
from planner.instances.decode_candidates import DecodeCandidate, kv_of_busiest
from planner.instances.prefill_candidates import PrefillCandidate, busiest_prompts, pass_seconds
from planner.manifest.stacks import stacked
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import Number, StepCost, StepLoad
from planner.question import Question
from planner.queues.decode_queue import DecodeState, decode_capacity, decode_state
from planner.queues.machine import Machine
from planner.queues.memoryless import full_batch_state, memoryless_ttft
from planner.queues.pass_lattice import most_waiting
from planner.queues.passes import varied_service
from planner.queues.prefill_queue import latency_of, thinned_squared_cv
from planner.queues.prefill_service import Service, by_share
from planner.queues.prompts import prompts_of
from planner.serving.capacity import largest_rate
from planner.serving.latency import Latency
from planner.workload import Lengths, Workload, running_kv_tokens

Array = NDArray[np.float64]

MOST_UTILISATION = 0.98
"""Of saturation: the queues of ``queues.prefill_queue`` and ``queues.decode_queue`` keep below it too."""

_FAR_LATE = 1.3
"""Limits beyond which a median of the chain is late, up to 22 % high, and a wait in line, up to 20 % beyond TTFT."""
_LATE, _TAIL_PERCENTILE = 1.1, 95.0
"""The same for the chain from this percentile on where prompts are cut: 4 to 60 % low there, else at most 20 % high."""


def kv_transfer_seconds(question: Question, deployment: Deployment) -> float:
    """Return ``transfer_seconds`` of one deployment."""
    return float(transfer_seconds(question, deployment))


def transfer_seconds(question: Question, deployment: Deployment) -> Number:
    """Seconds to move one prompt's KV from prefill to decode over the slower machine's KV plane.

    Each device of the prompt's DP group sends its share over its own link (CloudMatrix384 section 4.3.3).
    """
    planes = [m.hardware.plane(m.hardware.kv_plane) for m in (question.prefill, question.decode)]
    rate = min(plane.bandwidth_bytes_per_second.value * plane.efficiency.value for plane in planes)
    links: Number = deployment.strategy.attention_tp
    sent = float(model_cache(deployment).bytes(question.workload.input_tokens.mean, 1.0))
    return sent / (rate * links) + max(plane.latency_seconds.value for plane in planes)


@dataclass(frozen=True, slots=True)
class Dealing:
    """An instance whose work is dealt to its DP groups evenly: what a step costs, and over how many groups."""

    cost: StepCost
    workload: Workload
    ranks: int
    microbatches: int


def dealt_pass_seconds(dealing: Dealing, prompts: Array, chunks: int) -> Array:
    """Seconds of passes with ``prompts`` prompts in all, each in ``chunks``; shaped like ``prompts``."""
    busy_groups = np.minimum(prompts, dealing.ranks)
    busiest = busiest_prompts(dealing.workload, np.ceil(prompts / dealing.ranks), np.maximum(busy_groups, 1.0))
    mean = prompts / dealing.ranks
    options = [
        pass_seconds(dealing.cost, dealing.workload, busiest, mean, chunks, count)
        for count in range(1, dealing.microbatches + 1)
    ]
    return np.asarray(np.minimum.reduce([np.broadcast_to(option, prompts.shape) for option in options]))


def pass_service(dealing: Dealing, *, budget_tokens: float, most_prompts: int, chunks: int) -> Service:
    """Return the pass times of an instance for the queue; those of equal prompts need no distribution.

    Args: ``budget_tokens`` of one DP group and pass; ``most_prompts`` that a pass holds and ``chunks`` of each where
    prompts are equal.
    """
    workload = dealing.workload
    if workload.prompts is None and not workload.input_tokens.squared_cv and not workload.prefix_reuse:
        return by_share(lambda prompts: dealt_pass_seconds(dealing, prompts, chunks), most_prompts, 0.0, 0.0)
    machine = Machine(dealing.cost, dealing.ranks, budget_tokens, dealing.microbatches)
    return varied_service(machine, prompts_of(workload))


def dealt_iteration_seconds(dealing: Dealing, requests: Array) -> Array:
    """Seconds of iterations with ``requests`` running requests in all; the shape of ``requests``."""
    return iteration_seconds(dealing.cost, dealing.workload, dealing.ranks, dealing.microbatches, requests)


def iteration_seconds(cost: StepCost, workload: Workload, ranks: Number, microbatches: int, requests: Array) -> Array:
    """The same of one instance, or with a stacked cost and as many ``ranks`` of many; ``requests`` are [..., rows]."""
    busiest = np.maximum(requests / ranks, np.minimum(requests, 1.0))
    load = StepLoad(
        decode_sequences=busiest,
        decode_kv_tokens=kv_of_busiest(expected_maximum_normal(ranks), busiest, running_kv_tokens(workload)),
        mean_tokens=requests / ranks * cost.queries_per_sequence,
    )
    seconds: Number = evaluate(cost, load, 1).seconds
    if microbatches > 1:
        seconds = np.where(busiest >= 2, np.minimum(seconds, evaluate(cost, load, 2).seconds), seconds)
    return np.asarray(seconds)


@dataclass(frozen=True)
class PrefillServer:
    """A prefill instance as its queue sees it: pass time against prompts in the pass."""

    question: Question
    candidate: PrefillCandidate
    known_cost: StepCost | None = field(default=None, repr=False, compare=False)
    """The step cost, stacked, where it is known already."""
    _solved: dict[tuple[float, int], Latency | None] = field(default_factory=dict, repr=False, compare=False)
    """TTFT by rate of each and instances: budgets are compared at rates that capacities were solved at."""
    _screens: dict[tuple[float, int], float] = field(default_factory=dict, repr=False, compare=False)
    """The same of the chain beside a sample, at the percentile."""

    @property
    def independent(self) -> bool:
        """No: arrivals that are dealt out in turn are the more even the more instances take them."""
        return False

    @cached_property
    def cost(self) -> StepCost:
        """Step cost of the instance, for many loads at once."""
        return self.known_cost or stacked(balanced_cost(self.candidate.deployment, self.question.balance))

    @property
    def most_prompts(self) -> int:
        """Prompts that one pass (or one run of passes over a chunked prompt per DP group) can take."""
        return self.candidate.prompts * self.candidate.row.strategy.attention_dp

    def pass_seconds(self, prompts: Array) -> Array:
        """Seconds of a pass with so many prompts."""
        candidate = self.candidate
        dealing = Dealing(
            self.cost, self.question.workload, candidate.row.strategy.attention_dp, candidate.microbatches
        )
        return dealt_pass_seconds(dealing, prompts, candidate.chunks)

    @cached_property
    def service(self) -> Service:
        """Pass times for the queue, tabulated once for all rates and counts of instances."""
        machine = self.machine
        return pass_service(
            Dealing(self.cost, self.question.workload, machine.ranks, machine.microbatches),
            budget_tokens=machine.budget_tokens,
            most_prompts=self.most_prompts,
            chunks=self.candidate.chunks,
        )

    @property
    def machine(self) -> Machine:
        """What forms its passes."""
        candidate, strategy = self.candidate, self.candidate.row.strategy
        budget = float(candidate.tokens_per_device * strategy.attention_tp * strategy.pp)
        return Machine(self.cost, strategy.attention_dp, budget, candidate.microbatches)

    @property
    def saturation_per_second(self) -> float:
        """Prompts per second of passes that are always full."""
        if self.question.queueing == "mixserve":
            return self.candidate.requests_per_second
        return self.service.saturation_per_second

    def most_waiting(self, rate_per_second: float, instances: int = 1) -> float:
        """Prompts that all but never wait more of when a pass of one of ``instances`` starts, at its rate.

        Larger passes than that begin as if there were no cap.
        """
        if self.question.queueing == "mixserve":
            return math.inf
        return most_waiting(self.service, rate_per_second, self._squared_cv(instances))

    def capacity(self) -> float:
        """Largest rate of one instance within the TTFT limit; 0 where there is none."""
        return self.pool_capacity(1)

    def pool_capacity(self, instances: int, about: float | None = None) -> float:
        """Largest rate of so many instances that take requests in turn, within the TTFT limit; 0 where there is none.

        At most 98 % of saturation, beyond which no plan should run. The more instances deal arrivals out, the more
        evenly each gets them: this is no multiple of one instance's rate. ``about`` is where it likely lies.
        """
        upper, limit = MOST_UTILISATION * self.saturation_per_second, self.question.ttft_seconds
        each = None if about is None else about / instances
        if self._screened:
            each = largest_rate(lambda rate: self._chain_tail(rate, instances), limit, upper, each)
        rate = largest_rate(lambda rate: self.tail_seconds(rate, instances), limit, upper, each)
        return 0.0 if rate is None else rate * instances

    def tail_seconds(self, rate_per_second: float, instances: int = 1) -> float:
        """TTFT at the percentile, infinite where it cannot keep up; the rate is that of one of ``instances``.

        A queue that is told by a sample takes a quarter of a second: where the chain beside it, which tells less of the
        tail, or the wait alone is far beyond the limit already, it is theirs.
        """
        if self._screened:
            low = self.question.percentile >= _TAIL_PERCENTILE and self.service.full is None
            late = _LATE if low else _FAR_LATE
            screens = ((self._chain_tail, late), (self._least_tail, _FAR_LATE), (self._tail_below, 1.0))
            for screen, factor in screens:
                screened = screen(rate_per_second, instances)
                if screened > factor * self.question.ttft_seconds:
                    return screened
        return self._tail(self.ttft(rate_per_second, instances))

    @property
    def _screened(self) -> bool:
        return self.question.queueing != "mixserve" and self.service.sample is not None

    @cached_property
    def _chain(self) -> Service:
        return replace(self.service, sample=None)

    def _chain_tail(self, rate_per_second: float, instances: int) -> float:
        key = (rate_per_second, instances)
        if key not in self._screens:
            self._screens[key] = self._tail(latency_of(self._chain, rate_per_second, self._squared_cv(instances)))
        return self._screens[key]

    def _least_tail(self, rate_per_second: float, instances: int) -> float:
        assert self.service.sample is not None
        return self._tail(self.service.sample.least_wait(rate_per_second, self._squared_cv(instances)))

    def _tail_below(self, rate_per_second: float, instances: int) -> float:
        """The same at the node of the sample below: half of what telling it at the rate takes."""
        assert self.service.sample is not None
        return self._tail(self.service.sample.least_ttft(rate_per_second, self._squared_cv(instances)))

    def pool_carries(self, instances: int, rate_per_second: float) -> bool:
        """Whether so many instances carry a rate within the TTFT limit and 98 % of saturation."""
        each = rate_per_second / instances
        if each > MOST_UTILISATION * self.saturation_per_second * (1 + 1e-9):
            return False
        return self.tail_seconds(each, instances) <= self.question.ttft_seconds

    def ttft(self, rate_per_second: float, instances: int = 1) -> Latency | None:
        """TTFT distribution of one of ``instances`` that requests go to in turn; None where it cannot keep up.

        The rate is that of one instance.
        """
        if self.question.queueing == "mixserve":
            return memoryless_ttft(rate_per_second, self.most_prompts, self.candidate.pass_seconds)
        key = (rate_per_second, instances)
        if key not in self._solved:
            self._solved[key] = latency_of(self.service, rate_per_second, self._squared_cv(instances))
        return self._solved[key]

    def ttft_error(self, rate_per_second: float, instances: int = 1) -> float | None:
        """Relative standard error of the mean of ``ttft`` where a sample tells it; None where a chain does."""
        if not self._screened or self.service.sample is None:
            return None
        return self.service.sample.error(rate_per_second, self._squared_cv(instances))

    def _squared_cv(self, instances: int) -> float:
        """Of the gaps between the arrivals at one of so many instances."""
        return thinned_squared_cv(self.question.workload.arrival_squared_cv, instances, "round_robin")

    def _tail(self, latency: Latency | None) -> float:
        return math.inf if latency is None else latency.at(self.question.percentile)


@dataclass(frozen=True)
class DecodeServer:
    """A decode instance as its queue sees it: iteration time against running requests."""

    question: Question
    candidate: DecodeCandidate
    transfer_seconds: float
    known_cost: StepCost | None = field(default=None, repr=False, compare=False)
    """The step cost, stacked, where it is known already."""

    @property
    def independent(self) -> bool:
        """Yes: each of several instances sees Poisson arrivals."""
        return True

    @cached_property
    def cost(self) -> StepCost:
        """Step cost of the instance, for many loads at once."""
        return self.known_cost or stacked(balanced_cost(self.candidate.deployment, self.question.balance))

    @property
    def most_requests(self) -> int:
        """Requests that the instance runs at most."""
        return self.candidate.batch * self.candidate.row.strategy.attention_groups

    @property
    def accepted(self) -> float:
        """Tokens per request and iteration."""
        return tokens_per_iteration(self.candidate.drafts, self.question.acceptance)

    @property
    def iterations(self) -> Lengths:
        """Iterations of one request: its tokens after the first over those accepted per iteration."""
        workload = self.question.workload
        return Lengths(mean=workload.decoded_tokens / self.accepted, squared_cv=workload.output_tokens.squared_cv)

    def iteration_seconds(self, requests: Array) -> Array:
        """Seconds of an iteration with so many running requests."""
        candidate = self.candidate
        dealing = Dealing(
            self.cost, self.question.workload, candidate.row.strategy.attention_groups, candidate.microbatches
        )
        return dealt_iteration_seconds(dealing, requests)

    def iteration_table(self) -> Array:
        """Seconds of an iteration with 1, 2, ... running requests up to the most, [requests]."""
        return self.iteration_seconds(np.arange(1.0, self.most_requests + 1))

    def pool_capacity(self, instances: int) -> float:
        """Largest rate of so many instances: that of one each, for random routing leaves arrivals Poisson."""
        return instances * self.single_capacity

    def pool_carries(self, instances: int, rate_per_second: float) -> bool:
        """Whether so many instances carry a rate within the TPOT limit."""
        return self.pool_capacity(instances) >= rate_per_second

    def capacity(self) -> float:
        """Largest Poisson rate of one instance within the TPOT limit; 0 where there is none."""
        return self.single_capacity

    @cached_property
    def single_capacity(self) -> float:
        """The capacity, solved once."""
        if self.question.queueing == "mixserve":
            keeps = self.candidate.iteration_seconds <= self.question.tpot_seconds * self.accepted
            return MOST_UTILISATION * self.candidate.requests_per_second if keeps else 0.0
        found = decode_capacity(
            iterations_per_request=self.iterations,
            iteration_seconds=self.iteration_seconds,
            most_requests=self.most_requests,
            limit_seconds=self.question.tpot_seconds,
            percentile=self.question.percentile,
            transfer_seconds=self.transfer_seconds,
            tokens_per_iteration=self.accepted,
        )
        return found.rate_per_second if found else 0.0

    def state(self, rate_per_second: float, instances: int = 1) -> DecodeState | None:
        """Occupancy and TPOT of one of so many instances at its rate; None where it cannot keep up.

        Requests go where least KV is set aside, which fills instances alike. Sizes are chosen as if each were alone
        (``pool_capacity``), so several keep their limit the better.
        """
        if self.question.queueing == "mixserve":
            full = (self.candidate.requests_per_second, self.candidate.iteration_seconds)
            return full_batch_state(rate_per_second, self.iterations, full, self.transfer_seconds, self.accepted)
        return decode_state(
            arrival_rate_per_second=rate_per_second,
            iterations_per_request=self.iterations,
            iteration_seconds=self.iteration_seconds,
            most_requests=self.most_requests,
            transfer_seconds=self.transfer_seconds,
            tokens_per_iteration=self.accepted,
            instances=instances,
        )
