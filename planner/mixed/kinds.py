"""A kind of aggregated instance as a server: the token budget per step that carries most, found when it matters."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.costs.deployment import Deployment
from planner.costs.latency import accepted_tokens, balanced_cost
from planner.instances.candidates import row_microbatches
from planner.instances.decode_candidates import MOST_BATCH, Count
from planner.instances.least import Least
from planner.instances.space import Group, Row
from planner.manifest.stacks import stacked
from planner.manifest.terms import Number, StepCost
from planner.mixed.candidates import BUDGETS, MixedCandidate, mixed_room
from planner.mixed.least import mixed_least, quickest_server
from planner.mixed.screen import Floats, Screen, Steps
from planner.mixed.server import MOST_UTILISATION, MixedServer
from planner.question import Question
from planner.queues.lattice import largest_carried
from planner.workload import reserved_kv_tokens

# Capacities are solved to about as much: another budget must carry more than that.
_MORE = 0.01
_ROUNDS = 16
_PATIENCE = 3
"""Rates in which what is left has to halve."""
_AIM = 0.995
# A budget between those of the list carries up to 5 % more than they do in all that was tried (docs/queueing.md).
_BETWEEN = 1.05
_NEAREST = 3
_NEAR = 1.1
"""Latency over its limit up to which a listed budget is near a rate, for one between to carry it."""
_OCTAVES = tuple(step / 4 for step in range(-3, 4))
UNLIMITED_SECONDS = 1000.0
_TAIL = 2.0
"""Standard deviations by which a budget's TPOT is taken to lie above its mean, to guess what it carries."""


@dataclass(frozen=True, slots=True)
class KnownBudgets:
    """What is known of instances with each budget of the list before any queue, arrays [budgets, rows]."""

    room: Floats
    """Requests that a rank holds."""
    bound_per_second: Floats
    guess_per_second: Floats

    def of(self, rows: NDArray[np.int64]) -> "KnownBudgets":
        """Return some of the instances."""
        return KnownBudgets(self.room[:, rows], self.bound_per_second[:, rows], self.guess_per_second[:, rows])


