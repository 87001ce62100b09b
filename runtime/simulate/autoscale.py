"""An autoscaler at work: instances follow the requests that run and wait, as KEDA and Kubernetes' own rule have it.

desired = ceil(requests / threshold), unless that is within the tolerance of what is there; up at once, at most
to twice or to four more in a period, down to the most that was desired in the stabilisation window (Kubernetes:
Horizontal Pod Autoscaling, algorithm details and default behaviour; KEDA hands it the metric of its Prometheus
trigger as an average per instance). An instance serves when it is loaded.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

from ground.errors import BadInput
from planner.manifest.checks import refuse_encode
from planner.manifest.loading import start_seconds
from planner.manifest.schema import Manifest, Pool
from runtime.simulate.decode import DecodeInstance
from runtime.simulate.engine import COMPLETION, Engine
from runtime.simulate.prefill import PrefillInstance
from runtime.simulate.standby import Standby
from runtime.simulate.system import System

LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscale:
    """The rule, Kubernetes' defaults but the threshold: ``fill`` times an instance's slots, as it is deployed.

    ``by`` plan it is times the requests that an instance holds on average in the plan: its rate times the time that
    they stay (Little).
    """

    least: int = 1
    begin: int | None = None
    """Instances of each pool at first; None: all."""
    by: Literal["slots", "plan"] = "slots"
    fill: float = 0.85
    startup_seconds: float | None = None
    """Until an instance serves; None: as its weights take, with those that start beside it."""
    period_seconds: float = 15.0
    stabilisation_seconds: float = 300.0
    tolerance: float = 0.1


class Autoscaler:
    """Scales each pool by itself, from ``least`` instances to those of the manifest."""

    def __init__(self, rule: Autoscale, system: System, standby: Standby) -> None:
        refuse_encode(system.shared.manifest, "--autoscale")
        self._rule, self._system, self._standby = rule, system, standby
        self._engine: Engine = system.shared.engine
        self._pools = [_Scaled(pool, rule, system.shared.manifest) for pool in system.shared.manifest.pools]
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
                seconds = self._rule.startup_seconds
                if seconds is None:
                    seconds = start_seconds(self._system.shared.manifest, pool.pool, len(pool.starting))
                self._engine.at(self._engine.now_seconds + seconds, COMPLETION, self._open, (pool, name))
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
        first = self._standby.parts[pool.names[0]][0]
        if isinstance(first, DecodeInstance):
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
        whole = float(pool.limits.requests_per_dp_rank * pool.degrees.attention_groups)
        if rule.by == "plan":
            whole = _planned_requests(pool, manifest)
        self._threshold = max(round(whole * rule.fill), 1)
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


def _planned_requests(pool: Pool, manifest: Manifest) -> float:
    """Return the requests that an instance of a pool holds on average in the plan."""
    first, whole = manifest.predicted.ttft_seconds, manifest.predicted.e2e_seconds
    rate = manifest.workload.requests_per_second
    if first is None or whole is None or rate is None:
        raise BadInput(
            "--autoscale: by=plan needs a manifest that states a rate and predicts TTFT and E2E; plan it anew"
        )
    stay = {"prefill": first.mean, "decode": whole.mean - first.mean, "mixed": whole.mean}[pool.role]
    return rate * stay / len(pool.instances)
