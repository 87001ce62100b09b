"""The order of a change: counts of lots that stop and start, and the cheapest way through them.

A state is the number of lots of each old signature that still run and of each new one that run already. A step stops
some and starts others at once. The states form a directed acyclic graph, so one pass in the order of progress finds the
cheapest path (Bellman). Cost is, in this order, the time in which limits may be missed, the total time, and the bytes
loaded.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, inf
from typing import get_args

import numpy as np

from ground.arrays import Floats, Ints
from planner.changeover.moving import Terms
from planner.manifest.migration import How
from planner.manifest.schema import Role

BELOW_WEIGHT = 1e6
"""Weight of a second in which limits may be missed, in seconds of total time: avoiding it always pays."""
BYTES_WEIGHT = 1e-15
MOST_STATES = 6_000
_SLOWEST_CATCH_UP = 0.01  # least share of the rate at which a backlog is worked off, so that it always ends
_ROUNDING = 0.000_000_001
ROLES: tuple[Role, ...] = get_args(Role)
ByRole = tuple[float, float, float, float]
Held = tuple[bool, bool, bool, bool]
SOURCES = ("host", "peers", "storage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Lots of one signature that stop, or that start."""

    count: int
    instances: int  # instances of one lot
    nodes: tuple[int, ...]  # nodes of one lot, by cluster
    devices: int
    carries: ByRole  # requests per second of one lot in each of ``ROLES``
    roles: Held
    drain_seconds: float = 0.0
    bytes_per_device: float = 0.0
    plane_bytes_per_second: float = inf  # bytes per second of a device that reads from peers
    storage_bytes_per_second: float = inf  # bytes per second of a device that reads from storage


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlace:
    """The change of a lot of side ``old`` to one of side ``new`` on its nodes; it ``carries`` that rate meanwhile."""

    old: int
    new: int
    how: How
    seconds: float
    bytes: float
    carries: ByRole


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A change: what stops, what starts, and within which limits.

    ``rate_per_second`` must be carried. ``kept`` is the rate of untouched lots, infinite in encode where prefill
    encodes; ``nodes`` are the other available nodes, by cluster. At most ``most_at_once`` instances stop, or start, in
    one step. With ``start_first`` no old lot stops before all new ones run, and untouched lots carry ``kept_after`` of
    the traffic that begins then.
    """

    old: tuple[Side, ...]
    new: tuple[Side, ...]
    in_place: tuple[InPlace, ...]
    nodes: tuple[int, ...]
    kept: ByRole
    kept_after: ByRole
    kept_roles: Held
    kept_devices: int
    rate_per_second: float
    terms: Terms
    most_at_once: int | None = None
    start_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One step: lots that stop, lots that start, and lots that change in place, by their index in the task."""

    stop: tuple[int, ...]
    start: tuple[int, ...]
    turned: tuple[int, ...]
    carries_per_second: float
    drain_seconds: float
    start_seconds: float
    below_seconds: float
    bytes: float
    source: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The steps, with lower bounds on the time in which limits may be missed and on the total time of any order."""

    moves: tuple[Move, ...]
    proven: bool
    below_bound_seconds: float
    seconds_bound: float

    @property
    def below_seconds(self) -> float:
        """Seconds in which limits may be missed."""
        return sum(move.below_seconds for move in self.moves)

    @property
    def seconds(self) -> float:
        """Total seconds."""
        return sum(move.drain_seconds + move.start_seconds for move in self.moves)


def cheapest(task: Task) -> Order | None:
    """Return the cheapest order of steps; None where every order passes a state that is not allowed.

    With too many states, lots stop and start in bundles; the bounds are then those of one unconstrained step.
    """
    if not task.old and not task.new:
        return Order(moves=(), proven=True, below_bound_seconds=0.0, seconds_bound=0.0)
    old, new, whole = _states(task)
    if old[-1].any() or (new[-1] != [side.count for side in task.new]).any():
        return None  # what is wanted does not fit
    graph = _Graph(task, old, new)
    path = graph.path()
    if path is None:
        return None
    moves = tuple(graph.move(first, second) for first, second in pairwise(path))
    found = Order(moves=moves, proven=whole, below_bound_seconds=0.0, seconds_bound=float(graph.rest()[0]))
    return replace(found, below_bound_seconds=found.below_seconds, seconds_bound=found.seconds) if whole else found


def _states(task: Task) -> tuple[Ints, Ints, bool]:
    """Return the counts of old and new lots of each state, [states, sides], and whether they are all there are."""
    counts = [side.count for side in (*task.old, *task.new)]
    steps = [1] * len(counts)
    while np.prod([ceil(count / step) + 1 for count, step in zip(counts, steps, strict=True)]) > MOST_STATES:
        widest = max(range(len(counts)), key=lambda each: counts[each] / steps[each])
        if steps[widest] >= counts[widest]:
            break  # all lots of each side at once
        steps[widest] += 1
    levels = [sorted({*range(0, count, step), count}) for count, step in zip(counts, steps, strict=True)]
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*levels, indexing="ij")], axis=1).astype(np.int64)
    old, new = grid[:, : len(task.old)], grid[:, len(task.old) :]
    taken = old @ _matrix(task.old, "nodes") + new @ _matrix(task.new, "nodes")
    fits = (taken <= np.array(task.nodes)).all(axis=1)
    there = np.array(task.kept_roles) | ((old @ _matrix(task.old, "roles") + new @ _matrix(task.new, "roles")) > 0)
    served = there[:, 0] & (there[:, 1] == there[:, 2]) & there[:, 1:].any(axis=1)
    ends = (old == [side.count for side in task.old]).all(axis=1) & (new == 0).all(axis=1)
    chosen = (fits & served) | ends
    if task.start_first:
        whole = (old == [side.count for side in task.old]).all(axis=1)
        chosen &= whole | (new == [side.count for side in task.new]).all(axis=1)
    order = np.argsort((new.sum(axis=1) - old.sum(axis=1))[chosen], kind="stable")
    return old[chosen][order], new[chosen][order], max(steps) == 1


def _matrix(sides: tuple[Side, ...], name: str) -> Ints:
    rows = [getattr(side, name) for side in sides]
    return np.array(rows, dtype=np.int64) if rows else np.zeros((0, 1), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps from one state to several, [steps]."""

    turned: Ints  # [steps, in place]
    carries: Floats
    drain: Floats
    start: Floats
    below: Floats
    bytes: Floats
    source: Ints

    @property
    def cost(self) -> Floats:
        """Return the cost of each step."""
        return BELOW_WEIGHT * self.below + self.drain + self.start + BYTES_WEIGHT * self.bytes


