"""MindIE (3.0.0): configuration files instead of flags.

Hosts: a ``config.json`` of MindIE-LLM per role for aggregated instances. Prefill and decode apart are MindIE
Motor's, whose ``user_config.json`` holds the counts of instances and pods and a configuration per role.
"""

import json
from typing import Any

from deploy.commands.launch import Launch, Target
from deploy.experts import ascend_map, needs_map
from deploy.roles import RolePlan
from deploy.words import Shell

Json = dict[str, Any]

DAEMON = "/usr/local/Ascend/mindie/latest/mindie-service/bin/mindieservice_daemon"
DEEPSEEK = ("deepseek_v2", "deepseek_v3")


def launch(target: Target, role: RolePlan) -> Launch:
    """Return what starts an aggregated role with MindIE-LLM's daemon."""
    name = f"config-{role.name}.json"
    return Launch(
        role=role,
        programme=(DAEMON,),
        flags=(),
        environment={
            "MIES_CONTAINER_IP": Shell('"$ADDRESS"'),
            "MIES_CONFIG_JSON_PATH": f"{target.site.files_path}/{name}",
            "WORLD_SIZE": role.devices,
            **({"RANKTABLEFILE": Shell('"$RANK_TABLE"')} if role.nodes > 1 else {}),
        },
        files={name: json.dumps(configuration(target, role), indent=1) + "\n", **map_files(role)},
        port=target.site.http_port,
    )


def map_files(role: RolePlan) -> dict[str, str]:
    """Return the expert map of a role whose experts have replicas or stand otherwise than in runs."""
    return {f"expert-map-{role.name}.json": ascend_map(role)} if _mapped(role) else {}


def _mapped(role: RolePlan) -> bool:
    """Whether a map is given: MindIE balances experts behind an all-to-all only (ep_level 2)."""
    return role.mode is not None and role.mode.redundancy and needs_map(role)


def distributed(role: RolePlan) -> bool:
    """Whether every rank is a server of its own, as Motor's decode instances of TP 1 are."""
    return role.role == "decode" and role.strategy.attention_tp == 1


def configuration(target: Target, role: RolePlan) -> Json:
    """Return a role's MindIE-LLM configuration."""
    own = distributed(role)
    several = role.nodes > 1 and not own
    server: Json = {"inferMode": "dmi" if role.disaggregated else "standard", "distDPServerEnabled": own}
    if not role.disaggregated:
        server |= {"port": target.site.http_port}
    return {
        "Version": "1.0.0",
        "ServerConfig": server,
        "BackendConfig": {
            "npuDeviceIds": [[0] if own else list(range(role.devices_per_node))],
            "multiNodesInferEnabled": several,
            "kvPoolConfig": {"backend": "", "configPath": ""},
            "ModelDeployConfig": {
                "maxSeqLen": role.longest,
                "maxInputTokenLen": role.longest_prompt,
                "ModelConfig": [_model(target, role)],
            },
            "ScheduleConfig": _schedule(role),
        },
    }


def _model(target: Target, role: RolePlan) -> Json:
    strategy = role.strategy
    found: Json = {
        "modelInstanceType": "Standard",
        "modelName": target.name_of_model,
        "modelWeightPath": target.weights_path(role),
        "worldSize": 1 if distributed(role) else role.devices,
        "cpuMemSize": 5,
        "npuMemSize": -1,
        "backendType": "atb",
        "trustRemoteCode": False,
        "dp": strategy.attention_dp,
        "cp": 1,
        "tp": strategy.attention_tp,
        "sp": 1,
        "pp": 1,
        "moe_ep": strategy.moe_ep,
        "moe_tp": strategy.moe_tp,
    }
    if role.drafts:
        drafting = {"plugin_type": "mtp", "num_speculative_tokens": role.drafts}
        found["plugin_params"] = json.dumps(drafting, separators=(",", ":"))
    if role.setup.microbatches > 1:
        found["stream_options"] = {"micro_batch": True}
    if role.model.architecture in DEEPSEEK:
        found["models"] = {"deepseekv2": _deepseek(target, role)}
    return found


def _deepseek(target: Target, role: RolePlan) -> Json:
    assert role.mode is not None, "DeepSeek's models have experts"
    found: Json = {}
    if role.strategy.moe_ep > 1:
        found["ep_level"] = 2 if role.mode.exchange == "all_to_all" else 1
    if role.role == "decode":
        found["kv_cache_options"] = {"enable_nz": True}
    if _mapped(role):  # the number of replicas is the map's alone
        path = f"{target.site.files_path}/expert-map-{role.name}.json"
        found["eplb"] = {"level": 1, "expert_map_file": path}
    return found


def _schedule(role: RolePlan) -> Json:
    found: Json = {"cacheBlockSize": 128, "distributedEnable": distributed(role)}
    if role.role != "decode":
        found["maxPrefillBatchSize"] = role.sequences
        found["maxPrefillTokens"] = max(role.tokens, role.longest_prompt)  # must hold a prompt
    if role.role != "prefill":
        found["maxBatchSize"] = role.sequences
        found["maxIterTimes"] = role.longest - 1
    return found | ({"dpScheduling": True} if role.strategy.attention_dp > 1 and not distributed(role) else {})


def motor(target: Target) -> Json:
    """Return MindIE Motor's user_config.json for a prefill and a decode pool."""
    prefill, decode = target.role("prefill"), target.role("decode")
    assert prefill is not None and decode is not None, "Motor deploys prefill and decode"
    a3 = decode.hardware.devices_per_chip.value == 2
    ttft, tpot = target.limits_milliseconds
    return {
        "version": "v1.0",
        "deploy_config": {
            "p_instances_num": len(prefill.instances),
            "d_instances_num": len(decode.instances),
            "single_p_instance_pod_num": prefill.nodes,
            "single_d_instance_pod_num": decode.nodes,
            "p_pod_npu_num": prefill.devices_per_node,
            "d_pod_npu_num": decode.devices_per_node,
            "prefill_distribute_enable": int(distributed(prefill)),
            "decode_distribute_enable": int(distributed(decode)),
            "image_name": target.site.image or "mindie:3.0.0",
            "job_id": target.name,
            "hardware_type": "800I_A3" if a3 else "800I_A2",
            "weight_mount_path": target.model_path,
        },
        "mindie_ms_controller_config": {
            "deploy_mode": "pd_separate",
            "digs_prefill_slo": ttft,
            "digs_decode_slo": tpot,
            "multi_node_infer_config": {"multi_node_infer_enable": max(prefill.nodes, decode.nodes) > 1},
        },
        "mindie_ms_coordinator_config": {
            "request_limit": {
                "single_node_max_requests": decode.sequences * max(decode.ranks_per_node, 1),
                "max_requests": decode.sequences * decode.strategy.attention_dp * len(decode.instances),
            }
        },
        "mindie_server_prefill_config": configuration(target, prefill),
        "mindie_server_decode_config": configuration(target, decode),
    }
