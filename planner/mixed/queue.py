"""Aggregated instances under open arrivals: TTFT, TPOT and end-to-end times, and what an instance carries.

Two clocks. Requests in decode come and go slowly: their number is a birth-death process whose step time holds the
prompts that are computed beside them. Waiting prompts come and go within steps: at any number of running requests they
are the chain of ``mixed.chain``. Both meet in the mean step time, which the one takes from the other.

Ref: time scales apart, P. J. Courtois, Decomposability, 1977; birth-death processes, L. Kleinrock, Queueing Systems I,
chapter 3. How prompts and running requests vary together over a residence is derived here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from planner.mixed.behind import seconds_behind
from planner.mixed.chain import PromptState, rank_state
from planner.mixed.even import extra_beside
from planner.mixed.occupancy import Running, crossing, least_step, occupancy
from planner.mixed.pace import Pace
from planner.mixed.rank_line import RankLine
from planner.mixed.ranks import ranks_state
from planner.mixed.sampled import SampledPrompts, differ_and_are_cut
from planner.mixed.steps import Aggregate, StepTable, step_seconds
from planner.mixed.times import after_wait, sorted_latency, ttft_of
from planner.queues.queueing import Array
from planner.serving.latency import Latency, independent_sum

_SPREADS = np.array([-math.sqrt(3.0), 0.0, math.sqrt(3.0)])
"""Deviations of the running requests at which chains are solved: the nodes of three-point Gauss-Hermite quadrature."""
_CLOSE = 1.0
"""Deviations by which the mean of the running requests may lie off the middle chain."""
_SOLVED = 3
_SELDOM = 0.005
_REMEMBERED = 8
_BEHIND = 0.03
"""A prompt's delay over an answer from which on, on one rank, the steps behind a prompt are followed one by one."""
_MOST_FOLLOWS, _ALIKE = 0.8, 0.02
"""Of a step: how much of a change of the running requests comes back to them at most, and what of it is none."""


FoundTtft = tuple[Latency, float | None]
"""TTFT, and the relative standard error of its mean where a sample tells it."""


@dataclass(frozen=True, kw_only=True)
class MixedState:
    """An aggregated instance at one rate of arrivals, over time and over requests."""

    rate_per_second: float
    find_ttft: Callable[[], FoundTtft]
    """Finds ``ttft`` and how well it is known, which takes longer than all else."""
    find_guess: Callable[[], Latency] | None = None
    """Finds about ``ttft`` where that takes much longer: no longer than it, and up to 40 % shorter."""
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
    def _told(self) -> FoundTtft:
        return self.find_ttft()

    @property
    def ttft(self) -> Latency:
        """From arrival to the first token, the wait for room included."""
        return self._told[0]

    @property
    def ttft_error(self) -> float | None:
        """Relative standard error of its mean where a sample of steps tells it; None where a chain does."""
        return self._told[1]

    def __getstate__(self) -> dict[str, object]:
        """What travels to another process: ``ttft`` as found, for what finds it does not."""
        return self.__dict__ | {"_told": self._told, "find_ttft": partial(_found, self._told), "find_guess": None}

    @cached_property
    def e2e(self) -> Latency:
        """From arrival to the last token."""
        return independent_sum(self.ttft, self.span) if self.span.mean > 0 else self.ttft


def _found(told: FoundTtft) -> FoundTtft:
    return told


