"""What a command line or a file says in each engine's own terms, as degrees and limits per attention DP rank."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.reading.flags import Flags, read_flags, unknown_options
from deploy.reading.nodes import Node, counted
from ground.files import parse_yaml

Instance = Sequence[Node]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Degrees and limits of one rendered instance of a role; None where the engine has no such setting."""

    devices: int
    ranks: int
    attention_tp: int
    attention_dp: int
    pp: int = 1
    moe_ep: int | None
    redundant: int | None
    drafts: int
    microbatches: int = 1
    sequences: int
    tokens: int | None
    longest: int | None = None
    memory_frac: float = 0.0
    kv_role: str | None


def _whole(flags: Flags, name: str, default: int = 1) -> int:
    value = flags.get(name)
    return default if value is None else int(value)


def _json(flags: Flags, name: str) -> Json:
    return json.loads(flags.get(name) or "{}")


def _limit(flags: Flags, name: str) -> int:
    """Return a limit that must be given."""
    if flags.get(name) is None:
        raise ValueError(f"{name} is missing")
    return _whole(flags, name)


def _check_nodes(per_node: Sequence[Flags]) -> None:
    """Raise ValueError unless every node has a rank of its own and knows how many there are."""
    contiguous([_whole(own, "--node-rank", -1) for own in per_node], "node ranks")
    if _whole(per_node[0], "--nnodes") != len(per_node):
        raise ValueError(f"--nnodes is {per_node[0].get('--nnodes')} of {len(per_node)} nodes")


def contiguous(numbers: Sequence[int], what: str) -> int:
    """Return how many there are of 0, 1, 2, …; ValueError where one is missing or stands twice."""
    if sorted(numbers) != list(range(len(numbers))):
        raise ValueError(f"{what} must be 0 to {len(numbers) - 1}, each once, not {sorted(numbers)[:8]}")
    return len(numbers)


def vllm(instance: Instance, experts: int, redundant_of_map: int | None) -> Counted:
    """Count an instance of vLLM or vLLM-Ascend: EP is all of TP x DP or nothing."""
    per_node = [read_flags(node.processes[0].words) for node in instance]
    flags = per_node[0]
    tp, pp, dp = (_whole(flags, f"--{name}-parallel-size") for name in ("tensor", "pipeline", "data"))
    started: list[int] = []
    for node, own in zip(instance, per_node, strict=True):
        local = _whole(own, "--data-parallel-size-local", dp if len(instance) == 1 else 1)
        first = own.get("--data-parallel-start-rank") or own.get("--data-parallel-rank") or "0"
        if dp > 1:
            if local * tp * pp != node.devices:
                raise ValueError(f"node {node.rank} starts {local} x {tp * pp} ranks on {node.devices} devices")
            started += range(int(first), int(first) + local)
    if len(instance) > 1 and dp == 1:
        _check_nodes(per_node)
    ranks = contiguous(started, "data-parallel ranks") * tp * pp if dp > 1 else tp * pp
    replicas = redundant_of_map
    side = _json(flags, "--kv-transfer-config").get("kv_role") or _json(flags, "--ec-transfer-config").get("ec_role")
    if "--eplb-config" in flags:
        replicas = int(_json(flags, "--eplb-config")["num_redundant_experts"])
    return Counted(
        devices=sum(node.devices for node in instance),
        ranks=ranks,
        attention_tp=tp,
        attention_dp=dp,
        pp=pp,
        moe_ep=(tp * dp if "--enable-expert-parallel" in flags else 1) if experts else None,
        redundant=replicas or 0,
        drafts=int(_json(flags, "--speculative-config").get("num_speculative_tokens", 0)),
        microbatches=2 if "--enable-dbo" in flags else 1,
        sequences=_limit(flags, "--max-num-seqs"),
        tokens=_limit(flags, "--max-num-batched-tokens"),
        longest=_limit(flags, "--max-model-len"),
        memory_frac=float(flags["--gpu-memory-utilization"] or 0),
        kv_role={"kv_producer": "prefill", "kv_consumer": "decode", "ec_producer": "encode"}.get(str(side)),
    )


def dynamo_vllm(instance: Instance, experts: int, redundant_of_map: int | None) -> Counted:
    """Count a Dynamo worker: the operator spreads the ranks over the nodes, so only totals are there."""
    flags = read_flags(instance[0].processes[0].words)
    alone = Node(instance[0].role, 0, 0, sum(node.devices for node in instance), instance[0].processes)
    found = vllm([alone], experts, redundant_of_map)
    _same_mode(flags.get("--disaggregation-mode"), found.kv_role)
    return found


