"""A kind of instance as a server: what it carries with the budget of a pass, or the cap of a batch, that suits it best.

A row of the search says how an instance is cut over its devices; how much it takes at once is chosen here, out of
every whole number that keeps the limit and fits, once the row matters (``planner.columns``). Bounds leave out numbers
that cannot carry what is wanted; among the others the tail of the latency falls and then rises (``planner.lattice``).
"""

import math
from dataclasses import field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.candidates import row_microbatches
from planner.decode_candidates import DecodeCandidate, iteration, request_rate
from planner.deployment import Deployment
from planner.imbalance import expected_maximum_normal
from planner.lattice import first_within, least_of
from planner.manifest.terms import StepCost
from planner.operating import MOST_UTILISATION, DecodeServer, PrefillServer, kv_transfer_seconds
from planner.prefill_bounds import saturated, timely, varied
from planner.prefill_candidates import PROMPTS_PER_PASS, PrefillCandidate, busiest_prompts, pass_seconds, prefill_fits
from planner.question import Question
from planner.space import Row
from planner.workload import running_kv_tokens
from podplan.records import dataclass

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Capacities are solved to about so much: a better budget must carry more than that, and a better cap so many times it.
_MORE = 0.003


@dataclass(frozen=True, slots=True)
class Budgets:
    """Prompts of a DP group that a pass may hold, microbatches and seconds of a full pass, bounds; [budgets]."""

    prompts: Ints
    microbatches: Ints
    seconds: Floats
    bound_per_second: Floats
    guess_per_second: Floats


