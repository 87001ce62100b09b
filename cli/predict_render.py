"""A prediction as the JSON of `plan predict` and as text."""

from collections.abc import Sequence

from cli.flags import flag_name
from cli.predict_flags import PredictFlags
from ground.units import counted, format_bytes, format_count, format_duration
from planner.costs.closed_loop import WAVES
from planner.costs.extrapolation import Extrapolated
from planner.costs.interval import Interval
from planner.costs.memory import Memory
from planner.costs.predict import Prediction
from planner.costs.prefixes import POOL_BYTES, prefixes_held
from planner.strategy import format_strategy

KINDS = ("weights", "kv_cache", "activations", "buffers", "reserve")


def as_json(flags: PredictFlags, answer: Prediction) -> dict[str, object]:
    """Return the object that ``plan predict --json`` prints; SI units, the unit in the name."""
    per_device = answer.tokens_per_second / answer.devices
    data: dict[str, object] = {
        "model": answer.configuration.model.name,
        "hardware": answer.configuration.hardware.name,
        "phase": answer.configuration.phase,
        "strategy": strategy_text(answer),
        "devices": answer.devices,
        "chips": int(answer.chips) if answer.chips == int(answer.chips) else answer.chips,
        "redundant_experts": int(answer.deployment.redundant),
        "shared_experts": shared_text(answer),
        "iteration_seconds": answer.iteration_seconds,
        "tokens_per_iteration_per_request": answer.tokens_per_iteration_per_request,
    }
    for key, value in (("tpot_seconds", answer.tpot_seconds), ("ttft_seconds", answer.ttft_seconds)):
        if value is not None:
            data[key] = value
    data["interval"] = _interval(answer.interval)
    if answer.ttft_interval is not None:
        data["ttft_interval"] = _interval(answer.ttft_interval)
    data["tokens_per_second_per_device"] = per_device
    data["tokens_per_second_per_chip"] = answer.tokens_per_second / answer.chips
    if answer.configuration.phase == "prefill" and answer.computed_tokens_per_second is not None:
        data["computed_tokens_per_second_per_chip"] = answer.computed_tokens_per_second / answer.chips
    data["microbatches"] = answer.microbatches
    data["memory_bytes_per_device"] = {kind: float(getattr(answer.memory, kind)) for kind in (*KINDS, "capacity")}
    if answer.expert_memory is not None:
        data["expert_memory_bytes_per_device"] = {
            kind: float(getattr(answer.expert_memory, kind)) for kind in (*KINDS, "capacity")
        }
    data["fits"] = answer.fits
    data["bottleneck"] = answer.bottleneck
    data["assumptions"] = assumptions(flags, answer)
    data["extrapolated"] = [
        {"operator": row.operator, "quantity": row.quantity, "value": row.value, "low": row.low, "high": row.high}
        for row in answer.extrapolated
    ]
    data["operators"] = [
        {
            "name": operator.name,
            "stream": operator.stream,
            "count": operator.count,
            "seconds": operator.seconds,
            "exposed_seconds": operator.exposed_seconds,
            "flops": operator.flops,
            "bytes": operator.bytes,
            "message_bytes": operator.message_bytes,
            "bound": operator.bound,
        }
        for operator in answer.operators
    ]
    return data


def strategy_text(answer: Prediction) -> str:
    """Return the strategy in the notation of ``--strategy``."""
    return format_strategy(answer.configuration.strategy, moe=answer.configuration.model.moe is not None)


def shared_text(answer: Prediction) -> str:
    """Return the placement of the shared expert in the notation of ``--shared-experts``."""
    ranks = int(answer.deployment.shared_ranks)
    return f"dedicated={ranks}" if ranks else "local"


