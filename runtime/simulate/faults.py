"""Loss of a device, a node or a link for a time, and what is saved of the requests that it hits.

The recovery stages are those of xDeepServe section 6: restart everything; let prefill and decode fail over apart,
decode going on with fewer DP groups and expert ranks while every expert keeps a replica; and roll back one iteration
where a link only falters.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ground.errors import BadInput
from ground.units import DAY_SECONDS, parse_duration, read_index
from models.spec import MLA
from planner.manifest.layout import Instance
from planner.manifest.loads import placement_balance
from planner.manifest.schema import Pool
from planner.manifest.terms import StepCost
from runtime.simulate.decode import DecodeInstance
from runtime.simulate.device import Shared
from runtime.simulate.encode import EncodeInstance
from runtime.simulate.engine import COMPLETION
from runtime.simulate.mixed import MixedInstance
from runtime.simulate.prefill import PrefillInstance
from runtime.simulate.system import System

MOST_SECONDS = 36_500 * DAY_SECONDS  # of a fault: after a century a clock of doubles still tells half a microsecond
_TEXT = re.compile(r"(device|node|link)\s+(\S+)\s+at\s+(\S+)\s+for\s+(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """``target`` is INSTANCE/RANK of a device, CLUSTER/NUMBER of a node (or its number), or the instance of a link."""

    kind: Literal["device", "node", "link"]
    target: str
    at_seconds: float
    for_seconds: float


def parse_fault(text: str) -> Outage:
    """Return a fault such as ``device decode-0/5 at 10s for 1min``."""
    match = _TEXT.fullmatch(text.strip())
    if not match:
        raise BadInput(
            f"--fail: {text[:60]!r} must look like 'device decode-0/5 at 10s for 1min', 'node 3 at 10s for 1min' or "
            "'link prefill-0 at 10s for 2s'"
        )
    kind, target, at, length = match.groups()
    at_seconds, for_seconds = parse_duration(at, "--fail", allow_zero=True), parse_duration(length, "--fail")
    if max(at_seconds, for_seconds) > MOST_SECONDS:
        raise BadInput(f"--fail: {text[:60]!r} is too long; a fault begins after and lasts at most 36500d")
    return Outage(kind=kind, target=target, at_seconds=at_seconds, for_seconds=for_seconds)  # type: ignore[arg-type]


class Faults:
    """Plays faults on a system. ``begun`` counts those that began, by kind."""

    def __init__(self, system: System, faults: tuple[Outage, ...]) -> None:
        self._system, self._shared = system, system.shared
        self._recovery = system.shared.manifest.recovery
        self._faults = faults
        self.begun: Counter[str] = Counter()
        self._dead: dict[str, Counter[int]] = {}
        self._lost_until: dict[str, float] = {}
        self.absent: set[str] = set()  # instances that are not there, whose devices may be lost all the same
        self.closed: set[str] = set()  # instances that take nothing new: absent ones, and those that are about to leave
        self._places = {
            instance.name: (pool, instance) for pool in self._shared.manifest.pools for instance in pool.instances
        }
        for fault in faults:
            self._hit(fault)

    def begin(self) -> None:
        """Schedule all faults."""
        for fault in self._faults:
            self._shared.engine.at(fault.at_seconds, COMPLETION, self._strike, fault)

    def _hit(self, fault: Outage) -> dict[str, set[int]]:
        """Return the ranks of each instance that a fault takes; BadInput where the manifest has no such place."""
        name, _, number = fault.target.partition("/")
        if fault.kind == "link" and fault.target in self._places:
            return {fault.target: set()}
        rank, devices = read_index(number), self._places[name][0].devices_per_instance if name in self._places else 0
        if fault.kind == "device" and rank is not None and rank < devices:
            return {name: {rank}}
        if fault.kind == "node":
            cluster, node = (name, rank) if number else ("", read_index(name))
            found = {
                instance.name: ranks
                for pool, instance in self._places.values()
                if node is not None and cluster in ("", pool.hardware)
                if (ranks := _ranks_on(self._shared, pool, instance, node))
            }
            if found:
                return found
        raise BadInput(f"--fail: no {fault.kind} {fault.target[:40]!r} carries an instance of the manifest")

    def _strike(self, fault: Outage) -> None:
        """Let what is hit hang until the loss is known; a link that is back by then has only faltered."""
        self.begun[fault.kind] += 1
        unknown = self._recovery.detection_seconds
        if fault.kind == "link" and (self._recovery.stage == "recompute" or fault.for_seconds <= unknown):
            self._glitch(fault)
            return
        if not unknown:
            self._recover(fault)
            return
        # Before what hangs may go on, which is at the same time.
        known = replace(fault, for_seconds=max(fault.for_seconds - unknown, 0.0))
        self._shared.engine.at(self._shared.engine.now_seconds + unknown, COMPLETION, self._recover, known)
        for name, ranks in self._hit(fault).items():
            if name in self.absent:  # what loads it sees the loss
                self._fail_over(name, ranks, fault)
            for part in (part for part in self._system.named[name] if part.up):
                if isinstance(part, PrefillInstance | EncodeInstance):
                    part.hang()
                else:
                    part.pause(unknown)

    def _recover(self, fault: Outage) -> None:
        hit = self._hit(fault)
        if self._recovery.stage == "restart":
            for name in self._places:
                extra = fault.for_seconds if name in hit else 0.0
                self._take_down(name, extra + self._start_seconds(name, len(self._places)), alive=False)
            return
        for name, ranks in hit.items():
            self._fail_over(name, ranks, fault)

    def _glitch(self, fault: Outage) -> None:
        """A link falters: transfers wait, and decode repeats the iteration under way when it is back."""
        now = self._shared.engine.now_seconds
        if self._system.links is not None:
            self._system.links.block(fault.target, now + fault.for_seconds)
        for part in self._system.named[fault.target]:
            if not isinstance(part, PrefillInstance) and part.up:
                part.pause(fault.for_seconds)

    def _fail_over(self, name: str, ranks: set[int], fault: Outage) -> None:
        """Decode and mixed instances shrink where they can; others are down until they are repaired and loaded."""
        pool, back = self._places[name][0], fault.for_seconds + self._start_seconds(name)
        if name in self.absent:
            until = self._shared.engine.now_seconds + back
            self._lost_until[name] = max(until, self.lost_until(name))
            return
        self._dead.setdefault(name, Counter()).update(ranks)
        decodes = [part for part in self._system.named[name] if isinstance(part, DecodeInstance)]
        gone = set(+self._dead[name])
        shrinks = ranks and pool.role == "decode" and all(part.up for part in decodes)
        if shrinks and _can_shrink(pool, gone):
            for part in decodes:
                self._shrink(part, gone)
            for other in self._system.named[name]:
                if isinstance(other, PrefillInstance) and other.up:  # the role that it might flip to begins anew
                    self._stop_prompts(other)
                    other.up = True
            self._shared.engine.at(self._shared.engine.now_seconds + back, COMPLETION, self._repair, (name, ranks))
            return
        self._dead[name].subtract(ranks)
        self._take_down(name, back, alive=True, dead=gone)
        if self._recovery.kill_prefill and pool.role == "decode" and self._system.roles is not None:
            self._system.roles.to_decode(forced=True)

    def _start_seconds(self, name: str, together: int = 1) -> float:
        return self._shared.manifest.start_seconds(self._places[name][0], together)

    def _shrink(self, part: DecodeInstance, gone: set[int]) -> None:
        """Go on without the DP groups of dead devices; their requests are computed anew or moved."""
        pool = part.pool
        lost = _dp_ranks(pool, gone)
        alive = isinstance(self._shared.manifest.model.spec.attention, MLA) and pool.degrees.attention_tp > 1
        here = part.stop(pause_seconds=self._recovery.reconfigure_seconds)
        for rank in lost:
            self._shared.placement.set_open(part.first_rank + rank, 1, False)
        for request, rank in here:
            if rank in lost:
                self._system.move_or_recompute(part, request, rank, alive)
        self._system.drop_transfers_to(part, lost)
        part.reshape(shrunk_cost(pool.step_costs["decode"].to_step_cost(), pool, gone))
        self._shared.placement.admit()

    def _repair(self, what: tuple[str, set[int]]) -> None:
        """Devices are back and loaded: the instance takes them in again."""
        name, ranks = what
        self._dead[name].subtract(ranks)
        gone = set(+self._dead[name])
        for part in self._system.named[name]:
            if isinstance(part, DecodeInstance) and part.up and name not in self.closed:
                part.stop(pause_seconds=self._recovery.reconfigure_seconds)
                part.reshape(shrunk_cost(part.pool.step_costs["decode"].to_step_cost(), part.pool, gone))
                lost = _dp_ranks(part.pool, gone)
                for rank in range(part.ranks):
                    self._shared.placement.set_open(part.first_rank + rank, 1, rank not in lost)
        self._shared.placement.admit()

    def _take_down(self, name: str, seconds: float, alive: bool, dead: set[int] | None = None) -> None:
        """Stop an instance for a time; KV on devices that are not ``dead`` outlives it if ``alive``."""
        until = self._shared.engine.now_seconds + seconds
        self._lost_until[name] = max(until, self.lost_until(name))
        self.withdraw(name, alive, dead)
        self._shared.engine.at(self._lost_until[name], COMPLETION, self._bring_up, name)

    def lost_until(self, name: str) -> float:
        """Return when an instance's devices are back and loaded, 0 where they were never lost."""
        return self._lost_until.get(name, 0.0)

    def withdraw(self, name: str, alive: bool = True, dead: set[int] | None = None) -> None:
        """Stop an instance; its requests go elsewhere."""
        for part in (part for part in self._system.named[name] if part.up):
            if isinstance(part, PrefillInstance | EncodeInstance):
                self._stop_prompts(part)
            elif isinstance(part, MixedInstance):
                self._stop_mixed(part)
            else:
                self._stop_decode(part, alive, dead or set())

    def _stop_prompts(self, part: PrefillInstance | EncodeInstance) -> None:
        stopped = part.stop()
        for request in stopped:
            request.retry()
        self._system.drop_transfers_from(part.name)
        for request in stopped:
            self._system.enter(request)

    def _stop_mixed(self, part: MixedInstance) -> None:
        for request, generated in part.stop():
            if generated >= 0:
                self._system.recompute_of(part, request, generated)
            else:
                request.retry()
                self._system.enter(request)

    def _stop_decode(self, part: DecodeInstance, alive: bool, dead: set[int]) -> None:
        here = part.stop()
        lost = _dp_ranks(part.pool, dead)
        self._shared.placement.set_open(part.first_rank, part.ranks, False)
        for request, rank in here:
            self._system.move_or_recompute(part, request, rank, alive and rank not in lost)
        self._system.drop_transfers_to(part, set(range(part.ranks)))

    def _bring_up(self, name: str) -> None:
        if self._shared.engine.now_seconds < self._lost_until[name] or name in self.closed:
            return
        parts = self._system.named[name]
        for part in parts:
            part.up = True
            if isinstance(part, DecodeInstance):
                opened = not any(isinstance(other, PrefillInstance) and other.accepts for other in parts)
                self._shared.placement.set_open(part.first_rank, part.ranks, opened)
        self._system.revive()


