"""A prefill row as a server: its capacity with the best budget of a pass.

A row of the search is a strategy and a layout. Once the row matters (``programme.columns``), its budget is chosen here
from every integer that keeps the limit and fits. Bounds prune budgets that cannot carry the rate. The others are solved
in closed form, large ones a twelfth apart; where instances are played, listed budgets are played on few requests, and
those that may carry most on many.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import NamedTuple, Self

import numpy as np

from ground.arrays import Bools, Floats, Ints
from planner.costs.deployment import Deployment
from planner.instances.brackets import largest_carried, least_of
from planner.instances.candidates import PROMPTS_PER_PASS, PrefillCandidate
from planner.instances.kv_links import transfer_seconds
from planner.instances.operating import PrefillServer
from planner.instances.prefill_passes import is_played
from planner.instances.space import Row
from planner.loops.arrays import TableArrays
from planner.manifest.terms import StepCost
from planner.objective import LEAST_PART
from planner.offers.slower import Passes, Slower
from planner.question import Question
from planner.serving.capacity import on_grid
from planner.serving.played import EVENLY, FEW, SURE, PlayedPrefill

Full = Callable[[Floats], tuple[Floats, Bools, Floats, Ints]]
"""Returns seconds of full passes, whether memory holds them, bounds on their prompts per second, microbatches."""

# Every budget up to so many prompts per group is tried, then budgets a twelfth apart.
_EACH = 12


class Budgets(NamedTuple):
    """Prompts per DP group and pass, microbatches and seconds of a full pass, bounds on the rate; each [budgets]."""

    prompts: Ints
    microbatches: Ints
    seconds: Floats
    bound_per_second: Floats
    guess_per_second: Floats
    places: Ints  # indices among the costed budgets

    @classmethod
    def listed(
        cls, question: Question, held: tuple[Ints, Bools], passes: tuple[Floats, Ints], most: Floats, longest: float
    ) -> Self:
        """Return the listed budgets whose full pass keeps the limit and fits, and the first in any case.

        Args: ``held``: prompts per DP group, whether they fit; ``passes``: seconds of a pass, microbatches; ``most``:
        upper bound on prompts per second; each [budgets]. ``longest``: seconds of the longest prompt alone.
        """
        (prompts, fits), (seconds, microbatches) = held, passes
        keep = np.flatnonzero(fits & ((seconds <= question.ttft_seconds) | (prompts == prompts[0])))
        return cls(
            prompts=prompts[keep],
            microbatches=microbatches[keep],
            seconds=seconds[keep],
            bound_per_second=question.most_utilisation * most[keep],
            guess_per_second=likely_rate(question, most[keep], seconds[keep], longest),
            places=keep,
        )


@dataclass(frozen=True, eq=False)
class PrefillKind:
    """A prefill row with each budget of prompts per pass; passes of ``most_prompts`` per group are known to be late.

    Equal prompts fill a token budget with whole prompts, so every budget is a number of prompts. For unequal prompts
    the budgets are ``PROMPTS_PER_PASS`` mean prompts. A row that does not hold a whole prompt takes one at a time, in
    ``chunks``.
    """

    question: Question
    row: Row
    deployment: Deployment
    most_prompts: int
    chunks: int
    cost: StepCost = field(repr=False)  # step cost of the row, stacked: for many loads at once
    costed: Budgets = field(repr=False)  # the listed budgets, at which all rows are costed
    full: Full = field(repr=False)
    passes: Passes = field(repr=False)
    slower: Slower = field(repr=False)  # late instances of all played candidates
    _servers: dict[int, PrefillServer] = field(default_factory=dict)
    _rough: dict[int, PrefillServer] = field(default_factory=dict)
    _best: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By instances: the capacity of the pool and the index of its budget."""

    independent = False  # arrivals dealt in turn are more even the more instances there are

    @cached_property
    def budgets(self) -> Budgets:
        """Every budget whose full pass keeps the limit and fits, and the smallest; where played, only listed ones."""
        if self._played:
            return self.costed
        question, given = self.question, self.question.pin("prefill").tokens
        prompts = np.arange(1 if given is None else self.most_prompts, self.most_prompts + 1)
        if question.workload.varied and given is None:
            prompts = prompts[np.isin(prompts, PROMPTS_PER_PASS)]
        seconds, fits, most, chosen = self.full(prompts[:, None].astype(np.float64))
        return Budgets.listed(question, (prompts, fits[:, 0]), (seconds[:, 0], chosen[:, 0]), most[:, 0], 0.0)

    @property
    def bound_per_second(self) -> float:
        """Upper bound on the rate of one instance, whatever their number."""
        return float(self.budgets.bound_per_second.max(initial=0.0))

    @property
    def _played(self) -> bool:
        """Whether its instances are played."""
        return is_played(self.question, self.chunks)

    def pool_carries(self, instances: int, rate_per_second: float) -> bool:
        """Whether a pool of so many instances carries a rate within the TTFT limit with some budget."""
        if not self._played:
            return self._carrying(instances, rate_per_second) is not None
        each = rate_per_second / instances
        if instances in self._best:
            return rate_per_second <= self._best[instances][0]
        if not self._early(EVENLY, each):
            return False
        timely = self._early(instances, each)
        timely = sorted(timely, key=lambda place: self._player(place).trial(each, instances, FEW).excess)
        if any(self.server(place).pool_reaches(instances, rate_per_second) for place in timely):
            return True
        self._remember(timely, instances, each)
        return False

    def _early(self, instances: int, each: float) -> list[int]:
        """Return the budgets that are not surely late on few requests in one of so many instances, the likely first.

        With evenly spaced arrivals only the first is returned: it shows that not all are late.
        """
        able = self._likely_first(np.flatnonzero(self._able(1, each)).tolist())
        known = self.slower.late(self.passes, instances, each)[self.budgets.places]
        left = [place for place in able if not known[place]]
        early = (place for place in left if not self._player(place).surely_late(each, instances))
        found = list(islice(early, 1 if instances == EVENLY else None))
        if left and not found:
            self._remember(left, instances, each)
        return found

    def _remember(self, late: Sequence[int], instances: int, each: float) -> None:
        """Record that an instance is late with some budgets, with the excess on few requests."""

        def excess() -> Floats:
            found = np.zeros(self.passes.budgets)
            for place in late:
                few = self._player(place).verdict(each, instances)
                found[self.budgets.places[place]] = 1.0 if few.ended else max(few.interval(SURE)[0], 1.0)
            return found

        self.slower.add(self.passes, instances, each, excess)

    def _player(self, place: int) -> PlayedPrefill:
        player = self._pruning(place).player
        assert player is not None, "asked only where instances are played"
        return player

    def _pruning(self, place: int) -> PrefillServer:
        """Return the server that few requests are played on: its pass times are read off one table of all budgets."""
        if place not in self._rough:
            self._rough[place] = PrefillServer(self.question, self._candidate(place), self.cost, self._times)
        return self._rough[place]

    def pool_capacity(self, instances: int) -> float:
        """Largest rate of a pool of so many instances within the TTFT limit with any budget; 0 where there is none."""
        return self._settled(instances)[0]

    def likely_capacity(self, instances: int, least_per_second: float, lower_per_second: float = 0.0) -> float | None:
        """None: the guess of its offer is good enough."""
        return None

    def at(self, instances: int, rate_per_second: float | None = None) -> PrefillServer:
        """Return the server with the best budget for so many instances: largest capacity, or quickest at a rate."""
        if rate_per_second is not None:
            return self.server(self._quickest(instances, rate_per_second)[0])
        return self.server(self._settled(instances)[1])

    def mean_seconds(self, instances: int, rate_per_second: float) -> float:
        """Mean time from a request's arrival to its KV's with the quickest budget; infinite beyond the limit."""
        return self._quickest(instances, rate_per_second)[1]

    def _quickest(self, instances: int, rate: float) -> tuple[int, float]:
        able = np.flatnonzero(self._able(instances, rate))
        if not able.size:
            return 0, math.inf

        def seconds(place: int) -> tuple[float, float]:
            latency = self.server(place).ttft(rate / instances, instances)
            if latency is None:
                return math.inf, math.inf
            return max(latency.at(self.question.percentile) / self.question.ttft_seconds, 1.0), latency.mean

        if self._played:
            timely = [p for p in able.tolist() if not self._player(p).surely_late(rate / instances, instances)]
            place = min(timely, key=seconds, default=0)
            excess, found = seconds(place) if timely else (math.inf, math.inf)
        else:
            place, (excess, found) = least_of(seconds, int(able[0]), int(able[-1]))
        if excess > 1:
            return place, math.inf
        return place, found + float(transfer_seconds(self.question, self.deployment))

    def server(self, place: int) -> PrefillServer:
        """Return the server with a budget, by its index; its pass times are those that its manifest has."""
        if place not in self._servers:
            self._servers[place] = PrefillServer(self.question, self._candidate(place), self.cost)
        return self._servers[place]

    @cached_property
    def _times(self) -> TableArrays:
        """Pass times up to the largest budget."""
        return self.server(self.budgets.prompts.size - 1).times

    def _candidate(self, place: int) -> PrefillCandidate:
        budgets, strategy = self.budgets, self.row.strategy
        prompts, seconds = int(budgets.prompts[place]), float(budgets.seconds[place])
        tokens, given = prompts * self.question.workload.input_tokens.mean / self.chunks, self.question.pin("prefill")
        return PrefillCandidate(
            row=self.row,
            deployment=self.deployment,
            microbatches=int(budgets.microbatches[place]),
            prompts=prompts,
            chunks=self.chunks,
            tokens_per_device=given.tokens or int(np.ceil(tokens * strategy.attention_dp / strategy.devices)),
            pass_seconds=seconds,
            requests_per_second=prompts * strategy.attention_dp / seconds,
        )

    def _settled(self, instances: int) -> tuple[float, int]:
        """The capacity and the index of its budget."""
        if instances not in self._best and self._played:
            self._best[instances] = self._best_played(instances)
        if instances not in self._best:
            place = int(np.argmax(self.budgets.guess_per_second))
            about = float(self.budgets.guess_per_second[place]) * instances
            each, place = largest_carried(
                (self._capacity(place, instances, about) / instances, place),
                lambda each, last: self._carrying(instances, each * instances, last),
                lambda place, each: self._capacity(place, instances, each * instances) / instances,
                self.budgets.bound_per_second,
            )
            self._best[instances] = each * instances, place
        return self._best[instances]

    def _best_played(self, instances: int) -> tuple[float, int]:
        """Play all budgets on few requests, then on many requests those that may carry most."""
        few: dict[int, float] = {}
        for place in self._likely_first(list(range(self.budgets.prompts.size))):
            player, best = self._player(place), max(few.values(), default=0.0)
            if float(self.budgets.bound_per_second[place]) < best:
                continue
            if best and player.trial(best, instances, FEW).excess > 1:
                few[place] = best * player.trial(best, instances, FEW).excess ** -1
                continue
            upper = self._pruning(place).most_per_second
            found, least = player.capacity(upper, instances, best or None, FEW), on_grid(upper * LEAST_PART)
            few[place] = found.rate_per_second if found else 0.0 if player.surely_late(least, instances) else least
        most = 0.0, 0
        for place in sorted(few, key=lambda place: -few[place]):
            if few[place] and (not most[0] or self.server(place).pool_carries(instances, most[0])):
                most = max(most, (self._capacity(place, instances, few[place] * instances), place))
        return most

    def _likely_first(self, places: list[int]) -> list[int]:
        return sorted(places, key=lambda place: -float(self.budgets.guess_per_second[place]))

    def _capacity(self, place: int, instances: int, about: float) -> float:
        """Capacity with one budget; a played capacity may exceed the bound by its sampling error."""
        most = float(self.budgets.bound_per_second[place]) * instances
        return min(self.server(place).pool_capacity(instances, about), most)

    def _tail(self, place: int, instances: int, rate: float) -> float:
        """TTFT at the percentile with one budget; infinite beyond its bound or the utilisation limit."""
        server, each = self.server(place), rate / instances
        if not self._able(instances, rate)[place] or each > server.most_per_second * (1 + 1e-9):
            return math.inf
        return server.tail_seconds(each, instances)

    def _able(self, instances: int, rate: float) -> Bools:
        return np.asarray(self.budgets.bound_per_second * instances >= rate * (1 - 1e-9))

    def _carrying(self, instances: int, rate: float, last: int | None = None) -> int | None:
        """Return the place of a budget that carries a rate; None where none but perhaps the ``last`` one does."""
        able = np.flatnonzero(self._able(instances, rate))
        if not able.size:
            return None
        places = self._likely_first(self._told_apart(able, rate / instances, instances).tolist())
        within = (place for place in places if place != last)
        limit = self.question.ttft_seconds
        return next((place for place in within if self._tail(place, instances, rate) <= limit), None)

    def _told_apart(self, able: Ints, rate: float, instances: int) -> Ints:
        """Return the budgets whose queues differ at a rate of each instance.

        Budgets beyond the most waiting prompts give the same passes; large budgets are thinned to a twelfth apart.
        """
        prompts, counts = self.budgets.prompts[able], self.budgets.microbatches[able]
        reach = self.server(int(able[-1])).most_waiting(rate, instances)
        beyond = prompts * self.row.strategy.attention_dp > reach
        steps = np.where(prompts > _EACH, np.floor(np.log(prompts / _EACH) / math.log(1 + 1 / _EACH)), -prompts)
        alike = np.stack([np.where(beyond, np.inf, steps), counts])
        return able[np.unique(alike, axis=1, return_index=True)[1]]


def likely_rate(question: Question, saturated: Floats, seconds: Floats, longest: Floats | float) -> Floats:
    """Estimate an instance's capacity from the seconds of a full pass and the prompts per second of full passes.

    A prompt waits for the rest of the running pass, then for its own: equal prompts are late if a pass is longer than
    half the limit. If prompts differ, the longest prompt leaves little of the limit for waiting.
    """
    limit = question.ttft_seconds
    share = np.maximum(limit - longest, 0.0) / (limit + seconds) if question.workload.varied else limit / (2 * seconds)
    return np.asarray(question.most_utilisation * saturated * np.minimum(share, 1.0), dtype=np.float64)
