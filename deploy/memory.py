"""What an engine may take of a device's memory, by its own rules, and what that leaves for keys and values.

References: vllm/config/cache.py and distributed/device_communicators/all2all.py (0.33.0), sglang
srt/arg_groups/memory_hook.py and layers/moe/token_dispatcher/deepep.py (0.5.23), vllm_ascend/utils.py (0.23.0).
SGLang's rule takes an instance's tokens and a flat 2 GiB for DeepEP; here it takes those of one attention DP rank, as
published recipes do, and the exchange's buffers by DeepEP's arithmetic: 0.82 where SGLang's guide for R1 on A3 sets
0.815, 0.79 where its recipe for 72 H100 sets 0.835.
"""

import math
from dataclasses import dataclass

from deploy.roles import RolePlan
from ground.errors import Infeasible
from ground.units import GIBI, MEBI, format_bytes
from models.spec import MLA
from planner.engines.ascend import mc2_capacity
from planner.engines.buffers import (
    HCCL_BUFFERS,
    deepep_low_latency_bytes,
    deepep_normal_bytes,
    hccl_low_latency_mebibytes,
    hccl_normal_mebibytes,
)
from planner.engines.spec import EngineProfile

THOUSANDTHS = 1000
ROUNDING = 0.01  # of the cache, lost in rounding the share and no news
HCCL_DEFAULT_MEBIBYTES = 200
VLLM_DEEPEP_BYTES = GIBI  # VLLM_DEEPEP_BUFFER_SIZE_MB, of NVLink and of RDMA
SYMMETRIC_ROOM_GIBIBYTES = 1  # NVSHMEM's own, beside DeepEP's buffer
DEFAULT_DISPATCH_TOKENS = 128  # SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK
# SGLang's rule: MiB
META_MEBIBYTES, MEBIBYTES_PER_TOKEN, MEBIBYTES_PER_GRAPH, LEAST_TOKENS = 512, 1.5, 2, 2048
MOST_TOKENS = 8192  # the largest chunk that it sets itself below 160 GB; past it the plan counts activations
MEBIBYTES_PER_RANK, LATENT_GRAPH_MEBIBYTES, FLOOR_MEBIBYTES = 128, 1536, 10_240
FLOOR_FROM_BYTES = 60 * GIBI


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """``fraction`` is what the engine is told; the rest is bytes of one device.

    ``requests`` are those of a DP rank whose planned share of the cache fits: the planned ones, or fewer.
    """

    fraction: float
    buffers_bytes: float
    cache_bytes: float
    planned_cache_bytes: float
    requests: int


def exchanges(role: RolePlan) -> bool:
    """Whether experts are reached by an all-to-all."""
    return role.mode is not None and role.mode.exchange == "all_to_all" and role.strategy.moe_ep > 1


def dispatch_tokens(role: RolePlan) -> int:
    """Return the tokens of an EP rank that SGLang's low-latency exchange must hold."""
    return max(role.sequences * role.draft_window, DEFAULT_DISPATCH_TOKENS if role.role == "mixed" else 1)