class _Graph:
    """States in the order of progress, and the cost of a step between two of them."""

    def __init__(self, task: Task, old: Ints, new: Ints) -> None:
        self.task, self.old, self.new = task, old, new
        self._carries = [
            np.array([side.carries for side in sides]).reshape(-1, len(ROLES)) for sides in (task.old, task.new)
        ]
        self._instances = [
            np.array([side.instances for side in sides], dtype=np.int64) for sides in (task.old, task.new)
        ]
        self._devices = [np.array([side.devices for side in sides], dtype=np.int64) for sides in (task.old, task.new)]
        self._drain = np.array([side.drain_seconds for side in task.old])
        held, rates = (
            np.array([getattr(side, name) for side in task.new])
            for name in ("bytes_per_device", "plane_bytes_per_second")
        )
        slow = np.array([side.storage_bytes_per_second for side in task.new])
        self._bytes, self._peer_seconds, self._storage_seconds = held, held / rates, held / slow
        self._peer_rate = float(rates.min(initial=inf))

    def path(self) -> list[int] | None:
        """Return the states of the cheapest path from the first to the last one."""
        count, rest = len(self.old), self.rest()
        least, came = np.full(count, inf), np.full(count, -1)
        least[0] = 0.0
        for state in range(count - 1):
            if least[state] + rest[state] >= least[-1]:  # inf, or no path through it is better than one that is known
                continue
            others = self._after(state, least[state], least)
            if not others.size:
                continue
            reached = least[state] + self.steps(state, others).cost
            better = reached < least[others]
            least[others[better]] = reached[better]
            came[others[better]] = state
        if least[-1] == inf:
            return None
        path = [count - 1]
        while path[-1]:
            path.append(int(came[path[-1]]))
        return path[::-1]

    def rest(self) -> Floats:
        """Return the least seconds that each state leaves: old lots drain once, missing new ones start once."""
        drain = np.where(self.old > 0, self._drain, 0.0).max(axis=1, initial=0.0)
        quick = {each.new: each.seconds for each in self.task.in_place}
        begins = np.array([quick.get(number, self.task.terms.startup_seconds) for number in range(len(self.task.new))])
        ahead = np.where(self.new < self.new[-1], begins, 0.0).max(axis=1, initial=0.0)
        return np.asarray(drain + ahead, dtype=np.float64)

    def _after(self, state: int, reached: float, least: Floats) -> Ints:
        """Return the states that one step may reach more cheaply than known so far."""
        later = np.arange(state + 1, len(self.old))
        stop, start = self.old[state] - self.old[later], self.new[later] - self.new[state]
        touched = np.maximum(stop @ self._instances[0], start @ self._instances[1])
        most = self.task.most_at_once or touched.max(initial=1)
        may = (stop >= 0).all(axis=1) & (start >= 0).all(axis=1) & (touched > 0) & (touched <= most)
        return later[may & (reached < least[later])]

    def steps(self, state: int, others: Ints) -> _Steps:
        """Return the steps from a state to others."""
        task = self.task
        stop, start = self.old[state] - self.old[others], self.new[others] - self.new[state]
        turned, started = self._turned(stop, start)
        drain = np.where(stop > 0, self._drain, 0.0).max(axis=1, initial=0.0)
        begin, source, loaded = self._loads(started, self._sources(state, others))
        for number, each in enumerate(task.in_place):
            begin = np.maximum(begin, np.where(turned[:, number] > 0, each.seconds, 0.0))
            loaded = loaded + turned[:, number] * each.bytes
        before, after = self._carried(state, others, turned)
        if task.start_first and (self.new[state] != [side.count for side in task.new]).any():
            before = np.where(stop.any(axis=1), 0.0, before)  # what is left of either carries the other's requests
        seconds, missed = drain + begin, np.maximum(task.rate_per_second - before, 0.0)
        spare = np.maximum(after - task.rate_per_second, _SLOWEST_CATCH_UP * task.rate_per_second)
        low = missed > _ROUNDING * task.rate_per_second
        below = np.where(low, seconds * (1 + missed / spare), 0.0)
        return _Steps(turned, before, drain, begin, below, loaded, source)

    def _turned(self, stop: Ints, start: Ints) -> tuple[Ints, Ints]:
        """Return the lots that change in place, as many as possible, and the other lots that start."""
        turned = np.zeros((len(stop), len(self.task.in_place)), dtype=np.int64)
        stop, start = stop.copy(), start.copy()
        for number, each in enumerate(self.task.in_place):
            turned[:, number] = np.maximum(np.minimum(stop[:, each.old], start[:, each.new]), 0)
            stop[:, each.old] -= turned[:, number]
            start[:, each.new] -= turned[:, number]
        return turned, start

    def _sources(self, state: int, others: Ints) -> Ints:
        """Return the devices that serve throughout a step, from which weights may be read."""
        left: Ints = self.old[others] @ self._devices[0] + self.new[state] @ self._devices[1]
        return np.asarray(left + self.task.kept_devices, dtype=np.int64)

    def _loads(self, started: Ints, peers: Ints) -> tuple[Floats, Ints, Floats]:
        """Return the seconds of the quickest source, which one it is, and the bytes."""
        terms, some = self.task.terms, started > 0
        total = (started * self._devices[1]) @ self._bytes
        loading = np.where(some, self._bytes, 0.0).max(axis=1, initial=0.0)
        host = loading / terms.host_bytes_per_second if terms.host_bytes_per_second else np.full(len(total), inf)
        peer = np.where(some, self._peer_seconds, 0.0).max(axis=1, initial=0.0)
        with np.errstate(divide="ignore"):
            shared = np.where(peers > 0, total / np.maximum(peers * self._peer_rate, 1e-30), inf)
        peer = np.maximum(peer, shared) if terms.peers else np.full(len(total), inf)
        store = np.full(len(total), inf)
        if terms.storage_bytes_per_second:
            each = np.where(some, self._storage_seconds, 0.0).max(axis=1, initial=0.0)
            store = np.maximum(each, total / terms.storage_bytes_per_second)
        ways = np.stack([host, peer, store])
        seconds = np.where(some.any(axis=1), terms.startup_seconds + ways.min(axis=0), 0.0)
        return seconds, ways.argmin(axis=0), total

    def _carried(self, state: int, others: Ints, turned: Ints) -> tuple[Floats, Floats]:
        """Return the rate within limits during each step, and after it."""
        still, task, whole = self.old[others] @ self._carries[0], self.task, self.new[-1]
        now = (self.new[state] == whole).all() and task.start_first
        kept = np.array(task.kept_after if now else task.kept)
        then = (self.new[others] == whole).all(axis=1) & task.start_first
        left = np.where(then[:, None], np.array(task.kept_after), np.array(task.kept))
        there = np.array([each.carries for each in self.task.in_place]).reshape(-1, len(ROLES))
        during = kept + still + self.new[state] @ self._carries[1] + turned @ there
        return served(during), served(left + still + self.new[others] @ self._carries[1])

    def move(self, first: int, second: int) -> Move:
        """Return the step between two states."""
        found = self.steps(first, np.array([second]))
        stop, start = self.old[first] - self.old[second], self.new[second] - self.new[first]
        loads = bool(self._turned(stop[None], start[None])[1].any())
        return Move(
            stop=tuple(stop.tolist()),
            start=tuple(start.tolist()),
            turned=tuple(found.turned[0].tolist()),
            carries_per_second=float(found.carries[0]),
            drain_seconds=float(found.drain[0]),
            start_seconds=float(found.start[0]),
            below_seconds=float(found.below[0]),
            bytes=float(found.bytes[0]),
            source=SOURCES[int(found.source[0])] if loads else None,
        )


def still(task: Task) -> Move:
    """Return the step in which nothing starts and nothing of the task stops."""
    none = np.zeros((1, len(task.old)), dtype=np.int64), np.zeros((1, len(task.new)), dtype=np.int64)
    return _Graph(task, *none).move(0, 0)


def served(carries: Floats) -> Floats:
    """Return the total rate of pools, given [..., roles]: prefill and decode, and mixed, behind encode."""
    behind = np.minimum(carries[..., 1], carries[..., 2]) + carries[..., 3]
    return np.asarray(np.minimum(carries[..., 0], behind))