@dataclass(frozen=True, eq=False)
class PrefillKind:
    """A prefill row with each count of prompts per pass; ``most_prompts`` of a group is where a pass is known late.

    Prompts that all are alike fill any budget of tokens with whole ones, so whole numbers of prompts are all budgets
    there are; of prompts that differ those of ``PROMPTS_PER_PASS`` mean ones are tried. Rows that do not hold a whole
    prompt take it in ``chunks``, and then one at a time.
    """

    question: Question
    row: Row
    deployment: Deployment
    most_prompts: int
    chunks: int
    cost: StepCost = field(repr=False)
    """Step cost of the row, stacked: for many loads at once."""
    _servers: dict[int, PrefillServer] = field(default_factory=dict)
    _best: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By instances: the rate of the pool and the place of the budget that carries it."""

    @property
    def independent(self) -> bool:
        """No: arrivals that are dealt out in turn are the more even the more instances take them."""
        return False

    @cached_property
    def budgets(self) -> Budgets:
        """Every budget whose full pass keeps the limit and fits, and the smallest of all."""
        question, deployment, ranks = self.question, self.deployment, self.row.strategy.attention_dp
        prompts = np.arange(1, self.most_prompts + 1)
        if varied(question):
            prompts = prompts[np.isin(prompts, PROMPTS_PER_PASS)]
        cost, held = self.cost, prompts.astype(np.float64)
        # A pass with one prompt in the whole instance, and a full one of each budget.
        fullest = np.append(1.0, busiest_prompts(question.workload, held, ranks))
        mean, alone = np.append(1.0 / ranks, held), np.full(1, np.inf)
        seconds, chosen = np.full(held.shape, np.inf), np.ones(held.shape, dtype=np.int64)
        most = np.zeros(held.shape)
        for parts in row_microbatches(question, self.row):
            single, took = np.split(
                np.asarray(pass_seconds(cost, question.workload, fullest, mean, self.chunks, parts)), [1]
            )
            alone = np.minimum(single, alone)
            most = np.maximum(most, saturated(question, cost, (held, ranks), took, (self.chunks, parts)))
            chosen, seconds = np.where(took < seconds, parts, chosen), np.minimum(took, seconds)
        fits = np.broadcast_to(prefill_fits(deployment, question.workload, held, self.chunks), held.shape)
        keep = np.flatnonzero(fits & ((seconds <= question.ttft_seconds) | (prompts == prompts[0])))
        bound = MOST_UTILISATION * most[keep]
        if not varied(question):
            bound = np.minimum(bound, timely(question, alone, seconds[keep], held[keep] * ranks))
        return Budgets(
            prompts=prompts[keep],
            microbatches=chosen[keep],
            seconds=seconds[keep],
            bound_per_second=bound,
            guess_per_second=np.minimum(bound, likely_rate(question, held[keep] * ranks, seconds[keep])),
        )

    @property
    def bound_per_second(self) -> float:
        """What one of any number of instances can carry at most."""
        return float(self.budgets.bound_per_second.max(initial=0.0))

    def pool_carries(self, instances: int, rate_per_second: float) -> bool:
        """Whether so many instances carry a rate within the TTFT limit at some budget."""
        return self._carrying(instances, rate_per_second) is not None

    def pool_capacity(self, instances: int) -> float:
        """Largest rate of so many instances within the TTFT limit at any budget; 0 where there is none."""
        return self._settled(instances)[0]

    def at(self, instances: int, rate_per_second: float | None = None) -> PrefillServer:
        """Return the server with the budget that carries most in so many instances, or is quickest at a rate."""
        if rate_per_second is not None:
            return self._server(self._quickest(instances, rate_per_second)[0])
        return self._server(self._settled(instances)[1])

    def mean_seconds(self, instances: int, rate_per_second: float) -> float:
        """Mean time from arrival to the KV's, at the budget that is quickest at a rate; infinite beyond the limit."""
        return self._quickest(instances, rate_per_second)[1]

    def _quickest(self, instances: int, rate: float) -> tuple[int, float]:
        able = np.flatnonzero(self.budgets.bound_per_second * instances >= rate * (1 - 1e-9))
        if not able.size:
            return 0, math.inf

        def seconds(place: int) -> float:
            latency = self._server(place).ttft(rate / instances, instances)
            if latency is None or latency.at(self.question.percentile) > self.question.ttft_seconds:
                return math.inf
            return latency.mean

        place, found = least_of(seconds, int(able[0]), int(able[-1]))
        return place, found + kv_transfer_seconds(self.question, self.deployment)

    def _server(self, place: int) -> PrefillServer:
        if place not in self._servers:
            self._servers[place] = PrefillServer(self.question, self._candidate(place), self.cost)
        return self._servers[place]

    def _candidate(self, place: int) -> PrefillCandidate:
        budgets, strategy = self.budgets, self.row.strategy
        prompts, seconds = int(budgets.prompts[place]), float(budgets.seconds[place])
        tokens = prompts * self.question.workload.input_tokens.mean / self.chunks
        return PrefillCandidate(
            row=self.row,
            deployment=self.deployment,
            microbatches=int(budgets.microbatches[place]),
            prompts=prompts,
            chunks=self.chunks,
            tokens_per_device=int(np.ceil(tokens * strategy.attention_dp / strategy.devices)),
            pass_seconds=seconds,
            requests_per_second=prompts * strategy.attention_dp / seconds,
        )

    def _settled(self, instances: int) -> tuple[float, int]:
        """The largest rate and where among the budgets it is carried."""
        if instances not in self._best:
            place = int(np.argmax(self.budgets.guess_per_second))
            rate, tried, leap = self._capacity(place, instances), place, _MORE
            wanted = max(rate, self._least(instances)) * (1 + leap)
            while (better := self._carrying(instances, wanted, tried)) is not None:
                found = self._capacity(better, instances)
                if found > rate:
                    rate, place = found, better
                # A budget may carry a little more than it is solved to: longer leaps get past that, on to others.
                leap = _MORE if found > wanted else 2 * leap
                wanted, tried = max(found, wanted) * (1 + leap), better
            self._best[instances] = rate, place
        return self._best[instances]

    def _capacity(self, place: int, instances: int) -> float:
        """Largest rate at one budget; the queue of prompts that differ is rough enough to pass the bound."""
        most = float(self.budgets.bound_per_second[place]) * instances
        return min(self._server(place).pool_capacity(instances), most)

    def _least(self, instances: int) -> float:
        """A rate below which rates are not told apart."""
        return self.bound_per_second * instances / 1000

    def _carrying(self, instances: int, rate: float, start: int | None = None) -> int | None:
        """Return the place of a budget that carries a rate; None where there is none."""
        bounds, guesses = self.budgets.bound_per_second * instances, self.budgets.guess_per_second
        able = np.flatnonzero(bounds >= rate * (1 - 1e-9))
        if not able.size:
            return None
        start = int(able[np.argmax(guesses[able])]) if start is None else start

        def seconds(place: int) -> float:
            server, each = self._server(place), rate / instances
            if bounds[place] < rate * (1 - 1e-9) or each > MOST_UTILISATION * server.saturation_per_second * (1 + 1e-9):
                return np.inf
            latency = server.ttft(each, instances)
            return np.inf if latency is None else latency.at(self.question.percentile)

        return first_within(seconds, int(able[0]), int(able[-1]), start, self.question.ttft_seconds)