def hccl_mebibytes(engine: str, role: RolePlan) -> int:
    """Return HCCL_BUFFSIZE: what the fused exchange or the normal combine of a role needs, HCCL's default at least."""
    moe = role.model.moe
    if not exchanges(role) or moe is None:
        return HCCL_DEFAULT_MEBIBYTES
    hidden, tensor = role.model.hidden_size, role.strategy.attention_tp
    needed = 0
    if engine == "sglang" and role.role != "decode":
        needed = hccl_normal_mebibytes(-(-role.tokens // tensor), hidden, experts_per_token=moe.experts_per_token)
    if engine == "vllm-ascend" or role.role != "prefill":
        held = dispatch_tokens(role) if engine == "sglang" else role.sequences * role.draft_window
        if engine == "vllm-ascend":  # a rank's tokens are cut over TP before they go
            held = mc2_capacity(held, tensor) // tensor
        ranks = role.strategy.moe_ep
        local = (role.setup.experts + role.setup.redundant) // ranks
        needed = max(
            needed,
            hccl_low_latency_mebibytes(held, hidden, ranks=ranks, local=local, experts_per_token=moe.experts_per_token),
        )
    return max(needed, HCCL_DEFAULT_MEBIBYTES)


def low_latency_bytes(engine: str, role: RolePlan) -> int:
    """Return DeepEP's low-latency buffer of a role on GPUs, 0 where it uses none."""
    if not exchanges(role) or role.role == "prefill" or engine not in ("vllm", "sglang"):
        return 0
    if engine == "vllm" and role.role == "mixed":
        return 0  # gathers: no instance has both of DeepEP's kernels
    tokens = role.tokens if engine == "vllm" else dispatch_tokens(role)
    return deepep_low_latency_bytes(tokens, role.model.hidden_size, role.setup.experts + role.setup.redundant)


def buffers_bytes(engine: str, role: RolePlan) -> float:
    """Return the bytes of a device that the exchange of experts holds."""
    if not exchanges(role):
        return 0.0
    if role.accelerator == "ascend":
        return float(HCCL_BUFFERS * hccl_mebibytes(engine, role) * MEBI)
    low = low_latency_bytes(engine, role)
    if engine == "vllm":
        if role.role == "mixed" or role.strategy.attention_dp == 1:
            return 0.0
        return float(VLLM_DEEPEP_BYTES + (low or (VLLM_DEEPEP_BYTES if role.nodes > 1 else 0)))
    normal = deepep_normal_bytes(role.strategy.moe_ep, role.model.hidden_size) if role.role != "decode" else 0
    return float(low + normal)


def symmetric_gibibytes(engine: str, role: RolePlan) -> int:
    """Return NVSHMEM's symmetric heap in GiB that DeepEP's buffer needs, 0 where it has none."""
    low = low_latency_bytes(engine, role)
    return math.ceil(low / GIBI) + SYMMETRIC_ROOM_GIBIBYTES if low else 0


def _sglang_bytes(role: RolePlan, buffers: float) -> float:
    """Return what SGLang keeps outside weights and cache: metadata, activations, graphs, its floor, the exchange."""
    tokens = role.sequences * role.draft_window if role.role == "decode" else role.tokens
    rows = min(max(tokens, LEAST_TOKENS), MOST_TOKENS) * MEBIBYTES_PER_TOKEN
    found = META_MEBIBYTES + max(rows, role.memory.activations / MEBI) + role.devices * MEBIBYTES_PER_RANK
    if role.role != "prefill":
        found += role.sequences * MEBIBYTES_PER_GRAPH
    if role.role != "decode" and isinstance(role.model.attention, MLA):
        found += LATENT_GRAPH_MEBIBYTES
    if role.memory.capacity > FLOOR_FROM_BYTES:
        found = max(found, FLOOR_MEBIBYTES)
    return found * MEBI + buffers


def memory_of(profile: EngineProfile, role: RolePlan) -> Memory:
    """Return what an engine is told and what that leaves: its own share, or more where the planned cache needs it.

    Infeasible where no request of the longest length fits.
    """
    held, engine = role.memory, profile.engine
    buffers = buffers_bytes(engine, role)
    if engine == "trtllm":
        return _trtllm(profile, role)
    most = profile.deployment.memory.value if profile.deployment else 1.0
    outside = held.reserve
    if engine in ("sglang", "xllm"):
        outside += held.activations + max(buffers, held.buffers)
    if engine == "sglang":
        outside = max(outside, _sglang_bytes(role, buffers))
    inside = 0.0 if engine in ("sglang", "xllm") else held.activations + max(buffers, held.buffers)
    planned = (held.weights + inside + held.kv_cache) / held.capacity
    fraction = _floor(min(1 - outside / held.capacity, max(most, planned)))
    cache = fraction * held.capacity - held.weights - inside
    return _fitting(profile, role, fraction, buffers, cache)


def _trtllm(profile: EngineProfile, role: RolePlan) -> Memory:
    """Return TensorRT-LLM's own share, which is of what loading and a first pass leave."""
    held = role.memory
    free = held.capacity - held.reserve - held.weights - held.activations - held.buffers
    fraction = _floor(profile.deployment.memory.value if profile.deployment else 1.0)
    return _fitting(profile, role, fraction, held.buffers, fraction * max(free, 0.0))


def _fitting(profile: EngineProfile, role: RolePlan, fraction: float, buffers: float, cache: float) -> Memory:
    """Return the memory with the requests that fit. Infeasible where not one of the longest length does."""
    held, needed = role.memory, role.longest_cache_bytes
    if cache < needed:
        raise Infeasible(
            f"{profile.title} leaves {format_bytes(max(cache, 0.0))} of a device for keys and values in the "
            f"{role.role} pool ({fraction} of the memory, {format_bytes(buffers)} of exchange buffers), and a request "
            f"of {role.longest} tokens needs {format_bytes(needed)}; plan with fewer requests or more devices"
        )
    filled = cache / held.kv_cache if held.kv_cache else 1.0
    fits = role.sequences if filled > 1 - ROUNDING else math.floor(role.sequences * filled)
    return Memory(
        fraction=fraction,
        buffers_bytes=buffers,
        cache_bytes=cache,
        planned_cache_bytes=held.kv_cache,
        requests=max(fits, 1),
    )


def _floor(share: float) -> float:
    """Round a share of memory down to three digits, so that it never asks for more than was planned."""
    return math.floor(max(share, 0.0) * THOUSANDTHS) / THOUSANDTHS
