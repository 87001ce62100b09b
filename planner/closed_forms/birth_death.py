"""Occupancy of a decode instance and time per output token: processor sharing that slows as it fills.

Requests that run advance together, one iteration at a time, and an iteration lasts the longer the more of them run;
past the most that fit they wait in line. Occupancy, iteration time and time per output token are one fixed point.

Ref: birth-death processes with state-dependent rates, L. Kleinrock, Queueing Systems I, chapter 3; that the occupancy
depends on the mean length only, F. P. Kelly, Reversibility and Stochastic Networks, chapter 3.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from statistics import NormalDist
from typing import NamedTuple, Self

import numpy as np

from ground.arrays import Floats, distinct, placed
from planner.serving.capacity import largest_rate
from planner.serving.latency import Latency, cells
from planner.serving.streams import lengths_at
from planner.workload import Lengths

IterationSeconds = Callable[[Floats], Floats]

_TABLE_NODES = 257
_LENGTH_EDGES = np.concatenate(
    [[0.0], np.geomspace(1e-3, 0.1, 9), np.linspace(0.175, 0.925, 11), [0.96, 0.98, 0.99, 0.996, 1.0]]
)
"""Levels between which lengths are taken as one: fine at the short end, where a wait weighs most per token, and at the
long one, which is the tail of the answer's whole time."""
_DRAFT_EDGES = (0.001, 0.005, 0.015, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.985, 0.995, 0.999)
"""Levels between which the luck that requests have with their drafts is taken as one."""
_DRAFT_STATES = 64  # iteration times that are told apart where drafts spread requests too
_WAIT_NODES = 32
_MOST_TOGETHER = 50_000  # requests of instances that are followed together; more of them hardly vary
_LEAST = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeState:
    """A decode instance at one arrival rate, over time and over requests."""

    rate_per_second: float
    mean_requests: float = 0.0  # running, on average over time
    utilisation: float = 0.0  # rate over the rate at which a full instance finishes requests
    waiting_probability: float = 0.0  # share of requests that find the instance full
    mean_wait_seconds: float = 0.0  # for admission, over all requests
    tpot: Latency  # (transfer + wait + residence) / tokens after the first, of each request
    span: Latency  # transfer + wait + residence, from the first token to the last, of each request

    def scaled(self, times: float) -> Self:
        """Return the instance on a clock that runs slower by a factor."""
        return replace(
            self,
            rate_per_second=self.rate_per_second / times,
            mean_wait_seconds=self.mean_wait_seconds * times,
            tpot=self.tpot.scaled(times),
            span=self.span.scaled(times),
        )

    @classmethod
    def idle(cls, rate_per_second: float) -> Self:
        """Return an instance whose requests end with the token that prefill gives, and are never its own."""
        none = Latency.from_samples(np.zeros(0))
        return cls(rate_per_second=rate_per_second, tpot=none, span=none)


