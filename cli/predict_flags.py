"""From the flags of `plan predict` to one configuration; every refusal names the flag and what would be right."""

import math
from dataclasses import dataclass, fields
from typing import TypeVar, get_args

from hardware.loader import load_hardware
from hardware.spec import Dtype, HardwareSpec
from models.loader import load_model
from models.spec import ModelSpec
from planner.deployment import Phase, default_weights
from planner.imbalance import Balance, parse_balance
from planner.predict import Configuration, Shared
from planner.strategy import Strategy, check_strategy, format_strategy, parse_strategy
from podplan.errors import BadInput
from podplan.names import suggest
from podplan.units import parse_count

Word = TypeVar("Word", bound=str)

MOST_DRAFTS = 8
MOST_TOKENS = 1_000_000_000
ENGINES = ("reference", "vllm", "vllm-ascend", "sglang", "xllm", "mindie")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictFlags:
    """The flags as they were typed; None where one was not given."""

    model: str
    hw: str
    phase: str
    strategy: str
    batch: str | None = None
    kv_len: str | None = None
    tokens: str | None = None
    isl: str | None = None
    prefix_reuse: str | None = None
    osl: str | None = None
    concurrency: str | None = None
    max_batched_tokens: str | None = None
    requests: str | None = None
    mtp: str | None = None
    mtp_acceptance: str | None = None
    microbatches: str | None = None
    devices: str | None = None
    nodes: str | None = None
    weights: str | None = None
    kv_dtype: str | None = None
    expert_balance: str | None = None
    redundant_experts: str | None = None
    shared_experts: str | None = None
    engine: str | None = None


# The flags that one phase or two have; the others have all of them.
PHASES_OF_FLAG: dict[str, tuple[Phase, ...]] = {
    "batch": ("decode",),
    "kv_len": ("decode",),
    "tokens": ("prefill",),
    "isl": ("prefill", "mixed"),
    "prefix_reuse": ("prefill", "mixed"),
    "osl": ("mixed",),
    "concurrency": ("mixed",),
    "max_batched_tokens": ("mixed",),
    "requests": ("decode", "prefill"),
    "mtp_acceptance": ("decode", "mixed"),
}


def read_configuration(flags: PredictFlags) -> Configuration:
    """Return what the flags ask for, with the defaults of the command line.

    Raises BadInput naming the flag.
    """
    model, hardware = load_model(flags.model), _hardware(flags.hw)
    phase: Phase = _choice(flags.phase, "--phase", get_args(Phase))
    _check_phase(flags, phase)
    strategy = _strategy(flags, model, hardware, phase)
    if flags.engine is not None and _choice(flags.engine, "--engine", ENGINES) != "reference":
        raise BadInput(f"--engine: {flags.engine} has no cost model here; only the engine reference is costed so far")
    reuse = _fraction(flags.prefix_reuse, "--prefix-reuse", 0.0, below_one=True)
    configuration = Configuration(
        model=model,
        hardware=hardware,
        phase=phase,
        strategy=strategy,
        weights=_weights(flags.weights, model, hardware),
        kv_dtype="bf16" if flags.kv_dtype is None else _choice(flags.kv_dtype, "--kv-dtype", get_args(Dtype)),
        balance=Balance(kind="measured") if flags.expert_balance is None else parse_balance(flags.expert_balance),
        redundant=_redundant(flags.redundant_experts, model),
        shared=_shared(flags.shared_experts),
        drafts=_drafts(flags.mtp, model),
        acceptance=_fraction(flags.mtp_acceptance, "--mtp-acceptance", 0.7),
        microbatches=_microbatches(flags, model),
        batch=_count(flags.batch, "--batch", 1),
        kv_tokens=_count(flags.kv_len, "--kv-len", 4096),
        tokens=_count(flags.tokens, "--tokens", 8192),
        prompt_tokens=_count(flags.isl, "--isl", 4096),
        output_tokens=_count(flags.osl, "--osl", 1024),
        prefix_reuse=reuse,
        concurrency=_count(flags.concurrency, "--concurrency", 1),
        batched_tokens=_count(flags.max_batched_tokens, "--max-batched-tokens", 8192),
        requests=None if flags.requests is None else _count(flags.requests, "--requests", 1),
    )
    _check_lengths(configuration)
    _check_split(flags, configuration)
    return configuration


