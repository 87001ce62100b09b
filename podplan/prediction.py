"""`podplan.predict`: one configuration, every operator; a refusal names the flag and what would be right."""

import math
from dataclasses import dataclass, fields
from typing import Any, get_args

from ground.errors import BadInput
from ground.units import counted, format_bytes, format_count, format_duration, parse_count
from hardware.formats import KvDtype
from hardware.loader import load_hardware
from hardware.spec import HardwareSpec
from models.loader import load_model
from models.parameters import Seen
from models.spec import ModelSpec
from planner.costs.cache import POOL_BYTES, find_plane, prefixes_held
from planner.costs.deployment import Phase, check_disaggregation
from planner.costs.predict import Configuration, Prediction, predict as predict_configuration
from planner.engines.behaviour import ADMISSION_SECONDS, DEFAULT_BUDGET, host_costs, untimed
from planner.engines.loader import load_engine
from planner.instances.reachable import REFERENCE
from planner.serving.benchmark import MOST_OPEN, WAVES
from planner.strategy import Strategy, check_strategy, format_strategy, parse_strategy
from podplan import readers
from podplan.options import PredictFlags, QuestionFlags, flag_name, flags_of, left_open
from podplan.plan_data import INTERVAL, memory_json
from podplan.planning import PlanResult, solved
from podplan.question import read_question
from podplan.result import Result, Row, picked, whole

MOST_PASSES = 1000  # of one prompt: each is costed on its own

ROOM = 1.25  # limits over what was predicted, so that a queue fits between
PASSES = 3.0  # the same of TTFT, in passes of a prompt: it waits for one that runs
SHARED = (
    "model hw nodes engine weights kv_dtype mtp mtp_acceptance expert_balance expert_skew prefix_reuse isl osl beams "
    "images video graphs host_jitter"
)
ANSWER_TOKENS = 1024

OPERATOR = "name stream count seconds exposed_seconds flops bytes message_bytes bound"
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
    "beams": ("decode",),
    "graphs": ("decode", "mixed"),
    "images": ("prefill", "mixed"),
    "video": ("prefill", "mixed"),
    "mtp_acceptance": ("decode", "mixed"),
}


NEEDED: dict[Phase, tuple[str, str]] = {
    "decode": ("batch", "requests per DP rank, for example --batch 48"),
    "prefill": ("tokens", "prompt tokens per device, for example --tokens 8192"),
    "mixed": ("concurrency", "requests in the instance, for example --concurrency 64"),
}


