"""Small manifests with hand-made step costs, for tests that must not depend on the catalogue."""

from typing import Any

import numpy as np

from ground.records import from_dict
from hardware.spec import HardwareSpec
from models.spec import MLA, ModelSpec, MoE
from planner.manifest.checks import spec_hash
from planner.manifest.costs import StepCostModel
from planner.manifest.layout import Degrees, ExpertLayers, ExpertMap, Instance, group_rules, rank_table, shard_rules
from planner.manifest.schema import Cluster, EmbeddedModel, Manifest, ManifestWorkload
from planner.manifest.stepcost import layers_per_stage
from planner.manifest.terms import CommunicationTerm, ComputeTerm, StepCost
from runtime.simulate.workload import Requests

LINK: dict[str, Any] = {
    "plane": "fabric",
    "bandwidth_bytes_per_second": 1e10,
    "latency_seconds": 1e-4,
    "bytes_per_token": 160.0,
    "mapping": {"ratio": 1.0, "group_size": 8.0},
}


def sourced(value: float) -> dict[str, Any]:
    """Return a number with an origin."""
    return {"value": value, "kind": "assumed", "source": "test machine"}


def machine(devices_per_node: int = 8, nodes: int = 64) -> HardwareSpec:
    """Return a made-up machine of one plane, one device per chip."""
    fit: dict[str, Any] = {"kind": "assumed", "source": "test machine", "version": "1"}
    matmul = fit | {"peak_fraction": 0.5, "half_rows": 16, "memory_fraction": 0.8, "floor_seconds": 1e-6}
    attention = fit | {"peak_fraction": 0.5, "memory_fraction": 0.8, "floor_seconds": 1e-6}
    link = {"plane": "fabric", "bandwidth_bytes_per_second": sourced(1e11), "latency_seconds": sourced(1e-6)}
    return from_dict(
        HardwareSpec,
        {
            "schema_version": 1,
            "name": "toy",
            "title": "Toy machine",
            "device": {
                "title": "Toy device",
                "peak_flops_per_second": {"bf16": sourced(1e14)},
                "memory_bytes": sourced(64e9),
                "memory_bandwidth_bytes_per_second": sourced(1e12),
                "reserve_bytes": sourced(1e9),
            },
            "devices_per_chip": sourced(1),
            "devices_per_node": sourced(devices_per_node),
            "nodes": sourced(nodes),
            "sold_by_node": True,
            "scopes": [{"name": "cluster", "devices": sourced(0), **link}],
            "planes": [
                {
                    "name": "fabric",
                    "use": "all",
                    "bandwidth_bytes_per_second": sourced(1e11),
                    "efficiency": sourced(0.9),
                    "latency_seconds": sourced(1e-6),
                }
            ],
            "kv_plane": "fabric",
            "kernels": {
                "gemm": {"bf16": matmul},
                "grouped_gemm": {"bf16": matmul},
                "mla_decode": attention,
                "gqa_decode": attention,
                "prefill_attention": attention,
                "vector": fit | {"memory_fraction": 0.8, "floor_seconds": 1e-6},
            },
            "collectives": [],
            "exchanges": [],
            "streams": {
                "decode": "compute_communication",
                "prefill": "compute_communication",
                "communication_core_share_prefill": sourced(0),
                "communication_core_share_decode": sourced(0),
            },
            "host": {"graph_launch_seconds": sourced(0), "eager_launch_seconds": sourced(0)},
        },
    )


def small_model(layers: int = 4, experts: int = 16) -> ModelSpec:
    """Return a model of DeepSeek's structure, small."""
    return ModelSpec(
        schema_version=1,
        name="toy",
        title="Toy",
        architecture="deepseek_v3",
        source="test model",
        layers=layers,
        dense_layers=1,
        hidden_size=64,
        vocab_size=256,
        tied_embeddings=False,
        attention=MLA(heads=4, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8),
        dense_intermediate_size=128,
        moe=MoE(
            experts=experts, experts_per_token=2, intermediate_size=32, shared_experts=1, shared_intermediate_size=32
        ),
        mtp_layers=1,
        max_position=4096,
        native_dtype="bf16",
    )


def cost(degrees: Degrees, slots_per_rank: float, queries: int = 1) -> StepCost:
    """Return a step cost in which every kind of load costs something, around a millisecond a step."""
    tokens, kv = {"tokens": 2e6}, {"kv": 600.0, "context": 600.0, "one": 1e7}
    return StepCost(
        terms=(
            ComputeTerm("attention", "attention", tokens | {"pairs": 3e3}, {"one": 1e7}, 1e12, kv, 1e11, 1e-5, 0.5, 3),
            ComputeTerm("dense", "dense", tokens, {}, 1e12, {"one": 1e7}, 1e11, 1e-5),
            ComputeTerm("gate", "gate", {"mean": 1e5}, {}, 1e12, {}, 1e11, 1e-6),
            CommunicationTerm("dispatch", "dispatch", {"mean": 7e3}, ((1e-5, 1e9), (5e-5, 1e10))),
            ComputeTerm("experts", "experts", {"routed": 1e6}, {"hit": 1e6}, 1e12, {"hit": 1e6}, 1e11, 1e-5),
            CommunicationTerm("combine", "combine", {"mean": 14e3}, ((1e-5, 1e9), (5e-5, 1e10))),
            ComputeTerm("head", "head", {"rows": 1e6}, {}, 1e12, {"one": 1e6}, 1e11, 1e-5),
        ),
        draft_terms=(ComputeTerm("draft_head", "draft", {"rows": 1e6}, {}, 1e12, {}, 1e11, 1e-6),),
        dense_layers=1,
        moe_layers=3,
        queries_per_sequence=queries,
        attention_ranks=degrees.attention_dp,
        expert_ranks=degrees.moe_ep,
        shared_ranks=0,
        experts=16,
        experts_per_token=2,
        slots_per_rank=slots_per_rank,
        rule="compute_communication",
        communication_share=0.1,
        host_seconds=1e-4,
    )


