"""The change from one manifest to another: the instances that stop and start, the cheapest order, and its stages."""

from dataclasses import dataclass, replace
from math import inf

from ground.errors import Infeasible
from planner.changeover.capacity import carried, total_carried
from planner.changeover.moving import Terms, Turn, check_together, drain_seconds, turn, weight_plane
from planner.changeover.order import ROLES, ByRole, Held, InPlace, Order, Side, Task, cheapest, still
from planner.changeover.stages import Lot, Sides, Signature, lots_of, stages_of
from planner.manifest.loading import slowest_plane
from planner.manifest.migration import Migration, Promise, kinds_of
from planner.manifest.schema import Cluster, Manifest, Pool
from planner.plans.expectation import planned_rate
from planner.plans.servers import PREDICTED
from planner.serving.capacity import Limits
from planner.serving.deployed import workload_of
from planner.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions of a change: the traffic during the change, and the resources that it may use."""

    workload: Workload | None = None  # traffic during the change; None: the old manifest's
    rate_per_second: float | None = None
    both: bool = False  # whether NEW's own traffic and rate begin once all new instances run; no instance stops before
    confidence: float = PREDICTED
    spare_nodes: int = 0
    most_at_once: int | None = None
    terms: Terms | None = None  # terms of loading weights; None: those that NEW states
    without: frozenset[tuple[str, int]] = frozenset()
    """Nodes, as (cluster, node), that are lost or reserved: they get no instances, and their instances are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changeover:
    """The steps of a change.

    ``stages`` are the manifests before the first step and after each; ``kept`` is the number of untouched instances.
    """

    order: Order
    migration: Migration
    stages: tuple[Manifest, ...]
    kept: int
    carries_before: float
    carries_after: float
    terms: Terms

    @property
    def bytes(self) -> float:
        """Bytes of weights that are loaded to devices."""
        return sum(move.bytes for move in self.order.moves)


def change(old: Manifest, new: Manifest, asked: Conditions | None = None) -> Changeover:
    """Return the cheapest safe steps from one manifest to another.

    Raises BadInput: the manifests are of different models or machines, or state too little; Infeasible: instances of
    both cannot serve side by side, or no order of steps is allowed.
    """
    asked = asked or Conditions()
    terms = asked.terms or Terms.of(new)
    check_together(old, new)
    rate = planned_rate(old) if asked.rate_per_second is None else asked.rate_per_second
    carries = _carries(old, new, asked, rate)
    ends = total_carried(old, carries[0]), total_carried(new, carries[1])
    # What one of the ends does not carry no order of steps can; an end that carries nothing leaves all of it below.
    rate = min([rate, *(each for each in ends if each > 0)])
    clusters = _clusters(old, new, asked.spare_nodes)
    sides, task = _task(old, new, (asked, terms), carries, clusters, rate)
    order = cheapest(task)
    if order is None:
        raise Infeasible(
            "no order of steps leads from OLD to NEW within --max-concurrent and the nodes; give --spare-nodes"
        )
    if sides.lost and not order.moves:
        order = replace(order, moves=(still(task),))
    held = {name for lot in sides.lost for name in lot.names}
    lost = [drain_seconds(old, pool) for pool in old.pools if any(each.name in held for each in pool.instances)]
    levels = old.service_levels
    limits = sum(each is not None for each in (levels.ttft_seconds, levels.tpot_seconds))
    promise = Promise(
        requests_per_second=rate,
        confidence=asked.confidence,
        seconds=order.seconds,
        # Requests of a lost instance begin again; nearly all of them arrived within the time that a request takes.
        below_seconds=order.below_seconds + max(lost, default=0.0),
        attainment_within=max(1 - limits * (1 - levels.percentile / 100), 0.0),
    )
    migration, stages = stages_of((old, new), sides, task, order, clusters, promise, asked.without)
    return Changeover(
        order=order,
        migration=migration,
        stages=tuple(stages),
        kept=sum(len(lot.names) for lot in sides.kept),
        carries_before=ends[0],
        carries_after=ends[1],
        terms=terms,
    )


