"""`plan predict`: one configuration, every operator."""

from collections.abc import Sequence
from dataclasses import asdict

from cli.options import FORCE, JSON, File, takes
from cli.output import Outputs, Screen, print_json
from ground.units import format_bytes, format_count, format_duration, format_si
from planner.costs.extrapolation import Extrapolated
from planner.costs.interval import Interval
from planner.costs.memory import Memory
from podplan.options import PredictFlags, flag, flag_name
from podplan.plan_data import MEMORY_KINDS
from podplan.planning import FILES
from podplan.prediction import PredictResult, assumptions, predict, shared_text

KINDS = MEMORY_KINDS[:-1]


@takes(PredictFlags)
def command(
    flags: PredictFlags,
    out: File = flag("DIR", "Write manifest.yaml and plan.json there: this instance, what it needs searched."),
    force: bool = FORCE,
    json: bool = JSON,
) -> None:
    """Predict one configuration, with every operator.

    \b
    Examples:
      plan predict deepseek-r1 --hw cm384 --phase decode --strategy "DP=320, EP=320" --batch 48 --mtp 1
      plan predict deepseek-r1 --hw h800 --phase prefill --strategy "DP=32, EP=32" --tokens 16k
      plan predict deepseek-r1 --hw cm384 --phase decode --strategy "DP=320, EP=320" --batch 48 --out plan-published
      plan predict qwen3-32b --hw h100 --phase mixed --strategy TP=4 --concurrency 64 --isl 2048 --osl 512

    Decode and prefill are service times: no waiting for arrivals, no KV transfer. Counts take k and M.
    """
    outputs = Outputs(force, {"--out DIR": out}, {"--out": FILES})
    found = predict(**asdict(flags))
    if out is not None:
        outputs.write(found.plan())
    print_json(found.to_dict()) if json else show_prediction(Screen(), found)


def show_prediction(screen: Screen, found: PredictResult) -> None:
    """Write time, throughput and memory, every operator, and what was assumed."""
    answer = found.prediction
    screen.lines(*_headlines(found), "")
    screen.grid(
        sorted(answer.operators, key=lambda row: (-row.exposed_seconds, -row.seconds)),
        {
            "operator": lambda row: row.name,
            "stream": lambda row: row.stream,
            ">count": lambda row: str(row.count),
            ">busy": lambda row: format_duration(row.seconds),
            ">exposed": lambda row: format_duration(row.exposed_seconds),
            ">share": lambda row: f"{row.exposed_seconds / answer.iteration_seconds:.1%}",
            ">work": lambda row: format_si(row.flops, "FLOP") if row.flops else "",
            ">memory": lambda row: format_bytes(row.bytes) if row.bytes else "",
            ">message": lambda row: format_bytes(row.message_bytes) if row.message_bytes else "",
            "bound": lambda row: row.bound,
        },
        "Operators of one iteration on one device",
        spare=["stream", "message", "memory", "work"],
    )
    screen.table(["memory per device", "bytes", "share"], _memory_rows(answer.memory), right=["bytes", "share"])
    screen.lines("Assumed, for it was not given:")
    for name, value in assumptions(found.flags, answer).items():
        flag = flag_name(name) if hasattr(found.flags, name) else name.replace("_", " ")
        screen.lines(f"  {flag} {f'{value:g}' if isinstance(value, float) else value}")


def _headlines(found: PredictResult) -> list[str]:
    """Return what the answer says before its tables: time, throughput, bottleneck, whether it fits."""
    answer = found.prediction
    asked, lines = answer.configuration, [found.headline, ""]
    about_ttft = answer.interval if answer.tpot_seconds is None else answer.ttft_interval
    if answer.tpot_seconds:
        lines.append(_line("TPOT", with_margin(answer.tpot_seconds, answer.interval)))
    if answer.ttft_seconds is not None:
        lines.append(_line("TTFT", with_margin(answer.ttft_seconds, about_ttft)))
    unit = "prompt" if asked.phase == "prefill" else "output"
    shares: dict[str, float] = {"chip": answer.chips} if answer.chips != answer.devices else {}
    shares |= {"device": answer.devices, "instance": 1}
    rates = [f"{format_count(answer.tokens_per_second / by)} per {what}" for what, by in shares.items()]
    lines.append(_line("throughput", f"{', '.join(rates)} ({unit} tokens/s)"))
    if asked.phase == "prefill" and asked.prefix_reuse and answer.computed_tokens_per_second is not None:
        computed = format_count(answer.computed_tokens_per_second / answer.chips)
        lines.append(_line("computed", f"{computed} per chip (prompt tokens/s without the reused ones)"))
    parts = [format_duration(answer.iteration_seconds)]
    if answer.tokens_per_iteration_per_request != 1:
        parts.append(f"{answer.tokens_per_iteration_per_request:.3g} tokens per request")
    parts.append(f"{answer.microbatches} microbatch{'es' if answer.microbatches > 1 else ''}")
    lines.append(_line("iteration", ", ".join(parts)))
    if asked.model.moe is not None:
        lines.append(_line("experts", f"{int(answer.deployment.redundant)} redundant, shared {shared_text(answer)}"))
    share = sum(row.exposed_seconds for row in answer.operators if row.bound == answer.bottleneck)
    lines.append(_line("bottleneck", f"{answer.bottleneck} ({share / answer.iteration_seconds:.0%} of the iteration)"))
    if answer.extrapolated:
        lines.append(_line("extrapolated", _outside(answer.extrapolated)))
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


def _outside(rows: Sequence[Extrapolated]) -> str:
    """Say where operators run and where they were measured, those alike together."""
    alike: dict[str, list[str]] = {}
    for row in rows:
        measured = " to ".join(dict.fromkeys((format_count(row.low), format_count(row.high))))
        alike.setdefault(f"{format_count(row.value)} {row.quantity} (measured {measured})", []).append(row.operator)
    return "; ".join(f"{', '.join(names)} at {where}" for where, names in alike.items())


def _line(name: str, text: str) -> str:
    return f"{name:<12} {text}" if len(name) >= 12 else f"{name:<12}{text}"


def _fit(memory: Memory) -> str:
    used, capacity = float(memory.used), float(memory.capacity)
    if used <= capacity:
        return f"fits: {format_bytes(used)} of {format_bytes(capacity)} per device"
    short = format_bytes(used - capacity)
    return f"DOES NOT FIT: {format_bytes(used)} per device are {short} more than its {format_bytes(capacity)}"


def _memory_rows(memory: Memory) -> list[list[str]]:
    """Return bytes per device by kind, with their share of the capacity."""
    rows = [(kind, float(getattr(memory, kind))) for kind in KINDS]
    rows += [("in all", float(memory.used)), ("capacity", float(memory.capacity))]
    return [[kind.replace("_", " "), format_bytes(size), f"{size / memory.capacity:.1%}"] for kind, size in rows]
