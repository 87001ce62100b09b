"""A kind of instance as a server: what it carries with the budget of a pass, or the cap of a batch, that suits it best.

A row of the search says how an instance is cut over its devices; how much it takes at once is chosen here, out of
every whole number that keeps the limit and fits, once the row matters (``offers.columns``). Bounds leave out numbers
that cannot carry what is wanted, and the others are tried, large ones a twelfth apart; of prompts that differ, whose
queues take long and whose budgets are a list, those that close in on the least tail, taken to fall and then to rise.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.balance.imbalance import expected_maximum_normal
from planner.costs.deployment import Deployment
from planner.instances.candidates import row_microbatches
from planner.instances.decode_candidates import DecodeCandidate, iteration, request_rate
from planner.instances.operating import MOST_UTILISATION, DecodeServer, PrefillServer, kv_transfer_seconds
from planner.instances.prefill_bounds import few_prompts, saturated, short_enough, timely, varied
from planner.instances.prefill_candidates import (
    PROMPTS_PER_PASS,
    PrefillCandidate,
    busiest_prompts,
    pass_seconds,
    prefill_fits,
)
from planner.instances.space import Row
from planner.manifest.terms import StepCost
from planner.offers.known_late import KnownLate
from planner.question import Question
from planner.queues.decode_caps import Batches
from planner.queues.lattice import any_within, first_within, largest_carried, least_of
from planner.queues.passes import full_passes_per_second
from planner.queues.prompts import prompts_of
from planner.workload import running_kv_tokens

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Late = dict[int, list[tuple[float, float]]]
"""By the place of a budget: rates at which it was late, and how many seconds it took; so it is late at higher ones."""

# Prompts of a group up to which every budget is tried, and then those that are one in so many apart.
_EACH = 12
# Full passes of a smaller budget carry up to so much more, where queues tell the two in different ways.
_ROUGH = 1.06
# Caps that are tried for being quickest at a rate: all but always the first keeps the limit.
_TRIED = 8


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
    known: KnownLate | None = field(default=None, repr=False)
    """What other rows have shown, where prompts differ."""
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
        # Passes with less than one prompt a group, from one in the whole instance on, and a full one of each budget.
        few = few_prompts(ranks)
        fullest = np.append(np.ones_like(few), busiest_prompts(question.workload, held, ranks))
        mean, alone = np.append(few / ranks, held), np.full(few.shape, np.inf)
        seconds, chosen = np.full(held.shape, np.inf), np.ones(held.shape, dtype=np.int64)
        most = np.zeros(held.shape)
        for parts in row_microbatches(question, self.row):
            single, took = np.split(
                np.asarray(pass_seconds(cost, question.workload, fullest, mean, self.chunks, parts)), [few.size]
            )
            alone = np.minimum(single, alone)
            most = np.maximum(most, saturated(question, cost, (held, ranks), took, (self.chunks, parts)))
            chosen, seconds = np.where(took < seconds, parts, chosen), np.minimum(took, seconds)
        fits = np.broadcast_to(prefill_fits(deployment, question.workload, held, self.chunks), held.shape)
        keep = np.flatnonzero(fits & ((seconds <= question.ttft_seconds) | (prompts == prompts[0])))
        bound = MOST_UTILISATION * most[keep]
        if not varied(question):
            bound = np.minimum(bound, timely(question, alone[0], seconds[keep], held[keep] * ranks))
            bound = np.minimum(bound, short_enough(question, (few, alone), (held * ranks, seconds)))
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
        if varied(self.question) and rate_per_second > self._most_carried * instances:
            return False
        return self._carrying(instances, rate_per_second, told=True) is not None

    @cached_property
    def _most_carried(self) -> float:
        """What one of any number of instances carries, told by full passes: those of the largest budget serve most."""
        last = self.budgets.prompts.size - 1
        if last < 0 or self.question.queueing == "mixserve":
            return self.bound_per_second
        full = full_passes_per_second(self._server(last).machine, prompts_of(self.question.workload))
        return _ROUGH * MOST_UTILISATION * full

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
            about = float(self.budgets.guess_per_second[place]) * instances
            # What is known of other questions is left out: the answer must not depend on what was asked before.
            late: Late = {}
            self._best[instances] = largest_carried(
                (self._capacity(place, instances, about), place),
                lambda place, rate: self._tail(place, instances, rate) <= self.question.ttft_seconds,
                lambda rate, last: self._carrying(instances, rate, last, late),
                lambda place, rate: self._capacity(place, instances, rate),
                self.bound_per_second * instances / 1000,
            )
        return self._best[instances]

    def _capacity(self, place: int, instances: int, about: float) -> float:
        """Largest rate at one budget; the queue of prompts that differ is rough enough to pass the bound."""
        most = float(self.budgets.bound_per_second[place]) * instances
        return min(self._server(place).pool_capacity(instances, about), most)

    def _tail(self, place: int, instances: int, rate: float) -> float:
        """TTFT at the percentile at one budget; infinite past its bound or 98 % of saturation."""
        server, each = self._server(place), rate / instances
        if not self._able(instances, rate)[place] or each > MOST_UTILISATION * server.saturation_per_second * (
            1 + 1e-9
        ):
            return math.inf
        return server.tail_seconds(each, instances)

    def _told_tail(self, place: int, instances: int, rate: float) -> float:
        """The same, or about as much where other rows tell that it is late."""
        server, each, able = self._server(place), rate / instances, self._able(instances, rate)[place]
        told = self.known.least_tail(server.machine, instances, each) if self.known and able else 0.0
        if told:
            return told
        found = self._tail(place, instances, rate)
        if self.known and able and found > self.question.ttft_seconds:
            most = MOST_UTILISATION * server.saturation_per_second
            self.known.add(server.machine, instances, (each, most), found)
        return found

    def _able(self, instances: int, rate: float) -> NDArray[np.bool_]:
        return np.asarray(self.budgets.bound_per_second * instances >= rate * (1 - 1e-9))

    def _carrying(
        self, instances: int, rate: float, last: int | None = None, late: Late | None = None, told: bool = False
    ) -> int | None:
        """Return the place of a budget that carries a rate; None where none but perhaps the ``last`` one does.

        Of those that differ the ones in ``late`` are not solved for again at higher rates, and others added to it;
        ``told``, those are not solved for that other rows tell are late.
        """
        able, guesses = np.flatnonzero(self._able(instances, rate)), self.budgets.guess_per_second
        if not able.size:
            return None
        limit = self.question.ttft_seconds

        def tail(place: int) -> float:
            return self._told_tail(place, instances, rate) if told else self._tail(place, instances, rate)

        def at_least(place: int) -> float:
            before = [] if late is None else late.setdefault(place, [])
            known = [pair for pair in before if pair[0] <= rate]
            if known:
                return max(known)[1]
            found = tail(place)
            if found > limit:
                before.append((rate, found))
            return found

        if varied(self.question):
            start = int(able[np.argmax(guesses[able])]) if last is None else last
            return first_within(at_least, int(able[0]), int(able[-1]), start, limit)
        places = self._told_apart(able, rate / instances, instances)
        likely = places[np.argsort(-guesses[places], kind="stable")]
        return any_within(tail, [place for place in likely.tolist() if place != last], limit)

    def _told_apart(self, able: Ints, rate: float, instances: int) -> Ints:
        """Return the budgets whose queues differ at a rate of each instance.

        Budgets beyond what waits at any time let the same passes begin, and of large ones those stand for others that
        are a twelfth apart.
        """
        prompts, counts = self.budgets.prompts[able], self.budgets.microbatches[able]
        reach = self._server(int(able[-1])).most_waiting(rate, instances)
        beyond = prompts * self.row.strategy.attention_dp > reach
        steps = np.where(prompts > _EACH, np.floor(np.log(prompts / _EACH) / math.log(1 + 1 / _EACH)), -prompts)
        alike = np.stack([np.where(beyond, np.inf, steps), counts])
        return able[np.unique(alike, axis=1, return_index=True)[1]]


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
        return instances * self._settled[0]

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

        Where it misses the limit, the largest one that keeps it is taken.
        """
        question, limit = self.full.question, self.full.question.tpot_seconds
        for server in self._largest_first(rate):
            state = server.state(rate)
            if state is not None and state.tpot.at(question.percentile) <= limit:
                return server, state.span.mean - server.transfer_seconds
        return self.full, math.inf

    def _largest_first(self, rate: float) -> Iterator[DecodeServer]:
        yield self.full
        batches, bounds = self._caps
        able = batches[bounds >= rate]
        if able.size and self.full.question.queueing == "bulk":
            kept = self._batches.kept(able * self._groups, rate)
            keep = able[kept >= self.full.question.percentile / 100]
            yield from (self._server(int(cap)) for cap in keep[::-1][:_TRIED])

    @property
    def best(self) -> DecodeServer:
        """The server with the cap that carries most, out of every one."""
        return self._server(self._settled[1])

    @cached_property
    def _settled(self) -> tuple[float, int]:
        """The largest rate and the cap that carries it."""
        full = self.full
        if full.question.queueing == "mixserve":
            return full.single_capacity, full.candidate.batch
        return largest_carried(
            (full.single_capacity, full.candidate.batch),
            self._keeps,
            lambda rate, _: self._carrying(rate),
            lambda cap, _: self._server(cap).single_capacity,
            self.bound_per_second / 1000,
        )

    def _carrying(self, rate: float) -> int | None:
        """Return the cap with which most requests keep the limit at a rate; None where that is too few."""
        batches, bounds = self._caps
        able = batches[bounds >= rate]
        if not able.size:
            return None
        cap = int(able[np.argmax(self._batches.kept(able * self._groups, rate))])
        return cap if self._keeps(cap, rate) else None

    def _keeps(self, cap: int, rate: float) -> bool:
        server, question = self._server(cap), self.full.question
        if rate > MOST_UTILISATION * server.candidate.requests_per_second:
            return False
        state = server.state(rate)
        return state is not None and state.tpot.at(question.percentile) <= question.tpot_seconds

    @property
    def _groups(self) -> int:
        return self.full.candidate.row.strategy.attention_groups

    @cached_property
    def _batches(self) -> Batches:
        full = self.full
        return Batches(
            iteration_seconds=np.maximum.accumulate(full.iteration_table()),
            iterations=full.iterations,
            transfer_seconds=full.transfer_seconds,
            tokens_per_iteration=full.accepted,
            limit_seconds=full.question.tpot_seconds,
        )

    @cached_property
    def _caps(self) -> tuple[Ints, Floats]:
        """Caps up to the largest, [caps], and what bounds the rate at each."""
        candidate, question = self.full.candidate, self.full.question
        strategy = candidate.row.strategy
        batches = np.arange(strategy.pp * candidate.microbatches, candidate.batch + 1)
        seconds = self._seconds(batches.astype(np.float64))
        rates = request_rate(question, candidate.deployment, batches.astype(np.float64), seconds)
        return batches, MOST_UTILISATION * rates

    def _seconds(self, batches: Floats) -> Floats:
        candidate, question = self.full.candidate, self.full.question
        spread = expected_maximum_normal(candidate.row.strategy.attention_groups)
        kv = running_kv_tokens(question.workload)
        return np.asarray(iteration(self.full.cost, spread, batches, kv, candidate.microbatches))

    def _server(self, cap: int) -> DecodeServer:
        """Return the server with a cap; what keeps one below the largest from more is the TPOT limit."""
        candidate, question = self.full.candidate, self.full.question
        if cap == candidate.batch:
            return self.full
        seconds = float(self._seconds(np.array([float(cap)]))[0])
        changed: DecodeCandidate = replace(
            candidate,
            batch=cap,
            iteration_seconds=seconds,
            requests_per_second=float(request_rate(question, candidate.deployment, float(cap), seconds)),
            limited_by="tpot",
        )
        return replace(self.full, candidate=changed, known_cost=self.full.cost)