def _carries(old: Manifest, new: Manifest, asked: Conditions, rate: float) -> tuple[list[float], list[float]]:
    """Return the rate of an instance of each pool of both manifests, under the same traffic and the old limits."""
    workload, limits = asked.workload or workload_of(old.workload), Limits.of(old.service_levels)
    found = carried(old, workload, limits, asked.confidence)
    if not asked.both:
        return found, carried(new, workload, limits, asked.confidence)
    after = planned_rate(new)
    each_new = carried(new, workload_of(new.workload), Limits.of(new.service_levels), asked.confidence)
    # In requests of OLD's traffic, so that what carries all of NEW's counts as what carries all of OLD's.
    return found, [each * rate / after for each in each_new]


def _clusters(old: Manifest, new: Manifest, spare: int) -> dict[str, Cluster]:
    """Return the clusters of both manifests with the available nodes, spare ones included."""
    found: dict[str, Cluster] = {}
    for cluster_name in dict.fromkeys((*old.clusters, *new.clusters)):
        both = [each.clusters[cluster_name] for each in (old, new) if cluster_name in each.clusters]
        nodes = max(each.nodes for each in both) + spare
        found[cluster_name] = both[0].model_copy(update={"nodes": nodes})
    return found


def _task(
    old: Manifest,
    new: Manifest,
    limits: tuple[Conditions, Terms],
    carries: tuple[list[float], list[float]],
    clusters: dict[str, Cluster],
    rate: float,
) -> tuple[Sides, Task]:
    """Return the lots that stop, start and stay, and the task that counts them."""
    (asked, terms), (kinds, numbers) = limits, kinds_of(old, new)
    first, second = (dict(zip(known, own, strict=True)) for known, own in zip(numbers, carries, strict=True))
    lots = [_by_signature(lots_of(each, known)) for each, known in zip((old, new), numbers, strict=True)]
    lost = [lot for own in lots[0].values() for lot in own if _is_lost(lot, asked)]
    lots[0] = _by_signature([lot for own in lots[0].values() for lot in own if not _is_lost(lot, asked)])
    kept: list[Lot] = []
    for signature in lots[0].keys() & lots[1].keys():
        count = min(len(lots[0][signature]), len(lots[1][signature]))
        kept += lots[0][signature][:count]
        lots[0][signature], lots[1][signature] = lots[0][signature][count:], lots[1][signature][count:]
    stop = [(signature, own) for signature, own in lots[0].items() if own]
    start = [(signature, own) for signature, own in lots[1].items() if own]
    sides = Sides(
        kinds=kinds,
        stop=[own for _, own in stop],
        start=[signature for signature, _ in start],
        wanted=[own for _, own in start],
        kept=kept,
        lost=lost,
    )
    fused = not any(pool.role == "encode" for pool in kinds)
    maker = _Sides(old, kinds, second | first, clusters)
    later = _Sides(old, kinds, first | second, clusters) if asked.both else maker
    taken = {name: sum(lot.signature.nodes for lot in kept if lot.signature.cluster == name) for name in clusters}
    return sides, Task(
        old=tuple(maker.side(signature, len(own)) for signature, own in stop),
        new=tuple(later.side(signature, len(own)) for signature, own in start),
        in_place=tuple(
            found
            for i, (before, _) in enumerate(stop)
            for j, (after, _) in enumerate(start)
            if (found := maker.in_place(i, j, before, after)) is not None
        ),
        nodes=tuple(
            cluster.nodes - taken[name] - sum((name, node) in asked.without for node in range(cluster.nodes))
            for name, cluster in clusters.items()
        ),
        kept=maker.carries([lot.signature for lot in kept], fused),
        kept_after=later.carries([lot.signature for lot in kept], fused),
        kept_roles=maker.roles([lot.signature for lot in kept], fused),
        kept_devices=sum(maker.devices(lot.signature) for lot in kept),
        rate_per_second=rate,
        terms=terms,
        most_at_once=asked.most_at_once,
        start_first=asked.both,
    )


