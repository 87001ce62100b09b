"""Manifests of chosen degrees on the catalogue's machines, for tests of deployment files: no search, no cost model."""

from functools import cache
from typing import Any

from hardware.loader import load_hardware
from models.loader import load_model
from models.spec import ModelSpec
from planner.manifest.checks import check_manifest, spec_hash
from planner.manifest.layout import Degrees, ExpertLayers, ExpertMap, Instance
from planner.manifest.schema import Cluster, EmbeddedModel, Manifest
from planner.strategy import Strategy, format_strategy, parse_strategy
from tests import manifests

EMBEDDINGS = {"bandwidth_bytes_per_second": 2e10, "latency_seconds": 1e-5, "bytes_per_token": 7168.0}


def expert_map(model: ModelSpec, ranks: int, redundant: int, seed: int) -> ExpertMap:
    """Return a map that differs from layer to layer: experts dealt round the ranks from a shifted start."""
    experts = model.moe.experts
    placements = []
    for layer in range(model.dense_layers, model.layers):
        held: list[list[int]] = [[] for _ in range(ranks)]
        for position in range(experts + redundant):
            shift = position // experts if experts % ranks == 0 else 0  # a replica goes to the next rank
            held[(position + shift) % ranks].append((position + layer + seed) % experts)
        placements.append(ExpertLayers(layers=[layer], slots=[expert for rank in held for expert in rank]))
    return ExpertMap(expert_ranks=list(range(ranks)), placements=placements)


def _pool(model: ModelSpec, hardware: str, role: str, asked: dict[str, Any]) -> dict[str, Any]:
    spec = load_hardware(hardware)
    strategy: Strategy = asked.get("degrees") or parse_strategy(asked["strategy"], moe=model.moe is not None)
    degrees = Degrees(**strategy._asdict())
    drafts, redundant = asked.get("drafts", 0), asked.get("redundant", 0)
    mapping = expert_map(model, degrees.moe_ep, redundant, asked.get("seed", 0)) if model.moe else None
    capacity, per_node = spec.device.memory_bytes.value, int(spec.devices_per_node.value)
    shares = {"weights": 0.3, "kv_cache": 0.4, "activations": 0.05, "buffers": 0.02, "reserve": 0.05, "capacity": 1.0}
    own: dict[str, Any] = {"layers_per_stage": [model.vision.layers]} if role == "encode" and model.vision else {}
    if asked.get("eager"):
        costs = manifests.phases(degrees, 1.0, drafts)
        own["step_costs"] = {name: held.model_copy(update={"launch_seconds": 1e-3}) for name, held in costs.items()}
    return manifests.pool(
        role,
        degrees,
        [],
        model=model,
        per_node=per_node,
        drafts=drafts,
        expert_map=mapping,
        hardware=hardware,
        strategy=format_strategy(strategy, moe=model.moe is not None),
        chips_per_instance=degrees.devices / spec.devices_per_chip.value,
        limits={"requests_per_dp_rank": asked.get("requests", 24), "tokens_per_device": asked.get("tokens", 4096)},
        microbatches=asked.get("microbatches", 1),
        weights_dtype=asked.get("weights", "bf16"),
        kv_dtype=asked.get("kv_dtype", "bf16"),
        memory_bytes_per_device={name: capacity * share for name, share in shares.items()},
        kv={"block_tokens": 128, "bytes_per_token_per_device": 70000.0, "capacity_tokens_per_rank": 400_000},
        **own,
    )


@cache
def _clusters(hardware: str, nodes: int) -> Cluster:
    spec = load_hardware(hardware)
    return Cluster(nodes=nodes, sha256=spec_hash(spec), spec=spec)


def deployed(model: str, hardware: str, workload: dict[str, Any] | None = None, **roles: dict[str, Any]) -> Manifest:
    """Return a manifest; ``roles`` are prefill, decode or mixed, each with strategy, instances, limits and so on.

    Instances stand one behind the other from the cluster's first device, aligned as the planner aligns them.
    """
    spec, per_node = load_model(model), int(load_hardware(hardware).devices_per_node.value)
    pools, free = [], 0
    for role, asked in roles.items():
        pool = _pool(spec, hardware, role, asked)
        devices, instances = pool["devices_per_instance"], []
        for number in range(asked.get("instances", 1)):
            if free % per_node and free % per_node + devices > per_node:
                free += -free % per_node
            nodes = list(range(free // per_node, (free + devices - 1) // per_node + 1))
            instances.append(Instance(name=f"{role}-{number}", nodes=nodes, first_device=free % per_node))
            free += devices
        pools.append(pool | {"instances": instances})
    link = {"plane": load_hardware(hardware).kv_plane, "bytes_per_token": 70272.0}
    manifest = manifests.build(
        pools,
        {"input_tokens": 4096, "output_tokens": 1024} | (workload or {}),
        made_by={"podplan": "0.1.0", "question": {"model": model}},
        clusters={hardware: _clusters(hardware, -(-free // per_node))},
        model=EmbeddedModel(sha256=spec_hash(spec), spec=spec),
        kv_transfer=manifests.LINK | link if "decode" in roles else None,
        embedding_transfer=EMBEDDINGS | {"plane": load_hardware(hardware).kv_plane} if "encode" in roles else None,
    )
    check_manifest(manifest)
    return manifest