@dataclass(frozen=True, slots=True, kw_only=True)
class Iterating:
    """Requests that advance together, tabulated once for all rates; those of all ranks."""

    iteration_seconds: Floats  # [requests], with 1, 2, ... running up to the largest batch; not falling
    iterations: Lengths  # iterations of a request
    tokens_per_iteration: float
    tokens_squared_cv: float = 0.0  # squared CV of the tokens of an iteration, as drafts are accepted or not
    transfer_seconds: float
    joining_iterations: float = 0.0
    kv_squared_cv: float = 0.0
    kv_seconds: Floats | None = None  # [requests]; both as of ``DecodeQueue``

    @property
    def running(self) -> Floats:
        """1, 2, ... requests."""
        return np.arange(1.0, self.iteration_seconds.size + 1)

    @property
    def finished_per_second(self) -> Floats:
        """Requests finished per second with 1, 2, ... running: n / (I tau(n)); [requests]."""
        return np.asarray(self.running / (self.iterations.mean * self.iteration_seconds))

    def averaged(self, busy: Floats, mean_seconds: Floats, lengths: Floats) -> Floats:
        """Return the deviation of iteration times over a residence as a share of that which the occupancy gives.

        The residence averages them (``residence_variance``), and KV of differing prompts spreads them: a request slows
        iterations by a constant and by its KV, of mean m: s = b + k m. Arrivals and what they slow down are linear in
        each other, so each counts with its own b + k x: E[(b + k x)^2] / s^2 = 1 + (k m / s)^2 c^2.

        Args: ``busy``: running requests; ``mean_seconds`` of an iteration; ``lengths``: of requests over the mean one.
        """
        both = np.interp([busy - 0.5, busy + 0.5], self.running, self.iteration_seconds)
        slowed = (both[1] - both[0]) * busy  # seconds by which the running requests slow an iteration
        elasticity = np.clip(slowed / mean_seconds, 0.0, 0.999)
        variance = residence_variance(elasticity, lengths, self.iterations.squared_cv)
        if self.kv_seconds is not None:
            part = np.interp(busy, self.running, self.kv_seconds) / np.maximum(slowed, 1e-300)
            variance = variance * (1 + self.kv_squared_cv * np.minimum(part, 1.0) ** 2)
        return np.sqrt(variance)


