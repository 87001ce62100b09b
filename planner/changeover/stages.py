"""From an order of steps to manifests: the nodes of each instance after each step, and the description of steps.

The instances of a manifest stand as lots: instances that share nodes form one, and equal lots are counted. A lot is
one instance of whole nodes, or all instances on nodes that small instances share. Lots of one signature are
interchangeable, on whatever nodes they are.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ground.errors import Infeasible
from planner.changeover.moving import weight_plane
from planner.changeover.order import ROLES, InPlace, Move, Order, Task
from planner.manifest.layout import Instance
from planner.manifest.loading import slowest_plane
from planner.manifest.migration import How, Migration, Promise, Start, Step, manifest_hash, same_content
from planner.manifest.schema import Cluster, KvTransfer, Manifest, Pool, Prediction

BEGIN = "stage-00.yaml"
Started = list[tuple[str, InPlace | None]]  # names of instances that start, each with its change in place; None: as new


@dataclass(frozen=True, slots=True)
class Part:
    """An instance of a lot: its kind, and where it begins among the lot's nodes."""

    kind: int
    nodes: tuple[int, ...]
    first_device: int


@dataclass(frozen=True, slots=True)
class Signature:
    """The identity of a lot: the cluster, the number of nodes, and the parts with their positions."""

    cluster: str
    nodes: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lot:
    """A lot where it stands: its nodes in order, and the names of its parts."""

    signature: Signature
    nodes: tuple[int, ...]
    names: tuple[str, ...]


def lots_of(manifest: Manifest, kinds: Sequence[int]) -> list[Lot]:
    """Return the lots of a manifest, the largest first; ``kinds`` are those of its pools."""
    standing = [
        (pool.hardware, kind, instance)
        for pool, kind in zip(manifest.pools, kinds, strict=True)
        for instance in pool.instances
    ]
    found = [_lot(cluster, own) for cluster, own in _together(standing)]
    return sorted(found, key=lambda lot: (-lot.signature.nodes, lot.nodes))


def _together(standing: list[tuple[str, int, Instance]]) -> Iterator[tuple[str, list[tuple[int, Instance]]]]:
    """Yield the groups of instances that share nodes, directly or through others."""
    groups: list[tuple[str, set[int], list[tuple[int, Instance]]]] = []
    holder: dict[tuple[str, int], int] = {}
    for cluster, kind, instance in standing:
        met = sorted({holder[cluster, node] for node in instance.nodes if (cluster, node) in holder})
        target = met[0] if met else len(groups)
        if not met:
            groups.append((cluster, set(), []))
        for other in met[1:]:
            groups[target][1].update(groups[other][1])
            groups[target][2].extend(groups[other][2])
            groups[other][2].clear()
        groups[target][1].update(instance.nodes)
        groups[target][2].append((kind, instance))
        for node in groups[target][1]:
            holder[cluster, node] = target
    yield from ((cluster, own) for cluster, _, own in groups if own)


