"""vLLM-Ascend's command line (0.23.0): vLLM's, with collectives, graphs and the expert map of Ascend devices."""

from typing import Any

from deploy.commands.launch import Launch, Target, ascend_environment, port
from deploy.commands.vllm import OWN, common_flags, served
from deploy.experts import ascend_map, needs_map
from deploy.roles import RolePlan
from deploy.words import Flag, Shell, compact_json, given
from planner.engines.memory import GRAPH_TOKENS, most_exchanged

Json = dict[str, Any]
# Mooncake on NPU takes ports 20000 .. 20000 + 1000 * devices of a node; the connector's own lie above.
TRANSFER_FIRST_PORT = 20000
TRANSFER_PORTS_PER_DEVICE = 1000
MOONCAKE = '"${LD_LIBRARY_PATH:-}:/usr/local/lib:/usr/local/lib64"'  # its image adds them in interactive shells alone


def launch(target: Target, role: RolePlan) -> Launch:
    """Return what starts a role with vLLM on Ascend devices."""
    shared = role.model.moe is not None and role.model.moe.shared_experts > 0
    prefill, name = role.role == "prefill", f"expert-map-{role.name}.json"
    files = {name: ascend_map(role)} if needs_map(role) else {}
    wanted: Json = {
        "enable_shared_expert_dp": prefill and shared,
        "recompute_scheduler_enable": role.role == "decode",  # decode nodes only
        "multistream_overlap_shared_expert": not prefill and shared,
        "eplb_config": {"expert_map_path": f"{target.site.files_path}/{name}"} if files else None,
    }
    additional = {key: value for key, value in wanted.items() if value}
    flags = given(
        *common_flags(target, role),
        ("--quantization", "ascend", role.setup.weights == "int8"),
        ("--compilation-config", compact_json(_graphs(role)), not prefill),
        ("--additional-config", compact_json(additional), additional),
        *([_transfer(target, role)] if role.disaggregated else []),
    )
    environment = ascend_environment(target, role) | OWN | {"TP_SOCKET_IFNAME": target.site.network_interface}
    if role.disaggregated:
        environment["LD_LIBRARY_PATH"] = Shell(MOONCAKE)
    return served(role, flags, environment, **files)


def _graphs(role: RolePlan) -> Json:
    """Return which graphs are captured: steps of decode, on A2 no larger than MC2 takes, as vLLM-Ascend sends by MC2
    whatever the largest graph holds (vllm_ascend: ascend_forward_context.py, set_mc2_tokens_capacity).
    """
    found: Json = {"cudagraph_mode": "FULL_DECODE_ONLY"}
    ep, experts = role.strategy.moe_ep, role.setup.experts
    most = int(most_exchanged(ep, experts, role.strategy.attention_tp)) if experts and not role.paired else 0
    if 0 < most < min(2 * role.sequences * role.draft_window, GRAPH_TOKENS):  # vLLM's default
        found["max_cudagraph_capture_size"] = most
    return found


def connector_port(role: RolePlan) -> int:
    """Return the first port above those of the transfer engine of a full node."""
    return TRANSFER_FIRST_PORT + TRANSFER_PORTS_PER_DEVICE * role.setup.devices_per_node


def _transfer(target: Target, role: RolePlan) -> Flag:
    """Return the connector; both sides must state the sizes of both."""
    sizes = {}
    for name in ("prefill", "decode"):
        other = target.role(name)
        assert other is not None, "prefill and decode come together"
        sizes[name] = {"dp_size": other.strategy.attention_dp, "tp_size": other.strategy.attention_tp}
    settings = {
        "kv_connector": "MooncakeConnectorV1",
        "kv_role": "kv_producer" if role.role == "prefill" else "kv_consumer",
        "kv_port": connector_port(role),
        "kv_connector_extra_config": sizes,
    }
    chosen = port(target, role, connector_port(role))
    text = compact_json(settings)
    if isinstance(chosen, Shell):  # spliced into the quoted JSON
        text = text.replace(f'"kv_port":{connector_port(role)}', f"\"kv_port\":'{chosen.text}'")
        return ("--kv-transfer-config", Shell(f"'{text}'"))
    return ("--kv-transfer-config", text)