def likely_rate(question: Question, prompts: Floats, seconds: Floats) -> Floats:
    """About what an instance carries with passes of so many prompts.

    A prompt waits for the rest of one pass and then for its own: longer passes than half the limit are late.
    """
    share = np.minimum(1.0, question.ttft_seconds / (2 * seconds))
    return np.asarray(MOST_UTILISATION * prompts / seconds * share, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class DecodeKind:
    """A decode row with each cap of its batch up to the largest that keeps the TPOT limit and fits.

    The largest carries most but where requests wait for room long enough to miss the limit by it: then smaller ones,
    whose requests run quicker, are tried too.
    """

    full: DecodeServer

    @property
    def row(self) -> Row:
        """The row."""
        return self.full.candidate.row

    @property
    def independent(self) -> bool:
        """Yes: each of several instances sees Poisson arrivals."""
        return True

    @property
    def bound_per_second(self) -> float:
        """What one instance can carry at most."""
        return MOST_UTILISATION * self.full.candidate.requests_per_second

    def pool_capacity(self, instances: int) -> float:
        """Largest rate of so many instances within the TPOT limit at any cap."""
        return instances * self.best.single_capacity

    def pool_carries(self, instances: int, rate_per_second: float) -> bool:
        """Whether so many instances carry a rate within the TPOT limit."""
        return self.pool_capacity(instances) >= rate_per_second

    def at(self, instances: int, rate_per_second: float | None = None) -> DecodeServer:
        """Return the server with the cap that carries most, or is quickest at a rate of so many instances."""
        return self.best if rate_per_second is None else self._quickest(rate_per_second / instances)[0]

    def mean_seconds(self, instances: int, rate_per_second: float) -> float:
        """Mean time from a prompt's KV to its last token at a rate; infinite beyond the limit."""
        return self._quickest(rate_per_second / instances)[1]

    def _quickest(self, rate: float) -> tuple[DecodeServer, float]:
        """The largest cap lets fewest requests wait and finishes most of those that run, so it is the quickest.

        Where it misses the limit, a smaller one that keeps it is taken.
        """
        question, batches = self.full.question, self._caps[0]
        server: DecodeServer | None = self.full
        state = self.full.state(rate)
        if state is None or state.tpot.at(question.percentile) > question.tpot_seconds:
            server = self._carrying(batches, rate, self.full.candidate.batch) if batches.size else None
            state = server.state(rate) if server else None
        if server is None or state is None:
            return self.full, math.inf
        return server, state.span.mean - server.transfer_seconds

    @cached_property
    def best(self) -> DecodeServer:
        """The server with the cap that carries most."""
        best = self.full
        if best.question.queueing == "mixserve":
            return best
        batches, bounds = self._caps
        while True:
            wanted = max(best.single_capacity * (1 + _MORE), self.bound_per_second / 1000)
            able = batches[bounds >= wanted]
            found = self._carrying(able, wanted, best.candidate.batch) if able.size else None
            if found is None or found.single_capacity <= best.single_capacity:
                return best
            best = found

    @cached_property
    def _caps(self) -> tuple[Ints, Floats]:
        """Caps below the largest, [caps], and what bounds the rate at each."""
        candidate, question = self.full.candidate, self.full.question
        strategy = candidate.row.strategy
        batches = np.arange(strategy.pp * candidate.microbatches, candidate.batch)
        seconds = self._seconds(batches.astype(np.float64))
        rates = request_rate(question, candidate.deployment, batches.astype(np.float64), seconds)
        return batches, MOST_UTILISATION * rates

    def _seconds(self, batches: Floats) -> Floats:
        candidate, question = self.full.candidate, self.full.question
        spread = expected_maximum_normal(candidate.row.strategy.attention_groups)
        kv = running_kv_tokens(question.workload)
        return np.asarray(iteration(self.full.cost, spread, batches, kv, candidate.microbatches))

    def _carrying(self, caps: Ints, rate: float, start: int) -> DecodeServer | None:
        servers: dict[int, DecodeServer] = {}

        def seconds(cap: int) -> float:
            servers[cap] = self._server(cap)
            state = servers[cap].state(rate)
            return np.inf if state is None else state.tpot.at(self.full.question.percentile)

        found = first_within(seconds, int(caps[0]), int(caps[-1]), start, self.full.question.tpot_seconds)
        return None if found is None else servers[found]

    def _server(self, cap: int) -> DecodeServer:
        """Return the server with another cap; what keeps it from more is the TPOT limit."""
        candidate, question = self.full.candidate, self.full.question
        seconds = float(self._seconds(np.array([float(cap)]))[0])
        changed: DecodeCandidate = replace(
            candidate,
            batch=cap,
            iteration_seconds=seconds,
            requests_per_second=float(request_rate(question, candidate.deployment, float(cap), seconds)),
            limited_by="tpot",
        )
        return replace(self.full, candidate=changed, known_cost=self.full.cost)