def assumptions(flags: PredictFlags, answer: Prediction) -> dict[str, object]:
    """Return the defaults that moved the answer: the flags that were not given, and what was taken for them."""
    asked = answer.configuration
    taken: dict[str, object] = {"weights": asked.weights, "kv_dtype": asked.kv_dtype, "engine": "reference"}
    if asked.phase == "decode":
        taken["kv_len"] = asked.kv_tokens
    else:
        taken |= {"isl": asked.prompt_tokens, "prefix_reuse": asked.prefix_reuse}
    if asked.phase == "mixed":
        taken |= {
            "osl": asked.output_tokens,
            "max_batched_tokens": asked.batched_tokens,
            "length_spread": asked.length_spread,
        }
    if asked.model.mtp_layers:
        taken["mtp"] = asked.drafts
    if asked.drafts and asked.phase != "prefill":
        taken["mtp_acceptance"] = asked.acceptance
    if asked.model.moe is not None:
        taken |= {
            "microbatches": answer.microbatches,
            "redundant_experts": int(answer.deployment.redundant),
            "expert_balance": asked.balance.kind,
        }
        if asked.model.moe.shared_experts:
            taken["shared_experts"] = shared_text(answer)
    if asked.prefix_reuse and asked.phase == "prefill":
        taken["cache_plane"] = "none: reused prefixes are in device memory"
    named = {name: value for name, value in taken.items() if _defaulted(getattr(flags, name))}
    named |= unasked(answer)
    if asked.model.moe is not None and asked.balance.kind in ("measured", "none") and asked.strategy.moe_ep > 1:
        named["expert_load_distribution"] = f"{asked.balance.distribution.name}: {asked.balance.distribution.source}"
    return named


def unasked(answer: Prediction) -> dict[str, object]:
    """Return what moved the answer and has no flag: how a closed loop is run, and what a pool holds."""
    asked, taken = answer.configuration, {}
    if asked.phase == "mixed":
        host = format_duration(asked.host.request_seconds)
        taken["closed_loop"] = f"{WAVES} requests per open one, the first all at once; {host} of host in each TTFT"
    if asked.cache_plane and asked.prefix_reuse:
        held = prefixes_held(answer.deployment, asked.prompt_tokens * asked.prefix_reuse)
        pool = f"{format_bytes(POOL_BYTES)} on plane {asked.cache_plane}"
        taken["prefix_pool"] = f"a pool of {pool} holds {format_count(held)} such prefixes"
    return dict(taken)


def _defaulted(given: str | None) -> bool:
    return given is None or given.strip().lower() == "auto"


def headline(flags: PredictFlags, answer: Prediction) -> list[str]:
    """Return what the answer says before its tables: time, throughput, bottleneck, whether it fits."""
    asked = answer.configuration
    size = f"{counted(answer.devices, 'device')} = {counted(answer.chips, 'chip')}"
    lines = [f"{asked.model.name} on {asked.hardware.name}, {asked.phase}, {strategy_text(answer)} ({size})", ""]
    about_ttft = answer.interval if answer.tpot_seconds is None else answer.ttft_interval
    if answer.tpot_seconds is not None:
        lines.append(_line("TPOT", with_margin(answer.tpot_seconds, answer.interval)))
    if answer.ttft_seconds is not None:
        lines.append(_line("TTFT", with_margin(answer.ttft_seconds, about_ttft)))
    unit = "prompt" if asked.phase == "prefill" else "output"
    rates = [f"{format_count(answer.tokens_per_second / by)} per {what}" for by, what in _shares(answer)]
    lines.append(_line("throughput", f"{', '.join(rates)} ({unit} tokens/s)"))
    if asked.phase == "prefill" and asked.prefix_reuse and answer.computed_tokens_per_second is not None:
        computed = format_count(answer.computed_tokens_per_second / answer.chips)
        lines.append(_line("computed", f"{computed} per chip (prompt tokens/s without the reused ones)"))
    lines.append(_line("iteration", _iteration(answer)))
    if asked.model.moe is not None:
        lines.append(_line("experts", f"{int(answer.deployment.redundant)} redundant, shared {shared_text(answer)}"))
    lines.append(_line("bottleneck", _bottleneck(answer)))
    if answer.extrapolated:
        lines.append(_line("extrapolated", "; ".join(_outside(row) for row in answer.extrapolated)))
    lines.append(_line("memory", _fit(answer.memory)))
    if answer.expert_memory is not None:
        lines[-1] += " of attention"
        lines.append(_line("", f"{_fit(answer.expert_memory)} of experts"))
    return lines


