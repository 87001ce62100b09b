"""What an engine keeps of a device's memory beside weights, activations and cache, by its own rules.

The one arithmetic of buffers: plans reckon with it (``costs.memory``), deployment files tell the engine what it says.

References: vllm/distributed/device_communicators/all2all.py (0.33.0), sglang srt/arg_groups/memory_hook.py and
layers/moe/token_dispatcher/deepep.py (0.5.23), vllm_ascend/utils.py (0.23.0), tensorrt_llm/llmapi/llm_args.py (1.2.1).
SGLang's rule takes an instance's tokens and a flat 2 GiB for DeepEP; here it takes those of one attention DP rank, as
published recipes do, and the exchange's buffers by DeepEP's arithmetic: 0.82 where SGLang's guide for R1 on A3 sets
0.815, 0.79 where its recipe for 72 H100 sets 0.835.
"""

from typing import NamedTuple

import numpy as np

from ground.units import GIBI, MEBI
from planner.engines.exchanges import (
    HCCL_BUFFERS,
    deepep_low_latency_bytes,
    deepep_normal_bytes,
    hccl_low_latency_mebibytes,
    hccl_normal_mebibytes,
    mc2_capacity,
)
from planner.engines.spec import EngineProfile, RoleName
from planner.manifest.terms import Number, larger, smaller

HCCL_DEFAULT_MEBIBYTES = 200
VLLM_DEEPEP_BYTES = GIBI  # VLLM_DEEPEP_BUFFER_SIZE_MB, of NVLink and of RDMA
TRTLLM_EXCHANGE_BYTES = 2 * GIBI  # its workspace of one-sided NVLink
DEFAULT_DISPATCH_TOKENS = 128  # SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK
LEAST_PROMPTS = 4  # max-num-seqs of vLLM-Ascend's guides for prefill
# SGLang's rule: MiB
META_MEBIBYTES, MEBIBYTES_PER_TOKEN, MEBIBYTES_PER_GRAPH, LEAST_TOKENS = 512, 1.5, 2, 2048
MOST_TOKENS = 8192  # the largest chunk that it sets itself below 160 GB; past it the plan counts activations
MEBIBYTES_PER_RANK, LATENT_GRAPH_MEBIBYTES, FLOOR_MEBIBYTES = 128, 1536, 10_240
FLOOR_FROM_BYTES = 60 * GIBI


class Holding(NamedTuple):
    """One instance as rules of memory read it; many of them with arrays of one shape.

    ``sequences`` of a DP rank run, each with ``window`` tokens an iteration, and ``tokens`` of it are in a step;
    ``slots`` are a layer's experts and replicas, ``devices`` the instance's; ``exchanges`` says whether an all-to-all
    reaches the experts, ``ascend`` whether over HCCL, ``nodes`` whether the instance spans several.
    """

    engine: str
    role: RoleName
    ascend: bool
    exchanges: bool | np.ndarray
    hidden: int
    experts_per_token: int
    latent: bool
    slots: Number
    attention_tp: Number
    attention_dp: Number
    moe_ep: Number
    devices: Number
    nodes: bool | np.ndarray
    sequences: Number
    window: Number
    tokens: Number


def prefill_prompts(prompts: Number) -> Number:
    """Return the requests that vLLM-Ascend's prefill runs at most, of passes of so many: its fused exchange holds room
    for one token of each, whatever a step brings.
    """
    return larger(2 * prompts, LEAST_PROMPTS)


def dispatch_tokens(held: Holding) -> Number:
    """Return the tokens of an EP rank that the low-latency exchange must hold: vLLM's are its budget of a step."""
    if held.engine == "vllm":
        return held.tokens
    return larger(held.sequences * held.window, DEFAULT_DISPATCH_TOKENS if held.role == "mixed" else 1)