@dataclass(frozen=True)
class MixedQueue:
    """An aggregated instance, tabulated once for all rates."""

    aggregate: Aggregate

    @cached_property
    def table(self) -> StepTable:
        """What steps take."""
        return StepTable(self.aggregate)

    @cached_property
    def _known(self) -> dict[tuple[float, float, float], PromptState | None]:
        """Chains solved last, by running requests, rate and dispersion."""
        return {}

    def _prompts(self, running: float, rate: float, dispersion: float) -> PromptState | None:
        """Prompts in balance beside so many running requests; None where they come too fast."""
        key = (running, rate, dispersion)
        if key not in self._known:
            if len(self._known) >= _REMEMBERED:
                del self._known[next(iter(self._known))]
            solve = rank_state if self.aggregate.ranks == 1 else ranks_state
            self._known[key] = solve(self.table, running, rate, dispersion)
        return self._known[key]

    @cached_property
    def fed_per_second(self) -> float:
        """Requests per second of steps that are always full, with as many running requests as they feed.

        Infinite where the instance's places are full before.
        """
        running, taken = self.table.running, self.even[1]
        more = taken[:, -1] / self.aggregate.mean_new_tokens * self.aggregate.iterations.mean - running
        if more[-1] >= 0:
            return math.inf
        place = np.array([crossing(running, -more)])
        room = self.aggregate.room(place)
        tokens = room * self.aggregate.ranks
        seconds = step_seconds(self.aggregate, place, room, tokens)
        return float(tokens[0] / seconds[0]) / self.aggregate.mean_new_tokens

    @cached_property
    def even(self) -> tuple[Array, Array]:
        """(seconds, prompt tokens of all ranks) of steps that are alike on all ranks, [running, chunks up to full]."""
        return self.table.even(np.append(0.0, np.geomspace(0.01, 1.0, 9)))

    @cached_property
    def most_per_second(self) -> float:
        """Requests per second that no queue passes: full steps, or full places with the least mean steps."""
        each, most, rate = self.aggregate.iterations.mean, self.aggregate.most, self.fed_per_second
        low, high = 0.0, min(rate, most / (each * float(self.table.alone[-1])))
        if math.isfinite(rate):
            return high
        full = self.even[0][-1], self.even[1][-1]
        for _ in range(20):
            middle = (low + high) / 2
            step = least_step(*full, middle * self.aggregate.mean_new_tokens)
            low, high = (middle, high) if middle * each * step <= most else (low, middle)
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
        return self._answer(rate_per_second, dispersion, occupied)

    def near_step_seconds(self, rate_per_second: float, arrival_squared_cv: float = 1.0) -> float:
        """Mean step as requests in decode see it, from one chain: within some per cent; infinite without a balance."""
        if not 0 < rate_per_second < self.most_per_second:
            return math.inf
        offered, least = rate_per_second * self.aggregate.iterations.mean, self._least(rate_per_second)
        stable = np.isfinite(least)
        running, least = self.table.running[stable], least[stable]
        mean = max(
            min(crossing(running, running - offered * least), self.aggregate.most), min(1.0, self.aggregate.most)
        )
        state = self._prompts(mean, rate_per_second, max(arrival_squared_cv, 0.05))
        if state is None:
            return math.inf
        longer = state.mean_step_seconds / float(np.interp(mean, running, least))
        return min(crossing(running, running - offered * longer * least), self.aggregate.most) / offered

    def _occupied(self, rate: float, dispersion: float) -> Running | None:
        """Solve chains around the mean number of running requests, which they in turn decide."""
        table, most, offered = self.table, self.aggregate.most, rate * self.aggregate.iterations.mean
        least = self._least(rate)
        stable = np.isfinite(least)
        running, least = table.running[stable], least[stable]
        longer, found = 1.0, None
        first: tuple[float, PromptState | None] = math.nan, None
        for attempt in range(_SOLVED):
            mean = min(crossing(running, running - offered * longer * least), most)
            deviation = math.sqrt(max(mean, 1.0))
            spreads = _SPREADS if attempt else _SPREADS[1:2]
            places = np.unique(np.clip(mean + spreads * deviation, min(1.0, most), most))
            if attempt == 1 and abs(mean - first[0]) <= _CLOSE * deviation / 2:
                places[places.size // 2] = first[0]
            solved = [(n, first[1] if n == first[0] else self._prompts(float(n), rate, dispersion)) for n in places]
            kept = [(n, state) for n, state in solved if state is not None]
            if not kept:
                return found
            nodes, states = np.array([n for n, _ in kept]), [state for _, state in kept]
            steps = np.array([state.mean_step_seconds for state in states])
            middle = nodes.size // 2
            longer = float(steps[middle] / np.interp(nodes[middle], running, least))
            if not attempt:
                first = nodes[0], states[0]
                continue
            room = most
            if mean + 6 * deviation > most:  # prompts that are computed take places, too
                room -= rate * states[middle].mean_sojourn_seconds
            company = extra_beside(offered * float(steps[middle]), dispersion)
            found = occupancy(offered, nodes, states, room, company)
            if found is None or abs(found.mean - mean) <= _CLOSE * deviation:
                break
        return found

    def _pace(self, rate: float, dispersion: float, occupied: Running, step: float) -> Pace:
        """Return what makes steps long and short; what a prompt adds is taken from the chain about the mean."""
        new, weights = self.aggregate.new_tokens, self.aggregate.prompts.weights
        running, nearest = occupied.nearest
        per_prompt, iterations = nearest.per_prompt(), self.aggregate.iterations.mean
        behind = None
        if self.aggregate.ranks == 1 and per_prompt > _BEHIND * iterations * step:
            behind = seconds_behind(self.table, running, (rate, dispersion), iterations, per_prompt)
        return Pace(
            rate_per_second=rate,
            step_seconds=step,
            running=occupied.mean,
            running_variance=occupied.variance,
            slope=occupied.slope,
            per_prompt=per_prompt,
            behind_seconds=behind,
            bare=(self.table.running, self.table.alone),
            longest_seconds=self._longest(occupied),
            work_squared_cv=float(new**2 @ weights) / self.aggregate.mean_new_tokens**2 - 1,
            dispersion=dispersion,
            step_variance=nearest.step_variance,
        )

    def _longest(self, occupied: Running) -> float:
        """Seconds of steps that are full on all ranks beside as many requests as all but ever run.

        Of prompts that differ and are cut none is known: parts with much before them take longer than others.
        """
        if differ_and_are_cut(self.aggregate):
            return math.inf
        most = occupied.mean + 3 * math.sqrt(occupied.variance)
        return float(np.interp(most, self.table.running, self.table.mixed[:, -1, -1]))

    def _answer(self, rate: float, dispersion: float, occupied: "Running") -> MixedState:
        aggregate = self.aggregate
        answer, iterations = aggregate.workload.output_tokens, aggregate.iterations
        weights = occupied.weights
        states = occupied.states
        if occupied.empty > _SELDOM:
            alone = self._prompts(0.0, rate, dispersion)
            assert alone is not None, "an instance that keeps up does so when nothing runs"
            states, weights = [*states, alone], np.append(weights * (1 - occupied.empty), occupied.empty)
        step = occupied.mean / (rate * iterations.mean)
        share = float(occupied.weights @ np.array([state.prompt_steps for state in occupied.states]))
        wait = occupied.waiting * _wait_scale(iterations.squared_cv, rate / occupied.full_share, rate)
        pace = self._pace(rate, dispersion, occupied, step)
        find_ttft: Callable[[], FoundTtft] = partial(_chained_ttft, states, weights, occupied.waiting, wait)
        find_guess: Callable[[], Latency] | None = None
        sample: tuple[SampledPrompts, RankLine] | None = None
        if differ_and_are_cut(aggregate):
            arrivals, prompts = (rate, dispersion), SampledPrompts(aggregate, occupied.mean)
            line = prompts.line(arrivals, step, share)
            sample = prompts, line
            find_guess = partial(_guessed_ttft, line, occupied.waiting, wait)
            pace = replace(pace, step_variance=line.step_variance)
            if aggregate.ranks > 1:  # on one rank every token of a prompt delays steps
                work = line.delays_squared_cv(pace.per_prompt, aggregate.ranks)
                pace = replace(pace, work_squared_cv=work)
        longer = pace.seen_longer(iterations)
        paces, spans, likely = pace.paces(iterations, longer)
        step *= longer
        tokens = float(answer.mean > 1)  # 0: the answer is the first token, and none has a time of its own
        running = rate * iterations.mean * step
        if sample is not None:
            find_ttft = partial(_sampled_ttft, occupied, (rate, dispersion), sample, wait, (iterations.mean, running))
        return MixedState(
            rate_per_second=rate,
            find_ttft=find_ttft,
            find_guess=find_guess,
            tpot=sorted_latency(tokens * paces / aggregate.accepted, likely, tokens * step / aggregate.accepted),
            span=sorted_latency(tokens * spans, likely, tokens * running / rate),
            mean_requests=running,
            requests_per_rank=running / aggregate.ranks,
            mean_step_seconds=step,
            prompt_steps=share,
            waiting_probability=occupied.waiting,
            mean_wait_seconds=wait,
            utilisation=max(rate / self.fed_per_second, occupied.full_share),
        )


def _sampled_ttft(
    occupied: Running,
    arrivals: tuple[float, float],
    sample: tuple[SampledPrompts, RankLine],
    mean_wait: float,
    decode: tuple[float, float],
) -> FoundTtft:
    """TTFT by a sample of steps; once more where it is too short to come to the requests that its steps let run.

    Args: ``decode``: steps of an answer, and how many requests run.
    """
    (prompts, line), (iterations, running) = sample, decode
    found = prompts.found(arrivals, line, running)
    follows = min(occupied.slope * arrivals[0] * iterations, _MOST_FOLLOWS)
    asked = arrivals[0] * iterations * found.step_seconds * running / occupied.mean  # seen longer than on average
    off = (asked - running) / (1 - follows)
    if abs(off) * math.exp(-(1 - follows) * found.settled) > _ALIKE * running:
        line = prompts.line(arrivals, found.step_seconds, found.prompt_steps)
        found = prompts.found(arrivals, line, float(np.clip(running + off, running / 2, 2 * running)))
    return after_wait(found.ttft, occupied.waiting, mean_wait), found.error


def _chained_ttft(states: list[PromptState], weights: Array, waiting: float, mean_wait: float) -> FoundTtft:
    return ttft_of(states, weights, waiting, mean_wait), None


def _guessed_ttft(line: RankLine, waiting: float, mean_wait: float) -> Latency:
    return after_wait(line.ttft(), waiting, mean_wait)


def _wait_scale(squared_cv: float, full_per_second: float, rate: float) -> float:
    """Mean wait for room of a request that waits: a full instance is as many equal servers (Allen and Cunneen)."""
    return (1 + squared_cv) / 2 / max(full_per_second - rate, 1e-12)
