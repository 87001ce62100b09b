"""MindIE (3.0.0): configuration files instead of flags.

Hosts: a ``config.json`` of MindIE-LLM per role for aggregated instances. Prefill and decode apart are MindIE
Motor's, whose ``user_config.json`` holds the counts of instances and pods and a configuration per role.
"""

import json
from pathlib import Path
from typing import Any

from deploy.commands.launch import Launch, Target
from deploy.experts import ascend_map, needs_map
from deploy.memory import exchanges, holding
from deploy.roles import RolePlan
from deploy.templates import documents, filled
from deploy.words import Shell, Value
from planner.engines.memory import hccl_mebibytes

Json = dict[str, Any]

DAEMON = "mindie_llm_server"  # docs/zh/user_guide/quick_start of MindIE-LLM 8b4871a
LEAST_BUFFER_MEBIBYTES = 512  # MindIE-LLM's validator takes no less
MEMORY_SHARE = 0.92  # NPU_MEMORY_FRACTION of its samples
TEMPLATES = Path(__file__).with_name("templates")
CERTIFICATES = {"ca_cert": "ca.pem", "tls_cert": "cert.pem", "tls_key": "cert.key.pem", "tls_passwd": "key_pwd.txt"}
UNUSED = {name: f"./security/{file}" for name, file in CERTIFICATES.items()} | {"tls_crl": ""}
DEEPSEEK = ("deepseek_v2", "deepseek_v3")


def launch(target: Target, role: RolePlan) -> Launch:
    """Return what starts an aggregated role with MindIE-LLM's daemon."""
    firsts = [instance.first_device for instance in role.instances] if role.shares_nodes else [0]
    name, path = f"config-{role.name}", f"{target.site.files_path}/config-{role.name}"
    configurations = {
        f"{name}-{first}.json": json.dumps(configuration(target, role, first), indent=1) + "\n"
        for first in dict.fromkeys(firsts)
    }
    return Launch(
        role=role,
        programme=(DAEMON,),
        flags=(),
        environment=environment(role)
        | {
            "MIES_CONTAINER_IP": Shell('"$ADDRESS"'),
            "MIES_CONFIG_JSON_PATH": Shell(f'"{path}-${{FIRST_DEVICE:-0}}.json"'),
            "MINDIE_CHECK_INPUTFILES_PERMISSION": 0,  # else only files of mode 640 are read
            "WORLD_SIZE": role.devices,
            **({"RANKTABLEFILE": Shell('"$RANK_TABLE"')} if role.nodes > 1 else {}),
        },
        files=configurations | map_files(role),
    )


def environment(role: RolePlan) -> dict[str, Value]:
    """Return a role's environment: the allocator's, buffers of collectives and the share of memory."""
    return {
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        "OMP_NUM_THREADS": 8,
        "HCCL_BUFFSIZE": _buffer(role),
        "HCCL_OP_EXPANSION_MODE": "AIV",
        "NPU_MEMORY_FRACTION": MEMORY_SHARE,
        "TASK_QUEUE_ENABLE": 1,
        **({"MINDIE_ENABLE_DP_DISTRIBUTED": 1} if distributed(role) else {}),
    }


def map_files(role: RolePlan) -> dict[str, str]:
    """Return the expert map of a role whose experts have replicas or stand otherwise than in runs."""
    return {f"expert-map-{role.name}.json": ascend_map(role)} if _mapped(role) else {}


def _mapped(role: RolePlan) -> bool:
    """Whether a map is given: MindIE balances experts behind an all-to-all only (ep_level 2)."""
    return role.mode is not None and role.mode.redundancy and needs_map(role)


def distributed(role: RolePlan) -> bool:
    """Whether every rank is a server of its own, as Motor's decode instances of TP 1 are."""
    return role.role == "decode" and role.strategy.attention_tp == 1