def flag_name(field: str) -> str:
    """Return the flag that fills ``field``."""
    return "--" + field.replace("_", "-")


def _hardware(text: str) -> HardwareSpec:
    if "=" in text or "," in text:
        raise BadInput(f"--hw: {text[:40]!r} names hardware per role; predict costs one pool, so name one")
    return load_hardware(text)


def _choice(text: str, flag: str, accepted: tuple[Word, ...]) -> Word:
    """Return the accepted word, in any case."""
    word = text.strip().lower()
    for known in accepted:
        if word == known:
            return known
    listed = f"{', '.join(accepted[:-1])} or {accepted[-1]}" if len(accepted) > 1 else accepted[0]
    raise BadInput(f"{flag}: {text[:40]!r} is not {listed}{suggest(word, accepted)}")


def _check_phase(flags: PredictFlags, phase: Phase) -> None:
    """Refuse flags of another phase, and ask for the one that a phase cannot do without."""
    for field in fields(flags):
        phases = PHASES_OF_FLAG.get(field.name)
        if phases and phase not in phases and getattr(flags, field.name) is not None:
            raise BadInput(f"{flag_name(field.name)} belongs to --phase {' or '.join(phases)}; leave it out of {phase}")
    if phase == "decode" and flags.batch is not None and flags.requests is not None:
        raise BadInput("--requests counts the whole instance and --batch one DP rank; give one of them")
    if phase == "decode" and flags.batch is None and flags.requests is None:
        raise BadInput("--batch is missing; --phase decode needs the requests per DP rank, for example --batch 48")
    if phase == "prefill" and flags.tokens is None:
        raise BadInput(
            "--tokens is missing; --phase prefill needs the prompt tokens per device, for example --tokens 8192"
        )
    if phase == "mixed" and flags.concurrency is None:
        raise BadInput(
            "--concurrency is missing; --phase mixed needs the requests in the instance, for example --concurrency 64"
        )


def _strategy(flags: PredictFlags, model: ModelSpec, hardware: HardwareSpec, phase: Phase) -> Strategy:
    strategy = parse_strategy(flags.strategy, moe=model.moe is not None)
    check_strategy(strategy, model)
    text = format_strategy(strategy, moe=model.moe is not None)
    if strategy.disaggregated:
        raise BadInput(
            f"--strategy: {text!r} puts attention and experts on different devices, which is read but not costed yet; "
            "leave out the domains"
        )
    if strategy.staged and phase != "prefill":
        raise BadInput(f"--strategy: SP is a way to run prefill attention; use TP={strategy.attention_tp} for {phase}")
    _check_size(flags, strategy, hardware, text)
    return strategy


def _check_size(flags: PredictFlags, strategy: Strategy, hardware: HardwareSpec, text: str) -> None:
    per_node = int(hardware.devices_per_node.value)
    nodes = int(hardware.nodes.value)
    limit: float = math.inf if hardware.sold_by_node else nodes * per_node
    if flags.nodes is not None:
        asked = parse_count(flags.nodes, "--nodes")
        if asked > nodes and not hardware.sold_by_node:
            raise BadInput(f"--nodes: {hardware.name} has {nodes} nodes, not {asked}; use at most {nodes}")
        limit = asked * per_node
    if flags.devices is not None:
        asked = parse_count(flags.devices, "--devices")
        if asked != strategy.devices:
            raise BadInput(
                f"--devices: {asked} is not the {strategy.devices} devices that strategy {text!r} takes; "
                "make the two agree or leave --devices out"
            )
    if strategy.devices > limit:
        raise BadInput(
            f"--strategy: {text!r} takes {strategy.devices} devices and {hardware.name} has {limit:.0f} "
            f"({limit / per_node:.0f} nodes of {per_node}); use a strategy of at most {limit:.0f} devices"
        )


