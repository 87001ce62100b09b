"""One configuration, every operator: what ``plan predict`` answers."""

from dataclasses import dataclass, replace
from typing import Literal

from hardware.spec import Dtype, HardwareSpec
from models.spec import ModelSpec
from planner.breakdown import Operator, operators
from planner.deployment import Deployment, Phase, check_slots
from planner.imbalance import Balance
from planner.interval import Interval, interval
from planner.latency import (
    balanced_cost,
    decode_load,
    prefill_passes,
    step_seconds,
    tokens_per_iteration,
)
from planner.manifest.terms import StepCost, StepLoad
from planner.memory import Memory, memory
from planner.mixed import ClosedLoop, MixedState, mixed_state
from planner.strategy import Strategy
from podplan.errors import BadInput

Shared = Literal["auto", "local"] | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What one prediction is asked for; None means that podplan chooses.

    ``batch`` requests per DP rank (decode), ``tokens`` prompt tokens per device and pass (prefill),
    ``concurrency`` requests in the instance (mixed). ``requests`` puts that many requests into the
    whole instance instead of filling every rank alike.
    """

    model: ModelSpec
    hardware: HardwareSpec
    phase: Phase
    strategy: Strategy
    weights: Dtype
    kv_dtype: Dtype = "bf16"
    balance: Balance = Balance(kind="measured")
    redundant: int | None = None
    shared: Shared = "auto"
    drafts: int = 0
    acceptance: float = 0.7
    microbatches: int | None = None
    batch: float = 1.0
    kv_tokens: float = 4096.0
    tokens: float = 8192.0
    prompt_tokens: float = 4096.0
    output_tokens: float = 1024.0
    prefix_reuse: float = 0.0
    concurrency: float = 1.0
    batched_tokens: float = 8192.0
    requests: int | None = None
    host_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Answer for one configuration; times in seconds, rates per second."""

    configuration: Configuration
    deployment: Deployment
    iteration_seconds: float
    tokens_per_iteration_per_request: float
    tpot_seconds: float | None
    ttft_seconds: float | None
    tokens_per_second: float
    computed_tokens_per_second: float | None
    microbatches: int
    memory: Memory
    operators: tuple[Operator, ...]
    interval: Interval

    @property
    def devices(self) -> int:
        """Devices of the instance."""
        return self.configuration.strategy.devices

    @property
    def chips(self) -> float:
        """Chips of the instance."""
        return self.devices / self.deployment.hardware.devices_per_chip.value

    @property
    def bottleneck(self) -> str:
        """What most of the exposed time is bound by."""
        totals: dict[str, float] = {}
        for operator in self.operators:
            totals[operator.bound] = totals.get(operator.bound, 0.0) + operator.exposed_seconds
        return max(totals, key=lambda bound: totals[bound])


def predict(configuration: Configuration) -> Prediction:
    """Return the prediction of one configuration, the fastest expert layout that fits where that is left open.

    Raises BadInput where slots do not divide or nothing about the layout is possible.
    """
    choices = expert_layouts(configuration)
    if len(choices) == 1:
        return _predict(configuration, choices[0])
    answers = [_predict(configuration, choice) for choice in choices]
    fitting = [answer for answer in answers if answer.memory.fits] or answers
    return min(fitting, key=lambda answer: answer.iteration_seconds)


def expert_layouts(configuration: Configuration) -> list[Deployment]:
    """Return the deployments that the redundancy and shared-expert settings allow.

    Redundancy auto: the fewest slots that divide evenly and one and two more per rank. Shared
    experts auto: a copy on every rank, or dedicated ranks in about the proportion of their tokens
    (one of k + 1 or k + 2 ranks, as CloudMatrix384's 32 of 320 and xDeepServe's 32 of 288).
    """
    base = Deployment(
        model=configuration.model,
        hardware=configuration.hardware,
        strategy=configuration.strategy,
        phase=configuration.phase,
        weights=configuration.weights,
        kv_dtype=configuration.kv_dtype,
        drafts=configuration.drafts,
        host_seconds=configuration.host_seconds,
    )
    layouts = []
    for shared in _shared_choices(configuration):
        for redundant in _redundancy_choices(configuration, shared):
            layout = replace(base, redundant=redundant, shared_ranks=shared)
            check_slots(layout)
            layouts.append(layout)
    if not layouts:
        raise BadInput(
            f"--redundant-experts: no number of replicas divides {configuration.model.name}'s experts over "
            f"EP={configuration.strategy.moe_ep}; use an EP degree of at most twice its experts"
        )
    return layouts