@dataclass(frozen=True, eq=False)
class MixedKind:
    """An aggregated row with a number of drafts; it takes the token budget that carries most.

    Small budgets make prompts late, large ones the steps of all that are answered long. So what a budget carries rises
    and then falls, and budgets of the list are tried from the likeliest on, on either side as long as they carry more.
    Where the best of them comes near what is wanted, those between are tried. Prompts that are all alike take k steps
    from the budget on that leaves a k-th of one beside the tokens of those that run: what is carried leaps up there and
    falls until the next.
    """

    question: Question
    row: Row
    deployment: Deployment
    count: Count
    asked_per_second: float | None = None
    """The pool's rate where one is asked: no more than it is sought, for that takes long."""
    known: KnownBudgets | None = None
    """Of this row alone, where it is known."""
    _best: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By instances: the rate of the pool, and the budget that carries it."""
    _servers: dict[int, MixedServer] = field(default_factory=dict)
    """By budget."""
    _known: dict[tuple[int, int, float], float] = field(default_factory=dict)

    @property
    def independent(self) -> bool:
        """No: arrivals that are dealt out in turn are the more even the more instances take them."""
        return False

    @cached_property
    def candidates(self) -> tuple[MixedCandidate, ...]:
        """The row with every budget that holds a request, by rising budget."""
        return tuple(candidate for _, candidate in self._guessed)

    @cached_property
    def _guessed(self) -> tuple[tuple[float, MixedCandidate], ...]:
        """Candidates with about the rate that each carries."""
        return self._with_budgets(BUDGETS) if self.known is None else self._made(BUDGETS, self.known)

    def _with_budgets(self, tried: Sequence[int]) -> tuple[tuple[float, MixedCandidate], ...]:
        """Return the row with each of the budgets that holds a request, with about the rate that it carries."""
        question, drafts = self.question, int(self.deployment.drafts)
        parts = row_microbatches(question, self.row)
        budgets = np.asarray(tried, dtype=np.float64)
        held = np.minimum(budgets // (1 + drafts), MOST_BATCH)  # more would leave no room for prompts in a step
        room = mixed_room(self.deployment, budgets, reserved_kv_tokens(question.workload), held)
        cost = stacked(balanced_cost(self.deployment, question.balance))
        screen = screen_of(question, cost, self.deployment, budgets, self.count, parts)
        limit = step_limit(question, self.deployment)
        bound, running = screen.bound(limit, room)
        guess = bound * likely_share(question, screen.steps(running), screen.iterations, limit)
        return self._made(tried, KnownBudgets(room[:, None], bound[:, None], guess[:, None]))

    def _made(self, budgets: Sequence[int], known: KnownBudgets) -> tuple[tuple[float, MixedCandidate], ...]:
        bound, room, parts = known.bound_per_second[:, 0], known.room[:, 0], row_microbatches(self.question, self.row)
        return tuple(
            (
                float(known.guess_per_second[place, 0]),
                MixedCandidate(
                    row=self.row,
                    deployment=self.deployment,
                    drafts=int(self.deployment.drafts),
                    microbatches=max(parts),
                    batch=int(room[place]),
                    batched_tokens=int(budgets[place]),
                    requests_per_second=float(bound[place]),
                ),
            )
            for place in np.flatnonzero(bound > 0).tolist()
        )

    @cached_property
    def servers(self) -> tuple[MixedServer, ...]:
        """A server of every budget of the list."""
        return tuple(self._server(candidate) for candidate in self.candidates)

    def _server(self, candidate: MixedCandidate) -> MixedServer:
        budget = candidate.batched_tokens
        if budget not in self._servers:
            self._servers[budget] = MixedServer(self.question, candidate)
        return self._servers[budget]

    def pool_carries(self, instances: int, rate_per_second: float) -> bool:
        """Whether so many instances carry a rate within the limits with some budget.

        Budgets between those of the list are tried where a rate is asked; else only of what is solved in full.
        """
        if self.asked_per_second is None:
            carries = self._listed(instances, rate_per_second)[1] <= 1
        else:
            carries = self._carrying(instances, rate_per_second) is not None
        for server in () if carries else self._servers.values():
            server.forget()  # chains of thousands of instances do not fit memory
        return carries

    def pool_capacity(self, instances: int) -> float:
        """Largest rate of so many instances within the limits with any budget; 0 where there is none.

        Where a rate is asked, that rate, if they carry it.
        """
        return self._settled(instances)[0]

    def capacity_at(self, instances: int) -> float:
        """Largest rate of so many instances with the budget of ``at``, whatever is asked."""
        rate, budget = self._settled(instances)
        return max(rate, self._capacity(budget, instances, rate / instances)) if self.asked_per_second else rate

    def at(self, instances: int, rate_per_second: float | None = None) -> MixedServer:
        """Return the server with the budget that carries most in so many instances, or is quickest at a rate."""
        if rate_per_second is not None:
            return self.servers[self._quickest(instances, rate_per_second)[0]]
        budget = self._settled(instances)[1]
        return self._servers[budget] if budget in self._servers else self.servers[0]

    def mean_seconds(self, instances: int, rate_per_second: float) -> float:
        """Mean time from arrival to the last token, at the budget that is quickest; infinite beyond the limits."""
        return self._quickest(instances, rate_per_second)[1]

    def _quickest(self, instances: int, rate: float) -> tuple[int, float]:
        able = [place for place, each in enumerate(self.candidates) if each.requests_per_second * instances >= rate]
        return quickest_server(self.servers, self._least, np.array(able, dtype=np.int64), instances, rate)

    @cached_property
    def _least(self) -> Least:
        """How long requests take at least with each budget."""
        question, budgets = self.question, np.array([each.batched_tokens for each in self.candidates], dtype=np.float64)
        cost = stacked(balanced_cost(self.deployment, question.balance))
        screen = screen_of(question, cost, self.deployment, budgets, self.count, row_microbatches(question, self.row))
        return mixed_least(
            replace(screen, ranks=np.broadcast_to(screen.ranks, budgets.shape)),
            max((each.batch for each in self.candidates), default=1),
        )

    def _carrying(self, instances: int, rate: float) -> int | None:
        """Return a budget that carries a rate; None where neither those around the likeliest do, nor those between."""
        place, excess = self._listed(instances, rate)
        if excess <= 1:
            return self._budget(place)
        if math.isinf(excess) and self.candidates:
            excess = self._excess(self._budget(place), instances, rate / _BETWEEN)
        return self._between(instances, rate, place) if excess <= _NEAR else None

    def _between(self, instances: int, rate: float, place: int) -> int | None:
        """Return a budget between those of the list that carries a rate, which one of the list all but does."""
        server = self.servers[place]
        states = (server.state(rate / share / instances, instances) for share in (1 + _MORE, _BETWEEN))
        state = next((state for state in states if state is not None), None)
        if state is None:
            return None
        running = state.requests_per_rank * (1 + _MORE)
        budgets = self._likely_between(self._budget(place), running + math.sqrt(running))
        for _, candidate in self._with_budgets(budgets) if budgets else ():
            budget = self._server(candidate).candidate.batched_tokens
            if self._excess(budget, instances, rate) <= 1:
                return budget
        return None

    def _likely_between(self, listed: int, running: float) -> list[int]:
        """Return the nearest budgets to a listed one; of prompts that are alike, those at which they take a step less.

        ``running`` requests on each rank take a token in every step, and one for every draft.
        """
        workload = self.question.workload
        lengths, taken = workload.input_tokens, math.ceil(running) * (1 + int(self.deployment.drafts))
        found = [round(listed * 2**octaves) for octaves in _OCTAVES]
        if not lengths.squared_cv and workload.prompts is None:
            new = lengths.mean * (1 - workload.prefix_reuse)
            steps = [max(round(new / max(budget - taken, 1)), 1) for budget in found]
            found = [math.ceil(new / each) + taken for each in steps]
        able = {budget for budget in found if BUDGETS[0] <= budget <= BUDGETS[-1]} - set(BUDGETS)
        return sorted(able, key=lambda budget: abs(math.log(budget / listed)))[:_NEAREST]

    def _listed(self, instances: int, rate: float) -> tuple[int, float]:
        """Return the place of a listed budget that carries a rate, or of the nearest to it; and its latency over limit.

        Those around the likeliest are tried.
        """
        able = [place for place, each in enumerate(self.candidates) if each.requests_per_second * instances >= rate]
        if not able:
            return 0, math.inf
        place = max(able, key=lambda number: self._guessed[number][0])
        least = self._excess(self._budget(place), instances, rate)
        for step in (-1, 1):
            other = place + step
            while least > 1 and other in able:
                found = self._excess(self._budget(other), instances, rate)
                if found >= least and math.isfinite(least):
                    break
                place, least, other = other, min(found, least), other + step
        return place, least

    def _excess(self, budget: int, instances: int, rate: float) -> float:
        """The later of both latencies over its limit with one budget; infinite past what bounds its rate."""
        if self._most(budget) * instances < rate:
            return math.inf
        key = budget, instances, rate
        if key not in self._known:
            self._known[key] = self._servers[budget].excess(rate / instances, instances)
        return self._known[key]

    def _budget(self, place: int) -> int:
        """Return a budget of the list."""
        return self.servers[place].candidate.batched_tokens

    def _most(self, budget: int) -> float:
        """What bounds the rate of one instance with a budget that has a server."""
        candidate = self._servers[budget].candidate
        assert isinstance(candidate, MixedCandidate)
        return candidate.requests_per_second

    def _settled(self, instances: int) -> tuple[float, int]:
        """The largest rate, and the budget that carries it."""
        if instances not in self._best and self.asked_per_second is not None:
            found = self._carrying(instances, self.asked_per_second)
            self._best[instances] = (0.0, BUDGETS[0]) if found is None else (self.asked_per_second, found)
        if instances not in self._best:
            self._best[instances] = self._found(instances) if self.candidates else (0.0, BUDGETS[0])
        return self._best[instances]

    def _found(self, instances: int) -> tuple[float, int]:
        guesses = [guess for guess, _ in self._guessed]
        place = int(np.argmax(guesses))
        likely = self._budget(place)
        return largest_carried(
            (self._capacity(likely, instances, guesses[place]), likely),
            lambda budget, rate: self._excess(budget, instances, rate) <= 1,
            lambda rate, _: self._carrying(instances, rate),
            lambda budget, rate: self._capacity(budget, instances, rate / instances),
            max(each.requests_per_second for each in self.candidates) * instances / 1000,
            _MORE,
        )

    def _capacity(self, budget: int, instances: int, start: float) -> float:
        """Largest rate of so many instances with one budget; the search begins with one of ``start`` each."""
        server = self._servers[budget]
        upper = min(self._most(budget), MOST_UTILISATION * server.queue.most_per_second)
        each = largest_within(lambda rate: server.excess(rate, instances), min(start, 0.95 * upper), upper)
        return each * instances


def largest_within(excess: Callable[[float], float], start: float, upper: float) -> float:
    """Largest rate up to ``upper`` whose ``excess``, rising in the rate, is at most 1; 0 where none is.

    Latency goes up as 1/(1 - load), so 1/excess is all but straight: secants of it, from ``start`` on, until within
    1 % under the limit or 0.3 % of the rate, and halves where they do not close in (where the excess leaps). Rates
    below a thousandth of ``upper`` are not told apart.
    """
    least = upper / 1000
    low, high, rate = 0.0, upper, start
    known: list[tuple[float, float]] = []  # (rate, 1/excess) where there is one, the last one last
    widths = [math.inf] * _PATIENCE
    for number in range(_ROUNDS):
        value = excess(rate)
        if math.isfinite(value):
            known.append((rate, 1 / value))
        if value <= 1:
            low = rate
            if value >= 0.99 or low >= upper * 0.999:
                return low
        else:
            high = rate
        if high - low < max(0.003 * high, least):
            return low
        widths.append(high - low)
        if not low and number == _PATIENCE:
            rate = least  # is there any rate at all?
        elif low and high < upper and (math.isinf(value) or widths[-1] > 0.5 * widths[-1 - _PATIENCE]):
            rate = (low + high) / 2
        else:
            rate = _secant(known, low, high, upper)
    return low


def _secant(known: Sequence[tuple[float, float]], low: float, high: float, upper: float) -> float:
    """Return the rate between two others at which 1/excess is likely just above 1."""
    wanted = 1 / _AIM
    if not known:
        return low + 0.6 * (high - low)
    last, value = known[-1]
    # Of a single value: as of a latency that goes up as 1 / (upper - rate).
    before, other = known[-2] if len(known) > 1 else (upper, 0.0)
    slope = (value - other) / (last - before)
    found = last + (wanted - value) / slope if slope < 0 else math.inf if value >= wanted else 0.0
    if not low:
        return min(max(found, 0.4 * high), 0.7 * high)
    if high >= upper:
        return min(found, 0.9995 * upper)
    inner = 0.1 * (high - low)
    return min(max(found, low + inner), high - inner)


def step_limit(question: Question, deployment: Deployment) -> Number:
    """Return the longest mean step that keeps both limits, of an instance or of each of many.

    A request that comes waits for the rest of a step and then for its own: at percentiles from 75 on, one and a half
    steps at least.
    """
    tpot = question.tpot_seconds * accepted_tokens(deployment, question.acceptance)
    if question.workload.output_tokens.mean <= 1:  # no token after the first
        tpot = UNLIMITED_SECONDS
    return np.minimum(tpot, question.ttft_seconds / 1.5) if question.percentile >= 75 else tpot


def screen_of(
    question: Question, cost: StepCost, deployment: Deployment, budget: Number, count: Count, parts: Sequence[int]
) -> Screen:
    """Return the steps of an instance, or of all of a group's, with a budget."""
    ranks = np.atleast_1d(np.asarray(deployment.strategy.attention_groups, dtype=np.float64))
    accepted = accepted_tokens(deployment, question.acceptance)
    return Screen(cost, question.workload, ranks, budget, parts, accepted, count)