def _is_lost(lot: Lot, asked: Conditions) -> bool:
    return any((lot.signature.cluster, node) in asked.without for node in lot.nodes)


def _by_signature(lots: list[Lot]) -> dict[Signature, list[Lot]]:
    found: dict[Signature, list[Lot]] = {}
    for lot in lots:
        found.setdefault(lot.signature, []).append(lot)
    return found


class _Sides:
    """Makes sides of a task of signatures."""

    def __init__(self, old: Manifest, kinds: list[Pool], rates: dict[int, float], clusters: dict[str, Cluster]) -> None:
        self._old, self._kinds, self._rates, self._clusters = old, kinds, rates, clusters
        busy = (old.predicted.link_utilisation or {}).values()
        self._planes = {
            name: weight_plane(each.spec, max(busy, default=0.0), old.kv_transfer.plane if old.kv_transfer else None)[1]
            for name, each in clusters.items()
        }

    def _pools(self, signature: Signature) -> list[Pool]:
        return [self._kinds[part.kind] for part in signature.parts]

    def carries(self, signatures: list[Signature], fused: bool = False) -> ByRole:
        """Return the total rate of lots, by role; ``fused``: any in encode, which others do."""
        total = dict.fromkeys(ROLES, 0.0) | ({"encode": inf} if fused else {})
        for signature in signatures:
            for part in signature.parts:
                total[self._kinds[part.kind].role] += self._rates[part.kind]
        return total["encode"], total["prefill"], total["decode"], total["mixed"]

    def roles(self, signatures: list[Signature], fused: bool = False) -> Held:
        """Return the roles of lots; ``fused``: encode, too."""
        held = {pool.role for signature in signatures for pool in self._pools(signature)}
        return fused or "encode" in held, "prefill" in held, "decode" in held, "mixed" in held

    def devices(self, signature: Signature) -> int:
        """Return the devices of a lot's instances."""
        return sum(pool.devices_per_instance for pool in self._pools(signature))

    def side(self, signature: Signature, count: int) -> Side:
        """Return lots of a signature as a side."""
        pools, spec = self._pools(signature), self._clusters[signature.cluster].spec
        return Side(
            count=count,
            instances=len(pools),
            nodes=tuple(signature.nodes if name == signature.cluster else 0 for name in self._clusters),
            devices=self.devices(signature),
            carries=self.carries([signature]),
            roles=self.roles([signature]),
            drain_seconds=max(drain_seconds(self._old, pool) for pool in pools),
            bytes_per_device=max(pool.memory_bytes_per_device.weights for pool in pools),
            plane_bytes_per_second=self._planes[signature.cluster],
            storage_bytes_per_second=slowest_plane(spec)[1],
        )

    def in_place(self, i: int, j: int, before: Signature, after: Signature) -> InPlace | None:
        """Return how a lot becomes another on its own nodes; None where that saves nothing over a new lot."""
        if (before.cluster, before.nodes) != (after.cluster, after.nodes):
            return None
        places = [[(part.nodes, part.first_device) for part in each.parts] for each in (before, after)]
        if places[0] != places[1]:
            return None
        pairs = [
            (part, turn(self._old, self._kinds[part.kind], self._kinds[other.kind]))
            for part, other in zip(before.parts, after.parts, strict=True)
        ]
        turns: list[tuple[Pool, Turn]] = [(self._kinds[part.kind], each) for part, each in pairs if each is not None]
        if any(each.how == "load" for _, each in turns):
            return None
        worst = max((each.bytes_per_device for _, each in turns), default=0.0)
        how = "experts" if worst else "flip"
        still = Signature(before.cluster, before.nodes, tuple(part for part, each in pairs if each is None))
        return InPlace(
            old=i,
            new=j,
            how=how,  # type: ignore[arg-type]
            seconds=self._old.recovery.reconfigure_seconds + worst / self._planes[before.cluster],
            bytes=sum(each.bytes_per_device * pool.devices_per_instance for pool, each in turns),
            carries=self.carries([still]),
        )
