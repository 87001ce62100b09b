"""Passes of many instances at once: the recursion of ``queues.recorded_prefill``, a pass of each at a time.

An instance's passes follow from one another: the next begins when the last ends, or with the next arrival, and takes
what has come by then. Prompts under way go on first, each on its group; then the head of the line goes to the group
with most room, until it fits nowhere; a prompt longer than a budget takes what room there is and goes on in the next
pass. The rule is that of ``runtime.simulate.prefill``, prompt by prompt: nothing is averaged here.

Instances that have nothing to do with one another stand side by side in arrays (*lanes*), so that a step costs some
forty array operations for all of them. Groups without a prompt take one each in one operation, for an empty group has
most room; only what comes beside others is dealt one by one.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.queues.machine import Loads, Machine
from planner.queues.pass_surface import PassSurface
from planner.queues.prompts import Prompts
from planner.queues.queueing import Array

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


@dataclass(frozen=True, slots=True)
class _Line:
    """Prompts of all streams, one after the other; arrays [streams · places]."""

    arrivals: Array
    kinds: Ints
    need: Array
    """What room the first part of each asks for."""
    lengths: Array


@dataclass(slots=True)
class _Lives:
    """Lanes that are not done, arrays [lanes] and [lanes, groups]."""

    lanes: Ints
    base: Ints
    """Where their streams begin."""
    rates: Array
    first: Ints
    last: Ints
    free: Array
    """When the last pass ends."""
    head: Ints
    under_way: Ints
    """Prompts that go on in the next pass, or -1."""
    done: Array
    """Tokens of these."""

    def keep(self, left: NDArray[np.bool_]) -> None:
        """Go on with some of the lanes."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name)[left])