def configuration(target: Target, role: RolePlan, first_device: int = 0) -> Json:
    """Return a role's MindIE-LLM configuration; instances that share a host stand apart by their ports."""
    own, port = distributed(role), target.site.http_port + first_device
    devices = [0] if own else list(range(role.devices_per_node))
    several_ranks = role.strategy.attention_dp > 1 and not own
    # MIES_CONTAINER_IP goes before both addresses. Motor states ports and TLS itself.
    listening = {"ipAddress": "127.0.0.1", "managementIpAddress": "127.0.0.1", "port": port, "managementPort": port}
    listening |= {"metricsPort": port, "allowAllZeroIpListening": False, "httpsEnabled": False}
    (form,) = documents(TEMPLATES / "mindie.yaml")
    return filled(
        form,
        {
            "listening": {} if role.disaggregated else listening,
            "mode": "dmi" if role.disaggregated else "standard",
            "own": own,
            "devices": devices,
            "several": role.nodes > 1 and not own,
            "longest": role.longest,
            "longest_prompt": role.longest_prompt,
            **_model(target, role, len(devices)),
            "sequences": role.sequences,
            "tokens": max(role.tokens, role.longest_prompt),
            "answers": role.longest - 1,
            "several_ranks": several_ranks or None,
        },
    )


def _buffer(role: RolePlan) -> int:
    return int(hccl_mebibytes(holding("mindie", role)))


def _model(target: Target, role: RolePlan, devices: int) -> Json:
    """Return what a role's model decides; over several nodes its rank table goes before ``devices``, those of one."""
    strategy, exchanged = role.strategy, role.mode is not None and role.mode.exchange == "all_to_all"
    drafting = {"plugin_type": "mtp", "num_speculative_tokens": role.drafts}
    maps = {"level": 1, "expert_map_file": f"{target.site.files_path}/expert-map-{role.name}.json"}
    deepseek = {
        "ep_level": (2 if exchanged else 1) if strategy.moe_ep > 1 else None,
        "kv_cache_options": {"enable_nz": True} if role.role == "decode" else None,
        "eplb": maps if _mapped(role) else None,  # the number of replicas is the map's alone
        "parallel_options": {"hccl_moe_ep_buffer": max(_buffer(role), LEAST_BUFFER_MEBIBYTES)},
    }
    if not exchanges(role):
        deepseek["parallel_options"] = None
    held = {name: value for name, value in deepseek.items() if value is not None}
    return {
        "name": target.name_of_model,
        "weights": target.weights_path(role),
        "world": devices,
        "trusted": target.site.trust_remote_code,
        "dp": strategy.attention_dp,
        "tp": strategy.attention_tp,
        "ep": strategy.moe_ep,
        "moe_tp": strategy.moe_tp,
        "plugins": json.dumps(drafting, separators=(",", ":")) if role.drafts else None,
        "overlapped": {"micro_batch": True} if role.setup.microbatches > 1 else None,
        "models": {"deepseekv2": held} if role.model.architecture in DEEPSEEK else None,
    }


def motor_environment(target: Target) -> Json:
    """Return Motor's environment file."""
    (form,) = documents(TEMPLATES / "motor-environment.yaml")
    return filled(form, {role.role: environment(role) | target.site.environment for role in target.roles})


def motor(target: Target) -> Json:
    """Return MindIE Motor's user_config.json for a prefill and a decode pool."""
    prefill, decode = target.role("prefill"), target.role("decode")
    assert prefill is not None and decode is not None, "Motor deploys prefill and decode"
    ttft, tpot = target.limits_milliseconds
    values: Json = {
        "image": target.image(decode),
        "name": target.name,
        "hardware": "800I_A3" if decode.paired else "800I_A2",
        "weights": target.model_path,
        "ttft": ttft,
        "tpot": tpot,
        "several": max(prefill.nodes, decode.nodes) > 1,
        "node_requests": decode.sequences * max(decode.ranks_per_node, 1),
        "unused": UNUSED,
        "requests": decode.requests,
    }
    for role in (prefill, decode):
        path = target.site.files_path  # beside the weights, the folder of the maps where servers read one
        values |= {
            role.role: configuration(target, role),
            f"{role.role}_instances": len(role.instances),
            f"{role.role}_nodes": role.nodes,
            f"{role.role}_devices": role.devices_per_node,
            f"{role.role}_distributed": int(distributed(role)),
            f"{role.role}_mount": {path: path} if _mapped(role) else {},
        }
    (form,) = documents(TEMPLATES / "motor.yaml")
    return filled(form, values)
