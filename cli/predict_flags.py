"""From the flags of `plan predict` to one configuration; every refusal names the flag and what would be right."""

import math
from dataclasses import dataclass, fields
from typing import Annotated, get_args

from cli.flags import (
    ExpertBalance,
    ExpertSkew,
    Microbatches,
    MtpAcceptance,
    RedundantExperts,
    SharedExperts,
    flag_name,
    read_balance,
    read_choice,
    read_drafts,
    read_fraction,
    read_microbatches,
    read_redundant,
    read_shared,
    read_tokens,
    read_weights,
)
from cli.options import Text, argument, option
from ground.errors import BadInput
from ground.units import parse_count
from hardware.formats import KvDtype
from hardware.loader import load_hardware
from hardware.spec import HardwareSpec
from models.loader import load_model
from models.spec import ModelSpec
from planner.costs.deployment import Phase, check_disaggregation
from planner.costs.hostcosts import host_costs
from planner.costs.predict import Configuration
from planner.costs.prefixes import find_plane
from planner.strategy import Strategy, check_strategy, format_strategy, parse_strategy

MOST_PASSES = 1000  # of one prompt: each is costed on its own
MOST_OPEN = 50_000  # requests on a DP rank of a closed loop, which is run request by request


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictFlags:
    """The flags as they were typed; None where one was not given."""

    model: Annotated[str, argument("MODEL", "Catalogue name, config.json or model YAML.")]
    hw: Annotated[str, option("--hw", "HW", "Catalogue name or hardware YAML.")]
    phase: Annotated[str, option("--phase", "PHASE", "decode, prefill or mixed.")]
    strategy: Annotated[str, option("--strategy", "S", 'Such as "TP=4 + DP=8, EP=32".')]
    batch: Annotated[Text, option("--batch", "REQUESTS", "decode: requests per DP rank.")] = None
    kv_len: Annotated[Text, option("--kv-len", "TOKENS", "decode: cached tokens per request [4096].")] = None
    tokens: Annotated[Text, option("--tokens", "TOKENS", "prefill: prompt tokens per device and pass.")] = None
    isl: Annotated[Text, option("--isl", "TOKENS", "prefill, mixed: prompt tokens [4096].")] = None
    prefix_reuse: Annotated[Text, option("--prefix-reuse", "SHARE", "prefill, mixed: cached share of prompts [0].")] = (
        None
    )
    cache_plane: Annotated[
        Text, option("--cache-plane", "PLANE", "prefill: plane that brings reused prefixes [none].")
    ] = None
    osl: Annotated[Text, option("--osl", "TOKENS", "mixed: output tokens [1024].")] = None
    concurrency: Annotated[Text, option("--concurrency", "REQUESTS", "mixed: requests in the instance.")] = None
    max_batched_tokens: Annotated[
        Text, option("--max-batched-tokens", "TOKENS", "mixed: tokens of one step per DP rank [8192].")
    ] = None
    length_spread: Annotated[
        Text, option("--length-spread", "SHARE", "mixed: lengths vary evenly by this share [0].")
    ] = None
    requests: Annotated[
        Text, option("--requests", "N", "decode, prefill: requests in the instance, spread over DP ranks.")
    ] = None
    mtp: Annotated[Text, option("--mtp", "K", "Drafted tokens per iteration [0].")] = None
    mtp_acceptance: MtpAcceptance = None
    microbatches: Microbatches = None
    devices: Annotated[Text, option("--devices", "N", "Devices of the instance; the strategy must take as many.")] = (
        None
    )
    nodes: Annotated[Text, option("--nodes", "N", "Size of the cluster, which the strategy must not exceed.")] = None
    weights: Annotated[
        Text, option("--weights", "DTYPE", "bf16, fp8, int8, int4, mxfp4 or nvfp4 [as shipped, if multiplied].")
    ] = None
    kv_dtype: Annotated[Text, option("--kv-dtype", "DTYPE", "bf16, fp8 or int8 [bf16].")] = None
    expert_balance: ExpertBalance = None
    expert_skew: ExpertSkew = None
    redundant_experts: RedundantExperts = None
    shared_experts: SharedExperts = None
    engine: Annotated[Text, option("--engine", "E", "Engine whose costs are taken [reference].")] = None


