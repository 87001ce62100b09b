"""TensorRT-LLM (1.2.1): trtllm-serve with a YAML file per role, and its orchestrator in front of prefill and decode.

``tensor_parallel_size`` is the stage; with ``enable_attention_dp`` each of its ranks is an attention DP rank. Ranks are
started by MPI: on one node by the server itself, over nodes by NVIDIA Dynamo's operator or by Slurm. A step of Slurm
lets no server start ranks of its own (ai-dynamo/dynamo#808), so there every instance is started rank by rank, as in
TensorRT-LLM's examples/disaggregated/slurm.
"""

from collections.abc import Mapping
from typing import Any

from deploy.commands.launch import Launch, Target, gpu_environment, port
from deploy.memory import exchanges
from deploy.roles import RolePlan
from deploy.words import Shell
from ground.files import to_yaml
from planner.engines.loader import on_pcie

Json = dict[str, Any]
WIDE = 8  # EP of the guide's table, past which an instance is taken for a part of an NVL72 rack
UPDATED_LAYERS = 1  # of which the balancer moves experts in one iteration
INDEXED = 2**31  # numbers that TRTLLM's kernels address among the rows of all experts (NVIDIA/TensorRT-LLM#15887)


def launch(target: Target, role: RolePlan) -> Launch:
    """Return what starts a role with trtllm-serve."""
    name = f"options-{role.name}.yml"
    environment = gpu_environment(target, role)
    if role.disaggregated:
        environment["TRTLLM_USE_UCX_KVCACHE"] = 1
    if exchanges(role):  # else tokens are gathered: DeepEP is off by default, and back ends of old gather by themselves
        environment |= {"TRTLLM_CAN_USE_DEEP_EP": 1, "ENABLE_CONFIGURABLE_MOE": 1}
    return Launch(
        role=role,
        programme=(*(["trtllm-llmapi-launch"] * (target.kind == "slurm")), "trtllm-serve", Shell('"$MODEL"')),
        flags=(
            ("--backend", "pytorch"),
            ("--host", "0.0.0.0"),
            ("--port", port(target, role, target.http_port(role))),
            ("--extra_llm_api_options", f"{target.site.files_path}/{name}"),
        ),
        environment=environment,
        files={name: to_yaml(options(target, role))},
        api="head",
    )


def stage_batch(role: RolePlan) -> int:
    """Return the requests of one of the batches that stages keep in flight, of which max_batch_size is."""
    return -(-role.sequences // role.strategy.pp)


def options(target: Target, role: RolePlan) -> Json:
    """Return a role's LLM arguments."""
    strategy = role.strategy
    batch = stage_batch(role)
    found: Json = {
        "tensor_parallel_size": strategy.devices_per_stage,
        "pipeline_parallel_size": strategy.pp,
        "enable_attention_dp": strategy.attention_dp > 1,
        "max_batch_size": batch,
        "max_num_tokens": role.tokens,
        "max_seq_len": role.longest,
        "kv_cache_config": {
            "enable_block_reuse": role.prefix_caching,
            "free_gpu_memory_fraction": target.memory(role).fraction,
            "dtype": "fp8" if role.setup.kv_dtype == "fp8" else "auto",
        },
    }
    if role.setup.experts:
        found |= {"moe_expert_parallel_size": strategy.moe_ep, "moe_tensor_parallel_size": strategy.moe_tp}
    kernels = _kernels(target, role)
    experts: Json = {"backend": kernels} if kernels else {}
    if kernels == "TRTLLM" and role.model.moe:
        most = INDEXED // (
            role.model.moe.experts_per_token * max(role.model.hidden_size, 2 * role.model.moe.intermediate_size)
        )
        experts |= {"max_num_tokens": most} if role.tokens * strategy.attention_dp > most else {}
    if role.setup.redundant:
        slots = role.setup.experts + role.setup.redundant
        experts["load_balancer"] = {"num_slots": slots, "layer_updates_per_iter": UPDATED_LAYERS}
    found |= {"moe_config": experts} if experts else {}
    found |= {"trust_remote_code": True} if target.site.trust_remote_code else {}
    if role.role == "prefill":
        found |= {"cuda_graph_config": None, "disable_overlap_scheduler": True}
    elif role.eager:
        found["cuda_graph_config"] = None
    else:
        found["cuda_graph_config"] = {"enable_padding": True, "max_batch_size": batch}
    if role.role != "decode" and role.tokens < role.longest_prompt:  # a longer prompt is refused without
        found["enable_chunked_prefill"] = True
    if role.disaggregated:
        found["cache_transceiver_config"] = {"backend": "UCX", "max_tokens_in_buffer": role.longest}
    if role.drafts:
        found["speculative_config"] = {"decoding_type": "MTP", "num_nextn_predict_layers": role.drafts}
    assert role.mode is not None or not role.setup.redundant, "replicas come with an exchange alone"
    return found


def _kernels(target: Target, role: RolePlan) -> str | None:
    """Return the back end of experts where the default one is not the guides', None elsewhere.

    The default is CUTLASS, whose products with a scale per block are of Hopper and of SM120, Blackwell's PCIe cards,
    and in 1.2 WIDEEP alone has replicas and the wide exchange of an NVL72 rack (docs: deployment guide for DeepSeek R1,
    MoE back ends). gpt-oss runs with TRTLLM on Blackwell and with TRITON, which gathers tokens, on Hopper (docs:
    deployment guide for GPT-OSS). 1.3 has no WIDEEP any more: the others have replicas (docs: MoeConfig at 1.3.0rc27),
    and its default chooses for gpt-oss by itself (NVIDIA/TensorRT-LLM#11074).
    """
    setup = role.setup
    large = setup.blackwell and not on_pcie(role.hardware)
    blocks, wide = large and setup.scaled_columns > 0, large and setup.strategy.moe_ep > WIDE
    if target.kind != "dynamo" and (setup.redundant or (wide and (blocks or setup.weights == "nvfp4"))):
        return "WIDEEP"
    if target.kind != "dynamo" and role.model.architecture == "gpt_oss" and not on_pcie(role.hardware):
        return "TRTLLM" if large else None if exchanges(role) else "TRITON"
    return "DEEPGEMM" if blocks else None


def orchestrator(target: Target, urls: Mapping[str, list[str]]) -> str:
    """Return the configuration of ``trtllm-serve disaggregated``: every prefill and decode server."""

    def servers(role: str) -> Json:
        held = [url.removeprefix("http://") for url in urls[role]]
        return {"num_instances": len(held), "urls": held}

    return to_yaml(
        {
            "hostname": "0.0.0.0",
            "port": target.site.router_port,
            "backend": "pytorch",
            "context_servers": servers("prefill"),
            "generation_servers": servers("decode"),
        }
    )
