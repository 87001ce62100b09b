"""xLLM's command line (0.9.1): one process per device, limits of the whole instance, redundancy per device."""

from deploy.commands.launch import DEVICE, NODE_RANK, Launch, Target, ascend_environment, port
from deploy.roles import RolePlan
from deploy.words import Flag, Shell, Value, given, sum_of

MASTER_PORT = 9748
TRANSFER_PORT = 26000
DISAGGREGATION_PORT = 7777
BLOCK_TOKENS = 128
ROLES = {"prefill": "PREFILL", "decode": "DECODE", "mixed": "DEFAULT"}


def launch(target: Target, role: RolePlan) -> Launch:
    """Return what starts a role with xLLM."""
    master = port(target, role, MASTER_PORT)
    device = Shell(f"npu:$(({_first(target, role)}{DEVICE}))")
    apart = role.disaggregated
    flags = given(
        ("--model", Shell('"$MODEL"')),
        ("--model_id", target.name_of_model),  # else the name of the weights' folder
        ("--host", Shell('"$ADDRESS"')),
        ("--port", _per_device(target, role, target.http_port(role))),
        ("--devices", device),
        ("--master_node_addr", Shell(f'"$HEAD:{master.text if isinstance(master, Shell) else master}"')),
        ("--nnodes", role.devices),
        ("--node_rank", Shell(f"$(({NODE_RANK} * {role.devices_per_node} + {DEVICE}))")),
        ("--communication_backend", "hccl"),
        ("--dp_size", role.strategy.attention_dp),
        *_experts(role),
        *_limits(target, role),
        ("--rank_tablefile", Shell('"$RANK_TABLE"'), role.nodes > 1),
        ("--draft_model", target.draft_model_path(role), role.drafts),
        ("--draft_devices", device, role.drafts),
        ("--num_speculative_tokens", role.drafts, role.drafts),
        ("--enable_disagg_pd", "true", apart),
        ("--instance_role", ROLES[role.role], apart),
        ("--kv_cache_transfer_type", "LlmDataDist", apart),
        ("--transfer_listen_port", _per_device(target, role, TRANSFER_PORT), apart),
        ("--disagg_pd_port", _per_device(target, role, DISAGGREGATION_PORT), apart),
        ("--etcd_addr", Shell('"$ETCD"')),
        ("--enable_service_routing", "true"),
    )
    return Launch(
        role=role,
        programme=("/usr/local/bin/xllm",),
        flags=tuple(flags),
        environment=ascend_environment(target, role),
        per_device=True,
        joined=True,
        api="head",
    )


def _first(target: Target, role: RolePlan) -> str:
    return "FIRST_DEVICE + " if target.bare and role.shares_nodes else ""


def _per_device(target: Target, role: RolePlan, base: int) -> Value:
    """Return a port of its own for each process of a host."""
    return sum_of(base, f"{_first(target, role)}{DEVICE}")


def _experts(role: RolePlan) -> list[Flag]:
    """Return EP and its degree: 1 gathers tokens, 2 exchanges them and takes replicas, counted per device."""
    if role.mode is None:
        return []
    degree = 0 if role.strategy.moe_ep == 1 else 2 if role.mode.exchange == "all_to_all" else 1
    redundant = role.setup.redundant
    return given(
        ("--ep_size", role.strategy.moe_ep),
        ("--expert_parallel_degree", degree),
        ("--enable_eplb", "true", redundant),
        ("--redundant_experts_num", redundant // role.strategy.moe_ep, redundant),
    )


def step_tokens(role: RolePlan) -> int:
    """Return a DP rank's tokens of a step, among which whole prompts must fit where they are not cut into chunks.

    Decode computes a request anew that it has put back for want of cache, its answer so far, too; one longer than a
    step it fails (continuous_scheduler.cpp at v0.9.1).
    """
    whole = {"prefill": role.longest_prompt, "decode": role.longest}.get(role.role, 0)
    return max(role.tokens, -(-whole // role.strategy.attention_dp))


def _limits(target: Target, role: RolePlan) -> list[Flag]:
    """Return limits in xLLM's unit, the instance; decode graphs count one DP rank."""
    ranks, decodes = role.strategy.attention_dp, role.role != "prefill"
    return given(
        ("--max_seqs_per_batch", role.sequences * ranks),
        ("--max_tokens_per_batch", step_tokens(role) * ranks),
        ("--max_concurrent_requests", role.sequences * ranks),
        ("--block_size", BLOCK_TOKENS),
        ("--max_memory_utilization", target.memory(role).fraction),
        ("--enable_prefix_cache", "true" if role.prefix_caching else "false"),
        # Prefill and decode apart take neither chunks nor prefixes (docs: features/disagg_pd).
        ("--enable_chunked_prefill", "false", role.disaggregated),
        # On prefill instances xLLM turns overlap off itself.
        ("--enable_schedule_overlap", "true", decodes),
        ("--enable_graph", "true", decodes),
        ("--acl_graph_decode_batch_size_limit", role.sequences, decodes),
    )
