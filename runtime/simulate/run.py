"""One run of a manifest under a workload on the virtual clock."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.manifest.schema import Manifest, Pool
from podplan.errors import BadInput
from runtime.simulate.decode import Admission, DecodeInstance
from runtime.simulate.engine import ARRIVAL, COMPLETION, Engine, generator
from runtime.simulate.ledger import Ledger
from runtime.simulate.metrics import SimulationResult, Window, summarise
from runtime.simulate.mixed import MixedInstance
from runtime.simulate.prefill import PrefillInstance
from runtime.simulate.router import Choose, chooser
from runtime.simulate.transfer import KvLinks
from runtime.simulate.workload import Requests

_Busy = PrefillInstance | DecodeInstance | MixedInstance


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """``mtp`` sampled draws accepted drafts per request, expected yields their mean every iteration.

    Requests that arrive before ``warmup_seconds`` or after ``measured_until_seconds`` load the system and are not
    counted; the run ends when all are served, or at ``until_seconds``.
    """

    seed: int = 0
    mtp: Literal["sampled", "expected"] = "sampled"
    warmup_seconds: float = 0.0
    measured_until_seconds: float = float("inf")
    until_seconds: float = float("inf")


def simulate(manifest: Manifest, requests: Requests, options: SimulationOptions | None = None) -> SimulationResult:
    """Return what ``manifest`` does under ``requests``; the same arguments give the same result but for wall time.

    Raises:
        BadInput: a step cost gives no positive, finite duration.
    """
    options = options or SimulationOptions()
    return _Run(manifest, requests, options).result()


class _Run:
    """The parts of one run, wired: arrivals -> prefill -> links -> decode, or arrivals -> mixed."""

    def __init__(self, manifest: Manifest, requests: Requests, options: SimulationOptions) -> None:
        if not 0 <= options.warmup_seconds < min(options.until_seconds, options.measured_until_seconds):
            raise BadInput(f"--warmup: {options.warmup_seconds:g} s must be from 0 to before the end of the run")
        self._manifest, self._options = manifest, options
        self._engine, self._ledger = Engine(), Ledger(requests)
        self._next_request = requests.under_way
        self._busy_at: list[dict[str, float]] = []
        self._prefill: list[PrefillInstance] = []
        self._decode: list[DecodeInstance] = []
        self._mixed: list[MixedInstance] = []
        self._build()

    def _pools(self, role: str) -> list[Pool]:
        return [pool for pool in self._manifest.pools if pool.role == role]

    def _random(self, name: str) -> np.random.Generator | None:
        """Return the stream of an instance's drafts, None where their mean is taken."""
        return generator(self._options.seed, f"drafts {name}") if self._options.mtp == "sampled" else None

    def _build(self) -> None:
        """Make the instances of every pool."""
        engine, ledger = self._engine, self._ledger
        for pool in self._pools("mixed"):
            for instance in pool.instances:
                self._mixed.append(MixedInstance(engine, ledger, pool, self._random(instance.name)))
        if self._pools("decode"):
            self._admission = Admission(ledger, self._pools("decode"))
            self._decode = [
                DecodeInstance(engine, ledger, pool, self._admission, self._random(instance.name))
                for pool in self._pools("decode")
                for instance in pool.instances
            ]
            self._build_prefill()
        self._heads: list[PrefillInstance | MixedInstance] = [*self._prefill, *self._mixed]
        self._choose: Choose = chooser(self._manifest.routing, self._heads)

    def _build_prefill(self) -> None:
        """Make prefill instances, their queues and the links behind them."""
        assert self._manifest.kv_transfer is not None, "a manifest with prefill and decode pools has links"
        receiver = self._pools("decode")[0].degrees
        self._links = KvLinks(
            self._engine, self._ledger, self._manifest.kv_transfer, receiver.attention_tp * receiver.pp
        )
        shared: deque[int] = deque()
        collaborative = self._manifest.routing.prefill == "collaborative"
        for pool in self._pools("prefill"):
            for _ in pool.instances:
                queue = shared if collaborative else deque()
                self._prefill.append(PrefillInstance(self._engine, self._ledger, pool, queue, self._prefilled))

    def _prefilled(self, instance: PrefillInstance, rank: int, request: int) -> None:
        """Send the KV of a finished prompt on, or complete a request of one token."""
        if self._ledger.outputs[request] == 1:
            self._ledger.complete(request, self._engine.now_seconds)
            return
        source = (self._prefill.index(instance), rank)
        self._links.send(source, instance.rank_devices, request, self._admission.offer)

    def _schedule_arrivals(self) -> None:
        """Start the open or the closed loop; an open one schedules one arrival at a time."""
        requests = self._ledger.requests
        for request in range(requests.under_way):
            self._ledger.arrival[request] = self._ledger.first_token[request] = 0.0
            self._admission.offer(request)
        if requests.concurrency:
            self._ledger.on_leave = self._arrive_next
            for _ in range(min(requests.concurrency, len(requests))):
                self._arrive_next()
        else:
            self._schedule_next()

    def _arrive_next(self) -> None:
        """Let the closed loop's next request in at this instant."""
        if self._next_request < len(self._ledger.requests):
            self._next_request += 1
            request = self._next_request - 1
            self._engine.at(self._engine.now_seconds, ARRIVAL, lambda: self._arrive(request))

    def _schedule_next(self) -> None:
        """Schedule the open loop's next arrival."""
        request = self._next_request
        if request < len(self._ledger.requests):
            self._next_request += 1
            self._engine.at(float(self._ledger.requests.arrival_seconds[request]), ARRIVAL, self._arrive_in_turn)

    def _arrive_in_turn(self) -> None:
        request = self._next_request - 1
        self._arrive(request)
        self._schedule_next()

    def _arrive(self, request: int) -> None:
        """Queue a request at the instance that the policy chooses."""
        self._ledger.arrival[request] = self._engine.now_seconds
        self._heads[self._choose()].enqueue(request)
        if self._manifest.routing.prefill == "collaborative":
            for instance in self._prefill:
                instance.wake()

    def result(self) -> SimulationResult:
        """Run to the end and summarise."""
        started = time.perf_counter()
        options = self._options
        for seconds in (options.warmup_seconds, options.measured_until_seconds):
            if 0 < seconds < float("inf"):
                self._engine.at(seconds, COMPLETION, lambda: self._busy_at.append(self._busy_seconds()))
        self._schedule_arrivals()
        self._engine.run(options.until_seconds)
        wall = time.perf_counter() - started
        last = options.until_seconds if options.until_seconds < float("inf") else self._engine.now_seconds
        window = Window(start_seconds=options.warmup_seconds, end_seconds=min(options.measured_until_seconds, last))
        return summarise(
            self._ledger,
            self._manifest.service_levels,
            window,
            utilisation=self._utilisation(window),
            steps={role: sum(part.steps for part in parts) for role, parts in self._groups().items()},
            wall_seconds=wall,
        )

    def _groups(self) -> dict[str, Sequence[_Busy]]:
        """Instances by role."""
        groups: dict[str, Sequence[_Busy]] = {"prefill": self._prefill, "decode": self._decode, "mixed": self._mixed}
        return {role: parts for role, parts in groups.items() if parts}

    def _busy_seconds(self) -> dict[str, float]:
        """Return the busy time of each role so far, the rest of a running step not included."""
        now = self._engine.now_seconds
        return {
            role: sum(part.busy_seconds - max(part.busy_until_seconds - now, 0.0) for part in parts)
            for role, parts in self._groups().items()
        }

    def _utilisation(self, window: Window) -> dict[str, float]:
        """Return busy time over time in the window, mean over the instances of a role."""
        marks = [*self._busy_at, self._busy_seconds()]
        end = marks[1] if len(marks) > 2 else marks[-1]
        start = marks[0] if len(marks) > 1 and self._options.warmup_seconds > 0 else dict.fromkeys(end, 0.0)
        return {
            role: (end[role] - start[role]) / (len(parts) * window.seconds) if window.seconds > 0 else 0.0
            for role, parts in self._groups().items()
        }