def _same_mode(mode: str | None, kv_role: str | None) -> None:
    if {"agg": None, "null": None}.get(mode or "agg", mode) != kv_role:
        raise ValueError(f"--disaggregation-mode {mode} beside a KV role of {kv_role}")


def sglang(instance: Instance, experts: int, redundant_of_map: int | None) -> Counted:
    """Count an instance of SGLang: tp-size is the stage, limits are of the instance."""
    per_node = [read_flags(node.processes[0].words) for node in instance]
    flags = per_node[0]
    older = "--dp-size" if "--enable-dp-attention" in flags else "--attn-dp-size"
    stage, pp, dp = _whole(flags, "--tp-size"), _whole(flags, "--pp-size"), _whole(flags, older)
    if len(instance) > 1 and "--nnodes" in flags:
        _check_nodes(per_node)
    ep = _whole(flags, "--ep-size")
    if flags.get("--moe-a2a-backend", "none") != "none" and ep != stage:
        raise ValueError(f"an all-to-all back end forces EP to {stage}, not {ep}")
    replicas = _whole(flags, "--ep-num-redundant-experts", 0)
    if redundant_of_map is not None and replicas != redundant_of_map:
        raise ValueError(f"--ep-num-redundant-experts is {replicas} and the map has {redundant_of_map}")
    mode = "encode" if "--encoder-only" in flags else flags.get("--disaggregation-mode")
    tokens = _shared(flags, "--chunked-prefill-size", dp) if flags.get("--chunked-prefill-size") else None
    if tokens is not None:  # a step ends with the prompt that reaches the second limit
        tokens = min(tokens, _whole(flags, "--max-prefill-tokens", 16_384))
    return Counted(
        devices=sum(node.devices for node in instance),
        ranks=stage * pp,
        attention_tp=stage // dp,
        attention_dp=dp,
        pp=pp,
        moe_ep=ep if experts else None,
        redundant=replicas,
        drafts=_whole(flags, "--speculative-num-steps", 0),
        microbatches=2 if "--enable-two-batch-overlap" in flags else 1,
        sequences=_shared(flags, "--max-running-requests", dp),
        tokens=tokens,
        longest=_limit(flags, "--context-length"),
        memory_frac=float(flags["--mem-fraction-static"] or 0),
        kv_role=None if mode in (None, "null") else mode,
    )


def _shared(flags: Flags, name: str, ranks: int) -> int:
    """Return a rank's part of an instance's limit."""
    total = _limit(flags, name)
    if total % ranks:
        raise ValueError(f"{name} {total} does not divide over {ranks} ranks")
    return total // ranks


def xllm(instance: Instance, experts: int, redundant_of_map: int | None) -> Counted:
    """Count an instance of xLLM: a process per device, limits of the instance, replicas per device."""
    per_rank = [read_flags(process.words) for node in instance for process in node.processes]
    flags = per_rank[0]
    world, dp = _whole(flags, "--nnodes"), _whole(flags, "--dp_size")
    ranks = contiguous([_whole(own, "--node_rank", -1) for own in per_rank], "node_rank of the processes")
    if ranks != world:
        raise ValueError(f"--nnodes is {world} and {ranks} processes start")
    for node in instance:
        if len(node.processes) != node.devices:
            raise ValueError(f"node {node.rank} starts {len(node.processes)} processes on {node.devices} devices")
    ep = _whole(flags, "--ep_size")
    per_device = _whole(flags, "--redundant_experts_num", 0) if flags.get("--enable_eplb") == "true" else 0
    if per_device and (flags.get("--expert_parallel_degree") != "2" or ep != world):
        raise ValueError("replicas need expert_parallel_degree 2 and EP over all devices")
    role = {"PREFILL": "prefill", "DECODE": "decode"}.get(flags.get("--instance_role") or "")
    return Counted(
        devices=sum(node.devices for node in instance),
        ranks=ranks,
        attention_tp=world // dp,
        attention_dp=dp,
        moe_ep=ep if experts else None,
        redundant=per_device * ep,
        drafts=_whole(flags, "--num_speculative_tokens", 0),
        sequences=_shared(flags, "--max_seqs_per_batch", dp),
        tokens=_shared(flags, "--max_tokens_per_batch", dp),
        memory_frac=float(flags["--max_memory_utilization"] or 0),
        kv_role=role,
    )


