"""Why a question has no plan, and the nearest change that would give it one."""

import math
from dataclasses import replace
from typing import Literal

import numpy as np

from planner.decode_candidates import Count, decode_candidates, decode_memory_used
from planner.latency import balanced_cost
from planner.memory import weight_bytes
from planner.operating import DecodeServer, PrefillServer
from planner.prefill_candidates import pass_seconds, prefill_candidates, prefill_fits
from planner.question import Machines, Question
from planner.space import groups, role_rows
from planner.workload import reserved_kv_tokens
from podplan.units import format_bytes, format_duration, format_rate

_RELAXED = 1_000_000.0
_FACTORS = (1.05, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)


def missing(question: Question, prefill: bool) -> tuple[str, str]:
    """Return (binding limit, sentence) for a pool without any candidate."""
    role = "prefill" if prefill else "decode"
    machines = question.prefill if prefill else question.decode
    if not fits_somewhere(question, prefill):
        return "memory", memory_sentence(question, machines, prefill)
    best = fastest_ttft(question) if prefill else fastest_tpot(question)
    flag, limit = ("--ttft", question.ttft_seconds) if prefill else ("--tpot", question.tpot_seconds)
    if best is None:
        return "memory", memory_sentence(question, machines, prefill)
    nearest = nearest_limit(question, prefill, best)
    return flag.strip("-"), (
        f"{flag} {format_duration(limit)} cannot be kept at percentile {question.percentile:g}: the fastest {role} "
        f"instance on up to {machines.devices} devices takes {format_duration(best)} with nothing else to do; nearest "
        f"change: {flag} {format_duration(nearest)}"
    )


def role_of(prefill: bool) -> Literal["prefill", "decode"]:
    """Name of a role."""
    return "prefill" if prefill else "decode"


def fits_somewhere(question: Question, prefill: bool) -> bool:
    """Whether any row of the role fits with its smallest batch."""
    role = role_of(prefill)
    kv = reserved_kv_tokens(question.workload)
    capacity = (question.prefill if prefill else question.decode).hardware.device.memory_bytes.value
    return any(
        bool(np.any(np.asarray(decode_memory_used(group.deployment, 1.0, kv)) <= capacity))
        for group in groups(question, role, role_rows(question, role), 0)
    )


def memory_sentence(question: Question, machines: Machines, prefill: bool) -> str:
    """Say by how much the model does not fit and the smallest number of devices that would hold it."""
    role = role_of(prefill)
    device = machines.hardware.device
    room = device.memory_bytes.value - device.reserve_bytes.value
    needs = [
        (float(need), row.strategy.devices)
        for group in groups(question, role, role_rows(question, role), 0)
        for row, need in zip(
            group.rows, np.broadcast_to(weight_bytes(group.deployment), (len(group.rows),)), strict=True
        )
    ]
    if not needs:
        return f"{question.model.name} has no strategy on {machines.devices} devices of {machines.hardware.name}"
    least, _ = min(needs)
    smallest = smallest_devices(question, machines, prefill)
    nearest = "no number of them does"
    if smallest:
        nearest = f"the smallest number that holds a {role} instance is {smallest}, and a plan needs one of each role"
    return (
        f"{question.model.name} does not fit {machines.devices} devices of {machines.hardware.name}: its weights take "
        f"at least {format_bytes(least)} per device beside a KV cache, {format_bytes(room)} are free, "
        f"{format_bytes(max(least - room, 0.0))} too much; {nearest}"
    )


def smallest_devices(question: Question, machines: Machines, prefill: bool) -> int | None:
    """Return the fewest devices on which one instance of the role fits; searched by doubling, then halving."""
    step = machines.devices_per_node
    low, high = machines.devices, machines.devices
    while high <= 64 * max(machines.devices, step):
        high *= 2
        if fits_somewhere(with_devices(question, high), prefill):
            break
    else:
        return None
    while high - low > max(1, min(step, low)):
        middle = (low + high) // 2
        low, high = (low, middle) if fits_somewhere(with_devices(question, middle), prefill) else (middle, high)
    return high


def with_devices(question: Question, devices: int) -> Question:
    """Return the question with both pools at another size."""
    prefill, decode = (replace(machines, devices=devices) for machines in (question.prefill, question.decode))
    return replace(question, prefill=prefill, decode=decode)


def fastest_tpot(question: Question) -> float | None:
    """Least time per token of any decode instance that fits, at its smallest batch."""
    count, best = Count(), math.inf
    low, high = question.tpot_seconds, None
    limit = question.tpot_seconds
    for _ in range(40):
        found = any(_decode_found(question, count, limit))
        if found:
            high = limit
        else:
            low = limit
        if high is not None and high / low < 1.02:
            break
        limit = math.sqrt(low * high) if high is not None else limit * 2
        if limit > _RELAXED:
            return None
    best = high if high is not None else best
    return best if math.isfinite(best) else None


def _decode_found(question: Question, count: Count, limit: float) -> list[bool]:
    rows = role_rows(question, "decode")
    return [
        bool(decode_candidates(question, group, 1, count, limit, {}))
        for drafts in question.drafts
        for group in groups(question, "decode", rows, drafts)
    ]


def fastest_ttft(question: Question) -> float | None:
    """Shortest time of one prompt alone on any prefill instance that fits."""
    best = math.inf
    for group in groups(question, "prefill", role_rows(question, "prefill"), 0):
        cost = balanced_cost(group.deployment, question.balance)
        alone = 1.0 / np.asarray(group.deployment.strategy.attention_dp)
        fits = prefill_fits(group.deployment, question.workload, 1, 1)
        seconds = pass_seconds(cost, question.workload, 1.0, alone, 1, 1)
        best = min(best, float(np.min(np.where(fits, seconds, math.inf))))
    return best if math.isfinite(best) else None


def nearest_limit(question: Question, prefill: bool, least: float) -> float:
    """Return the tightest of a few multiples of the least time under which the role's queue is stable.

    Each is verified by solving the role's queue; the last one is returned unverified.
    """
    for factor in _FACTORS:
        limit = least * factor
        changed = replace(question, ttft_seconds=limit) if prefill else replace(question, tpot_seconds=limit)
        if carries(changed, prefill):
            return limit
    return least * _FACTORS[-1]


def carries(question: Question, prefill: bool) -> bool:
    """Whether some instance of a role carries any traffic within its limit."""
    count, role = Count(), role_of(prefill)
    for drafts in question.drafts if not prefill else (0,):
        for group in groups(question, role, role_rows(question, role), drafts):
            if prefill:
                found = prefill_candidates(question, group, 1, count, question.ttft_seconds, {})
                if any(PrefillServer(question, candidate).capacity() > 0 for candidate in found):
                    return True
            else:
                members = decode_candidates(question, group, 1, count, question.tpot_seconds, {})
                if any(DecodeServer(question, candidate, 0.0).capacity() > 0 for candidate in members):
                    return True
    return False


def refusal(question: Question, message: str, most_per_second: float) -> tuple[str, str]:
    """Return (binding limit, sentence) where candidates exist and the devices do not carry the rate."""
    if question.rate_per_second is None or not most_per_second > 0:
        return "devices", message
    devices = question.prefill.devices
    if question.decode.budget != question.prefill.budget:
        devices += question.decode.devices
    wanted = math.ceil(devices * question.rate_per_second / most_per_second)
    asked = format_rate(question.rate_per_second)
    return "devices", (
        f"{devices} devices carry {format_rate(most_per_second)}, not the asked {asked}; "
        f"nearest changes: --rate {format_rate(most_per_second)}, or about {wanted} devices"
    )