def _shared_choices(configuration: Configuration) -> list[int]:
    moe, ranks = configuration.model.moe, configuration.strategy.moe_ep
    if isinstance(configuration.shared, int):
        return [configuration.shared]
    if configuration.shared == "local" or moe is None or not moe.shared_experts or configuration.phase != "decode":
        return [0]
    parts = (moe.experts_per_token + 1, moe.experts_per_token + 2)
    if configuration.strategy.moe_tp > 1 or ranks <= moe.experts:
        return [0]
    dedicated = sorted({ranks // part for part in parts if ranks % part == 0 and ranks - ranks // part >= moe.experts})
    return [0, *dedicated]


def _redundancy_choices(configuration: Configuration, shared: int) -> list[int]:
    moe = configuration.model.moe
    if configuration.redundant is not None:
        return [configuration.redundant]
    if moe is None:
        return [0]
    ranks = configuration.strategy.moe_ep - shared
    if ranks < 1:
        return [0]
    least = -moe.experts % ranks
    most = min(moe.experts, moe.experts * (ranks - 1))
    return [extra for extra in (least, least + ranks, least + 2 * ranks) if extra <= most]


def _predict(configuration: Configuration, deployment: Deployment) -> Prediction:
    cost = balanced_cost(deployment, configuration.balance)
    if configuration.phase == "decode":
        return _decode(configuration, deployment, cost)
    if configuration.phase == "prefill":
        return _prefill(configuration, deployment, cost)
    return _mixed(configuration, deployment, cost)


def _spread(configuration: Configuration, each: float) -> tuple[float, float]:
    """Requests on the busiest and on the mean DP rank."""
    ranks = configuration.strategy.attention_dp
    if configuration.requests is None:
        return each, each
    return float(-(-configuration.requests // ranks)), configuration.requests / ranks


def _decode(configuration: Configuration, deployment: Deployment, cost: StepCost) -> Prediction:
    busiest, mean = _spread(configuration, configuration.batch)
    load = decode_load(deployment, busiest, configuration.kv_tokens, mean)
    seconds, microbatches = step_seconds(cost, load, configuration.microbatches)
    accepted = tokens_per_iteration(deployment.drafts, configuration.acceptance)
    rows = operators(cost, load, microbatches)
    requests = mean * configuration.strategy.attention_dp
    return Prediction(
        configuration=configuration,
        deployment=deployment,
        iteration_seconds=float(seconds),
        tokens_per_iteration_per_request=accepted,
        tpot_seconds=float(seconds) / accepted,
        ttft_seconds=None,
        tokens_per_second=requests * accepted / float(seconds),
        computed_tokens_per_second=None,
        microbatches=microbatches,
        memory=memory(
            deployment,
            kv_tokens=busiest * configuration.kv_tokens,
            tokens=busiest * cost.queries_per_sequence / (microbatches * deployment.strategy.pp),
        ),
        operators=rows,
        interval=interval(float(seconds) / accepted, _scaled(rows, 1 / accepted)),
    )


def _scaled(rows: tuple[Operator, ...], factor: float) -> tuple[Operator, ...]:
    """Operators with seconds and totals times a number."""
    return tuple(
        replace(
            row,
            seconds=row.seconds * factor,
            exposed_seconds=row.exposed_seconds * factor,
            flops=row.flops * factor,
            bytes=row.bytes * factor,
            message_bytes=row.message_bytes * factor,
        )
        for row in rows
    )


def _merged(parts: list[tuple[tuple[Operator, ...], float]]) -> tuple[Operator, ...]:
    """Weighted sum of breakdowns with the same operators."""
    total: dict[str, Operator] = {}
    for rows, weight in parts:
        for row in _scaled(rows, weight):
            known = total.get(row.name)
            total[row.name] = row if known is None else _added(known, row)
    return tuple(total.values())


def _added(one: Operator, other: Operator) -> Operator:
    longer = one if one.exposed_seconds >= other.exposed_seconds else other
    return replace(
        longer,
        seconds=one.seconds + other.seconds,
        exposed_seconds=one.exposed_seconds + other.exposed_seconds,
        flops=one.flops + other.flops,
        bytes=one.bytes + other.bytes,
        message_bytes=one.message_bytes + other.message_bytes,
    )


def _prefill(configuration: Configuration, deployment: Deployment, cost: StepCost) -> Prediction:
    passes = prefill_passes(
        deployment,
        configuration.tokens,
        configuration.prompt_tokens,
        configuration.prefix_reuse,
    )
    loads = [_alone(configuration, step.load) for step in passes]
    parts = []
    microbatches = 1
    for load in loads:
        seconds, microbatches = step_seconds(cost, load, configuration.microbatches)
        parts.append((float(seconds), operators(cost, load, microbatches)))
    ttft = sum(seconds for seconds, _ in parts)
    rows = _merged([(breakdown, 1 / len(parts)) for _, breakdown in parts])
    groups = configuration.strategy.attention_dp
    prompts = sum(step.tokens for step in passes) * groups
    if configuration.requests is not None:
        prompts = configuration.requests * configuration.prompt_tokens
    kv_tokens = max(float(load.prefill_tokens) + float(load.prefill_context_tokens) for load in loads)
    widest = max(float(load.prefill_tokens) for load in loads)
    return Prediction(
        configuration=configuration,
        deployment=deployment,
        iteration_seconds=ttft / len(parts),
        tokens_per_iteration_per_request=1.0,
        tpot_seconds=None,
        ttft_seconds=ttft,
        tokens_per_second=prompts / ttft,
        computed_tokens_per_second=prompts * (1 - configuration.prefix_reuse) / ttft,
        microbatches=microbatches,
        memory=memory(deployment, kv_tokens=kv_tokens, tokens=widest / (microbatches * deployment.strategy.pp)),
        operators=rows,
        interval=interval(ttft, _scaled(rows, float(len(parts)))),
    )


def _alone(configuration: Configuration, load: StepLoad) -> StepLoad:
    """The load when only ``requests`` prompts are in the pass: their number on the busiest and the mean rank."""
    if configuration.requests is None:
        return load
    busiest, mean = _spread(configuration, 1.0)
    prompts = max(float(load.prefill_tokens) / (configuration.prompt_tokens * (1 - configuration.prefix_reuse)), 1e-12)
    factor = busiest / prompts if prompts >= 1 else busiest
    return replace(
        load,
        prefill_tokens=load.prefill_tokens * factor,
        prefill_context_tokens=load.prefill_context_tokens * factor,
        prefill_pairs=load.prefill_pairs * factor,
        finishing_prompts=load.finishing_prompts * factor,
        mean_tokens=load.mean_tokens * factor * mean / busiest,
    )


def _mixed(configuration: Configuration, deployment: Deployment, cost: StepCost) -> Prediction:
    groups = configuration.strategy.attention_dp
    accepted = tokens_per_iteration(deployment.drafts, configuration.acceptance)
    busiest = float(-(-configuration.concurrency // groups))
    filled = configuration.concurrency / (groups * busiest)
    loop = ClosedLoop(
        concurrency=busiest,
        prompt_tokens=configuration.prompt_tokens,
        output_tokens=configuration.output_tokens,
        batched_tokens=configuration.batched_tokens,
        reuse=configuration.prefix_reuse,
        acceptance_tokens=accepted,
        filled=filled,
    )
    state = mixed_state(cost, loop, configuration.microbatches)
    rows = _mixed_operators(cost, state, configuration.microbatches)
    kv_tokens = loop.concurrency * (configuration.prompt_tokens + configuration.output_tokens / 2)
    rate = state.requests_per_second * groups * filled
    return Prediction(
        configuration=configuration,
        deployment=deployment,
        iteration_seconds=state.step_seconds,
        tokens_per_iteration_per_request=accepted,
        tpot_seconds=state.tpot_seconds,
        ttft_seconds=state.ttft_seconds,
        tokens_per_second=rate * configuration.output_tokens,
        computed_tokens_per_second=None,
        microbatches=state.microbatches,
        memory=memory(deployment, kv_tokens=kv_tokens, tokens=configuration.batched_tokens),
        operators=rows,
        interval=interval(state.tpot_seconds, _scaled(rows, state.tpot_seconds / state.step_seconds)),
    )


def _mixed_operators(cost: StepCost, state: MixedState, microbatches: int | None) -> tuple[Operator, ...]:
    parts = []
    for load, weight in ((state.decode_load, 1 - state.prompt_steps), (state.mixed_load, state.prompt_steps)):
        _, chosen = step_seconds(cost, load, microbatches)
        parts.append((operators(cost, load, chosen), weight))
    return _merged(parts)
