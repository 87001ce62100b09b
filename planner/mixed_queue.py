"""Aggregated instances under open arrivals: TTFT, TPOT and end-to-end times, and what an instance carries.

Two clocks. Requests in decode come and go slowly: their number is a birth-death process whose step time holds the
prompts that are computed beside them. Waiting prompts come and go within steps: at any number of running requests they
are the chain of ``planner.mixed_chain``. Both meet in the mean step time, which the one takes from the other.

Ref: time scales apart, P. J. Courtois, Decomposability, 1977; birth-death processes, L. Kleinrock, Queueing Systems I,
chapter 3. How prompts and running requests vary together over a residence is derived here.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from planner.decode_queue import residence_variance
from planner.deployment import Deployment
from planner.latency import balanced_cost, tokens_per_iteration
from planner.manifest.stacks import stacked
from planner.mixed_chain import PromptState, rank_state
from planner.mixed_ranks import ranks_state
from planner.mixed_steps import Aggregate, StepTable
from planner.prefill_queue import thinned_squared_cv
from planner.question import Question
from planner.queueing import Array, Latency, gamma_nodes, gamma_quantiles, independent_sum, largest_rate

MOST_UTILISATION = 0.98
_SPREADS = np.array([-math.sqrt(3.0), 0.0, math.sqrt(3.0)])
"""Deviations of the running requests at which chains are solved: the nodes of three-point Gauss-Hermite quadrature."""
_TIME_CELLS = 1024
_LENGTH_EDGES = np.concatenate(
    [[0.0], np.geomspace(1e-3, 0.1, 5), np.linspace(0.2, 0.9, 8), [0.95, 0.98, 0.99, 0.996, 1.0]]
)
"""Levels between which answers are taken as one, fine at both ends."""
_CHANGE = 0.05
_SHAPES = 24
_SOLVED = 3
_SELDOM = 0.005


@dataclass(frozen=True, kw_only=True)
class MixedState:
    """An aggregated instance at one rate of arrivals, over time and over requests."""

    rate_per_second: float
    ttft: Latency
    tpot: Latency
    span: Latency
    """From the first token to the last."""
    mean_requests: float
    """In decode, on average over time."""
    requests_per_rank: float
    mean_step_seconds: float
    """As requests in decode see it."""
    prompt_steps: float
    """Share of steps that compute prompts."""
    waiting_probability: float
    """Share of requests that find no room."""
    mean_wait_seconds: float
    """For room, over all requests; within TTFT."""
    utilisation: float
    """Rate over what full steps compute, or over what an instance with all places taken finishes: whichever is more."""

    @cached_property
    def e2e(self) -> Latency:
        """From arrival to the last token."""
        return independent_sum(self.ttft, self.span) if self.span.mean > 0 else self.ttft


@dataclass(frozen=True)
class MixedQueue:
    """An aggregated instance, tabulated once for all rates."""

    aggregate: Aggregate

    @cached_property
    def table(self) -> StepTable:
        """What steps take."""
        return StepTable(self.aggregate)

    def _prompts(self, running: float, rate: float, dispersion: float) -> PromptState | None:
        """Prompts in balance beside so many running requests; None where they come too fast."""
        solve = rank_state if self.aggregate.ranks == 1 else ranks_state
        return solve(self.table, running, rate, dispersion)

    @cached_property
    def fed_per_second(self) -> float:
        """Requests per second of steps that are always full, with as many running requests as they feed.

        Infinite where the instance's places are full before.
        """
        running, (seconds, taken) = self.table.running, self.even
        more = taken[:, -1] / self.aggregate.mean_new_tokens * self.aggregate.iterations.mean - running
        if more[-1] >= 0:
            return math.inf
        place = _crossing(running, -more)
        return float(np.interp(place, running, taken[:, -1] / seconds[:, -1])) / self.aggregate.mean_new_tokens

    @cached_property
    def even(self) -> tuple[Array, Array]:
        """(seconds, prompt tokens of all ranks) of steps that are alike on all ranks, [running, chunks up to full]."""
        table, parts = self.table, np.append(0.0, np.geomspace(0.01, 1.0, 9))
        rows = []
        for number in table.running:
            chunks = parts * float(self.aggregate.room(np.array(number)))
            tokens = chunks * self.aggregate.ranks
            rows.append((table.seconds(float(number), chunks, tokens), tokens))
        seconds, taken = (np.stack(column) for column in zip(*rows, strict=True))
        return seconds, taken

    @cached_property
    def most_per_second(self) -> float:
        """Requests per second that no queue passes: full steps, or full places with the least mean steps."""
        each, most, rate = self.aggregate.iterations.mean, self.aggregate.most, self.fed_per_second
        low, high = 0.0, min(rate, most / (each * float(self.table.alone[-1])))
        for _ in range(20):
            middle = (low + high) / 2
            fits = middle * each * float(self._least(middle)[-1]) <= most or math.isfinite(rate)
            low, high = (middle, high) if fits else (low, middle)
        return high

    @cached_property
    def saturation_per_second(self) -> float:
        """Requests per second before which requests always wait, for steps or for places; within 0.5 %."""
        low, high = 0.0, self.most_per_second
        if self.fed_per_second <= high * (1 + 1e-9):
            return self.fed_per_second
        while high - low > 0.005 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self._full_share(middle) < 1 else (low, middle)
        return high

    def _full_share(self, rate: float) -> float:
        """Rate over what an instance with all places taken finishes at that rate of prompts."""
        each, most = self.aggregate.iterations.mean, self.aggregate.most
        state = self._prompts(most, rate, 1.0)
        if state is None:
            return math.inf
        decoding = most - rate * state.mean_sojourn_seconds
        return rate * each * state.mean_step_seconds / decoding if decoding > 0 else math.inf

    def _least(self, rate: float) -> Array:
        """Least mean step time at each tabulated number of running requests, [running]; see ``least_step``."""
        tokens = rate * self.aggregate.mean_new_tokens
        return np.array([least_step(seconds, taken, tokens) for seconds, taken in zip(*self.even, strict=True)])

    def state(self, rate_per_second: float, arrival_squared_cv: float = 1.0) -> MixedState | None:
        """Return what the instance does at a rate; None where it cannot keep up."""
        if not 0 < rate_per_second < self.most_per_second:
            return None
        dispersion = max(arrival_squared_cv, 0.05)
        occupied = self._occupied(rate_per_second, dispersion)
        if occupied is None:
            return None
        occupied = replace(occupied, per_prompt=self._per_prompt(rate_per_second, dispersion, occupied))
        return self._answer(rate_per_second, dispersion, occupied)

    def _per_prompt(self, rate: float, dispersion: float, occupied: "_Occupied") -> float:
        """How much longer a step gets with the rate, over its own length; from a rate a little higher or lower."""
        place = int(np.argmin(np.abs(occupied.nodes - occupied.mean)))
        running, step = float(occupied.nodes[place]), float(occupied.steps[place])
        for change in (_CHANGE, -_CHANGE):
            other = self._prompts(running, rate * (1 + change), dispersion)
            if other is not None:
                return max((other.mean_step_seconds - step) / (change * rate * step), 0.0)
        return 0.0

    def _occupied(self, rate: float, dispersion: float) -> "_Occupied | None":
        """Solve chains around the mean number of running requests, which they in turn decide."""
        aggregate, running = self.aggregate, self.table.running
        each, most = aggregate.iterations.mean, aggregate.most
        least = self._least(rate)
        needed = rate * each * least
        stable = np.isfinite(needed)
        mean = _crossing(running[stable], running[stable] - needed[stable])
        found: _Occupied | None = None
        for _ in range(_SOLVED):
            mean = min(mean, most)
            deviation = math.sqrt(max(mean, 1.0))
            places = np.unique(np.clip(mean + _SPREADS * deviation, min(1.0, most), most))
            solved = [(n, self._prompts(float(n), rate, dispersion)) for n in places]
            kept = [(n, state) for n, state in solved if state is not None]
            if not kept:
                return found
            nodes, states = np.array([n for n, _ in kept]), [state for _, state in kept]
            steps = np.array([state.mean_step_seconds for state in states])
            room = most
            if mean + 6 * deviation > most:  # prompts that are computed take places, too
                room -= rate * states[len(states) // 2].mean_sojourn_seconds
            occupied = _occupancy(rate * each, nodes, steps, room)
            if occupied is None:
                return None
            found = _Occupied(nodes, states, steps, 0.0, *occupied)
            if abs(found.mean - mean) <= 0.25 * deviation:
                break
            mean = found.mean
        return found

    def _answer(self, rate: float, dispersion: float, occupied: "_Occupied") -> MixedState:
        aggregate = self.aggregate
        answer, iterations = aggregate.workload.output_tokens, aggregate.iterations
        weights = occupied.weights
        states = occupied.states
        if occupied.empty > _SELDOM:
            alone = self._prompts(0.0, rate, dispersion)
            assert alone is not None, "an instance that keeps up does so when nothing runs"
            states, weights = [*states, alone], np.append(weights * (1 - occupied.empty), occupied.empty)
        step = occupied.mean / (rate * iterations.mean)
        wait = occupied.waiting * _wait_scale(iterations.squared_cv, rate / occupied.full_share, rate)
        points = [state.sojourn() for state in states]
        masses = np.concatenate([weight * own for weight, (_, own) in zip(weights, points, strict=True)])
        ttft = _binned(np.concatenate([seconds for seconds, _ in points]), masses)
        if occupied.waiting > 1e-6:
            ttft = independent_sum(ttft, _exponential(occupied.waiting, wait / occupied.waiting))
        paces, spans, likely = self._paces(rate, dispersion, occupied, step)
        tokens = answer.mean > 1
        return MixedState(
            rate_per_second=rate,
            ttft=ttft,
            tpot=_sorted(paces / aggregate.accepted, likely, step / aggregate.accepted),
            span=_sorted(spans if tokens else 0 * spans, likely, occupied.mean / rate if tokens else 0.0),
            mean_requests=occupied.mean,
            requests_per_rank=occupied.mean / aggregate.ranks,
            mean_step_seconds=step,
            prompt_steps=float(occupied.weights @ np.array([state.prompt_steps for state in occupied.states])),
            waiting_probability=occupied.waiting,
            mean_wait_seconds=wait,
            utilisation=max(rate / self.fed_per_second, occupied.full_share),
        )

    def _paces(self, rate: float, dispersion: float, occupied: "_Occupied", step: float) -> tuple[Array, Array, Array]:
        """Requests as point masses: mean seconds per step over their residence, residence, mass.

        Count time in steps. A step is longer by ``slope`` for each running request more, and a prompt takes
        ``per_prompt`` seconds, what comes meanwhile included. So prompts come in clusters, 1 + rate · per_prompt times
        as large as one, and they make both the running requests, averaged over a residence, and the prompts of
        the residence vary, together.

        Ref: clusters of self-exciting arrivals, A. G. Hawkes, Biometrika 58:83, 1971; derived here.
        """
        iterations, prompts = self.aggregate.iterations, self.aggregate.prompts
        spread = iterations.squared_cv
        edges = _LENGTH_EDGES if spread else np.array([0.0, 1.0])
        likely = np.diff(edges)
        lengths = np.maximum(gamma_quantiles(spread, (edges[1:] + edges[:-1]) / 2), 1 / iterations.mean)
        slope, per_prompt = occupied.slope, occupied.per_prompt
        elasticity = np.array(min(max(slope * occupied.mean / step, 0.0), 0.95))
        shrink = residence_variance(elasticity, lengths, spread)
        new = self.aggregate.new_tokens
        work = float(new**2 @ prompts.weights) / self.aggregate.mean_new_tokens**2 + dispersion - 1
        varied = min(spread, 1.0)
        cluster = 1 + rate * per_prompt
        together = 1.0 + 0.36 * (1 - varied)
        variance = (
            slope**2 * occupied.variance * shrink * (cluster**2 - varied * (cluster**2 - 1) / 2)
            + slope * per_prompt * cluster * occupied.mean * shrink * together / iterations.mean
            + per_prompt**2 * rate * step * work / (iterations.mean * lengths)
        )
        shapes, weights = gamma_nodes(variance / step**2, _SHAPES)
        paces = step * shapes  # [lengths, shapes]
        spans = paces * (iterations.mean * lengths)[:, None]
        return paces.ravel(), spans.ravel(), (likely[:, None] * weights).ravel()


def _crossing(places: Array, values: Array) -> float:
    """Where rising ``values`` reach 0, linear between places; the last place where they do not."""
    above = np.flatnonzero(values >= 0)
    if not above.size:
        return float(places[-1])
    last = int(above[0])
    if last == 0:
        return float(places[0])
    return float(np.interp(0.0, values[last - 1 : last + 1], places[last - 1 : last + 1]))


def least_step(seconds: Array, taken: Array, tokens_per_second: float) -> float:
    """Least mean step time of steps that take so many tokens per second on average; infinite where none do.

    Steps of any mix lie above the lower convex hull of (taken, seconds), so their mean does; the hull's crossing with
    the line of the rate is the least mean. Both arguments are [states], not falling.
    """
    if tokens_per_second <= 0:
        return float(seconds[0])
    if taken[-1] < tokens_per_second * seconds[-1]:
        return math.inf
    # Of the line from (0, seconds[0]) to any state, the least step at this rate: seconds0 / (1 - rate · slope).
    slopes = np.diff(seconds, prepend=seconds[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = np.where(taken > 0, (seconds - seconds[0]) / taken, np.inf)
        steps = np.where(tokens_per_second * slopes < 1, seconds[0] / (1 - tokens_per_second * slopes), np.inf)
    reached = taken >= tokens_per_second * steps * (1 - 1e-9)
    return float(np.min(np.where(reached, steps, np.inf))) if reached.any() else float(seconds[-1])


@dataclass(frozen=True, slots=True)
class _Occupied:
    """Running requests, and the chains around their mean."""

    nodes: Array
    states: list[PromptState]
    steps: Array
    per_prompt: float
    """Seconds by which one prompt more delays steps, with what comes meanwhile."""
    mean: float
    variance: float
    empty: float
    """Share of time in which nothing runs."""
    waiting: float
    full_share: float
    """Rate over what an instance with all places taken finishes."""

    @property
    def slope(self) -> float:
        """How much longer a step gets with one more running request."""
        if self.nodes.size < 2:
            return 0.0
        return max(float(self.steps[-1] - self.steps[0]) / float(self.nodes[-1] - self.nodes[0]), 0.0)

    @property
    def weights(self) -> Array:
        """Of the nodes, [nodes]: with the mean and, as far as they reach, the variance of the running requests."""
        powers = np.stack([((self.nodes - self.mean) / max(math.sqrt(self.variance), 1e-9)) ** k for k in range(3)])
        wanted = np.array([1.0, 0.0, 1.0])
        size = self.nodes.size
        found = np.linalg.lstsq(powers[:size], wanted[:size], rcond=None)[0]
        found = np.maximum(found, 0.0)
        return np.asarray(found / found.sum())


def _occupancy(
    steps_per_second: float, nodes: Array, steps: Array, most: float
) -> tuple[float, float, float, float, float] | None:
    """(mean, variance, share of none, waiting probability, full share) of the running requests.

    None where an instance with all places taken does not keep up.

    pi(n) / pi(n-1) = rate · I · step(n) / n, the step straight between and beyond the nodes.
    """
    count = max(math.floor(most), 1)
    centre = float(nodes[nodes.size // 2])
    width = 12 * math.sqrt(max(centre, 1.0)) + 30
    numbers = np.arange(max(math.floor(centre - width), 0) + 1.0, min(centre + 3 * width, count) + 1)
    gradient = 0.0
    if nodes.size > 1:
        gradient = float(np.polyfit(nodes, steps, 1)[0])
        inside = np.interp(numbers, nodes, steps)
        beyond = np.maximum(numbers - nodes[-1], 0.0) + np.minimum(numbers - nodes[0], 0.0)
        lasts = np.maximum(inside + gradient * beyond, steps[0] * 0.2)
    else:
        lasts = np.full(numbers.size, steps[0])
    ratios = steps_per_second * lasts / numbers
    full = steps_per_second * (float(lasts[-1]) + gradient * (count - float(numbers[-1]))) / count
    if numbers[-1] >= count and ratios[-1] >= 1:
        return None
    logs = np.append(0.0, np.cumsum(np.log(np.maximum(ratios, 1e-300))))
    masses = np.exp(logs - logs.max())
    numbers = np.append(numbers[0] - 1, numbers)
    waiting = 0.0
    if numbers[-1] >= count:
        waiting = masses[-1] = float(masses[-1]) / (1 - ratios[-1])
    total = float(masses.sum())
    mean = float(masses @ numbers) / total
    empty = float(masses[0]) / total if numbers[0] == 0 else 0.0
    return mean, float(masses @ (numbers - mean) ** 2) / total, empty, waiting / total, full


def _wait_scale(squared_cv: float, full_per_second: float, rate: float) -> float:
    """Mean wait for room of a request that waits: a full instance is as many equal servers (Allen and Cunneen)."""
    return (1 + squared_cv) / 2 / max(full_per_second - rate, 1e-12)


def _exponential(chance: float, mean: float) -> Latency:
    """A wait that is none but with ``chance``, and then exponential."""
    levels = (np.arange(256) + 0.5) / 256
    waits = np.where(levels > 1 - chance, -np.log(np.maximum(1 - levels, 1e-9) / chance) * mean, 0.0)
    return Latency.from_masses(waits, np.full(256, 1 / 256), chance * mean)


def _binned(seconds: Array, masses: Array) -> Latency:
    """Bin point masses up to where only 1e-5 of them is left, and keep their exact mean."""
    masses = masses / masses.sum()
    order = np.argsort(seconds, kind="stable")
    return Latency.from_masses(seconds[order], masses[order], float(seconds @ masses))


def _sorted(seconds: Array, masses: Array, mean: float) -> Latency:
    order = np.argsort(seconds, kind="stable")
    return Latency.from_masses(seconds[order], masses[order], mean)


class Candidate(Protocol):
    """What a queue has to know of an aggregated instance: ``planner.mixed_candidates`` has such."""

    @property
    def deployment(self) -> Deployment:
        """The instance in phase ``mixed``, in numbers."""
        ...

    @property
    def batch(self) -> int:
        """Requests of one DP rank at most."""
        ...

    @property
    def batched_tokens(self) -> int:
        """Tokens of a step and DP rank."""
        ...

    @property
    def microbatches(self) -> int:
        """Most microbatches of a step."""
        ...


@dataclass(frozen=True)
class MixedServer:
    """An aggregated instance as its queue sees it; satisfies ``planner.columns.Server``."""

    question: Question
    candidate: Candidate

    @property
    def independent(self) -> bool:
        """No: arrivals that are dealt out in turn are the more even the more instances take them."""
        return False

    @cached_property
    def queue(self) -> MixedQueue:
        """The instance, tabulated once for all rates and counts of instances."""
        question, candidate = self.question, self.candidate
        deployment = candidate.deployment
        return MixedQueue(
            Aggregate(
                cost=stacked(balanced_cost(deployment, question.balance)),
                workload=question.workload,
                ranks=int(deployment.strategy.attention_groups),
                budget_tokens=float(candidate.batched_tokens),
                most_requests=int(candidate.batch),
                microbatches=candidate.microbatches,
                accepted=tokens_per_iteration(deployment.drafts, question.acceptance),
            )
        )

    def state(self, rate_per_second: float, instances: int = 1) -> MixedState | None:
        """State of one of ``instances`` that requests go to in turn, at its rate; None where it cannot keep up."""
        squared_cv = thinned_squared_cv(self.question.workload.arrival_squared_cv, instances, "round_robin")
        return self.queue.state(rate_per_second, squared_cv)

    def pool_capacity(self, instances: int) -> float:
        """Largest rate of so many instances within both limits and 98 % of saturation; 0 where there is none."""

        def excess(rate: float) -> float:
            state = self.state(rate, instances)
            return math.inf if state is None else self._excess(state)

        rate = largest_rate(excess, 1.0, MOST_UTILISATION * self.queue.most_per_second)
        return 0.0 if rate is None else rate * instances

    def pool_carries(self, instances: int, rate_per_second: float) -> bool:
        """Whether so many instances carry a rate within both limits and 98 % of saturation."""
        state = self.state(rate_per_second / instances, instances)
        return state is not None and self._excess(state) <= 1

    def _excess(self, state: MixedState) -> float:
        """The larger of TTFT and TPOT at the percentile, in units of its limit; infinite past 98 % utilisation."""
        if state.utilisation > MOST_UTILISATION * (1 + 1e-9):
            return math.inf
        question = self.question
        percentile = question.percentile
        return max(state.ttft.at(percentile) / question.ttft_seconds, state.tpot.at(percentile) / question.tpot_seconds)
