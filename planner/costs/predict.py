"""One configuration, every operator: what ``plan predict`` answers."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ground.errors import BadInput
from hardware.engines import with_engine
from hardware.formats import KvDtype
from hardware.spec import Dtype, HardwareSpec
from models.parameters import Seen
from models.spec import ModelSpec
from planner.balance.imbalance import Balance
from planner.costs.breakdown import Operator, operators
from planner.costs.deployment import (
    DRIVEN,
    Deployment,
    Host,
    Phase,
    Shared,
    check_disaggregation,
    check_slots,
    redundancy_choices,
    shared_choices,
)
from planner.costs.interval import Interval, interval, loop_interval, scaled
from planner.costs.latency import balanced_cost, decode_load, prefill_passes
from planner.costs.memory import Memory, expert_device_memory, kv_capacity_tokens, memory
from planner.engines.behaviour import HostCosts
from planner.engines.loader import accelerator_of, engine_names, load_engine, on_pcie
from planner.engines.rules import OVERLAP_CHECKS, Setup, broken_rule
from planner.manifest.drafts import Acceptance, tokens_per_iteration
from planner.manifest.stepcost import StepSeconds, evaluate, evaluate_best
from planner.manifest.terms import StepCost, StepLoad
from planner.serving.rules import rule_of_engine
from planner.strategy import Strategy

if TYPE_CHECKING:
    from planner.costs.extrapolation import Extrapolated
    from planner.serving.benchmark import Benchmark, Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What one prediction is asked for; None means that podplan chooses.

    ``batch`` requests per DP rank (decode), ``tokens`` prompt tokens per device and pass (prefill),
    ``concurrency`` requests in the instance (mixed). ``requests`` puts that many requests into the
    whole instance instead of filling every rank alike; of a closed loop's at most
    ``sequences`` run at once on a DP rank. ``length_spread`` lets prompts and answers of the
    closed loop vary evenly by that share around their means; its prompts wait as ``SchedulingRule`` says for
    ``wait_steps`` or ``wait_share`` of the budget, and for those of other ranks ``balance_steps``. ``cache_plane``
    brings the reused prefixes of a prefill pass from a pool; None: they are in device memory.
    """

    model: ModelSpec
    hardware: HardwareSpec
    phase: Phase
    strategy: Strategy
    weights: Dtype
    kv_dtype: KvDtype = "bf16"
    balance: Balance = Balance(kind="measured")
    redundant: int | None = None
    shared: Shared = "auto"
    drafts: int = 0
    beams: int = 1
    seen: Seen | None = None
    acceptance: Acceptance = 0.7
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
    sequences: int | None = None
    length_spread: float = 0.0
    wait_steps: int = 0
    wait_share: float = 0.0
    balance_steps: int = 0
    cache_plane: str | None = None
    host: HostCosts = field(default_factory=HostCosts)
    driven: Host = DRIVEN


class Step(NamedTuple):
    """A step that the answer rests on, and its weight in the mean iteration."""

    load: StepLoad
    timed: StepSeconds
    weight: float

    @property
    def seconds(self) -> float:
        """Its duration."""
        return float(self.timed.seconds)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Answer for one configuration; times in seconds, rates per second."""

    configuration: Configuration
    deployment: Deployment
    cost: StepCost
    steps: tuple[Step, ...]
    microbatches: int
    memory: Memory
    expert_memory: Memory | None = None
    tpot_seconds: float | None = None
    ttft_seconds: float | None = None
    tokens_per_second: float
    computed_tokens_per_second: float | None = None
    tokens_per_iteration_per_request: float = 1.0

    @cached_property
    def iteration_seconds(self) -> float:
        """The mean iteration."""
        return sum(step.seconds * step.weight for step in self.steps)

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The mean iteration broken down."""
        parts = [(operators(self.cost, step.load, step.timed), step.weight) for step in self.steps]
        return parts[0][0] if len(parts) == 1 else _merged(parts)

    @property
    def about_seconds(self) -> float:
        """The duration that ``interval`` is of: TTFT of prefill, else TPOT, or the mean iteration of single tokens."""
        own = self.ttft_seconds if self.configuration.phase == "prefill" else self.tpot_seconds
        return own or self.iteration_seconds

    @cached_property
    def interval(self) -> Interval:
        """The 80 % interval of ``about_seconds``."""
        return scaled(self._iteration_interval, self.about_seconds / self.iteration_seconds)

    @property
    def ttft_interval(self) -> Interval | None:
        """Of the TTFT of a closed loop."""
        if self.configuration.phase != "mixed" or not self.ttft_seconds:
            return None
        return loop_interval(self.ttft_seconds, self._iteration_interval, self.iteration_seconds)

    @cached_property
    def _iteration_interval(self) -> Interval:
        return interval(self.iteration_seconds, self.operators, phase=self.configuration.phase)

    @property
    def devices(self) -> int:
        """Devices of the instance."""
        return self.configuration.strategy.devices

    @property
    def chips(self) -> float:
        """Chips of the instance."""
        return self.devices / self.deployment.hardware.devices_per_chip.value

    @property
    def fits(self) -> bool:
        """Whether every device of the instance holds what it must; disaggregated, both kinds of devices."""
        return bool(self.memory.fits) and (self.expert_memory is None or bool(self.expert_memory.fits))

    @property
    def bottleneck(self) -> str:
        """What most of the exposed time is bound by."""
        totals: dict[str, float] = {}
        for operator in self.operators:
            totals[operator.bound] = totals.get(operator.bound, 0.0) + operator.exposed_seconds
        return max(totals, key=lambda bound: totals[bound])

    @property
    def extrapolated(self) -> "tuple[Extrapolated, ...]":
        """Operators of any step outside what was measured, each once."""
        from planner.costs.extrapolation import extrapolated  # reads the measurements, which only `plan predict` needs

        name = self.deployment.hardware.name
        steps = [step for step in self.steps if step.weight > 0]
        rows = [row for s in steps for row in extrapolated(name, self.cost, s.load, s.timed.microbatches)]
        return tuple({row.operator: row for row in rows}.values())