def trtllm(instance: Instance, experts: int, texts: Mapping[str, str]) -> Counted:
    """Count an instance of TensorRT-LLM, whose degrees and limits stand in the file that its command names."""
    flags = read_flags(instance[0].processes[0].words)
    path = flags.get("--extra_llm_api_options") or flags.get("--extra-engine-args") or ""
    held: Json = dict(parse_yaml(texts[path.rpartition("/")[2]], path))  # type: ignore[call-overload]
    if unknown := unknown_options(held, dynamo="--extra-engine-args" in flags):
        raise ValueError(f"TensorRT-LLM's LLM arguments take no {', '.join(unknown)}")
    stage, pp = held["tensor_parallel_size"], held["pipeline_parallel_size"]
    dp = stage if held["enable_attention_dp"] else 1
    ep, moe_tp = held.get("moe_expert_parallel_size"), held.get("moe_tensor_parallel_size", 1)
    if ep is not None and ep * moe_tp != stage:
        raise ValueError(f"moe_tensor_parallel_size * moe_expert_parallel_size is {ep * moe_tp} of {stage}")
    slots = held.get("moe_config", {}).get("load_balancer", {}).get("num_slots")
    role = None
    if "cache_transceiver_config" in held:
        role = "prefill" if held.get("disable_overlap_scheduler") else "decode"
    if "--disaggregation-mode" in flags:
        _same_mode(flags["--disaggregation-mode"], role)
    return Counted(
        devices=sum(node.devices for node in instance),
        ranks=stage * pp,
        attention_tp=stage // dp,
        attention_dp=dp,
        pp=pp,
        moe_ep=ep,
        redundant=slots - experts if slots else 0,
        drafts=held.get("speculative_config", {}).get("num_nextn_predict_layers", 0),
        sequences=held["max_batch_size"] * pp,
        tokens=held["max_num_tokens"],
        longest=held["max_seq_len"],
        memory_frac=held["kv_cache_config"]["free_gpu_memory_fraction"],
        kv_role=role,
    )


def motor_roles(files: Mapping[str, str]) -> dict[str, list[Counted]]:
    """Return role -> what each instance of MindIE Motor's ``user_config.json`` is."""
    config: Json = json.loads(files["user_config.json"])
    deploy = config["deploy_config"]
    found = {}
    for role, letter in (("prefill", "p"), ("decode", "d")):
        pods, npus = deploy[f"single_{letter}_instance_pod_num"], deploy[f"{letter}_pod_npu_num"]
        part: Json = config[f"mindie_server_{role}_config"]
        own = bool(deploy[f"{role}_distribute_enable"])
        if own != part["BackendConfig"]["ScheduleConfig"]["distributedEnable"]:
            raise ValueError(f"{role}_distribute_enable and distributedEnable differ")
        held = configured(part, role, counted(pods * npus), files)
        found[role] = [held] * counted(deploy[f"{letter}_instances_num"])
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
        replicas = ascend_replicas(eplb["expert_map_file"], files) or 0
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
        kv_role=role if mode == "dmi" else None,
    )


def ascend_rows(text: str) -> list[list[int]]:
    """Return layer -> expert of each slot of an Ascend map; ValueError where its counts do not hold."""
    held = json.loads(text)
    rows = []
    for position, layer in enumerate(held["layer_list"]):
        lengths = {len(device["device_expert"]) for device in layer["device_list"]}
        if layer["device_count"] != len(layer["device_list"]) or len(lengths) != 1 or layer["layer_id"] != position:
            raise ValueError(f"expert map, layer {position}: devices and their experts do not add up")
        rows.append([expert for device in layer["device_list"] for expert in device["device_expert"]])
    if held["moe_layer_count"] != len(rows):
        raise ValueError(f"expert map: moe_layer_count {held['moe_layer_count']} of {len(rows)} layers")
    return rows


def ascend_replicas(path: str, texts: Mapping[str, str]) -> int | None:
    """Return the slots beyond one per expert of the Ascend map at a path; None where it is not among the texts."""
    text = texts.get(path.rpartition("/")[2])
    if text is None:
        return None
    last = ascend_rows(text)[-1]
    return len(last) - len(set(last))


READERS: dict[str, Callable[[Instance, int, int | None], Counted]] = {
    "vllm": vllm,
    "vllm-ascend": vllm,
    "sglang": sglang,
    "xllm": xllm,
    "dynamo.vllm": dynamo_vllm,
    "dynamo.sglang": sglang,
}
