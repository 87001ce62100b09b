"""What an engine keeps of a device's memory beside weights, activations and cache, and the exchange that it takes.

The one arithmetic of buffers: plans reckon with it (``costs.memory``), deployment files tell the engine what it
says.

References: vllm/distributed/device_communicators/all2all.py (0.33.0), sglang srt/arg_groups/memory_hook.py and
layers/moe/token_dispatcher/deepep.py (0.5.23), vllm_ascend/utils.py (0.23.0), tensorrt_llm/llmapi/llm_args.py
(1.2.1). SGLang's rule takes an instance's tokens and a flat 2 GiB for DeepEP; here it takes those of one attention
DP rank, as published recipes do, and the exchange's buffers by DeepEP's arithmetic: 0.82 where SGLang's guide for
R1 on A3 sets 0.815, 0.79 where its recipe for 72 H100 sets 0.835.

Bytes by the arithmetic of the libraries themselves: DeepEP csrc/config.hpp and deep_ep/buffer.py (030cdf0); CANN
tiling of MoeDistributeDispatchV2 and MoeDistributeCombineV2 on A3, shared experts on every rank. The HCCL sizes
were held against two published ones: a log's 294 MiB, and the 600 that vLLM-Ascend's guide sets for 80 tokens, EP
32 and 8 experts a device (598 here). vLLM-Ascend chooses its exchange at run time by device generation, EP degree
and tokens: vllm_ascend's ascend_forward_context.py of the 0.23.0 wheel, select_moe_comm_method; without fused MC2.
Functions of an exchange take numbers or arrays, but ``exchange_of``.
"""

from typing import Literal, NamedTuple

import numpy as np

from ground.units import GIBI, MEBI
from planner.engines.spec import Accelerator, EngineProfile, RoleName
from planner.manifest.terms import Number, larger, smaller

Generation = Literal["a2", "a3", "a5", "mi30x", "mi35x"]
Exchange = Literal["mc2", "all_to_all", "allgather"]

BF16_BYTES = 2
ALIGNMENT_BYTES = 128  # of DeepEP's buffers
NVL_PEERS = 8  # DeepEP: ranks of one node
CHUNK_RANKS, CHUNK_TOKENS = np.array([8, 64, 96, 128]), np.array([256, 288, 480, 560, 720])  # up to so many, and past
CHANNELS = 10  # DeepEP: 20 SMs of its default, two a channel
RDMA_TOKENS = 128  # DeepEP: num_max_rdma_chunked_recv_tokens of every default
META_BYTES = 8 + 128 * (8 + 4) + 128 * 4  # DeepEP: source, room for 128 experts' indices and weights, 128 scales
BLOCK_BYTES = 512  # CANN: what a token's message is aligned to
HCCL_BUFFERS = 2  # a communicator holds one HCCL_BUFFSIZE to send and one to receive
COMBINE_FIXED_MIB = 3 + 204  # CANN: status and synchronisation of the normal combine
GRAPH_TOKENS = 512  # vLLM-Ascend: the largest captured graph
A2_GATHERING = ("vllm-ascend", "mindie")  # MindIE: mindie_llm/runtime/layers/fused_moe/moe_comm_method.py, alike
A2_LEAST_EP, A2_MOST_EXPERTS_PER_DEVICE = 16, 24  # vLLM-Ascend: of MC2 on A2
A2_MOST_TOKENS = 256  # of a device: CANN's ops-transformer at bfbbec83, moe_distribute_dispatch_v2_tiling.cpp
HCCL_DEFAULT_MEBIBYTES = 200
MOST_DISPATCHED = 1024  # DeepEP's low-latency kernels, of a rank, by their counters: csrc/kernels/internode_ll.cu
VLLM_DEEPEP_BYTES = GIBI  # VLLM_DEEPEP_BUFFER_SIZE_MB, of NVLink and of RDMA
TRTLLM_EXCHANGE_BYTES = 2 * GIBI  # its workspace of one-sided NVLink
DEFAULT_DISPATCH_TOKENS = 128  # SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK
LEAST_PROMPTS = 4  # max-num-seqs of vLLM-Ascend's guides for prefill
# SGLang's rule: MiB
META_MEBIBYTES, MEBIBYTES_PER_TOKEN, MEBIBYTES_PER_GRAPH, LEAST_TOKENS = 512, 1.5, 2, 2048
MOST_TOKENS = 8192  # the largest chunk that it sets itself below 160 GB; past it the plan counts activations
MEBIBYTES_PER_RANK, LATENT_GRAPH_MEBIBYTES, FLOOR_MEBIBYTES = 128, 1536, 10_240
FLOOR_FROM_BYTES = 60 * GIBI
AITER_SHARE = 0.85  # srt/arg_groups/attention_hook.py: of the static share, past 8,192 tokens of context; taken always