def _lot(cluster: str, own: list[tuple[int, Instance]]) -> Lot:
    own = sorted(own, key=lambda each: (each[1].nodes[0], each[1].first_device, each[0]))
    nodes = tuple(dict.fromkeys(node for _, instance in own for node in instance.nodes))
    place = {node: number for number, node in enumerate(nodes)}
    parts = [Part(kind, tuple(place[node] for node in each.nodes), each.first_device) for kind, each in own]
    signature = Signature(cluster, len(nodes), tuple(parts))
    return Lot(signature=signature, nodes=nodes, names=tuple(each.name for _, each in own))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The lots of a task: those that stop, the signatures that start with wanted names, and the untouched ones.

    ``lost`` lots are gone before the first step.
    """

    kinds: Sequence[Pool]
    stop: Sequence[Sequence[Lot]]
    start: Sequence[Signature]
    wanted: Sequence[Sequence[Lot]]
    kept: Sequence[Lot]
    lost: Sequence[Lot] = ()


@dataclass(slots=True)
class _Floor:
    """The nodes of each lot during the steps."""

    sides: Sides
    clusters: Mapping[str, Cluster]
    free: dict[str, set[int]]
    running: dict[str, tuple[int, Instance]]
    taken: set[str]
    left: list[list[Lot]]
    wanted: list[list[Lot]]

    def stop(self, side: int) -> Lot:
        """Remove the last lot of a side and free its nodes."""
        lot = self.left[side].pop()
        for name in lot.names:
            del self.running[name]
        self.free[lot.signature.cluster] |= set(lot.nodes)
        return lot

    def start(self, side: int, nodes: tuple[int, ...] | None) -> list[str]:
        """Place a lot of a side on given or free nodes; return the names of its instances."""
        signature, lot = self.sides.start[side], self.wanted[side].pop()
        nodes = nodes or self._nodes(signature)
        self.free[signature.cluster] -= set(nodes)
        names = [self._name(wanted) for wanted in lot.names]
        for name, part in zip(names, signature.parts, strict=True):
            where = [nodes[node] for node in part.nodes]
            self.running[name] = (part.kind, Instance(name=name, nodes=where, first_device=part.first_device))
        return names

    def _nodes(self, signature: Signature) -> tuple[int, ...]:
        """Return free nodes; for an instance priced inside a scope, of the fullest scope that has enough."""
        free, spec = sorted(self.free[signature.cluster]), self.clusters[signature.cluster].spec
        per_node = int(spec.devices_per_node.value)
        sizes = [int(scope.devices.value) // per_node for scope in spec.scopes if scope.name == "supernode"]
        block = next((size for size in sizes if signature.nodes <= size), None) if sizes and sizes[0] else None
        if block is None:
            return tuple(free[: signature.nodes])
        groups: dict[int, list[int]] = {}
        for node in free:
            groups.setdefault(node // block, []).append(node)
        enough = [own for own in groups.values() if len(own) >= signature.nodes]
        if not enough:
            raise Infeasible(
                f"no scope of {block} nodes of {signature.cluster} has {signature.nodes} free ones for an instance on "
                "the way, though that many are free in all; give --spare-nodes"
            )
        return tuple(min(enough, key=len)[: signature.nodes])

    def _name(self, wanted: str) -> str:
        """Return a name that no instance of the change has had."""
        stem, number, name = wanted.rstrip("0123456789"), 0, wanted
        while name in self.taken:
            name, number = f"{stem}{number}", number + 1
        self.taken.add(name)
        return name


def stages_of(
    both: tuple[Manifest, Manifest],
    sides: Sides,
    task: Task,
    order: Order,
    clusters: Mapping[str, Cluster],
    promise: Promise,
    without: frozenset[tuple[str, int]] = frozenset(),
) -> tuple[Migration, list[Manifest]]:
    """Return the steps, and the manifest before the first one and after each.

    Untouched instances keep names and nodes. Between the first and the last stage prompts go to the least load, as
    instances differ. Nodes in ``without`` get no instances, and the first step removes the instances on them.
    """
    old, new = both
    floor = _floor(old, sides, clusters, without)
    begin = old.model_copy(update={"clusters": {name: clusters[name] for name in old.clusters}})
    manifests, steps = [begin], []
    for number, move in enumerate(order.moves, start=1):
        drained, started = _walk(floor, task, move)
        drained += [name for lot in sides.lost for name in lot.names] if number == 1 else []
        last = number == len(order.moves)
        manifests.append(_stage(new if last else old, both, floor, clusters, last))
        steps.append(_step(move, drained, started, floor, f"stage-{number:02d}.yaml", task))
    names = [BEGIN, *(step.stage for step in steps)]
    migration = Migration(
        migration_version=1,
        begin=BEGIN,
        begin_sha256=manifest_hash(begin),
        steps=steps,
        promise=promise,
        rollback=names[-2 : 0 if sides.lost else None : -1],
    )
    return migration, manifests


def _floor(old: Manifest, sides: Sides, clusters: Mapping[str, Cluster], without: frozenset[tuple[str, int]]) -> _Floor:
    kept = {name for lot in sides.kept for name in lot.names}
    free = {
        name: {node for node in range(each.nodes) if (name, node) not in without} for name, each in clusters.items()
    }
    running: dict[str, tuple[int, Instance]] = {}
    kind_of = {
        name: part.kind
        for lot in (*sides.kept, *(lot for lots in sides.stop for lot in lots))
        for name, part in zip(lot.names, lot.signature.parts, strict=True)
    }
    taken = {instance.name for pool in old.pools for instance in pool.instances}
    for pool in old.pools:
        for instance in pool.instances:
            if instance.name in kind_of:  # not lost
                running[instance.name] = (kind_of[instance.name], instance)
                free[pool.hardware] -= set(instance.nodes)
    return _Floor(
        sides=sides,
        clusters=clusters,
        free=free,
        running=running,
        taken=taken | kept,
        left=[list(lots) for lots in sides.stop],
        wanted=[list(lots)[::-1] for lots in sides.wanted],
    )


def _walk(floor: _Floor, task: Task, move: Move) -> tuple[list[str], Started]:
    """Carry out a step; return the names that stop, and the names that start with their change in place."""
    drained: list[str] = []
    started: Started = []
    stop, start = list(move.stop), list(move.start)
    for each, count in zip(task.in_place, move.turned, strict=True):
        for _ in range(count):
            lot = floor.stop(each.old)
            drained += lot.names
            started += [(name, each) for name in floor.start(each.new, lot.nodes)]
        stop[each.old] -= count
        start[each.new] -= count
    for side, count in enumerate(stop):
        for _ in range(count):
            drained += floor.stop(side).names
    # The largest first, as long as scopes have room for them.
    for side in sorted(range(len(start)), key=lambda each: -floor.sides.start[each].nodes):
        for _ in range(start[side]):
            started += [(name, None) for name in floor.start(side, None)]
    return drained, started


def _step(move: Move, drained: Sequence[str], started: Started, floor: _Floor, stage: str, task: Task) -> Step:
    ordered = sorted(started, key=lambda each: _natural(each[0]))
    return Step(
        drain=sorted(drained, key=_natural),
        drain_seconds=move.drain_seconds,
        start=[_start(floor, name, turned, move, task) for name, turned in ordered],
        carries_per_second=move.carries_per_second,
        below_seconds=move.below_seconds,
        stage=stage,
    )


def _natural(name: str) -> tuple[str, int, str]:
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0), name


def _start(floor: _Floor, name: str, turned: InPlace | None, move: Move, task: Task) -> Start:
    pool = floor.sides.kinds[floor.running[name][0]]
    spec = floor.clusters[pool.hardware].spec
    planes = {"peers": weight_plane(spec, 0.0, None)[0], "storage": slowest_plane(spec)[0]}
    how: How
    if turned is None:
        size = pool.memory_bytes_per_device.weights * pool.devices_per_instance
        how, seconds, source = "load", move.start_seconds, move.source
    else:
        size = turned.bytes / task.new[turned.new].instances
        how, seconds, source = turned.how, turned.seconds, "peers" if size else None
    return Start(name=name, how=how, seconds=seconds, bytes=size, source=source, plane=planes.get(source or ""))


def _stage(
    head: Manifest, both: tuple[Manifest, Manifest], floor: _Floor, clusters: Mapping[str, Cluster], last: bool
) -> Manifest:
    """Return the manifest of the running instances, with the header of the old manifest or, at the end, the new one."""
    pools = []
    for kind, pool in enumerate(floor.sides.kinds):
        own = [instance for number, instance in floor.running.values() if number == kind]
        if own:
            pool = next((each for each in head.pools if same_content(each, pool)), pool)  # with its own predictions
            pools.append(pool.model_copy(update={"instances": sorted(own, key=lambda each: _natural(each.name))}))
    used = {pool.hardware for pool in pools}
    update: dict[str, object] = {
        "pools": sorted(pools, key=lambda pool: ROLES.index(pool.role)),
        "clusters": {name: cluster for name, cluster in clusters.items() if name in used},
    }
    if not last:
        update |= {"predicted": Prediction(), "kv_transfer": _transfer(both, {pool.role for pool in pools})}
        update["routing"] = head.routing.model_copy(update={"prefill": "least_load"})
    return head.model_copy(update=update)


def _transfer(both: Iterable[Manifest], roles: set[str]) -> KvTransfer | None:
    """Return the slower of the KV links of both manifests."""
    if "prefill" not in roles:
        return None
    known = [manifest.kv_transfer for manifest in both if manifest.kv_transfer is not None]
    return min(known, key=lambda each: each.bandwidth_bytes_per_second)
