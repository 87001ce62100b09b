"""A kind of aggregated instance as a server: token budget and batch slots that carry most, found when it matters.

A small budget delays prompts, a large one lengthens the steps of all running requests. Listed budgets are played on few
requests first, then those near the best on many. Equal prompts take k steps from the budget on that leaves a k-th of a
prompt beside the tokens of running requests. The capacity jumps there, so budgets next to the best are played too.

Memory often holds more running requests than the TPOT limit allows. With fewer batch slots requests wait for them and
run in shorter steps: TTFT rises and TPOT falls. So fewer slots are played where TPOT is late and TTFT is not.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

import numpy as np

from ground.arrays import Floats
from planner.costs.deployment import Deployment
from planner.instances.aggregated import AggregatedServer
from planner.instances.candidates import (
    BUDGETS,
    AggregatedCandidate,
    Count,
    aggregated_room,
    budgets_of,
    most_held,
    with_given_batch,
)
from planner.instances.space import Row
from planner.objective import LEAST_PART
from planner.question import Question
from planner.serving.capacity import on_grid
from planner.serving.played import FEW, MANY
from planner.workload import reserved_kv_tokens

_MORE = 0.003  # relative difference below which capacities count as equal
_BEHIND = (0.97, 1.0)
"""Shares of the leader's rate, as few requests tell it, at which rows are raced. It carries a little less on many, and
a row that is late at less need not be played again there.
"""
_OCTAVES = tuple(step / 4 for step in range(-3, 4))
_WIDER = 1.2  # factor from one number of batch slots to the next, where TTFT is late and none is known that misses TPOT
_NEAREST = 3  # budgets tried next to the best listed one


@dataclass(frozen=True, eq=False)
class AggregatedKind:
    """An aggregated row with a number of drafts and the token budget that carries most."""

    question: Question
    row: Row
    deployment: Deployment
    microbatches: int
    room: Floats  # requests that the memory of a rank holds, by listed budget
    bound_per_second: Floats  # upper bound on the rate of an instance, by listed budget
    guess_per_second: float  # guess of the capacity of an instance, at which budgets are compared first
    count: Count = field(repr=False)  # plays are added to it
    asked_per_second: float | None = None
    """The rate asked of the pool, beyond which no capacity is sought; None for the largest."""
    _servers: dict[tuple[int, int], AggregatedServer] = field(default_factory=dict)  # servers by budget and batch slots
    _held: dict[int, int] = field(default_factory=dict)  # batch slots that memory holds, by budget
    _best: dict[int, tuple[float, AggregatedServer | None]] = field(default_factory=dict)
    """By instances: the capacity of the pool, and the server that has it."""
    _tried: dict[int, float] = field(default_factory=dict)
    """By instances: a rate of one instance at which budgets were compared."""
    _in_time: dict[int, tuple[float, AggregatedServer]] = field(default_factory=dict)
    """By instances: a rate of one instance and a server that is in time at it on few requests."""
    _likely: dict[int, tuple[float, Iterable[AggregatedServer]]] = field(default_factory=dict)
    """By instances: the capacity of one on few requests, and the servers that have nearly that, the best first."""

    independent = False  # arrivals dealt in turn are more even the more instances there are

    @cached_property
    def servers(self) -> tuple[AggregatedServer, ...]:
        """A server per listed budget with a bound above 0, the highest bound first."""
        able = np.flatnonzero(self.bound_per_second > 0)
        order = able[np.argsort(-self.bound_per_second[able], kind="stable")]
        budgets = budgets_of(self.question)
        return tuple(self._server(budgets[place], self.room[place]) for place in order)

    def _server(self, budget: int, room: float) -> AggregatedServer:
        self._held[budget] = int(room)
        return self._with_slots(budget, int(room))

    def _with_slots(self, budget: int, slots: int) -> AggregatedServer:
        if (budget, slots) not in self._servers:
            candidate = AggregatedCandidate(
                row=self.row,
                deployment=self.deployment,
                drafts=int(self.deployment.drafts),
                microbatches=self.microbatches,
                batch=slots,
                batched_tokens=budget,
                most_open=self._most_open,
            )
            like = next(iter(self._servers.values()), None)
            self._servers[budget, slots] = AggregatedServer(self.question, candidate, like, self.count)
        return self._servers[budget, slots]

    def _slotted(self, server: AggregatedServer, instances: int, rate: float, requests: int = FEW) -> AggregatedServer:
        """Return the server with the batch slots that leave least excess at a rate; itself where it is in time.

        The most slots that keep TPOT are sought by false position, and where slots made no difference, as they are
        never all taken, by the geometric mean. Where both limits are missed, no slots keep them.
        """
        question, best, own = self.question, server, server
        if question.pin("mixed").batch is not None or not question.workload.decodes:
            return server
        below, above = (0, 0.0), (self._held[server.candidate.batched_tokens] + 1, math.inf)
        while True:
            found, slots = own.player.verdict(rate, instances, requests), own.candidate.batch
            best = own if found.excess < best.player.verdict(rate, instances, requests).excess else best
            late, slow = (excess > 1 for excess in found.excesses)
            if not late and not slow and own is not server:
                late = rate > own.most_per_second
            idle = found.excesses[1] == above[1]
            below, above = ((slots, found.excesses[1]), above) if late else (below, (slots, found.excesses[1]))
            if late == slow or above[0] - below[0] <= 1:
                return best
            if own is server or above[1] == math.inf:
                likely = max(self._busy_slots(rate), round(_WIDER * below[0]))
            elif idle:
                likely = round(math.sqrt(max(below[0], 1) * above[0]))
            else:
                part = (1 - below[1]) / max(above[1] - below[1], _MORE)
                likely = below[0] + int(part * (above[0] - below[0]))
            own = self._with_slots(own.candidate.batched_tokens, min(max(likely, below[0] + 1), above[0] - 1))

    def _on_many(self, server: AggregatedServer, instances: int, rate: float) -> Iterator[AggregatedServer]:
        """Yield the server; one with fewer slots than memory holds with those best on many requests, then with all.

        TTFT and TPOT cross their limits at about the same number, which few requests tell only roughly.
        """
        held = self._held[server.candidate.batched_tokens]
        if server.candidate.batch == held:
            yield server
            return
        yield self._slotted(server, instances, rate, MANY)
        yield self._with_slots(server.candidate.batched_tokens, held)

    def _busy_slots(self, rate: float) -> int:
        """Return the slots that are all taken at a rate where every request has just the TPOT limit (Little's law)."""
        question, ranks = self.question, int(self.row.strategy.attention_groups)
        return math.ceil(rate * question.workload.decoded_tokens * question.tpot_seconds / ranks)

    @cached_property
    def _most_open(self) -> int:
        """Most open requests, by Little's law: the largest rate played times the longest time within the limits."""
        question, rate = self.question, float(self.bound_per_second.max())
        seconds = question.ttft_seconds + question.workload.decoded_tokens * question.tpot_seconds
        return math.ceil((rate if self.asked_per_second is None else min(rate, self.asked_per_second)) * seconds)

    def _bound(self, server: AggregatedServer) -> float:
        """Upper bound on the rate with the server's budget, or over all budgets where that one is not listed."""
        budget, listed, bounds = server.candidate.batched_tokens, budgets_of(self.question), self.bound_per_second
        return float(bounds[listed.index(budget)] if budget in listed else bounds.max())

    def pool_carries(self, instances: int, rate_per_second: float) -> bool:
        """Whether a pool of so many instances carries a rate within the limits with some budget.

        As in ``pool_capacity``, less than ``_least`` counts as none, unless a rate is asked.
        """
        if self._carrying(instances, rate_per_second) is None:
            return False
        least = instances * self._least if self.asked_per_second is None else 0.0
        return rate_per_second >= least or self._carrying(instances, least) is not None

    @cached_property
    def _least(self) -> float:
        """The least rate of an instance that is told from none."""
        return on_grid(LEAST_PART * max((server.most_per_second for server in self.servers), default=0.0))

    def _carrying(self, instances: int, rate_per_second: float) -> AggregatedServer | None:
        each = rate_per_second / instances
        able = self._quickest_first(self.servers, instances, each)

        def servers() -> Iterator[AggregatedServer]:
            for server in self._near(able, instances, each):
                self._tried[instances] = each
                yield server
            if able:
                yield from self._near(self._beside(able[0], each), instances, each)

        late = list[AggregatedServer]()
        for server in servers():
            for own in self._on_many(server, instances, each):
                carries = own.pool_reaches if self.asked_per_second is None else own.pool_carries
                if carries(instances, rate_per_second):
                    return own
            late.append(server)
        for server in late if self.asked_per_second is not None else ():
            if server.candidate.batch == self._held[server.candidate.batched_tokens]:  # few saw no need for fewer slots
                own = self._slotted(server, instances, each, MANY)
                if own is not server and own.pool_carries(instances, rate_per_second):
                    return own
        return None

    def _near(self, servers: Sequence[AggregatedServer], instances: int, rate: float) -> Iterator[AggregatedServer]:
        """Yield the servers that few requests do not show to be late at a rate, the least excess first.

        They have fewer slots where those help.
        """
        slotted = (self._slotted(server, instances, rate) for server in self._quickest_first(servers, instances, rate))
        return (server for server in slotted if not server.player.surely_late(rate, instances))

    def _listed(self, server: AggregatedServer) -> int:
        """Return the index of a server's budget in the list; -1 where it is not listed."""
        budgets, own = budgets_of(self.question), server.candidate.batched_tokens
        return budgets.index(own) if own in budgets else -1

    def pool_capacity(self, instances: int) -> float:
        """Largest rate of a pool of so many instances within the limits with any budget; 0 where there is none.

        At most the asked rate, where there is one.
        """
        return self._settled(instances)[0]

    def likely_capacity(self, instances: int, least_per_second: float, lower_per_second: float = 0.0) -> float | None:
        """Return the capacity of a pool on few requests, or a rate below the least one where it carries less.

        Without a least one the lower one counts, where late instances are soon known to be late.
        """
        whole = self.question.workload.trace is not None  # a trace fills instances, so it is played in full
        least = least_per_second or (0.0 if whole else lower_per_second)
        for part in _BEHIND if least else ():
            each = part * least / instances
            near = self._near(self.servers, instances, each)
            found = next((server for server in near if server.player.verdict(each, instances).excess <= 1), None)
            if found is None:
                return part * (1 - _MORE) * least
            self._in_time[instances] = each, found
        return instances * self._on_few(instances)[0]

    def at(self, instances: int, rate_per_second: float | None = None) -> AggregatedServer:
        """Return the server with the best budget for so many instances: largest capacity, or quickest at a rate."""
        if rate_per_second is not None:
            return self._quickest(instances, rate_per_second)[1]
        return self._settled(instances)[1] or self.servers[0]

    def mean_seconds(self, instances: int, rate_per_second: float) -> float:
        """Mean time from arrival to the last token with the quickest budget; infinite beyond the limits."""
        return self._quickest(instances, rate_per_second)[0]

    def _quickest(self, instances: int, rate_per_second: float) -> tuple[float, AggregatedServer]:
        each, best = rate_per_second / instances, (math.inf, self.servers[0])
        carrying = [server for server in self.servers if server.pool_carries(instances, rate_per_second)]
        for server in carrying or filter(None, [self._carrying(instances, rate_per_second)]):
            state = server.state(each, instances)
            if state is not None and state.e2e.mean < best[0]:
                best = state.e2e.mean, server
        return best

    def _settled(self, instances: int) -> tuple[float, AggregatedServer | None]:
        if instances not in self._best and self.asked_per_second is not None:
            found = self._carrying(instances, self.asked_per_second)
            self._best[instances] = (0.0 if found is None else self.asked_per_second, found)
        if instances not in self._best:
            best: tuple[float, AggregatedServer | None] = (0.0, None)
            likely, servers = self._on_few(instances)
            for server in list(servers):
                best = self._climbed(server, instances, best, likely)
            self._best[instances] = best
        return self._best[instances]

    def _climbed(
        self, server: AggregatedServer, instances: int, best: tuple[float, AggregatedServer | None], likely: float
    ) -> tuple[float, AggregatedServer | None]:
        """Return the best capacity of a pool and its server, once many requests were played with a server's budget.

        The slots that are best at a rate carry more than that rate, where other slots are best. So slots and capacity
        are found in turn until no slots carry more.
        """
        sought = not best[0] or server.candidate.batch < self._held[server.candidate.batched_tokens]
        while True:
            more = on_grid((1 + _MORE) * best[0] / instances) or likely
            if sought:  # else few requests saw no need for fewer slots
                server = self._slotted(server, instances, more, MANY)
            if best[0] and not server.pool_carries(instances, more * instances):
                return best
            carried = server.pool_capacity(instances)
            if carried <= best[0]:
                return best
            best, sought = (carried, server), True

    def _on_few(self, instances: int) -> tuple[float, Iterable[AggregatedServer]]:
        if instances not in self._likely:
            self._likely[instances] = self._compared_on_few(instances)
        return self._likely[instances]

    def _compared_on_few(self, instances: int) -> tuple[float, Iterable[AggregatedServer]]:
        servers = list(self.servers)
        rate, best = 0.0, None
        start = self._tried.get(instances, self.guess_per_second)
        for server in self._quickest_first(servers, instances, start):
            if best is None or rate == 0.0:
                rate, best = server.pool_capacity(instances, FEW) / instances, server
        least, in_time = self._in_time.get(instances, (0.0, best))
        if in_time is not None and least > rate:
            rate, best = max(in_time.pool_capacity(instances, FEW) / instances, least), in_time
        if best is None or not rate:
            return self._least, self._near(servers, instances, self._least)
        while True:
            servers += [each for each in self._beside(best, rate) if each not in servers]
            more = (1 + _MORE) * rate
            able = self._quickest_first(servers, instances, more)
            slotted = (self._slotted(each, instances, more) for each in able)
            timely = (each for each in slotted if each.player.verdict(more, instances).excess <= 1)
            first = next((each for each in timely if each.most_per_second >= more), best)
            if first is best:
                near = (each for each in self._near(servers, instances, rate) if each is not first)
                return rate, chain([first], near)  # only one that is settled needs the others
            rate, best = max(first.pool_capacity(instances, FEW) / instances, more), first

    def _quickest_first(
        self, servers: Sequence[AggregatedServer], instances: int, rate: float
    ) -> list[AggregatedServer]:
        """Return the servers whose bound reaches a rate, sorted by their excess on few requests at that rate."""
        able = [server for server in servers if self._bound(server) >= rate]
        return sorted(able, key=lambda server: server.player.verdict(rate, instances).excess)

    def _beside(self, server: AggregatedServer, rate: float) -> list[AggregatedServer]:
        """Return servers with budgets near a listed one; for equal prompts, budgets at which they take a step less."""
        if self.question.pin("mixed").tokens is not None or self._listed(server) < 0:
            return []
        listed, workload, drafts = server.candidate.batched_tokens, self.question.workload, int(self.deployment.drafts)
        tried = [round(listed * 2**octaves) for octaves in _OCTAVES]
        equal = not workload.input_tokens.squared_cv and workload.prompts is None
        state = server.player.state(rate, 1, FEW) if equal else None
        if state is not None:
            running = state.mean_requests / server.pool.ranks
            taken = math.ceil(running + math.sqrt(running)) * (1 + drafts)
            new = workload.input_tokens.mean * (1 - workload.prefix_reuse)
            steps = [max(round(new / max(budget - taken, 1)), 1) for budget in tried]
            tried = [math.ceil(new / each) + taken for each in steps]
        able = {budget for budget in tried if BUDGETS[0] <= budget <= BUDGETS[-1]} - set(BUDGETS)
        budgets = np.array(sorted(able, key=lambda budget: abs(math.log(budget / listed)))[:_NEAREST], dtype=float)
        held = most_held(budgets, np.array(drafts), self.row.strategy.pp)
        room = aggregated_room(self.deployment, budgets, reserved_kv_tokens(workload), held)
        room = with_given_batch(self.question, room)
        return [self._server(int(budget), own) for budget, own in zip(budgets, room, strict=True) if own >= 1]
