"""Exchanges of experts: which one vLLM-Ascend takes, and the bytes that they set aside before a token moves.

Bytes by the arithmetic of the libraries themselves: DeepEP csrc/config.hpp and deep_ep/buffer.py (030cdf0); CANN tiling
of MoeDistributeDispatchV2 and MoeDistributeCombineV2 on A3, shared experts on every rank. The HCCL sizes were held
against two published ones: a log's 294 MiB, and the 600 that vLLM-Ascend's guide sets for 80 tokens, EP 32 and 8
experts a device (598 here). Its choice, at run time by device generation, EP degree and tokens: vllm_ascend's
ascend_forward_context.py of the 0.23.0 wheel, select_moe_comm_method; without fused MC2.
Functions take numbers or arrays, but ``exchange_of``.
"""

from typing import Literal

import numpy as np

from ground.units import MEBI
from planner.manifest.terms import Number, larger, smaller

Generation = Literal["a2", "a3", "a5"]
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


def mc2_capacity(tokens: Number, tensor: Number) -> Number:
    """Return the tokens of a DP rank that MC2 takes: min(ceil(tokens / TP), 512) · TP.

    >>> mc2_capacity(1500, 2)
    1024
    """
    return smaller(-(-tokens // tensor), GRAPH_TOKENS) * tensor


def most_exchanged(ep: Number, experts: int) -> Number:
    """Return the tokens of a DP rank that A2 exchanges by MC2, while it gathers more: those of the largest graph.

    >>> most_exchanged(8, 256), most_exchanged(32, 256)
    (0.0, 512.0)
    """
    taken = np.logical_and(np.greater_equal(ep, A2_LEAST_EP), experts // ep <= A2_MOST_EXPERTS_PER_DEVICE)
    found = np.where(taken, float(GRAPH_TOKENS), 0.0)
    return found if found.ndim else float(found)


def exchange_of(
    generation: Generation,
    *,
    ep: int,
    experts: int,
    tokens: int,
    capacity: Number,
    world: int,
    experts_per_token: int,
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