@dataclass(slots=True)
class _Making:
    """Passes in the making, arrays [lanes] and [lanes, groups]."""

    base: Ints
    until: Array
    """What has arrived, in mean gaps."""
    head: Ints
    room: Array
    busy: NDArray[np.bool_]
    loads: list[Array]
    """Computed tokens, context, pairs, finishing prompts."""
    under_way: Ints
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
        self._any_reused = bool(prompts.reused.any())

    def finished(self, streams: Streams, lanes: Lanes) -> Array:
        """Return when the last pass of each prompt that is asked for ends, [lanes, most of them]; no number beyond."""
        kinds, asked = streams.kinds.ravel(), int((lanes.last - lanes.first).max())
        line = _Line(streams.arrivals.ravel(), kinds, self._need.take(kinds), self.lengths.take(kinds))
        count = lanes.rates.size
        found = np.full(count * asked, np.nan)
        live = _Lives(
            lanes=np.arange(count),
            base=lanes.stream * streams.arrivals.shape[1],
            rates=lanes.rates,
            first=lanes.first,
            last=lanes.last,
            free=lanes.begin_seconds,
            head=lanes.start,
            under_way=np.full((count, self._groups), -1),
            done=np.zeros((count, self._groups)),
        )
        while live.lanes.size:
            carries = live.under_way >= 0
            next_one = line.arrivals.take(live.head + live.base) / live.rates
            begin = np.where(carries.any(axis=1), live.free, np.maximum(live.free, next_one))
            making = self._opened(line, live, carries, begin * live.rates * _CLOSE)
            self._deal(line, making)
            live.free = begin + self._seconds(making)
            for places, prompts in making.ended:
                within = (prompts >= live.first.take(places)) & (prompts < live.last.take(places))
                places, prompts = places[within], prompts[within]
                found[live.lanes.take(places) * asked + prompts - live.first.take(places)] = live.free.take(places)
            live.head, live.under_way, live.done = making.head, making.under_way, making.done
            waited_for = (live.under_way >= 0) & (live.under_way < live.last[:, None])
            left = (live.head < live.last) | waited_for.any(axis=1)
            if np.count_nonzero(left) < left.size:
                live.keep(left)
        return found.reshape(count, asked)

    def _opened(self, line: _Line, live: _Lives, carries: NDArray[np.bool_], until: Array) -> _Making:
        """Begin passes: what is under way goes on, and each group without it takes a prompt while any waits."""
        base = live.base[:, None]
        following = live.head[:, None] + np.cumsum(~carries, axis=1) - 1
        takes = ~carries & (line.arrivals.take(base + following) <= until[:, None])
        prompts, busy = np.where(carries, live.under_way, following), carries | takes
        kind = line.kinds.take(base + prompts)
        since = np.where(carries, live.done, self._start.take(kind))
        tokens = self._tokens.take(kind)
        ends = np.where(busy, np.minimum(since + self._budget, tokens), since)
        last = (ends == tokens) & busy
        goes_on = busy & ~last
        making = _Making(
            base=live.base,
            until=until,
            head=live.head + takes.sum(axis=1),
            room=self._budget - (ends - since),
            busy=busy,
            loads=self._loads(kind, since, ends, last),
            under_way=np.where(goes_on, prompts, -1),
            done=np.where(goes_on, ends, 0.0),
        )
        places = np.flatnonzero(last)
        making.ended.append((places // self._groups, prompts.ravel().take(places)))
        return making

    def _loads(self, kind: Ints, since: Array, ends: Array, last: NDArray[np.bool_]) -> list[Array]:
        """What parts of prompts add to their group."""
        cached = np.minimum(np.maximum(since, self._reused.take(kind)), ends) if self._any_reused else since
        computed = ends - cached
        context = np.where(computed > 0, cached, 0.0)
        return [computed, context, computed * cached + computed * (computed + 1) / 2, last.astype(np.float64)]

    def _deal(self, line: _Line, making: _Making) -> None:
        """Deal what waits beside what the groups have, one prompt of each lane at a time."""
        waits = line.arrivals.take(making.base + making.head) <= making.until
        places = np.flatnonzero(making.busy.all(axis=1) & waits)
        room, until, at = making.room[places], making.until.take(places), (making.base + making.head).take(places)
        begins, fits, dealt = np.arange(places.size) * self._groups, np.ones(places.size, dtype=np.bool_), []
        while places.size:
            group = room.argmax(axis=1)
            most = room.take(begins + group)
            fits &= (line.arrivals.take(at) <= until) & (most >= line.need.take(at))
            left = np.count_nonzero(fits)
            if not left:
                break
            taken = np.minimum(most, line.lengths.take(at)) * fits
            room.reshape(-1)[begins + group] = most - taken
            dealt.append((places * self._groups + group, at, taken))
            at = at + fits
            if left < _CROWDED * fits.size:  # lanes whose pass is full are carried along until they are many
                places, room, until, at = places[fits], room[fits], until[fits], at[fits]
                begins, fits = begins[:left], fits[fits]
        if dealt:
            self._put(line, making, *(np.concatenate(column) for column in zip(*dealt, strict=True)))

    def _put(self, line: _Line, making: _Making, flat: Ints, at: Ints, taken: Array) -> None:
        """Add first parts of prompts to the passes, arrays [parts]; those of no tokens are of passes that were full.

        Args: ``flat`` places in [lanes, groups], and in the line.
        """
        given = np.flatnonzero(taken)
        flat, at, taken = flat.take(given), at.take(given), taken.take(given)
        kind, places, shape = line.kinds.take(at), flat // self._groups, making.busy.shape
        making.head += np.bincount(places, minlength=making.head.size)
        since, prompts = self._start.take(kind), at - making.base.take(places)
        ends = since + taken
        last = ends == self._tokens.take(kind)
        for load, added in zip(making.loads, self._loads(kind, since, ends, last), strict=True):
            load += np.bincount(flat, added, making.busy.size).reshape(shape)
        making.ended.append((places[last], prompts[last]))
        if np.count_nonzero(last) < last.size:
            cut = flat[~last]
            making.under_way.reshape(-1)[cut] = prompts[~last]
            making.done.reshape(-1)[cut] = ends[~last]

    def _seconds(self, making: _Making) -> Array:
        """Durations, [lanes]: of the slowest group, the one with most tokens or the one with most pairs."""
        begins = np.arange(making.head.size) * self._groups
        busiest = np.concatenate([begins + making.loads[part].argmax(axis=1) for part in (0, 2)])
        tokens, context, pairs, finishing = (load.take(busiest) for load in making.loads)
        load: Loads = (np.maximum(tokens, 1.0), context, pairs, finishing)
        mean = making.loads[0].mean(axis=1)
        each = self._surface.seconds(load, np.concatenate([mean, mean])).reshape(2, -1)
        return np.asarray(np.maximum(each[0], each[1]), dtype=np.float64)
