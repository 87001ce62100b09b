"""An autoscaler at work: instances follow the requests that run and wait, as KEDA and Kubernetes' own rule have it.

desired = ceil(requests / threshold), unless that is within the tolerance of what is there; up at once, at most
to twice or to four more in a period, down to the most that was desired in the stabilisation window (Kubernetes:
Horizontal Pod Autoscaling, algorithm details and default behaviour; KEDA hands it the metric of its Prometheus
trigger as an average per instance). An instance serves when it is loaded.
"""

import math
from collections import deque
from dataclasses import dataclass

from planner.manifest.schema import Pool
from runtime.simulate.decode import DecodeInstance
from runtime.simulate.engine import COMPLETION, Engine
from runtime.simulate.mixed import MixedInstance
from runtime.simulate.prefill import PrefillInstance
from runtime.simulate.standby import Standby
from runtime.simulate.system import System

LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscale:
    """The rule, Kubernetes' defaults but ``fill``, the share of an instance's slots that is the threshold."""

    least: int = 1
    begin: int | None = None
    """Instances of each pool at first; None: all."""
    fill: float = 0.85
    startup_seconds: float = 120.0
    period_seconds: float = 15.0
    stabilisation_seconds: float = 300.0
    tolerance: float = 0.1


class Autoscaler:
    """Scales each pool by itself, from ``least`` instances to those of the manifest."""

    def __init__(self, rule: Autoscale, system: System, standby: Standby) -> None:
        self._rule, self._system, self._standby = rule, system, standby
        self._engine: Engine = system.shared.engine
        self._pools = [_Scaled(pool, rule) for pool in system.shared.manifest.pools]
        self.started = self.stopped = 0
        for pool in self._pools:
            for name in pool.absent:
                standby.put_away(name)

    def begin(self) -> None:
        """Begin to look."""
        self._engine.every(lambda: self._rule.period_seconds, self._scale)
        self._engine.every(lambda: LOOK_SECONDS, self._sweep)

    def _scale(self) -> None:
        for pool in self._pools:
            wanted = pool.wanted(self._requests(pool), self._engine.now_seconds)
            while len(pool.there) + len(pool.starting) < wanted and pool.absent:
                name = pool.absent.pop(0)
                pool.starting.append(name)
                self._standby.take(name)
                self.started += 1
                self._engine.at(
                    self._engine.now_seconds + self._rule.startup_seconds, COMPLETION, self._open, (pool, name)
                )
            while len(pool.there) + len(pool.starting) > wanted and len(pool.there) > self._rule.least:
                name = pool.there.pop()
                pool.leaving.append(name)
                self._standby.close(name)
                self.stopped += 1

    def _open(self, what: "tuple[_Scaled, str]") -> None:
        pool, name = what
        back = self._standby.open(name)
        if back is not None:
            self._engine.at(back, COMPLETION, self._open, what)
            return
        pool.starting.remove(name)
        pool.there.append(name)

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
                elif isinstance(part, MixedInstance):
                    total += len(part.placement.waiting)
        first = self._standby.parts[pool.names[0]][0]
        if isinstance(first, DecodeInstance) and not isinstance(first, MixedInstance):
            total += len(self._system.shared.placement.waiting)
        return total


class _Scaled:
    """A pool's instances, and what was desired of late."""

    def __init__(self, pool: Pool, rule: Autoscale) -> None:
        self._rule = rule
        self.names = [instance.name for instance in pool.instances]
        first = len(self.names) if rule.begin is None else min(max(rule.begin, rule.least), len(self.names))
        self.there, self.absent = self.names[:first], self.names[first:]
        self.starting: list[str] = []
        self.leaving: list[str] = []
        slots = pool.limits.requests_per_dp_rank * pool.degrees.attention_groups
        self._threshold = max(round(slots * rule.fill), 1)
        self._desired: deque[tuple[float, int]] = deque()

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