def predict(configuration: Configuration) -> Prediction:
    """Return the prediction of one configuration, the fastest expert layout that fits where that is left open.

    Raises BadInput where slots do not divide or nothing about the layout is possible.
    """
    if configuration.microbatches is None and not overlaps(configuration):
        configuration = replace(configuration, microbatches=1)
    answers = [_predicted(configuration, layout) for layout in expert_layouts(configuration)]
    fitting = [answer for answer in answers if answer.fits] or answers
    return min(fitting, key=lambda answer: answer.iteration_seconds)


def overlaps(asked: Configuration) -> bool:
    """Whether the engine overlaps two microbatches in a layout; the reference runtime does in every one."""
    name, moe = (asked.host.engine or "reference").partition("@")[0], asked.model.moe
    if name == "reference" or name not in engine_names():
        return True
    setup = Setup(
        strategy=asked.strategy,
        role=asked.phase,
        devices_per_node=int(asked.hardware.devices_per_node.value),
        experts=moe.experts if moe else 0,
        accelerator=accelerator_of(asked.hardware),
        pcie=on_pcie(asked.hardware),
        architecture=asked.model.architecture,
        microbatches=2,
    )
    return broken_rule(load_engine(name), setup, OVERLAP_CHECKS) is None


def expert_layouts(configuration: Configuration) -> list[Deployment]:
    """Return the deployments that the redundancy and shared-expert settings allow (``costs.deployment``).

    Raises BadInput where there is none.
    """
    check_disaggregation(configuration.strategy, configuration.phase)
    base = Deployment(
        model=configuration.model,
        hardware=with_engine(configuration.hardware, configuration.host.engine),
        strategy=configuration.strategy,
        phase=configuration.phase,
        weights=configuration.weights,
        kv_dtype=configuration.kv_dtype,
        drafts=configuration.drafts,
        beams=configuration.beams if configuration.phase == "decode" else 1,
        seen=configuration.seen,
        host_seconds=configuration.host.step_seconds,
        host=configuration.driven,
        engine=configuration.host.engine,
        prefix_plane=configuration.cache_plane if configuration.phase == "prefill" else None,
    )
    moe, strategy, layouts = configuration.model.moe, configuration.strategy, []
    for shared in shared_choices(moe, strategy, configuration.shared, configuration.phase == "decode"):
        for redundant in redundancy_choices(moe, strategy, shared, configuration.redundant):
            layout = replace(base, redundant=redundant, shared_ranks=shared)
            check_slots(layout)
            layouts.append(layout)
    if not layouts:
        raise BadInput(
            f"--redundant-experts: no number of replicas divides {configuration.model.name}'s experts over "
            f"EP={strategy.moe_ep}; use an EP degree of at most twice its experts"
        )
    return layouts


def _predicted(configuration: Configuration, deployment: Deployment) -> Prediction:
    cost = balanced_cost(deployment, configuration.balance)
    if configuration.phase == "decode":
        return _decode(configuration, deployment, cost)
    if configuration.phase == "prefill":
        return _quickest_prefill(configuration, deployment, cost)
    return _mixed(configuration, deployment, cost)


