"""Instances that come when they are loaded and go when they have nothing left, by a migration or an autoscaler."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from planner.manifest.migration import Staged, instance_names
from planner.manifest.schema import Manifest, Pool
from runtime.simulate.decode import DecodeInstance
from runtime.simulate.engine import COMPLETION, EventEngine
from runtime.simulate.faults import Faults
from runtime.simulate.prefill import PrefillInstance
from runtime.simulate.system import System

LOOK_SECONDS = 0.25  # between two looks at whether instances have nothing left
SWEEP_SECONDS = 1.0


class Standby:
    """Opens and closes instances of a run by name, and counts the device-seconds for which they are held."""

    def __init__(self, system: System, faults: Faults) -> None:
        self.system, self._faults = system, faults
        self.parts = system.named
        self._held: dict[str, float] = dict.fromkeys(self.parts, 0.0)
        self._seconds: dict[str, float] = dict.fromkeys(self.parts, 0.0)

    def device_seconds(self, until: float) -> float:
        """Return the seconds for which devices were held, from 0 to a time."""
        held = {name: max(until - begin, 0.0) for name, begin in self._held.items()}
        devices = {name: parts[0].pool.devices_per_instance for name, parts in self.parts.items()}
        return sum((self._seconds[name] + held.get(name, 0.0)) * count for name, count in devices.items())

    def put_away(self, name: str) -> None:
        """Let an instance be absent when the run begins."""
        self.close(name)
        for part in self.parts[name]:
            part.up = False
        self._faults.absent.add(name)
        self._held.pop(name, None)

    def close(self, name: str) -> None:
        """Let nothing new come to an instance."""
        self._faults.closed.add(name)
        for part in self.parts[name]:
            if isinstance(part, DecodeInstance):
                self.system.shared.placement.set_open(part.first_rank, part.ranks, False)
            else:
                part.accepts = False

    def idle(self, name: str) -> bool:
        """Whether an instance holds nothing any more, KV that is on its way included."""
        placement = self.system.shared.placement
        for part in self.parts[name]:
            if isinstance(part, PrefillInstance):
                if not part.idle or part.held_tokens:
                    return False
            elif not part.idle:
                return False
            elif isinstance(part, DecodeInstance):
                ranks = slice(part.first_rank, part.first_rank + part.ranks)
                if any(placement.occupied[ranks]):
                    return False
        return True

    def leave(self, name: str) -> None:
        """Take an instance away; what it still holds is moved or computed again elsewhere."""
        self._faults.withdraw(name)
        self._faults.absent.add(name)
        begin = self._held.pop(name, None)
        if begin is not None:
            self._seconds[name] += self.system.shared.engine.now_seconds - begin

    def load(self, name: str, seconds: float, opened: Callable[[], None]) -> None:
        """Hold the devices of an instance and let it serve so many seconds later; then call ``opened``."""
        engine = self.system.shared.engine
        self._held.setdefault(name, engine.now_seconds)
        engine.at(engine.now_seconds + seconds, COMPLETION, self._loaded, (name, opened))

    def _loaded(self, what: tuple[str, Callable[[], None]]) -> None:
        """Open an instance; one whose devices are lost is loaded again when they are back."""
        name, opened = what
        until, engine = self._faults.lost_until(name), self.system.shared.engine
        if until > engine.now_seconds:
            engine.at(until, COMPLETION, self._loaded, what)
            return
        self.open(name)
        opened()

    def open(self, name: str) -> None:
        """Let an instance serve."""
        self._held.setdefault(name, self.system.shared.engine.now_seconds)
        self._faults.absent.discard(name)
        self._faults.closed.discard(name)
        for part in self.parts[name]:
            part.up = True
            if isinstance(part, DecodeInstance):
                self.system.shared.placement.set_open(part.first_rank, part.ranks, part.pool.role == "decode")
            else:
                part.accepts = part.pool.role != "decode"
        self.system.revive()


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrating:
    """A migration that begins at a time of the run."""

    staged: Staged
    at_seconds: float = 0.0


class MigrationRun:
    """Plays the steps; ``ended_seconds`` is when the last one ended, None while they run."""

    def __init__(self, migrating: Migrating, standby: Standby, engine: EventEngine) -> None:
        self._steps, self._stages = migrating.staged.migration.steps, migrating.staged.stages
        self._standby, self._engine, self._at = standby, engine, migrating.at_seconds
        self._left: list[str] = []
        self._loading = 0
        self.steps_ended = 0
        self.ended_seconds: float | None = None
        for name in set(standby.parts) - instance_names(self._stages[0]):
            standby.put_away(name)

    def begin(self) -> None:
        """Schedule the first step."""
        self._engine.at(self._at, COMPLETION, self._drain, 0)

    def _drain(self, number: int) -> None:
        """Let nothing new come to the instances of a step, and wait until they are empty."""
        if number == len(self._steps):
            self.ended_seconds = self._engine.now_seconds
            return
        self._standby.system.choose_by(self._stages[number + 1].routing)
        self._left = list(self._steps[number].drain)
        for name in self._left:
            self._standby.close(name)
        self._look((number, self._engine.now_seconds + self._steps[number].drain_seconds))

    def _look(self, what: tuple[int, float]) -> None:
        number, until = what
        late = self._engine.now_seconds >= until
        gone = [name for name in self._left if late or self._standby.idle(name)]
        for name in gone:
            self._standby.leave(name)
        self._left = [name for name in self._left if name not in gone]
        if self._left:
            self._engine.at(self._engine.now_seconds + LOOK_SECONDS, COMPLETION, self._look, what)
            return
        starting = self._steps[number].start
        self._loading = len(starting)
        for start in starting:
            self._standby.load(start.name, start.seconds, partial(self._opened, number))
        if not starting:
            self._end(number)

    def _opened(self, number: int) -> None:
        self._loading -= 1
        if not self._loading:
            self._end(number)

    def _end(self, number: int) -> None:
        self.steps_ended = number + 1
        self._drain(number + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscale:
    """The rule, Kubernetes' defaults but the threshold, as ``plan deploy`` writes it: ``fill`` times the requests that
    an instance holds on average in the plan.
    """

    least: int = 1
    begin: int | None = None  # instances of each pool at first; None: all
    fill: float = 1.0
    startup_seconds: float | None = None  # until an instance serves; None: as its weights take beside others that start
    period_seconds: float = 15.0
    stabilisation_seconds: float = 300.0
    tolerance: float = 0.1


class Autoscaler:
    """Scales each pool by itself, from ``least`` instances to those of the manifest; encoders tell no load and stay."""

    def __init__(self, rule: Autoscale, system: System, standby: Standby) -> None:
        self._rule, self._system, self._standby = rule, system, standby
        self._engine: EventEngine = system.shared.engine
        self._pools = [
            _Scaled(pool, rule, system.shared.manifest)
            for pool in system.shared.manifest.pools
            if pool.role != "encode"
        ]
        self.started = self.stopped = 0
        for pool in self._pools:
            for name in pool.absent:
                standby.put_away(name)

    def begin(self) -> None:
        """Begin to look."""
        self._engine.every(lambda: self._rule.period_seconds, self._scale)
        self._engine.every(lambda: SWEEP_SECONDS, self._sweep)

    def _scale(self) -> None:
        for pool in self._pools:
            wanted = pool.wanted(self._requests(pool), self._engine.now_seconds)
            while len(pool.there) + len(pool.starting) < wanted and pool.absent:
                name = pool.absent.pop(0)
                pool.starting.append(name)
                self.started += 1
                seconds = self._rule.startup_seconds
                if seconds is None:
                    seconds = self._system.shared.manifest.start_seconds(pool.pool, len(pool.starting))
                self._standby.load(name, seconds, partial(pool.opened, name))
            while len(pool.there) + len(pool.starting) > wanted and len(pool.there) > self._rule.least:
                name = pool.there.pop()
                pool.leaving.append(name)
                self._standby.close(name)
                self.stopped += 1

    def _sweep(self) -> bool:
        """Take away instances that are empty; False where none was."""
        found = False
        for pool in self._pools:
            for name in [name for name in pool.leaving if self._standby.idle(name)]:
                self._standby.leave(name)
                pool.leaving.remove(name)
                pool.absent.insert(0, name)
                found = True
        return found

    def _requests(self, pool: "_Scaled") -> int:
        """Return the requests that run and wait at a pool: what its instances' gauges add up to."""
        total = 0
        for name in (*pool.there, *pool.leaving):
            for part in self._standby.parts[name]:
                total += len(part.holding())
                if isinstance(part, PrefillInstance):
                    total += len(part.queue)
        if isinstance(self._standby.parts[pool.names[0]][0], DecodeInstance):
            total += len(self._system.shared.placement.waiting)
        return total