@dataclass(frozen=True, kw_only=True)
class PredictResult(Result):
    """One configuration with every operator of one of its iterations.

    Attributes:
        flags: what was typed.
        prediction: the planner's prediction, every figure in SI units.
    """

    flags: PredictFlags
    prediction: Prediction

    @property
    def fits(self) -> bool:
        """Whether a device holds it."""
        return self.prediction.fits

    @property
    def headline(self) -> str:
        """What was predicted, and how large it is."""
        answer = self.prediction
        asked, size = answer.configuration, f"{counted(answer.devices, 'device')} = {counted(answer.chips, 'chip')}"
        return f"{asked.model.name} on {asked.hardware.name}, {asked.phase}, {strategy_text(asked)} ({size})"

    def plan(self) -> PlanResult:
        """Return the best plan with one instance as predicted, and of the other role what it needs to work.

        Requests are as long as the prediction's: in decode their mean KV is what was given. Limits are ``ROOM`` times
        the predicted TPOT and ``PASSES`` times the predicted TTFT, those of the other role the usual ones.
        """
        flags, answer = self.flags, self.prediction
        asked, role = answer.configuration, answer.configuration.phase
        given = {name: getattr(flags, name) for name in SHARED.split()}
        given["engine"] = given["engine"] or REFERENCE  # whose host costs a prediction takes
        if role == "decode":
            output = min(ANSWER_TOKENS, round(asked.kv_tokens))
            given |= {"isl": f"{max(round(asked.kv_tokens - output / 2), 1)}", "osl": f"{output}"}
        open_requests = asked.concurrency if role == "mixed" else asked.requests
        held = asked.batch if open_requests is None else -(-open_requests // asked.strategy.attention_groups)
        tokens = {"prefill": asked.tokens, "mixed": asked.batched_tokens}
        moe = asked.model.moe is not None
        ttft, tpot = answer.ttft_seconds, answer.tpot_seconds
        given |= {
            "strategy": f"{role}={strategy_text(asked)}",
            "instances": f"{role}=1",
            "batch": None if role == "prefill" else f"{role}={held}",
            "tokens": f"{role}={tokens[role]}" if role in tokens else None,
            "microbatches": f"{answer.microbatches}" if moe else None,
            "redundant_experts": f"{role}={int(answer.deployment.redundant)}" if moe else None,
            "shared_experts": f"{role}={shared_text(answer)}" if moe else None,
            "ttft": None if ttft is None else f"{PASSES * ttft}s",
            "tpot": None if tpot is None else f"{ROOM * tpot}s",
        }
        return solved(read_question(QuestionFlags(**given)), beside=False)

    def rows(self) -> list[Row]:
        """Return a row per operator, what delays the iteration most first."""
        ranked = sorted(self.prediction.operators, key=lambda row: (-row.exposed_seconds, -row.seconds))
        return [picked(row, OPERATOR) for row in ranked]

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``plan predict --json`` prints."""
        answer = self.prediction
        asked = answer.configuration
        data: dict[str, Any] = {
            "model": asked.model.name,
            "hardware": asked.hardware.name,
            "phase": asked.phase,
            "strategy": strategy_text(asked),
            "devices": answer.devices,
            "chips": whole(answer.chips),
            "redundant_experts": int(answer.deployment.redundant),
            "shared_experts": shared_text(answer),
            **picked(answer, "iteration_seconds tokens_per_iteration_per_request"),
        }
        for key, value in picked(answer, "tpot_seconds ttft_seconds").items():
            if value is not None:
                data[key] = value
        data["interval"] = picked(answer.interval, INTERVAL)
        if answer.ttft_interval is not None:
            data["ttft_interval"] = picked(answer.ttft_interval, INTERVAL)
        data["tokens_per_second_per_device"] = answer.tokens_per_second / answer.devices
        data["tokens_per_second_per_chip"] = answer.tokens_per_second / answer.chips
        if asked.phase == "prefill" and answer.computed_tokens_per_second is not None:
            data["computed_tokens_per_second_per_chip"] = answer.computed_tokens_per_second / answer.chips
        data |= {"microbatches": answer.microbatches, "memory_bytes_per_device": memory_json(answer.memory)}
        if answer.expert_memory is not None:
            data["expert_memory_bytes_per_device"] = memory_json(answer.expert_memory)
        return data | {
            **picked(answer, "fits bottleneck"),
            "assumptions": assumptions(self.flags, answer),
            "extrapolated": [picked(row, "operator quantity value low high") for row in answer.extrapolated],
            "operators": [picked(row, OPERATOR) for row in answer.operators],
        }


def predict(model: str, *, hw: str, phase: str, strategy: str, **flags: object) -> PredictResult:
    """Predict one configuration, with every operator.

    Decode and prefill are service times: no waiting for arrivals, no KV transfer.

    Args:
        model: a catalogue name, or the path of a config.json or of a model YAML.
        hw: a catalogue name or the path of a hardware YAML.
        phase: ``decode``, ``prefill`` or ``mixed``.
        strategy: in MixServe's notation, such as ``"DP=320, EP=320"``.
        flags: the long flags of ``plan predict``, such as ``batch=48, mtp=1``.
    """
    asked = flags_of(PredictFlags, {"model": model, "hw": hw, "phase": phase, "strategy": strategy, **flags})
    return PredictResult(flags=asked, prediction=predict_configuration(read_configuration(asked)))


def read_configuration(flags: PredictFlags) -> Configuration:
    """Return what the flags ask for, with the defaults of the command line; BadInput naming the flag."""
    for name in ("model", "hw", "phase", "strategy"):
        if getattr(flags, name) is None:
            raise BadInput(f"{name} is missing; a configuration needs model, hw, phase and strategy")
    model, machine = load_model(flags.model or ""), flags.hw or ""
    if "=" in machine or "," in machine:
        raise BadInput(f"--hw: {machine[:40]!r} names hardware per role; predict costs one pool, so name one")
    hardware = load_hardware(machine)
    phase: Phase = readers.read_choice(flags.phase, "--phase", get_args(Phase))
    _check_phase(flags, phase)
    strategy = _strategy(flags, model, hardware, phase)
    host, beams = host_costs(_engine(flags.engine)), readers.read_beams(flags.beams)
    pictures = readers.read_pictures(model.vision, model.name, flags.images, flags.video)
    prompt = readers.read_tokens(flags.isl, "--isl", 4096) + (pictures.tokens if pictures else 0)
    reuse = readers.read_fraction(flags.prefix_reuse, "--prefix-reuse", 0.0, below_one=True)
    concurrency = readers.read_tokens(flags.concurrency, "--concurrency", 1)
    spread = readers.read_fraction(flags.length_spread, "--length-spread", 0.0, below_one=True)
    configuration = Configuration(
        model=model,
        hardware=hardware,
        phase=phase,
        strategy=strategy,
        weights=readers.read_weights(flags.weights, model, hardware),
        kv_dtype=readers.read_choice(flags.kv_dtype, "--kv-dtype", get_args(KvDtype), "bf16"),
        balance=readers.read_balance(flags.expert_balance, flags.expert_skew, model),
        redundant=readers.read_redundant(flags.redundant_experts, model),
        shared=readers.read_shared(flags.shared_experts, model),
        drafts=readers.read_drafts(flags.mtp, model, beside=True) if beams == 1 else readers.undrafted(flags.mtp),
        beams=beams,
        acceptance=readers.read_acceptance(flags.mtp_acceptance),
        driven=readers.read_host(flags.graphs, flags.host_jitter),
        microbatches=readers.read_microbatches(flags.microbatches, model),
        batch=readers.read_tokens(flags.batch, "--batch", 1),
        kv_tokens=readers.read_tokens(flags.kv_len, "--kv-len", 4096),
        tokens=readers.read_tokens(flags.tokens, "--tokens", 8192),
        prompt_tokens=prompt,
        seen=None if pictures is None else Seen(pictures=pictures, prompt_tokens=prompt),
        output_tokens=readers.read_tokens(flags.osl, "--osl", 1024),
        prefix_reuse=reuse,
        cache_plane=None if flags.cache_plane is None else find_plane(hardware, flags.cache_plane).name,
        concurrency=concurrency,
        batched_tokens=readers.read_tokens(flags.max_batched_tokens, "--max-batched-tokens", round(DEFAULT_BUDGET)),
        length_spread=spread,
        host=host,
        requests=None if flags.requests is None else readers.read_tokens(flags.requests, "--requests", 1),
    )
    _check_lengths(configuration)
    _check_split(flags, configuration)
    return configuration


def _engine(text: str | None) -> str | None:
    """Return the engine whose costs are taken, with the version where one is given, older than profiles or not."""
    if text is None:
        return None
    name, _, version = text.strip().lower().partition("@")
    if version and not version.removeprefix("v")[:1].isdigit():
        raise BadInput(f"--engine: version {version[:20]!r} does not begin with a number, such as 0.18.0")
    return "@".join(filter(None, (load_engine(name).engine, version)))


def _check_phase(flags: PredictFlags, phase: Phase) -> None:
    """Refuse flags of another phase, and ask for the one that a phase cannot do without."""
    for field in fields(flags):
        phases = PHASES_OF_FLAG.get(field.name)
        if phases and phase not in phases and getattr(flags, field.name) is not None:
            raise BadInput(f"{flag_name(field.name)} belongs to --phase {' or '.join(phases)}; leave it out of {phase}")
    if phase == "decode" and flags.batch is not None and flags.requests is not None:
        raise BadInput("--requests counts the whole instance and --batch one DP rank; give one of them")
    needed, meant = NEEDED[phase]
    if getattr(flags, needed) is None and not (phase == "decode" and flags.requests is not None):
        raise BadInput(f"{flag_name(needed)} is missing; --phase {phase} needs the {meant}")


def _strategy(flags: PredictFlags, model: ModelSpec, hardware: HardwareSpec, phase: Phase) -> Strategy:
    strategy = parse_strategy(flags.strategy or "", moe=model.moe is not None)
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
    if configuration.phase == "mixed" and configuration.concurrency > MOST_OPEN:
        raise BadInput(
            f"--concurrency: {configuration.concurrency:.0f} open requests are more than the {MOST_OPEN} that are "
            f"played one by one; use at most {MOST_OPEN}"
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


def strategy_text(asked: Configuration) -> str:
    """Return the strategy in the notation of ``--strategy``."""
    return format_strategy(asked.strategy, moe=asked.model.moe is not None)


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
        pictured = asked.seen.pictures.tokens if asked.seen else 0
        taken |= {"isl": asked.prompt_tokens - pictured, "prefix_reuse": asked.prefix_reuse}
    if asked.phase == "mixed":
        taken |= picked(asked, "osl=output_tokens max_batched_tokens=batched_tokens length_spread")
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
    named = {name: value for name, value in taken.items() if left_open(getattr(flags, name))}
    named |= unasked(answer)
    if asked.model.moe is not None and asked.balance.kind in ("measured", "none") and asked.strategy.moe_ep > 1:
        named["expert_load_distribution"] = f"{asked.balance.distribution.name}: {asked.balance.distribution.source}"
    return named


def unasked(answer: Prediction) -> dict[str, object]:
    """Return what moved the answer and has no flag: how a closed loop is run, and what a pool holds."""
    asked, taken = answer.configuration, dict[str, object]()
    if told := untimed(asked.host.engine, asked.hardware):
        taken["engine_times"] = told
    if asked.phase == "mixed":
        host = format_duration(asked.host.request_seconds + (ADMISSION_SECONDS if asked.host.engine else 0.0))
        tokens = format_duration(1000 * asked.host.token_seconds)
        taken["closed_loop"] = (
            f"{WAVES} requests per open one, the first all at once; {host} of host in each TTFT and {tokens} per 1,000 "
            "prompt tokens, one prompt after another"
        )
    if asked.cache_plane and asked.prefix_reuse:
        held = prefixes_held(answer.deployment, asked.prompt_tokens * asked.prefix_reuse)
        pool = f"{format_bytes(POOL_BYTES)} on plane {asked.cache_plane}"
        taken["prefix_pool"] = f"a pool of {pool} holds {format_count(held)} such prefixes"
    return taken