def hccl_mebibytes(held: Holding) -> Number:
    """Return HCCL_BUFFSIZE: what the fused exchange or the normal combine of a role needs, HCCL's default at least."""
    needed: Number = HCCL_DEFAULT_MEBIBYTES
    chosen, hidden = held.experts_per_token, held.hidden
    if held.engine == "sglang" and held.role != "decode":
        normal = hccl_normal_mebibytes(-(-held.tokens // held.attention_tp), hidden, experts_per_token=chosen)
        needed = larger(needed, normal)
    if held.engine == "vllm-ascend" or held.role != "prefill":
        rank = dispatch_tokens(held) if held.engine == "sglang" else held.sequences * held.window
        if held.engine == "vllm-ascend":  # a rank's tokens are cut over TP before they go
            rank = mc2_capacity(rank, held.attention_tp) // held.attention_tp
        local = held.slots // held.moe_ep
        fused = hccl_low_latency_mebibytes(rank, hidden, ranks=held.moe_ep, local=local, experts_per_token=chosen)
        needed = larger(needed, fused)
    return needed * held.exchanges + HCCL_DEFAULT_MEBIBYTES * np.logical_not(held.exchanges)


def low_latency_bytes(held: Holding) -> Number:
    """Return DeepEP's low-latency buffer of a role on GPUs, 0 where it uses none."""
    if held.role == "prefill" or held.engine not in ("vllm", "sglang"):
        return 0.0
    return deepep_low_latency_bytes(dispatch_tokens(held), held.hidden, held.slots) * held.exchanges


def exchange_bytes(held: Holding) -> Number:
    """Return the bytes of a device that the exchange of experts holds."""
    if held.ascend:
        return HCCL_BUFFERS * hccl_mebibytes(held) * MEBI * held.exchanges
    if held.engine == "trtllm":
        return TRTLLM_EXCHANGE_BYTES * held.exchanges * np.greater(held.attention_dp, 1)
    low = low_latency_bytes(held)
    if held.engine == "vllm":
        rdma = low if held.role == "decode" else VLLM_DEEPEP_BYTES * np.multiply(held.nodes, 1)
        return (VLLM_DEEPEP_BYTES + rdma) * held.exchanges * np.greater(held.attention_dp, 1)
    normal = deepep_normal_bytes(held.moe_ep, held.hidden) if held.role != "decode" else 0
    return low + normal * held.exchanges


def kept_bytes(
    profile: EngineProfile, held: Holding, *, weights: Number, activations: Number, reserve: float, capacity: float
) -> Number:
    """Return the bytes of a device that an engine keeps beside weights, activations, cache and the plan's ``reserve``.

    Buffers of the exchange; with SGLang also what its own share leaves free for graphs, metadata and its floor, with
    TensorRT-LLM what it leaves of the memory that loading and a first pass leave.
    """
    buffers = exchange_bytes(held)
    if profile.engine == "sglang":
        own = _sglang_bytes(held, activations, capacity) + buffers
        return larger(buffers, own - reserve - activations)
    if profile.engine == "trtllm" and profile.deployment is not None:
        free = capacity - reserve - weights - activations - buffers
        return buffers + (1 - profile.deployment.memory.value) * larger(free, 0.0)
    return buffers


def _sglang_bytes(held: Holding, activations: Number, capacity: float) -> Number:
    """Return what SGLang keeps outside weights, cache and exchange: metadata, activations, graphs, its floor."""
    tokens = held.sequences * held.window if held.role == "decode" else held.tokens
    rows = smaller(larger(tokens, LEAST_TOKENS), MOST_TOKENS) * MEBIBYTES_PER_TOKEN
    found = META_MEBIBYTES + larger(rows, activations / MEBI) + held.devices * MEBIBYTES_PER_RANK
    if held.role != "prefill":
        found = found + held.sequences * MEBIBYTES_PER_GRAPH
    if held.role != "decode" and held.latent:
        found = found + LATENT_GRAPH_MEBIBYTES
    return larger(found, FLOOR_MEBIBYTES if capacity > FLOOR_FROM_BYTES else 0) * MEBI