def _ranks_on(shared: Shared, pool: Pool, instance: Instance, node: int) -> set[int]:
    """Return the ranks of an instance that stand on a node of its cluster."""
    per_node = int(shared.manifest.clusters[pool.hardware].spec.devices_per_node.value)
    return {place.rank for place in pool.rank_table.places if instance.where(place, per_node)[0] == node}


def _dp_ranks(pool: Pool, dead: set[int]) -> set[int]:
    """Return the DP ranks (over all domains) that have a dead device."""
    places, dp = pool.rank_table.places, pool.degrees.attention_dp
    return {max(places[rank].domain, 0) * dp + places[rank].dp for rank in dead if places[rank].dp >= 0}


def _expert_ranks(pool: Pool, dead: set[int]) -> set[int]:
    """Return the EP ranks that have a dead device."""
    places = pool.rank_table.places
    return {places[rank].ep for rank in dead} - {-1}


def _can_shrink(pool: Pool, dead: set[int]) -> bool:
    """Whether DP groups stay and every expert keeps a replica (xDeepServe section 6, stage 2); no pipeline can."""
    domains = max(pool.degrees.domains, 1)
    if len(_dp_ranks(pool, dead)) >= pool.degrees.attention_dp * domains or pool.degrees.pp > 1:
        return False
    if pool.expert_map is None:
        return True
    lost = _expert_ranks(pool, dead)
    live = [index for index, rank in enumerate(pool.expert_map.expert_ranks) if rank not in lost]
    if not live:
        return False
    for layers in pool.expert_map.placements:
        slots = np.array(layers.slots).reshape(len(pool.expert_map.expert_ranks), -1)
        if len(np.unique(slots[live])) < len(np.unique(slots)):
            return False
    return True


def shrunk_cost(cost: StepCost, pool: Pool, dead: set[int]) -> StepCost:
    """Return the step cost of an instance without some devices: fewer attention and expert ranks, less balance.

    The busiest rank's share grows as tokens of lost replicas go to those that are left; the manifest's balance is
    scaled by how much the placement alone makes it worse under equal loads.
    """
    if not dead:
        return cost
    domains = max(pool.degrees.domains, 1)
    left = pool.degrees.attention_dp * domains - len(_dp_ranks(pool, dead))
    cost = replace(cost, attention_ranks=max(left / domains, 1.0))
    if pool.expert_map is None or not cost.experts:
        return cost
    lost = _expert_ranks(pool, dead)
    gone = {index for index, rank in enumerate(pool.expert_map.expert_ranks) if rank in lost}
    worse = placement_balance(pool.expert_map, None, gone) / placement_balance(pool.expert_map, None, set())
    live = len(pool.expert_map.expert_ranks) - len(gone)
    return replace(cost, expert_ranks=live, balance=float(cost.balance) * max(worse, 1.0))
