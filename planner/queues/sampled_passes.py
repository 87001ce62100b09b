"""Passes of many instances at once: the recursion of ``queues.recorded_prefill``, a pass of each at a time.

An instance's passes follow from one another: the next begins when the last ends, or with the next arrival, and takes
what has come by then. Prompts under way go on first, each on its group; then the head of the line goes to the group
with most room, until it fits nowhere; a prompt longer than a budget takes what room there is and goes on in the next
pass. The rule is that of ``runtime.simulate.prefill``, prompt by prompt: nothing is averaged here.

Instances that have nothing to do with one another stand side by side in arrays (*lanes*), so that a step costs some
forty array operations for all of them. Groups without a prompt take one each in one operation, for an empty group has
most room; only what comes beside others is dealt one by one.
"""

from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from planner.queues.machine import Loads, Machine
from planner.queues.pass_surface import PassSurface
from planner.queues.prompts import Prompts
from planner.queues.queueing import Array
from podplan.records import dataclass

Ints = NDArray[np.int64]
_CROWDED = 0.7
_CLOSE = 1 + 1e-12
"""An arrival at the very moment of a begin is in the pass, rounding apart."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Streams of prompts, each followed by ``pads`` of its end that never arrive."""

    arrivals: Array
    """[streams, places]: in mean gaps, not falling."""
    kinds: Ints
    """[streams, places]: of the prompts."""

    @classmethod
    def of(cls, arrivals: Array, kinds: Ints, groups: int) -> "Streams":
        """Return streams whose end ``groups`` groups may look beyond."""
        never = np.full((arrivals.shape[0], groups + 2), np.inf)
        return cls(np.hstack([arrivals, never]), np.hstack([kinds, np.zeros(never.shape, dtype=np.int64)]))


@dataclass(frozen=True, slots=True)
class Lanes:
    """Instances, arrays [lanes]."""

    stream: Ints
    rates: Array
    """Mean arrivals per second."""
    begin_seconds: Array
    """When the first pass may begin."""
    start: Ints
    """The first prompt that there is."""
    first: Ints
    """The first that is asked for."""
    last: Ints
    """The one after the last."""


@dataclass(slots=True)
class _Making:
    """Passes in the making, arrays [lanes] and [lanes, groups]."""

    lanes: Ints
    base: Ints
    begin: Array
    until: Array
    """What has arrived, in mean gaps."""
    head: Ints
    room: Array
    busy: NDArray[np.bool_]
    loads: list[Array]
    """Computed tokens, context, pairs, finishing prompts."""
    under_way: Ints
    """Prompts that go on in the next pass, or -1."""
    done: Array
    ended: list[tuple[Ints, Ints]] = field(default_factory=list)
    """Lanes of this and prompts whose last pass it is."""