def _merged(parts: list[tuple[tuple[Operator, ...], float]]) -> tuple[Operator, ...]:
    """Weighted sum of breakdowns with the same operators."""
    total: dict[str, list[tuple[Operator, float]]] = {}
    for rows, weight in parts:
        for row in rows:
            total.setdefault(row.name, []).append((row, weight))
    return tuple(_sum(rows) for rows in total.values())


def _sum(rows: list[tuple[Operator, float]]) -> Operator:
    """Weighted sum of one operator's rows; what it is bound by is that of the longest."""
    longest = max(rows, key=lambda pair: pair[0].exposed_seconds * pair[1])[0]
    return replace(
        longest,
        seconds=sum(row.seconds * weight for row, weight in rows),
        exposed_seconds=sum(row.exposed_seconds * weight for row, weight in rows),
        flops=sum(row.flops * weight for row, weight in rows),
        bytes=sum(row.bytes * weight for row, weight in rows),
        message_bytes=sum(row.message_bytes * weight for row, weight in rows),
    )


def _spread(configuration: Configuration, each: float) -> tuple[float, float]:
    """Requests on the busiest and on the mean DP rank."""
    ranks = configuration.strategy.attention_groups
    if configuration.requests is None:
        return each, each
    return float(-(-configuration.requests // ranks)), configuration.requests / ranks


def _timed(cost: StepCost, load: StepLoad, microbatches: int | None) -> StepSeconds:
    """Return the duration of a step in so many microbatches, or in those that take least."""
    return evaluate_best(cost, load) if microbatches is None else evaluate(cost, load, microbatches)


def _decode(configuration: Configuration, deployment: Deployment, cost: StepCost) -> Prediction:
    busiest, mean = _spread(configuration, configuration.batch)
    load = decode_load(deployment, busiest, configuration.kv_tokens, mean)
    timed = _timed(cost, load, configuration.microbatches)
    accepted = tokens_per_iteration(int(deployment.drafts), configuration.acceptance)
    tpot = float(timed.seconds) / accepted
    return Prediction(
        configuration=configuration,
        deployment=deployment,
        cost=cost,
        steps=(Step(load, timed, 1.0),),
        memory=memory(
            deployment,
            kv_tokens=busiest * configuration.kv_tokens,
            sequences=busiest,
            tokens=busiest * cost.queries_per_sequence / configuration.strategy.pp,
        ),
        expert_memory=expert_device_memory(deployment, busiest * cost.queries_per_sequence),
        tpot_seconds=tpot,
        tokens_per_second=mean * configuration.strategy.attention_groups / tpot,
        tokens_per_iteration_per_request=accepted,
        microbatches=timed.microbatches,
    )


def _quickest_prefill(configuration: Configuration, deployment: Deployment, cost: StepCost) -> Prediction:
    """Load reused prefixes from their pool, or compute them anew where that is quicker."""
    loaded = _prefill(configuration, deployment, cost)
    if not cost.loading_seconds or not configuration.prefix_reuse:
        return loaded
    anew = _prefill(replace(configuration, prefix_reuse=0.0), deployment, cost)
    return min(loaded, replace(anew, configuration=configuration), key=lambda answer: answer.about_seconds)


def _prefill(configuration: Configuration, deployment: Deployment, cost: StepCost) -> Prediction:
    passes = prefill_passes(deployment, configuration.tokens, configuration.prompt_tokens, configuration.prefix_reuse)
    steps = []
    for each in passes:
        load = _alone(configuration, each.load)
        steps.append(Step(load, _timed(cost, load, configuration.microbatches), 1 / len(passes)))
    ttft = sum(step.seconds for step in steps)
    prompts = sum(each.tokens for each in passes) * configuration.strategy.attention_dp
    if configuration.requests is not None:
        prompts = configuration.requests * configuration.prompt_tokens
    loads = [step.load for step in steps]
    kv_tokens = max(float(load.prefill_tokens) + float(load.prefill_context_tokens) for load in loads)
    prompts_held = max(kv_tokens / configuration.prompt_tokens, 1.0)
    widest = max(float(load.prefill_tokens) for load in loads)
    return Prediction(
        configuration=configuration,
        deployment=deployment,
        cost=cost,
        steps=tuple(steps),
        memory=memory(
            deployment, kv_tokens=kv_tokens, sequences=prompts_held, tokens=widest / configuration.strategy.pp
        ),
        ttft_seconds=ttft,
        tokens_per_second=prompts / ttft,
        computed_tokens_per_second=prompts * (1 - configuration.prefix_reuse) / ttft,
        microbatches=steps[-1].timed.microbatches,
    )


def _alone(configuration: Configuration, load: StepLoad) -> StepLoad:
    """The load when only ``requests`` prompts are in the pass: their number on the busiest and the mean rank."""
    if configuration.requests is None:
        return load
    busiest, mean = _spread(configuration, 1.0)
    prompts = max(float(load.prefill_tokens) / (configuration.prompt_tokens * (1 - configuration.prefix_reuse)), 1e-12)
    factor = busiest / prompts if prompts >= 1 else busiest
    return load._replace(
        prefill_tokens=load.prefill_tokens * factor,
        prefill_context_tokens=load.prefill_context_tokens * factor,
        loaded_tokens=load.loaded_tokens * factor,
        prefill_pairs=load.prefill_pairs * factor,
        finishing_prompts=load.finishing_prompts * factor,
        mean_tokens=load.mean_tokens * factor * mean / busiest,
    )


def _mixed(configuration: Configuration, deployment: Deployment, cost: StepCost) -> Prediction:
    from planner.serving.benchmark import measure  # the search predicts roles of their own

    run = _benchmark(configuration, deployment)
    seen = measure(cost, run)
    steps = _mixed_steps(cost, seen, configuration.microbatches)
    residence = seen.ttft_seconds + seen.tpot_seconds * max(configuration.output_tokens - 1, 1.0)
    return Prediction(
        configuration=configuration,
        deployment=deployment,
        cost=cost,
        steps=steps,
        memory=_mixed_memory(configuration, deployment),
        tpot_seconds=seen.tpot_seconds,
        ttft_seconds=seen.ttft_seconds,
        tokens_per_second=configuration.concurrency * configuration.output_tokens / residence,
        tokens_per_iteration_per_request=run.accepted,
        microbatches=max(steps, key=lambda step: step.weight).timed.microbatches,
    )


def _benchmark(configuration: Configuration, deployment: Deployment) -> "Benchmark":
    """The closed loop under the engine's rule; KV that holds no lone request counts as ample, and does not fit."""
    from planner.serving.benchmark import Benchmark

    engine = (configuration.host.engine or "").partition("@")[0]
    scheduling = load_engine(engine).scheduling if engine in engine_names() else None
    fixed = not configuration.prefix_reuse
    rule = rule_of_engine(scheduling, configuration.hardware.name, configuration.concurrency, fixed_lengths=fixed)
    capacity = float(kv_capacity_tokens(deployment, _mixed_memory(configuration, deployment)))
    longest = (configuration.prompt_tokens + configuration.output_tokens) * (1 + configuration.length_spread)
    return Benchmark(
        concurrency=math.ceil(configuration.concurrency),
        prompt_tokens=configuration.prompt_tokens,
        output_tokens=configuration.output_tokens,
        spread=configuration.length_spread,
        reuse=configuration.prefix_reuse,
        accepted=tokens_per_iteration(int(deployment.drafts), configuration.acceptance),
        ranks=configuration.strategy.attention_dp,
        budget_tokens=configuration.batched_tokens,
        capacity_tokens=capacity if capacity >= longest else math.inf,
        rule=rule._replace(
            wait_steps=configuration.wait_steps,
            wait_share=configuration.wait_share,
            balance_steps=configuration.balance_steps,
        ),
        request_seconds=configuration.host.request_seconds,
        token_seconds=configuration.host.token_seconds,
        microbatches=configuration.microbatches,
        slots=configuration.sequences,
    )


def _mixed_memory(configuration: Configuration, deployment: Deployment) -> Memory:
    busiest = float(-(-configuration.concurrency // configuration.strategy.attention_dp))
    busiest = min(busiest, configuration.sequences or math.inf)
    kv_tokens = busiest * (configuration.prompt_tokens + configuration.output_tokens / 2)
    tokens = configuration.batched_tokens / configuration.strategy.pp
    return memory(deployment, kv_tokens=kv_tokens, sequences=busiest, tokens=tokens)


def _mixed_steps(cost: StepCost, seen: "Measured", microbatches: int | None) -> tuple[Step, ...]:
    """The mean step without and the mean step with prompts, by their share."""
    loads = ((seen.decode_load, 1 - seen.prompt_steps), (seen.mixed_load, seen.prompt_steps))
    return tuple(Step(load, _timed(cost, load, microbatches), weight) for load, weight in loads)