def _weights(text: str | None, model: ModelSpec, hardware: HardwareSpec) -> Dtype:
    if text is None:
        return default_weights(hardware, model)
    known = tuple(dtype for dtype in hardware.device.peak_flops_per_second if dtype in hardware.kernels.gemm)
    word = text.strip().lower()
    for dtype in known:
        if word == dtype:
            return dtype
    raise BadInput(f"--weights: {hardware.name} does not multiply {text[:20]!r}; use {' or '.join(known)}")


def _redundant(text: str | None, model: ModelSpec) -> int | None:
    if text is None or text.strip().lower() == "auto":
        return None
    count = parse_count(text, "--redundant-experts", allow_zero=True)
    if count and model.moe is None:
        raise BadInput(f"--redundant-experts: {model.name} has no experts to replicate; leave the flag out")
    return count


def _shared(text: str | None) -> Shared:
    word = "auto" if text is None else text.strip().lower()
    if word == "auto":
        return "auto"
    if word == "local":
        return "local"
    name, _, count = word.partition("=")
    if name != "dedicated" or not count:
        raise BadInput(f"--shared-experts: {(text or '')[:40]!r} is not local, dedicated=N or auto")
    return parse_count(count, "--shared-experts dedicated")


def _drafts(text: str | None, model: ModelSpec) -> int:
    count = 0 if text is None else parse_count(text, "--mtp", allow_zero=True)
    if count and not model.mtp_layers:
        raise BadInput(f"--mtp: {model.name} ships no layer that drafts tokens (MTP); use --mtp 0")
    if count > MOST_DRAFTS:
        raise BadInput(
            f"--mtp: {count} drafts per iteration are more than the {MOST_DRAFTS} that are costed; use fewer"
        )
    return count


def _microbatches(flags: PredictFlags, model: ModelSpec) -> int | None:
    text = flags.microbatches
    if text is None or text.strip().lower() == "auto":
        return None
    if text.strip() not in ("1", "2"):
        raise BadInput(f"--microbatches: {text[:20]!r} is not 1, 2 or auto")
    if text.strip() == "2" and model.moe is None:
        raise BadInput(
            f"--microbatches: {model.name} has no expert exchange for a second microbatch to hide; use 1 or auto"
        )
    return int(text)


def _count(text: str | None, flag: str, default: int) -> int:
    if text is None:
        return default
    value = parse_count(text, flag)
    if value > MOST_TOKENS:
        raise BadInput(f"{flag}: {value} is more than can be meant; use at most {MOST_TOKENS}")
    return value


def _fraction(text: str | None, flag: str, default: float, *, below_one: bool = False) -> float:
    """Return a share of 0 to 1, written as a number or in per cent."""
    if text is None:
        return default
    stripped = text.strip()
    try:
        value = float(stripped.removesuffix("%")) / (100 if stripped.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if 0 <= value < 1 or (value == 1 and not below_one):
        return value
    right = "from 0 up to, not including, 1" if below_one else "from 0 to 1"
    raise BadInput(f"{flag}: {text[:40]!r} is not a share {right}, such as 0.5")


def _check_lengths(configuration: Configuration) -> None:
    model, longest = configuration.model, configuration.model.max_position
    asked = {
        "decode": ("--kv-len", configuration.kv_tokens),
        "prefill": ("--isl", configuration.prompt_tokens),
        "mixed": ("--isl plus --osl", configuration.prompt_tokens + configuration.output_tokens),
    }
    flag, tokens = asked[configuration.phase]
    if tokens > longest:
        raise BadInput(
            f"{flag}: {tokens:.0f} tokens are past the {longest} positions of {model.name}; use at most that"
        )


def _check_split(flags: PredictFlags, configuration: Configuration) -> None:
    """Two microbatches of a decode iteration need two sequences."""
    ranks = configuration.strategy.attention_dp
    busiest = configuration.batch if configuration.requests is None else -(-configuration.requests // ranks)
    if configuration.phase == "decode" and configuration.microbatches == 2 and busiest < 2:
        named = "--batch" if flags.requests is None else "--requests"
        raise BadInput(f"--microbatches: 2 need two requests on a DP rank and {named} puts one there; use 1 or auto")
