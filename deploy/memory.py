"""The share of a device's memory for an engine, and the rest for keys and values: ``planner.engines.memory``.

Ref: vllm/config/cache.py (0.33.0) and sglang srt/arg_groups/memory_hook.py (0.5.23) for what the share counts.
"""

import math
from dataclasses import dataclass

from deploy.roles import RolePlan, aligned
from ground.errors import Infeasible
from ground.units import GIBI, format_bytes
from models.spec import MLA
from planner.engines.memory import Holding, dispatch_tokens, exchange_bytes, kept_bytes, low_latency_bytes, taken_share
from planner.engines.spec import EngineProfile

SCALES = (10**3, 10**4, 10**5, 10**6)  # of the digits of a share of memory
ROUNDING = 0.01  # of the cache, lost in rounding the share and no news
SYMMETRIC_ROOM_GIBIBYTES = 1  # NVSHMEM's own, beside DeepEP's buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """``fraction`` is the engine's memory setting, ``most`` the largest that leaves all else its room; the other
    fields are bytes of one device.

    ``requests`` are those of a DP rank whose planned share of the cache fits: the planned ones, or fewer.
    """

    fraction: float
    most: float
    buffers_bytes: float
    cache_bytes: float
    planned_cache_bytes: float
    requests: int


def exchanges(role: RolePlan) -> bool:
    """Whether experts are reached by an all-to-all.

    On GPUs no ranks of one attention TP group do, who hold the same tokens, but to overlap two microbatches.
    """
    if role.mode is None or role.mode.exchange != "all_to_all" or role.strategy.moe_ep == 1:
        return False
    return role.accelerator == "ascend" or role.strategy.attention_dp > 1 or role.setup.microbatches > 1


def holding(engine: str, role: RolePlan) -> Holding:
    """Return a role as the engines' rules of memory read it."""
    return Holding(
        engine=engine,
        role=role.role,
        accelerator=role.accelerator,
        exchanges=exchanges(role),
        hidden=role.model.hidden_size,
        experts_per_token=role.model.moe.experts_per_token if role.model.moe else 0,
        latent=isinstance(role.model.attention, MLA),
        slots=role.setup.experts + role.setup.redundant,
        attention_tp=role.strategy.attention_tp,
        attention_dp=role.strategy.attention_dp,
        moe_ep=role.strategy.moe_ep,
        devices=role.devices,
        nodes=role.nodes > 1,
        sequences=role.sequences,
        window=role.draft_window,
        tokens=role.tokens,
    )


def dispatched(engine: str, role: RolePlan) -> int:
    """Return the tokens of a rank that the low-latency exchange has room for."""
    tokens = int(dispatch_tokens(holding(engine, role)))
    return tokens if role.accelerator == "ascend" else aligned(tokens)


def symmetric_gibibytes(engine: str, role: RolePlan) -> int:
    """Return NVSHMEM's symmetric heap in GiB that DeepEP's buffer needs, 0 where it has none."""
    low = low_latency_bytes(holding(engine, role))
    return math.ceil(low / GIBI) + SYMMETRIC_ROOM_GIBIBYTES if low else 0


def memory_of(profile: EngineProfile, role: RolePlan) -> Memory:
    """Return an engine's memory: its default share, or more where the planned cache needs it, and the rest.

    Infeasible where no request of the longest length fits.
    """
    plan, held, engine = role.memory, holding(profile.engine, role), profile.engine
    weights, activations, reserve, capacity = plan.weights, plan.activations, plan.reserve, plan.capacity
    kept = kept_bytes(profile, held, weights=weights, activations=activations, reserve=reserve, capacity=capacity)
    share = profile.deployment.memory.value if profile.deployment else 1.0
    if engine == "trtllm":  # a share of what loading and a first pass leave
        return _fitting(profile, role, share, share, capacity - reserve - weights - activations - float(kept))
    beside = activations + max(float(kept), plan.buffers)
    outside, inside = (reserve + beside, 0.0) if engine in ("sglang", "xllm") else (reserve, beside)
    planned = (weights + inside + plan.kv_cache) / capacity
    taken = taken_share(held)
    most = 1 - outside / capacity
    fraction = _floor(
        min(most, max(share, planned)) / taken, (planned * capacity - ROUNDING * plan.kv_cache) / (taken * capacity)
    )
    return _fitting(profile, role, fraction, most / taken, fraction * taken * capacity - weights - inside)


def _fitting(profile: EngineProfile, role: RolePlan, fraction: float, most: float, cache: float) -> Memory:
    """Return the memory with the requests that fit. Infeasible where not one of the longest length does."""
    planned, needed = role.memory.kv_cache, role.longest_cache_bytes
    buffers = float(exchange_bytes(holding(profile.engine, role)))
    if cache < needed:
        raise Infeasible(
            f"{profile.title} leaves {format_bytes(max(cache, 0.0))} of a device for keys and values in the "
            f"{role.role} pool ({fraction} of the memory, {format_bytes(buffers)} of exchange buffers), and a request "
            f"of {role.longest} tokens needs {format_bytes(needed)}; plan with fewer requests or more devices"
        )
    filled = cache / planned if planned else 1.0
    fits = role.sequences if filled > 1 - ROUNDING else math.floor(role.sequences * filled)
    return Memory(
        fraction=fraction,
        most=most,
        buffers_bytes=buffers,
        cache_bytes=cache,
        planned_cache_bytes=planned,
        requests=max(fits, 1),
    )


def _floor(share: float, least: float) -> float:
    """Round a share of memory down, so that it never asks for more than was planned, but not below a least share."""
    found = [math.floor(max(share, 0.0) * scale) / scale for scale in SCALES]
    return next((each for each in found if each >= least), found[0])