def _up(value: Number, unit: int) -> Number:
    return -(-value // unit) * unit


def deepep_low_latency_bytes(tokens: Number, hidden: int, slots: Number) -> Number:
    """Return DeepEP's low-latency buffer for ``tokens`` per rank and ``slots`` experts, replicas included.

    >>> round(deepep_low_latency_bytes(220, 7168, 256) / 1e9, 2)
    3.28
    """
    scales = hidden // 128
    dispatch = 16 + max(hidden * BF16_BYTES, hidden + scales * 4)
    combine = scales * 4 + hidden * BF16_BYTES
    send = larger(tokens * dispatch, slots * tokens * combine)
    receive = slots * tokens * max(dispatch, combine)
    total = 2 * (send + receive + _up(slots * 12, ALIGNMENT_BYTES))
    return _up(total + 1, ALIGNMENT_BYTES)


def deepep_normal_bytes(ranks: Number, hidden: int) -> Number:
    """Return DeepEP's buffers of its normal kernels: NVLink's chunks of a node, and RDMA's of the other nodes."""
    chunk = CHUNK_TOKENS[np.searchsorted(CHUNK_RANKS, ranks)]
    token = hidden * BF16_BYTES + META_BYTES
    nvlink = CHANNELS * np.minimum(ranks, NVL_PEERS) * chunk * token
    rdma = CHANNELS * -(-ranks // NVL_PEERS) * RDMA_TOKENS * (token + 16) * 2 + MEBI
    return _up(nvlink + rdma * np.greater(ranks, NVL_PEERS), ALIGNMENT_BYTES)


def hccl_low_latency_mebibytes(
    tokens: Number, hidden: int, *, ranks: Number, local: Number, experts_per_token: int
) -> Number:
    """Return the HCCL_BUFFSIZE that the fused dispatch and combine need for ``tokens`` per rank.

    ``local`` expert slots stand on each of ``ranks`` EP ranks. The operator asks for more than twice what it holds.

    >>> hccl_low_latency_mebibytes(64, 2048, ranks=4, local=128, experts_per_token=10)
    294
    """
    message = _up(_up(2 * hidden, 32) + 64, BLOCK_BYTES)
    answer = _up(2 * hidden, BLOCK_BYTES)
    held = tokens * message * ranks * local + tokens * answer * experts_per_token
    return 2 * held // MEBI + 1


def hccl_normal_mebibytes(tokens: Number, hidden: int, *, experts_per_token: int) -> Number:
    """Return the HCCL_BUFFSIZE that the normal combine needs for ``tokens`` of a rank in one step."""
    answers = tokens * experts_per_token * _up(2 * hidden, BLOCK_BYTES)
    return -(-2 * (answers + COMBINE_FIXED_MIB * MEBI) // MEBI)


def mc2_capacity(tokens: Number, tensor: Number, most: int = GRAPH_TOKENS) -> Number:
    """Return the tokens of a DP rank that MC2 takes: min(ceil(tokens / TP), most) · TP.

    >>> mc2_capacity(1500, 2)
    1024
    """
    return smaller(-(-tokens // tensor), most) * tensor


def most_exchanged(ep: Number, experts: int, tensor: Number) -> Number:
    """Return the tokens of a DP rank that A2 exchanges by MC2, while it gathers more: those of the largest graph.

    >>> most_exchanged(8, 256, 1), most_exchanged(32, 256, 1), most_exchanged(32, 256, 4)
    (0.0, 256.0, 512.0)
    """
    taken = np.logical_and(np.greater_equal(ep, A2_LEAST_EP), experts // ep <= A2_MOST_EXPERTS_PER_DEVICE)
    found = np.where(taken, 1.0 * mc2_capacity(GRAPH_TOKENS, tensor, A2_MOST_TOKENS), 0.0)
    return found if found.ndim else float(found)


def exchange_of(
    generation: Generation, *, ep: int, experts: int, tokens: int, capacity: Number, world: int, experts_per_token: int
) -> Exchange:
    """Return the exchange of a step of ``tokens`` per DP rank with EP degree ``ep`` over ``world`` devices.

    ``capacity`` is ``mc2_capacity``. A2 takes MC2 from EP 16 on with at most 24 experts per device, else it gathers
    tokens on all ranks; past the capacity A3 takes an all-to-all, A5 too where ``world`` exceeds the experts per token.
    """
    fits = tokens <= capacity
    if ep == 1:
        return "allgather"
    if generation == "a2":
        return "mc2" if fits and ep >= A2_LEAST_EP and experts // ep <= A2_MOST_EXPERTS_PER_DEVICE else "allgather"
    if fits:
        return "mc2"
    return "allgather" if generation == "a5" and world <= experts_per_token else "all_to_all"


class Holding(NamedTuple):
    """One instance as rules of memory read it; many of them with arrays of one shape.

    ``sequences`` of a DP rank run, each with ``window`` tokens an iteration, and ``tokens`` of it are in a step;
    ``slots`` are a layer's experts and replicas, ``devices`` the instance's; ``exchanges`` says whether an all-to-all
    reaches the experts, ``nodes`` whether the instance spans several.
    """

    engine: str
    role: RoleName
    accelerator: Accelerator | None
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


def low_latency(held: Holding) -> Number:
    """Whether DeepEP's low-latency kernels exchange a role's experts, as on GPUs where prompts are not alone."""
    able = held.role != "prefill" and held.engine in ("vllm", "sglang") and held.accelerator != "ascend"
    return np.multiply(held.exchanges, able)


def most_carried(held: Holding) -> Number:
    """Return the most requests of a DP rank whose tokens the exchange carries; infinite where it has no bound."""
    return np.where(low_latency(held), MOST_DISPATCHED // held.window, np.inf)


def low_latency_bytes(held: Holding) -> Number:
    """Return DeepEP's low-latency buffer of a role on GPUs, 0 where it uses none."""
    return deepep_low_latency_bytes(dispatch_tokens(held), held.hidden, held.slots) * low_latency(held)


def exchange_bytes(held: Holding) -> Number:
    """Return the bytes of a device that the exchange of experts holds."""
    if held.accelerator == "ascend":  # over HCCL
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
        # What SGLang keeps outside weights, cache and exchange: metadata, activations, graphs, its floor
        tokens = held.sequences * held.window if held.role == "decode" else held.tokens
        rows = smaller(larger(tokens, LEAST_TOKENS), MOST_TOKENS) * MEBIBYTES_PER_TOKEN
        found = META_MEBIBYTES + larger(rows, activations / MEBI) + held.devices * MEBIBYTES_PER_RANK
        if held.role != "prefill":
            found = found + held.sequences * MEBIBYTES_PER_GRAPH
        if held.role != "decode" and held.latent:
            found = found + LATENT_GRAPH_MEBIBYTES
        own = (larger(found, FLOOR_MEBIBYTES if capacity > FLOOR_FROM_BYTES else 0) * MEBI) + buffers
        kept = larger(buffers, own - reserve - activations)
        return kept + (1 - taken_share(held)) * larger(capacity - reserve - activations - kept, 0.0)
    if profile.engine == "trtllm" and profile.deployment is not None:
        free = capacity - reserve - weights - activations - buffers
        return buffers + (1 - profile.deployment.memory.value) * larger(free, 0.0)
    return buffers


def taken_share(held: Holding) -> float:
    """Return what an engine takes of the share of memory that it is told: SGLang less on AMD, for AITER's workspace."""
    return AITER_SHARE if held.engine == "sglang" and held.accelerator == "amd" else 1.0
