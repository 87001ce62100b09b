"""The instances of a manifest as lots: instances that share nodes form a lot, and equal lots are counted.

A lot is one instance of whole nodes, or all instances on nodes that small instances share. Lots of one signature are
interchangeable, on whatever nodes they are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.manifest.layout import Instance
from planner.manifest.migration import same_content
from planner.manifest.schema import Manifest, Pool


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


def kinds_of(*manifests: Manifest) -> tuple[list[Pool], list[list[int]]]:
    """Return pools of different content, and of each manifest the kind of each of its pools."""
    kinds: list[Pool] = []
    numbers = []
    for manifest in manifests:
        own = []
        for pool in manifest.pools:
            found = next((at for at, known in enumerate(kinds) if same_content(known, pool)), len(kinds))
            if found == len(kinds):
                kinds.append(pool)
            own.append(found)
        numbers.append(own)
    return kinds, numbers


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
