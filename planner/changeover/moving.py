"""The cost of turning one instance into another: bytes of weights, their source, and seconds."""

from dataclasses import dataclass

import numpy as np

from ground.errors import BadInput, Infeasible
from hardware.formats import ELEMENT_BYTES
from hardware.spec import HardwareSpec
from models.parameters import count_parameters
from planner.manifest.loading import STARTUP_SECONDS, STORAGE_BYTES_PER_SECOND
from planner.manifest.migration import How, same_content
from planner.manifest.schema import Manifest, Pool
from planner.placement.migrate import moves

SHORTEST_DRAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Sources of weights.

    ``storage`` and ``host`` are bytes per second: of the whole store, and of each device from the memory of its host;
    None: no weights there. ``peers``: whether weights may be read from running instances.
    """

    startup_seconds: float = STARTUP_SECONDS
    storage_bytes_per_second: float | None = STORAGE_BYTES_PER_SECOND
    host_bytes_per_second: float | None = None
    peers: bool = True

    @classmethod
    def of(cls, manifest: Manifest) -> "Terms":
        """Return the terms that a manifest states for recovery."""
        stated = manifest.recovery
        return cls(
            startup_seconds=stated.startup_seconds,
            storage_bytes_per_second=stated.storage_bytes_per_second,
            host_bytes_per_second=stated.pool_bytes_per_second,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The change of one pool's instance to another's on the same devices; ``bytes_per_device`` are missing weights."""

    how: How
    bytes_per_device: float


def turn(model: Manifest, before: Pool, after: Pool) -> Turn | None:
    """Return the turn of an instance into another one in place; None where both are equal."""
    if same_content(before, after):
        return None
    whole = after.memory_bytes_per_device.weights
    keys = ("hardware", "degrees", "rank_table", "weights_dtype", "layers_per_stage", "weight_shards")
    if any(getattr(before, key) != getattr(after, key) for key in keys):
        return Turn(how="load", bytes_per_device=whole)
    if before.expert_map != after.expert_map:
        return Turn(how="experts", bytes_per_device=_moved_bytes(model, before, after))
    if before.role == after.role or before.memory_bytes_per_device.weights != whole:
        return Turn(how="load", bytes_per_device=whole)  # other limits are another process, which loads anew
    return Turn(how="flip", bytes_per_device=0.0)


def _moved_bytes(model: Manifest, before: Pool, after: Pool) -> float:
    """Return the bytes of expert weights that a device loads on average where maps differ; all where ranks do."""
    old, new, moe = before.expert_map, after.expert_map, model.model.spec.moe
    whole = after.memory_bytes_per_device.weights
    if old is None or new is None or moe is None or len(old.expert_ranks) != len(new.expert_ranks):
        return whole
    expert = count_parameters(model.model.spec).routed_expert * ELEMENT_BYTES[after.weights_dtype]
    held = {layer: entry.slots for entry in old.placements for layer in entry.layers}
    ranks, loaded = len(new.expert_ranks), 0
    for entry in new.placements:
        for layer in entry.layers:
            slots = held.get(layer)
            if slots is None or len(slots) % ranks:
                return whole
            loaded += int(moves(np.array([slots]), np.array([entry.slots]), ranks).sum())
    return min(loaded * expert / after.devices_per_instance, whole)


def weight_plane(spec: HardwareSpec, links_busy: float, kv_plane: str | None) -> tuple[str, float]:
    """Return the quickest plane between nodes and its bytes per second and device, less what KV takes of it."""
    beyond = {scope.plane for scope in spec.scopes if scope.name in ("supernode", "cluster")} | {spec.kv_plane}
    rates = {}
    for plane in spec.planes:
        if plane.name in beyond:
            free = 1 - links_busy if plane.name == kv_plane else 1.0
            rates[plane.name] = plane.reached_bytes_per_second * max(free, 0.05)
    name = max(rates, key=lambda each: rates[each])
    return name, rates[name]


def drain_seconds(manifest: Manifest, pool: Pool) -> float:
    """Return the seconds to drain an instance of a pool: the 99th percentile of a request's time, and a tenth more."""
    predicted, workload, levels = manifest.predicted, manifest.workload, manifest.service_levels
    if pool.role in ("encode", "prefill"):
        known = predicted.ttft_seconds.p99 if predicted.ttft_seconds else levels.ttft_seconds
    elif predicted.e2e_seconds:
        known = predicted.e2e_seconds.p99
    else:
        known = levels.tpot_seconds and levels.tpot_seconds * workload.output_tokens
    if known is None:
        raise BadInput(
            f"predicted: the manifest tells no latency of its {pool.role} pool, nor service levels; plan it anew"
        )
    return max(1.1 * known, SHORTEST_DRAIN_SECONDS)


def check_together(old: Manifest, new: Manifest) -> None:
    """Raise BadInput or Infeasible where instances of both manifests cannot serve side by side."""
    first, second = old.model, new.model
    if first.sha256 != second.sha256:
        raise BadInput(f"NEW: serves {second.spec.name}, and OLD {first.spec.name}; a change keeps the model's spec")
    for name in old.clusters.keys() & new.clusters.keys():
        if old.clusters[name].sha256 != new.clusters[name].sha256:
            raise BadInput(f"NEW: clusters.{name} is another machine than OLD's of that name; plan both on one spec")
    if (old.embedding_transfer is None) != (new.embedding_transfer is None):
        raise Infeasible(
            "of OLD and NEW one has encode instances and in the other prompts are prefilled with their pictures, so "
            "that a router cannot send requests to both; start NEW on devices of its own and move the traffic, or plan "
            "both with the same --encode"
        )
    if {pool.role for pool in (*old.pools, *new.pools)} <= {"encode", "mixed"}:
        return
    reads = [(each.engine, each.kv_transfer and each.kv_transfer.bytes_per_token) for each in (old, new)]
    formats = [{(pool.kv_dtype, pool.kv.block_tokens) for pool in each.pools} for each in (old, new)]
    if (
        reads[0][0] != reads[1][0]
        or formats[0] != formats[1]
        or (reads[0][1] and reads[1][1] and reads[0][1] != reads[1][1])
    ):
        raise Infeasible(
            "instances of NEW cannot read the KV of OLD's (engine, version or KV format differ), so they never serve "
            "beside each other; start NEW on devices of its own and move the traffic, or plan NEW with OLD's engine "
            "and --kv-dtype"
        )