@dataclass(frozen=True, kw_only=True)
class DecodeQueue:
    """A decode instance and what it is asked.

    Attributes:
        iterations_per_request: of one request, from admission to its last token.
        iteration_seconds: duration of an iteration with n running requests, array to array, not falling in n.
        most_requests: that memory and engine allow to run at once.
        transfer_seconds: from the end of prefill to readiness for admission (KV transfer).
        tokens_per_iteration: accepted tokens per request and iteration, above 1 with MTP.
        tokens_squared_cv: of the tokens of an iteration.
        joining_iterations: until a request that is ready joins the next one: 1/2 where all begin together.
        kv_squared_cv: squared CV of the KV of running requests by their prompts.
        kv_seconds: seconds by which iterations are longer for their KV, array to array; None where it is of no matter.
        known_table: numbers of running requests, iteration seconds, those of KV, each [nodes], where known already.
    """

    iterations_per_request: Lengths
    iteration_seconds: IterationSeconds
    most_requests: int
    transfer_seconds: float = 0.0
    tokens_per_iteration: float = 1.0
    tokens_squared_cv: float = 0.0
    joining_iterations: float = 0.0
    kv_squared_cv: float = 0.0
    kv_seconds: IterationSeconds | None = None
    known_table: tuple[Floats, Floats, Floats | None] | None = field(default=None, repr=False, compare=False)

    def after(self, transfer_seconds: float) -> Self:
        """Return the queue behind other transfers; iterations take as long."""
        return replace(self, transfer_seconds=transfer_seconds, known_table=self._table)

    def running(self, rate_per_second: float) -> tuple[float, float]:
        """Return the mean number of running requests at a rate, all beyond saturation, and their iteration seconds."""
        table = self.tabulated()
        occupied = _occupancy(table, rate_per_second)
        running = float(self.most_requests) if occupied is None else float(occupied[1:] @ table.running)
        return running, float(np.interp(running, *self._table[:2]))

    def busy_share(self, rate_per_second: float) -> float:
        """Return the share of time in which at least one request runs: 1 - pi(0), 1 beyond saturation."""
        occupied = _occupancy(self.tabulated(), rate_per_second)
        return 1.0 if occupied is None else 1.0 - float(occupied[0])

    def state(self, rate_per_second: float, instances: int = 1) -> DecodeState | None:
        """Return the state under Poisson arrivals; None beyond saturation.

            pi(n) / pi(n-1) = rate * I * tau(min(n, most)) / min(n, most)

        Mean occupancy does not depend on the length distribution, as long as few wait. Beyond ``most_requests`` they
        wait in line; a wait is exponential with the mean of Allen and Cunneen. ``tpot`` is over per-request averages:
        the occupancy that a request sees is averaged over its residence, see ``residence_variance``.

        Args: ``rate_per_second``: requests at this instance; ``instances``: that requests are placed on so that all are
        filled alike (least KV, fewest requests). They fill up together, with the spread of what all of them hold: tau(N
        / c) with N requests on c instances, and one line.
        """
        alike = self.followed(instances)
        return _state(self.tabulated(alike), rate_per_second * alike, alike)

    def followed(self, instances: int) -> int:
        """Return how many of so many instances are followed together."""
        return max(min(instances, _MOST_TOGETHER // max(self.most_requests, 1)), 1)

    def capacity(
        self, limit_seconds: float, percentile: float, most_utilisation: float = 0.98, instances: int = 1
    ) -> float | None:
        """Return the largest rate of one of so many instances at which TPOT keeps the limit; None where none does.

        At most ``most_utilisation`` of what a full instance finishes. The largest of ``serving.capacity.on_grid``.
        """
        alike = self.followed(instances)
        table = self.tabulated(alike)

        def seconds(rate: float) -> float:
            state = _state(table, rate * alike, alike)
            return state.tpot.at(percentile) if state else math.inf

        return largest_rate(seconds, limit_seconds, most_utilisation * float(table.finished_per_second[-1]) / alike)

    @cached_property
    def _table(self) -> tuple[Floats, Floats, Floats | None]:
        """Numbers of running requests, iteration seconds and those of KV, each [nodes]; made once for all rates."""
        if self.known_table is not None:
            return self.known_table
        nodes = distinct(np.round(np.geomspace(1, self.most_requests, _TABLE_NODES)))
        seconds = np.asarray(self.iteration_seconds(nodes), dtype=np.float64) * np.ones_like(nodes)
        return nodes, np.maximum.accumulate(seconds), self.kv_seconds(nodes) if self.kv_seconds else None

    def tabulated(self, instances: int = 1) -> Iterating:
        """Return the iteration times by the requests on so many instances that are filled alike."""
        each = np.arange(1.0, self.most_requests * instances + 1) / instances
        nodes, seconds, kv_seconds = self._table
        return Iterating(
            iteration_seconds=np.interp(each, nodes, seconds),
            iterations=self.iterations_per_request,
            tokens_per_iteration=self.tokens_per_iteration,
            tokens_squared_cv=self.tokens_squared_cv,
            transfer_seconds=self.transfer_seconds,
            joining_iterations=self.joining_iterations,
            kv_squared_cv=self.kv_squared_cv,
            kv_seconds=None if kv_seconds is None else np.interp(each, nodes, kv_seconds),
        )


def _occupancy(server: Iterating, rate: float) -> Floats | None:
    """Return the probabilities of 0, 1, ... running requests, the last with all that wait; None beyond saturation."""
    finished = server.finished_per_second
    utilisation = rate / float(finished[-1])
    if utilisation >= 1:
        return None
    logs = np.append(0.0, np.cumsum(np.log(rate / finished)))  # [0..most]
    masses = np.exp(logs - logs.max())
    in_line = float(masses[-1]) / (1 - utilisation)  # full, with 0, 1, ... waiting
    total = float(masses[:-1].sum()) + in_line
    return np.append(masses[:-1], in_line) / total


def _state(server: Iterating, rate: float, instances: int = 1) -> DecodeState | None:
    """Return the state of one of so many instances that are filled alike; the rate and requests are those of all."""
    occupancy = _occupancy(server, rate)
    if occupancy is None:
        return None
    waiting = float(occupancy[-1])
    mean_requests = float(occupancy[1:] @ server.running)
    mean_wait, residence = waiting * _wait_scale(server, rate), mean_requests / rate
    # Little's law knows the mean better than lengths that are taken as one between levels; fixed ones need no help.
    joining = server.joining_iterations * residence / server.iterations.mean
    known = server.transfer_seconds + mean_wait + joining + residence if server.iterations.squared_cv else None
    tokens, spans, masses = _requests(server, rate, occupancy[1:], waiting)
    return DecodeState(
        rate_per_second=rate / instances,
        mean_requests=mean_requests / instances,
        utilisation=rate / float(server.finished_per_second[-1]),
        waiting_probability=waiting,
        mean_wait_seconds=mean_wait,
        tpot=_ordered(spans / tokens, masses),
        span=_ordered(spans, masses, known),
    )


def residence_variance(elasticity: Floats, residence: Floats, squared_cv: float) -> Floats:
    """Variance of the occupancy averaged over a residence, as a share of its variance in time.

    Count iterations instead of seconds. With exponential lengths the occupancy forgets at 1 - e per mean residence, e
    the elasticity of the iteration time in the occupancy, so over x mean residences

        r = 2 / y^2 * (y - 1 + exp(-y)),  y = (1 - e) x.

    Fixed lengths: the occupancy counts the arrivals of the last residence, and its variance over its own window is 2/3
    at e = 0 (a triangular autocovariance) where exponential lengths have 2/e = 0.736. In between the two are mixed by
    the squared CV; the same share is kept for e > 0.

    Args: ``elasticity``: d log tau / d log n, from 0 to below 1, any shape; ``residence``: length of the request over
    the mean length; broadcasts; ``squared_cv``: of the lengths.

    Ref: derived here, linear in the fluctuations.
    """
    window = np.maximum((1 - elasticity) * residence, 1e-3)
    forgetting = 2 / window**2 * (window - 1 + np.exp(-window))
    fixed = (2 / 3) / (2 / math.e)
    return np.asarray(forgetting * (fixed + (1 - fixed) * min(squared_cv, 1.0)), dtype=np.float64)


def _requests(server: Iterating, rate: float, occupancy: Floats, waiting: float) -> tuple[Floats, Floats, Floats]:
    """Requests as point masses: tokens, seconds of transfer, wait and iterations, mass.

    Iteration times are shrunk to their mean as far as a residence averages them, and spread as far as KV is uneven;
    iterations see the occupancy weighted by n / tau(n).
    """
    running = server.running
    seen = occupancy * running / server.iteration_seconds
    seen /= seen.sum()
    kept = np.flatnonzero(seen > 1e-9)
    seen, seconds = seen[kept], server.iteration_seconds[kept]
    mean = float(seen @ seconds)
    busy = np.asarray(seen @ running[kept])
    likely, lengths, luck = request_levels(server.iterations, server.tokens_squared_cv)
    if server.tokens_squared_cv and seen.size > _DRAFT_STATES:
        seen, seconds = _alike(seen, seconds)
    averages = mean + np.outer(server.averaged(busy, np.array(mean), lengths), seconds - mean)  # [levels, states]
    tokens = server.iterations.mean * server.tokens_per_iteration * lengths[:, None]
    iterations = server.iterations.mean * (lengths * luck)[:, None]
    fixed = server.transfer_seconds + server.joining_iterations * mean
    levels = (np.arange(_WAIT_NODES) + 0.5) / _WAIT_NODES
    waits = -np.log1p(-levels) * _wait_scale(server, rate)  # [waits], given that one waits
    spans = [averages * iterations + fixed, server.iteration_seconds[-1] * iterations + fixed + waits[None, :]]
    masses = [
        (likely[:, None] * seen[None, :]).ravel() * (1 - waiting),
        np.repeat(likely, _WAIT_NODES) * waiting / _WAIT_NODES,
    ]
    return (
        np.concatenate([np.broadcast_to(tokens, part.shape).ravel() for part in spans]),
        np.concatenate([part.ravel() for part in spans]),
        np.concatenate(masses),
    )


def _alike(seen: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Return states whose iterations last about as long as one, with their mean; states are in the order of seconds."""
    low, high = float(seconds[0]), float(seconds[-1])
    edges = np.linspace(low, high, _DRAFT_STATES + 1)[:-1]
    starts = placed(np.searchsorted(seconds, edges))[0].astype(np.intp)
    masses = np.add.reduceat(seen, starts)
    return masses, np.add.reduceat(seen * seconds, starts) / masses


def request_levels(iterations: Lengths, tokens_squared_cv: float) -> tuple[Floats, Floats, Floats]:
    """Return requests that stand for all, [levels]: how likely they are, their length over the mean, and their luck.

    Luck is the iterations that an answer takes over those that it takes on average. They are as many as it takes
    accepted tokens to pass it, so their squared CV is that of the tokens of an iteration over their number (renewal
    theory, W. Feller, An Introduction to Probability Theory, volume 2, XI.5), and they are taken as normal.
    """
    edges = _LENGTH_EDGES if iterations.squared_cv else np.array([0.0, 1.0])
    likely, lengths = np.diff(edges), lengths_at(iterations, (edges[1:] + edges[:-1]) / 2) / iterations.mean
    lengths = np.maximum(lengths, 1 / iterations.mean)  # none is shorter than one iteration
    if not tokens_squared_cv:
        return likely, lengths, np.ones_like(lengths)
    shares, scores = _normal_levels()
    deviations = np.sqrt(tokens_squared_cv / (iterations.mean * lengths))
    luck = np.maximum(1 + deviations[:, None] * scores, 1 / (iterations.mean * lengths[:, None]))
    return np.outer(likely, shares).ravel(), np.repeat(lengths, scores.size), luck.ravel()


@cache
def _normal_levels() -> tuple[Floats, Floats]:
    """Return the shares of a standard normal between levels, and its mean there."""
    normal = NormalDist()
    edges = np.array([0.0, *_DRAFT_EDGES, 1.0])
    heights = np.array([0.0, *(normal.pdf(normal.inv_cdf(level)) for level in _DRAFT_EDGES), 0.0])
    shares = np.diff(edges)
    return shares, -np.diff(heights) / shares


def _wait_scale(server: Iterating, rate: float) -> float:
    """Mean wait of a request that waits, in seconds: a full instance is c servers of equal speed, (1 + c^2)/2 of M/M/c.

    Ref: Allen and Cunneen, as tests/planner/closed_forms/waits.py has it.
    """
    return (1 + server.iterations.squared_cv) / 2 / (float(server.finished_per_second[-1]) - rate)


def _ordered(seconds: Floats, masses: Floats, mean: float | None = None) -> Latency:
    order = np.argsort(seconds, kind="stable")
    known = float(seconds @ masses / masses.sum()) if mean is None else mean
    return Latency.from_masses(seconds[order], masses[order], known)


class Crowding(NamedTuple):
    """Who finds prefill full, and for how long it stays so."""

    share: float  # share of prompts
    seconds: float  # mean of those; exponential, as what of the line is longer than the room

    @classmethod
    def before(cls, decode: DecodeState, rate_per_second: float, room_prompts: float, ttft: Latency) -> Self:
        """Return what the line before decode does to prefill, which holds so many prompts in all.

        The line is geometric past the places of decode, of ratio L / (1 + L) with L the mean of one that is not empty.
        Prompts in passes, by Little's law no more than the rate times TTFT, take room, too. Too few to move what a
        ``Latency`` tells are none.
        """
        waiting = decode.waiting_probability
        seconds = decode.mean_wait_seconds / waiting if waiting else 0.0
        line = rate_per_second * seconds
        share = waiting * (line / (1 + line)) ** max(room_prompts - rate_per_second * ttft.mean, 0.0)
        return cls(share if share > _LEAST else 0.0, seconds)

    def delayed(self, ttft: Latency) -> Latency:
        """Return TTFT with what those wait who find prefill full."""
        if not self.share:
            return ttft
        levels, masses = cells()
        own = np.array([ttft.at(float(level)) for level in levels])
        late = own[:, None] - self.seconds * np.log1p(-levels / 100)[None, :]
        seconds = np.concatenate([own, late.ravel()])
        both = np.concatenate([masses * (1 - self.share), np.outer(masses, masses).ravel() * self.share / 100])
        order = np.argsort(seconds, kind="stable")
        return Latency.from_masses(seconds[order], both[order], ttft.mean + self.share * self.seconds)