# The flags that one phase or two have; the others have all of them.
PHASES_OF_FLAG: dict[str, tuple[Phase, ...]] = {
    "batch": ("decode",),
    "kv_len": ("decode",),
    "tokens": ("prefill",),
    "isl": ("prefill", "mixed"),
    "prefix_reuse": ("prefill", "mixed"),
    "cache_plane": ("prefill",),
    "osl": ("mixed",),
    "concurrency": ("mixed",),
    "max_batched_tokens": ("mixed",),
    "length_spread": ("mixed",),
    "requests": ("decode", "prefill"),
    "mtp_acceptance": ("decode", "mixed"),
}


def read_configuration(flags: PredictFlags) -> Configuration:
    """Return what the flags ask for, with the defaults of the command line.

    Raises BadInput naming the flag.
    """
    model, hardware = load_model(flags.model), _hardware(flags.hw)
    phase: Phase = read_choice(flags.phase, "--phase", get_args(Phase))
    _check_phase(flags, phase)
    strategy = _strategy(flags, model, hardware, phase)
    host = host_costs(_engine(flags.engine))
    reuse = read_fraction(flags.prefix_reuse, "--prefix-reuse", 0.0, below_one=True)
    configuration = Configuration(
        model=model,
        hardware=hardware,
        phase=phase,
        strategy=strategy,
        weights=read_weights(flags.weights, model, hardware),
        kv_dtype="bf16" if flags.kv_dtype is None else read_choice(flags.kv_dtype, "--kv-dtype", get_args(KvDtype)),
        balance=read_balance(flags.expert_balance, flags.expert_skew, model),
        redundant=read_redundant(flags.redundant_experts, model),
        shared=read_shared(flags.shared_experts, model),
        drafts=read_drafts(flags.mtp, model),
        acceptance=read_fraction(flags.mtp_acceptance, "--mtp-acceptance", 0.7),
        microbatches=read_microbatches(flags.microbatches, model),
        batch=read_tokens(flags.batch, "--batch", 1),
        kv_tokens=read_tokens(flags.kv_len, "--kv-len", 4096),
        tokens=read_tokens(flags.tokens, "--tokens", 8192),
        prompt_tokens=read_tokens(flags.isl, "--isl", 4096),
        output_tokens=read_tokens(flags.osl, "--osl", 1024),
        prefix_reuse=reuse,
        cache_plane=None if flags.cache_plane is None else find_plane(hardware, flags.cache_plane).name,
        concurrency=read_tokens(flags.concurrency, "--concurrency", 1),
        batched_tokens=read_tokens(flags.max_batched_tokens, "--max-batched-tokens", 8192),
        length_spread=read_fraction(flags.length_spread, "--length-spread", 0.0, below_one=True),
        host=host,
        requests=None if flags.requests is None else read_tokens(flags.requests, "--requests", 1),
    )
    _check_lengths(configuration)
    _check_split(flags, configuration)
    return configuration


def _hardware(text: str) -> HardwareSpec:
    if "=" in text or "," in text:
        raise BadInput(f"--hw: {text[:40]!r} names hardware per role; predict costs one pool, so name one")
    return load_hardware(text)


def _engine(text: str | None) -> str | None:
    """Return the name of the engine whose host costs are taken."""
    if text is None:
        return None
    from planner.engines.loader import load_engine  # the schema of profiles takes time to build

    return load_engine(text).engine


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
    check_disaggregation(strategy, phase)
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
    ranks = configuration.strategy.attention_dp
    if configuration.phase == "mixed" and configuration.concurrency > MOST_OPEN * ranks:
        raise BadInput(
            f"--concurrency: {configuration.concurrency:.0f} open requests are more than the {MOST_OPEN} a DP rank "
            f"that are run one by one; use at most {MOST_OPEN * ranks}"
        )
    share = configuration.tokens * configuration.strategy.devices / configuration.strategy.attention_dp
    if configuration.phase == "prefill" and configuration.prompt_tokens > MOST_PASSES * share:
        passes = configuration.prompt_tokens / share
        raise BadInput(
            f"--tokens: {configuration.tokens:.0f} per device cut a prompt of {configuration.prompt_tokens:.0f} into "
            f"{passes:.0f} passes; use at least {-(-configuration.tokens * passes // MOST_PASSES):.0f}"
        )


def _check_split(flags: PredictFlags, configuration: Configuration) -> None:
    """Two microbatches of a decode iteration need two sequences."""
    ranks = configuration.strategy.attention_groups
    busiest = configuration.batch if configuration.requests is None else -(-configuration.requests // ranks)
    if configuration.phase == "decode" and configuration.microbatches == 2 and busiest < 2:
        named = "--batch" if flags.requests is None else "--requests"
        raise BadInput(f"--microbatches: 2 need two requests on a DP rank and {named} puts one there; use 1 or auto")