def group_screen(question: Question, group: Group, budget: float, count: Count) -> Screen:
    """Return the steps of all rows of a group with a budget."""
    cost = stacked(balanced_cost(group.deployment, question.balance))
    parts = row_microbatches(question, group.rows[0])
    return screen_of(question, cost, group.deployment, budget, count, parts)


def likely_share(question: Question, steps: Steps, iterations: Number, limit: Number) -> Floats:
    """About what part of its bound an instance carries, [rows].

    Full steps are longer than those without prompts, and how many of them a request meets varies: that takes from
    TPOT's tail. A prompt that comes waits for the rest of a step and then for its own ones: more than half the limit
    is late.
    """
    share = steps.prompt_share
    varies = np.sqrt(share * (1 - share) / iterations) * (steps.full - steps.bare) * _TAIL
    spare = np.clip(1 - varies / np.maximum(limit - 0.5 * steps.bare, 1e-9), 0.05, 1.0)
    prompt = question.workload.input_tokens.mean * (1 - question.workload.prefix_reuse)
    wait = (np.ceil(prompt / steps.room) + 0.5) * steps.full
    fed = np.where(steps.chunk <= steps.room, 1.0, 0.05)
    return np.asarray(fed * spare * np.clip(question.ttft_seconds / (1.5 * wait), 0.05, 1.0), dtype=np.float64)