def phases(degrees: Degrees, slots_per_rank: float, drafts: int) -> dict[str, StepCostModel]:
    """Return that step cost of every phase."""
    queries = {"prefill": 1, "decode": 1 + drafts, "mixed": 1 + drafts}
    return {each: StepCostModel.from_step_cost(cost(degrees, slots_per_rank, count)) for each, count in queries.items()}


def pool(role: str, degrees: Degrees, instances: list[Instance], **changes: Any) -> dict[str, Any]:
    """Return the fields of a pool of the small model, or of ``model``; ``changes`` replace some."""
    model, drafts, per_node = changes.pop("model", None), int(changes.pop("drafts", 0)), changes.pop("per_node", 8)
    slots = changes.pop("slots", list(range(16)))
    if model is None:
        model, layers = small_model(), [ExpertLayers(layers=[1, 2, 3], slots=slots)]
        changes = {"expert_map": ExpertMap(expert_ranks=list(range(degrees.moe_ep)), placements=layers)} | changes
    mapping = changes["expert_map"]
    per_rank = len(mapping.placements[0].slots) / len(mapping.expert_ranks) if mapping else 1.0
    return {
        "role": role,
        "hardware": "toy",
        "strategy": "DP=8, EP=8",
        "degrees": degrees,
        "devices_per_instance": degrees.devices,
        "chips_per_instance": degrees.devices,
        "instances": instances,
        "rank_table": rank_table(degrees, per_node),
        "groups": group_rules(degrees),
        "layers_per_stage": layers_per_stage(model.layers, degrees.pp),
        "weight_shards": shard_rules(model, degrees, changes.get("weights_dtype", "bf16"), role),
        "limits": {"requests_per_dp_rank": 8, "tokens_per_device": 2048},
        "microbatches": 2,
        "mtp": {"drafts": drafts, "acceptance": 0.7},
        "weights_dtype": "bf16",
        "kv_dtype": "bf16",
        "memory_bytes_per_device": dict(
            weights=1e9, kv_cache=1e9, activations=1e8, buffers=1e8, reserve=1e9, capacity=64e9
        ),
        "kv": {"block_tokens": 16, "bytes_per_token_per_device": 160.0, "capacity_tokens_per_rank": 100_000},
        "step_costs": phases(degrees, per_rank, drafts),
    } | changes


def manifest(*, prefill: int = 1, decode: int = 1, workload: dict[str, Any] | None = None, **changes: Any) -> Manifest:
    """Return a manifest of ``prefill`` and ``decode`` instances of 8 devices, DP 8 and EP 8 by default.

    ``changes`` go to both pools, those that start with prefill_ or decode_ to one.
    """
    pools: list[dict[str, Any]] = []
    node = 0
    for role, count in (("prefill", prefill), ("decode", decode)):
        own = {key: value for key, value in changes.items() if not key.startswith(("prefill_", "decode_"))}
        own |= {key.removeprefix(f"{role}_"): changes[key] for key in changes if key.startswith(f"{role}_")}
        degrees = own.pop("degrees", Degrees(attention_tp=1, attention_dp=8, moe_ep=8))
        nodes = -(-degrees.devices // 8)
        firsts = range(node, node + count * nodes, nodes)
        node += count * nodes
        instances = [
            Instance(name=f"{role}-{index}", nodes=list(range(first, first + nodes)))
            for index, first in enumerate(firsts)
        ]
        pools.append(pool(role, degrees, instances, **own))
    return build(pools, workload or {})


def requests(*rows: tuple[float, int, int, int], **more: Any) -> Requests:
    """Return requests of (arrival, input, output, reused)."""
    names = ("arrival_seconds", "input_tokens", "output_tokens", "reused_tokens")
    return Requests(**dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True)), **more)


def build(pools: list[dict[str, Any]], workload: dict[str, Any], **changes: Any) -> Manifest:
    """Return a manifest of ``pools``, of the small model on the made-up machine; ``changes`` replace fields."""
    spec, model = machine(), small_model()
    return Manifest.model_validate(
        {
            "manifest_version": 1,
            "made_by": {"podplan": "0.1.0", "question": {"model": "toy", "rate": 10.0}},
            "clusters": {"toy": Cluster(nodes=64, sha256=spec_hash(spec), spec=spec)},
            "model": EmbeddedModel(sha256=spec_hash(model), spec=model),
            "engine": {"id": "reference", "version": "1"},
            "workload": ManifestWorkload.model_validate({"input_tokens": 512, "output_tokens": 64, **workload}),
            "service_levels": {"ttft_seconds": 2.0, "tpot_seconds": 0.05},
            "pools": pools,
            "kv_transfer": LINK,
        }
        | changes
    )