class PassRecursion:
    """Instances of one kind: how they form passes of some kinds of prompts, and how long these last."""

    def __init__(self, machine: Machine, prompts: Prompts, surface: PassSurface) -> None:
        self._budget, self._groups, self._surface = machine.budget_tokens, machine.ranks, surface
        self._tokens, self._reused = prompts.tokens, prompts.reused
        self._start = (
            np.floor(prompts.reused / self._budget) * self._budget
        )  # whole parts that were reused take no pass
        self.lengths = self._tokens - self._start
        """[kinds]: of a budget, in all passes of a prompt."""
        self._need = np.where(self.lengths <= self._budget, self.lengths, 1.0)

    def finished(self, streams: Streams, lanes: Lanes) -> Array:
        """Return when the last pass of each prompt that is asked for ends, [lanes, most of them]; no number beyond."""
        count, groups = lanes.rates.size, self._groups
        arrivals, kinds = streams.arrivals.ravel(), streams.kinds.ravel()
        base = lanes.stream * streams.arrivals.shape[1]
        found = np.full((count, int((lanes.last - lanes.first).max())), np.nan)
        free, head = lanes.begin_seconds.copy(), lanes.start.copy()
        under_way, done = np.full((count, groups), -1), np.zeros((count, groups))
        live = np.arange(count)
        while live.size:
            at = head[live] + base[live]
            rates, carries = lanes.rates[live], (under_way[live] >= 0).any(axis=1)
            begin = np.where(carries, free[live], np.maximum(free[live], arrivals[at] / rates))
            making = self._opened(
                arrivals, kinds, (live, base[live], begin, begin * rates * _CLOSE, head[live]), (under_way, done)
            )
            self._deal(arrivals, kinds, making)
            end = begin + self._seconds(making)
            free[live], head[live], under_way[live], done[live] = end, making.head, making.under_way, making.done
            first, last = lanes.first[live], lanes.last[live]
            for places, prompts in making.ended:
                asked = (prompts >= first[places]) & (prompts < last[places])
                places, prompts = places[asked], prompts[asked]
                found[live[places], prompts - first[places]] = end[places]
            waited_for = (making.under_way >= 0) & (making.under_way < last[:, None])
            live = live[(making.head < last) | waited_for.any(axis=1)]
        return found

    def _opened(
        self, arrivals: Array, kinds: Ints, lanes: tuple[Ints, Ints, Array, Array, Ints], carried: tuple[Ints, Array]
    ) -> _Making:
        """Begin passes: what is under way goes on, and each group without it takes a prompt while any waits."""
        live, base, begin, until, head = lanes
        before = carried[0][live]
        carries = before >= 0
        following = head[:, None] + np.cumsum(~carries, axis=1) - 1
        takes = ~carries & (arrivals[base[:, None] + following] <= until[:, None])
        prompts, busy = np.where(carries, before, following), carries | takes
        kind = kinds[base[:, None] + prompts]
        since = np.where(carries, carried[1][live], self._start[kind])
        ends = np.where(busy, np.minimum(since + self._budget, self._tokens[kind]), since)
        last = ends == self._tokens[kind]
        goes_on = busy & ~last
        making = _Making(
            lanes=live,
            base=base,
            begin=begin,
            until=until,
            head=head + takes.sum(axis=1),
            room=self._budget - (ends - since),
            busy=busy,
            loads=self._loads(kind, since, ends, last & busy),
            under_way=np.where(goes_on, prompts, -1),
            done=np.where(goes_on, ends, 0.0),
        )
        places = np.nonzero(last & busy)
        making.ended.append((places[0], prompts[places]))
        return making

    def _loads(self, kind: Ints, since: Array, ends: Array, last: NDArray[np.bool_]) -> list[Array]:
        """What parts of prompts add to their group."""
        cached = np.minimum(np.maximum(since, self._reused[kind]), ends) if self._reused.any() else since
        computed = ends - cached
        context = np.where(computed > 0, cached, 0.0)
        return [computed, context, computed * cached + computed * (computed + 1) / 2, last.astype(np.float64)]

    def _deal(self, arrivals: Array, kinds: Ints, making: _Making) -> None:
        """Deal what waits beside what the groups have, one prompt of each lane at a time."""
        places = np.flatnonzero(making.busy.all(axis=1) & (arrivals[making.base + making.head] <= making.until))
        room, until, at = making.room[places], making.until[places], making.base[places] + making.head[places]
        lane, fits, dealt = np.arange(places.size), np.ones(places.size, dtype=np.bool_), []
        while places.size:
            group, kind = room.argmax(axis=1), kinds[at]
            most = room[lane, group]
            fits &= (arrivals[at] <= until) & (most >= self._need[kind])
            left = np.count_nonzero(fits)
            if not left:
                break
            taken = np.minimum(most, self.lengths[kind]) * fits
            room[lane, group] = most - taken
            dealt.append((places, group, at, kind, taken))
            at = at + fits
            if left < _CROWDED * fits.size:  # lanes whose pass is full are carried along until they are many
                places, room, until, at = places[fits], room[fits], until[fits], at[fits]
                lane, fits = lane[:left], fits[fits]
        if dealt:
            self._put(making, *(np.concatenate(column) for column in zip(*dealt, strict=True)))

    def _put(self, making: _Making, places: Ints, group: Ints, at: Ints, kind: Ints, taken: Array) -> None:
        """Add first parts of prompts to the passes, arrays [parts]; those of no tokens are of passes that were full."""
        given = np.flatnonzero(taken)
        places, group, at, kind, taken = places[given], group[given], at[given], kind[given], taken[given]
        making.head += np.bincount(places, minlength=making.head.size)
        since, prompts = self._start[kind], at - making.base[places]
        ends = since + taken
        last = ends == self._tokens[kind]
        shape = making.busy.shape
        flat = places * shape[1] + group
        for load, added in zip(making.loads, self._loads(kind, since, ends, last), strict=True):
            load += np.bincount(flat, added, shape[0] * shape[1]).reshape(shape)
        making.ended.append((places[last], prompts[last]))
        making.under_way[places[~last], group[~last]] = prompts[~last]
        making.done[places[~last], group[~last]] = ends[~last]

    def _seconds(self, making: _Making) -> Array:
        """Durations, [lanes]: of the slowest group, the one with most tokens or the one with most pairs."""
        lanes = np.arange(making.lanes.size)
        busiest = [making.loads[part].argmax(axis=1) for part in (0, 2)]
        tokens, context, pairs, finishing = (
            np.concatenate([load[lanes, group] for group in busiest]) for load in making.loads
        )
        load: Loads = (np.maximum(tokens, 1.0), context, pairs, finishing)
        mean = making.loads[0].mean(axis=1)
        each = self._surface.seconds(load, np.concatenate([mean, mean])).reshape(2, -1)
        return np.asarray(each.max(axis=0), dtype=np.float64)