class _Scaled:
    """A pool's instances, and what was desired of late."""

    def __init__(self, pool: Pool, rule: Autoscale, manifest: Manifest) -> None:
        self._rule, self.pool = rule, pool
        self.names = [instance.name for instance in pool.instances]
        first = len(self.names) if rule.begin is None else min(max(rule.begin, rule.least), len(self.names))
        self.there, self.absent = self.names[:first], self.names[first:]
        self.starting: list[str] = []
        self.leaving: list[str] = []
        self._threshold = max(round(manifest.requests_held(pool) * rule.fill), 1)
        self._desired: deque[tuple[float, int]] = deque()

    def opened(self, name: str) -> None:
        """Note that an instance serves."""
        self.starting.remove(name)
        self.there.append(name)

    def wanted(self, requests: int, now: float) -> int:
        """Return how many instances there should be."""
        rule, count = self._rule, len(self.there) + len(self.starting)
        ratio = requests / (self._threshold * max(count, 1))
        desired = count if abs(ratio - 1) <= rule.tolerance else math.ceil(requests / self._threshold)
        desired = min(max(desired, rule.least), len(self.names), max(2 * count, count + 4))
        self._desired.append((now, desired))
        while self._desired[0][0] < now - rule.stabilisation_seconds:
            self._desired.popleft()
        return max(desired, min(count, max(each for _, each in self._desired)))
