"""Reads back MindIE's configuration files: MindIE-LLM's per role, and Motor's counts of instances and pods."""

import json
from collections.abc import Mapping
from typing import Any

from deploy.reading.engines import Counted

Json = dict[str, Any]


def motor_roles(files: Mapping[str, str]) -> dict[str, list[Counted]]:
    """Return role -> what each instance of ``user_config.json`` is."""
    config: Json = json.loads(files["user_config.json"])
    deploy = config["deploy_config"]
    found = {}
    for role, letter in (("prefill", "p"), ("decode", "d")):
        pods, npus = deploy[f"single_{letter}_instance_pod_num"], deploy[f"{letter}_pod_npu_num"]
        part: Json = config[f"mindie_server_{role}_config"]
        own = bool(deploy[f"{role}_distribute_enable"])
        if own != part["BackendConfig"]["ScheduleConfig"]["distributedEnable"]:
            raise ValueError(f"{role}_distribute_enable and distributedEnable differ")
        counted = configured(part, role, pods * npus, files)
        found[role] = [counted] * deploy[f"{letter}_instances_num"]
    return found


def configured(config: Json, role: str, devices: int, files: Mapping[str, str]) -> Counted:
    """Return what one instance of a MindIE-LLM configuration is on so many devices."""
    backend = config["BackendConfig"]
    schedule, model = backend["ScheduleConfig"], backend["ModelDeployConfig"]["ModelConfig"][0]
    dp, tp, world = model["dp"], model["tp"], model["worldSize"]
    ranks = dp * tp * model["cp"]
    if len(backend["npuDeviceIds"][0]) != world:
        raise ValueError(f"worldSize is {world}, npuDeviceIds has {len(backend['npuDeviceIds'][0])}")
    if schedule["distributedEnable"] and world != 1:
        raise ValueError(f"worldSize of a distributed server must be 1, not {world}")
    if model["moe_ep"] * model["moe_tp"] != ranks:
        raise ValueError(f"moe_ep * moe_tp is {model['moe_ep'] * model['moe_tp']} of {ranks} ranks")
    deepseek = model.get("models", {}).get("deepseekv2", {})
    eplb = deepseek.get("eplb")
    replicas = 0
    if eplb:
        if eplb["level"] != 1 or "num_redundant_experts" in eplb or deepseek["ep_level"] != 2:
            raise ValueError("a static map needs eplb.level 1, ep_level 2 and no num_redundant_experts")
        held = json.loads(files[eplb["expert_map_file"].rpartition("/")[2]])["layer_list"][0]["device_list"]
        slots = [expert for device in held for expert in device["device_expert"]]
        replicas = len(slots) - len(set(slots))
    drafting = json.loads(model.get("plugin_params", "{}"))
    mode = config["ServerConfig"]["inferMode"]
    return Counted(
        devices=devices,
        ranks=ranks,
        attention_tp=tp,
        attention_dp=dp,
        pp=model["pp"],
        moe_ep=model["moe_ep"],
        redundant=replicas,
        drafts=drafting.get("num_speculative_tokens", 0),
        microbatches=2 if model.get("stream_options", {}).get("micro_batch") else 1,
        sequences=schedule["maxBatchSize"],
        tokens=schedule["maxPrefillTokens"],
        longest=backend["ModelDeployConfig"]["maxSeqLen"],
        memory_frac=0.0,
        kv_role=role if mode == "dmi" else None,
    )
