"""Manifests of chosen degrees on the catalogue's machines, for tests of deployment files: no search, no cost model."""

from functools import cache
from typing import Any

from hardware.loader import load_hardware
from models.loader import load_model
from models.spec import ModelSpec
from planner.manifest.checks import check_manifest, spec_hash
from planner.manifest.costs import StepCostModel
from planner.manifest.layout import Degrees, ExpertLayers, ExpertMap, Instance
from planner.manifest.ranks import group_rules, layers_per_stage, rank_table, shard_rules
from planner.manifest.schema import Cluster, EmbeddedModel, Manifest
from planner.strategy import Strategy, format_strategy, parse_strategy
from tests.manifests import cost


def expert_map(model: ModelSpec, ranks: int, redundant: int, seed: int) -> ExpertMap:
    """Return a map that differs from layer to layer: experts dealt round the ranks from a shifted start."""
    assert model.moe is not None
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
    degrees = Degrees(**{name: getattr(strategy, name) for name in Degrees.model_fields})
    drafts, redundant = asked.get("drafts", 0), asked.get("redundant", 0)
    mapping = expert_map(model, degrees.moe_ep, redundant, asked.get("seed", 0)) if model.moe else None
    slots = (model.moe.experts + redundant) / degrees.moe_ep if model.moe else 1.0
    step = {
        phase: StepCostModel.from_step_cost(cost(degrees, slots, 1 if phase == "prefill" else 1 + drafts))
        for phase in ("prefill", "decode", "mixed")
    }
    capacity = spec.device.memory_bytes.value
    per_node = int(spec.devices_per_node.value)
    return {
        "role": role,
        "hardware": hardware,
        "strategy": format_strategy(strategy, moe=model.moe is not None),
        "degrees": degrees,
        "devices_per_instance": degrees.devices,
        "chips_per_instance": degrees.devices / spec.devices_per_chip.value,
        "rank_table": rank_table(degrees, per_node),
        "groups": group_rules(degrees),
        "layers_per_stage": layers_per_stage(model.layers, degrees.pp),
        "weight_shards": shard_rules(model, degrees, asked.get("weights", "bf16"), role),
        "expert_map": mapping,
        "limits": {"requests_per_dp_rank": asked.get("requests", 24), "tokens_per_device": asked.get("tokens", 4096)},
        "microbatches": asked.get("microbatches", 1),
        "mtp": {"drafts": drafts, "acceptance": 0.7},
        "weights_dtype": asked.get("weights", "bf16"),
        "kv_dtype": asked.get("kv_dtype", "bf16"),
        "memory_bytes_per_device": {
            "weights": capacity * 0.3,
            "kv_cache": capacity * 0.4,
            "activations": capacity * 0.05,
            "buffers": capacity * 0.02,
            "reserve": capacity * 0.05,
            "capacity": capacity,
        },
        "kv": {"block_tokens": 128, "bytes_per_token_per_device": 70000.0, "capacity_tokens_per_rank": 400_000},
        "step_costs": step,
    }


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
    disaggregated = "decode" in roles
    manifest = Manifest.model_validate(
        {
            "manifest_version": 1,
            "made_by": {"podplan": "0.1.0", "question": {"model": model}},
            "clusters": {hardware: _clusters(hardware, -(-free // per_node))},
            "model": EmbeddedModel(sha256=spec_hash(spec), spec=spec),
            "engine": {"id": "reference", "version": "1"},
            "workload": {"input_tokens": 4096, "output_tokens": 1024} | (workload or {}),
            "service_levels": {"ttft_seconds": 2.0, "tpot_seconds": 0.05},
            "pools": pools,
            "kv_transfer": {
                "plane": load_hardware(hardware).kv_plane,
                "bandwidth_bytes_per_second": 1e10,
                "latency_seconds": 1e-4,
                "bytes_per_token": 70272.0,
                "mapping": {"ratio": 1.0, "group_size": 8.0},
            }
            if disaggregated
            else None,
        }
    )
    check_manifest(manifest)
    return manifest