def with_margin(seconds: float, known: Interval | None) -> str:
    """Return a duration with half the width of its interval, and the level that this holds at."""
    if known is None or not seconds:
        return format_duration(seconds)
    value, margin = format_duration(seconds), format_duration(known.half)
    number, _, unit = value.rpartition(" ")
    own, _, same = margin.rpartition(" ")
    shown = f"{number} \N{PLUS-MINUS SIGN} {own} {unit}" if unit == same else f"{value} \N{PLUS-MINUS SIGN} {margin}"
    return f"{shown}  ({known.level:.0%} interval)"


def _interval(known: Interval) -> dict[str, float]:
    return {"low": known.low, "high": known.high, "level": known.level}


def _outside(row: Extrapolated) -> str:
    """Say where an operator runs and where it was measured."""
    low, high = format_count(row.low), format_count(row.high)
    return f"{row.operator} at {format_count(row.value)} {row.quantity} (measured {low} to {high})"


def _line(name: str, text: str) -> str:
    return f"{name:<12} {text}" if len(name) >= 12 else f"{name:<12}{text}"


def _shares(answer: Prediction) -> Sequence[tuple[float, str]]:
    chips = ((answer.chips, "chip"),) if answer.chips != answer.devices else ()
    return (*chips, (answer.devices, "device"), (1, "instance"))


def _iteration(answer: Prediction) -> str:
    parts = [format_duration(answer.iteration_seconds)]
    if answer.tokens_per_iteration_per_request != 1:
        parts.append(f"{answer.tokens_per_iteration_per_request:.3g} tokens per request")
    parts.append(f"{answer.microbatches} microbatch{'es' if answer.microbatches > 1 else ''}")
    return ", ".join(parts)


def _bottleneck(answer: Prediction) -> str:
    """Return what binds, and the share of the iteration that it takes."""
    share = sum(row.exposed_seconds for row in answer.operators if row.bound == answer.bottleneck)
    return f"{answer.bottleneck} ({share / answer.iteration_seconds:.0%} of the iteration)"


def _fit(memory: Memory) -> str:
    used, capacity = float(memory.used), float(memory.capacity)
    if used <= capacity:
        return f"fits: {format_bytes(used)} of {format_bytes(capacity)} per device"
    short = format_bytes(used - capacity)
    return f"DOES NOT FIT: {format_bytes(used)} per device are {short} more than its {format_bytes(capacity)}"


def memory_rows(memory: Memory) -> list[list[str]]:
    """Return bytes per device by kind, with their share of the capacity."""
    rows = [(kind, float(getattr(memory, kind))) for kind in KINDS]
    rows += [("in all", float(memory.used)), ("capacity", float(memory.capacity))]
    return [[kind.replace("_", " "), format_bytes(size), f"{size / memory.capacity:.1%}"] for kind, size in rows]


def operator_rows(answer: Prediction) -> list[list[str]]:
    """Return the operators, what delays the iteration most first."""
    ranked = sorted(answer.operators, key=lambda row: (-row.exposed_seconds, -row.seconds))
    return [
        [
            row.name,
            row.stream,
            str(row.count),
            format_duration(row.seconds),
            format_duration(row.exposed_seconds),
            f"{row.exposed_seconds / answer.iteration_seconds:.1%}",
            f"{format_count(row.flops)}FLOP" if row.flops else "",
            format_bytes(row.bytes) if row.bytes else "",
            format_bytes(row.message_bytes) if row.message_bytes else "",
            row.bound,
        ]
        for row in ranked
    ]


def assumption_lines(flags: PredictFlags, answer: Prediction) -> list[str]:
    """Return the defaults as lines, each with the flag that changes it."""
    lines = []
    for name, value in assumptions(flags, answer).items():
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        flag = flag_name(name) if hasattr(flags, name) else name.replace("_", " ")
        lines.append(f"  {flag} {shown}")
    return lines
