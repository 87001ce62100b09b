"""A plan at its operating point: two pools, their instances, and what they do together."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from planner.decode_candidates import DecodeCandidate
from planner.decode_queue import DecodeState
from planner.hostcosts import host_costs
from planner.latency import decode_load
from planner.memory import Memory, memory
from planner.operating import DecodeServer, PrefillServer, kv_transfer_seconds
from planner.predict import Configuration, Prediction, predict
from planner.prefill_candidates import PrefillCandidate
from planner.question import Machines, Question
from planner.queueing import Latency, independent_sum
from planner.workload import running_kv_tokens


@dataclass(frozen=True, kw_only=True)
class PrefillPool:
    """Prefill instances at the planned rate; ``prediction`` is of a full pass."""

    question: Question
    candidate: PrefillCandidate
    machines: Machines
    instances: int
    capacity_per_second: float
    utilisation: float

    @cached_property
    def prediction(self) -> Prediction:
        """Every operator of a full pass."""
        return prefill_prediction(self.question, self.candidate)

    @cached_property
    def memory(self) -> Memory:
        """Bytes per device with the KV of a running pass and of one that is being sent."""
        return prefill_memory(self.question, self.candidate)


@dataclass(frozen=True, kw_only=True)
class DecodePool:
    """Decode instances at the planned rate; ``prediction`` is of the full batch."""

    question: Question
    candidate: DecodeCandidate
    machines: Machines
    instances: int
    capacity_per_second: float
    utilisation: float
    state: DecodeState

    @cached_property
    def prediction(self) -> Prediction:
        """Every operator of an iteration with the full batch."""
        return decode_prediction(self.question, self.candidate)

    @cached_property
    def memory(self) -> Memory:
        """Bytes per device with the mean KV of a full batch."""
        return decode_memory(self.question, self.candidate)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Prefill and decode pools that serve ``requests_per_second`` within the limits."""

    question: Question
    prefill: PrefillPool
    decode: DecodePool
    requests_per_second: float
    ttft: Latency
    tpot: Latency
    transfer_seconds: float

    def pools(self) -> tuple[tuple[str, PrefillPool | DecodePool], ...]:
        """Return the pools with their roles, prefill first."""
        return ("prefill", self.prefill), ("decode", self.decode)

    @property
    def binding_limit(self) -> str:
        """What stops the plan from doing more."""
        return binding_limit(self.question, self.prefill, self.decode)

    @property
    def explanation(self) -> str:
        """The binding limit in one sentence, with its numbers."""
        return explain_binding(self.prefill, self.decode, self.binding_limit)

    @property
    def devices(self) -> int:
        """Devices of all instances."""
        return sum(pool.instances * pool.candidate.devices for pool in (self.prefill, self.decode))

    @property
    def chips(self) -> float:
        """Chips of all instances."""
        return sum(
            pool.instances * pool.candidate.devices / pool.machines.devices_per_chip
            for pool in (self.prefill, self.decode)
        )

    @property
    def nodes(self) -> int:
        """Nodes that the instances occupy when they fill node after node."""
        devices: dict[str, tuple[int, int]] = {}
        for pool in (self.prefill, self.decode):
            used, _ = devices.get(pool.machines.budget, (0, 0))
            devices[pool.machines.budget] = (
                used + pool.instances * pool.candidate.devices,
                pool.machines.devices_per_node,
            )
        return sum(math.ceil(used / per_node) for used, per_node in devices.values())

    @property
    def output_tokens_per_second(self) -> float:
        """Output tokens of all requests."""
        return self.requests_per_second * self.question.workload.output_tokens.mean

    @cached_property
    def e2e(self) -> Latency:
        """Time from scheduled arrival to the last token."""
        return end_to_end(self.ttft, self.decode.state, self.question.workload.output_tokens.mean - 1)

    @property
    def e2e_mean_seconds(self) -> float:
        """Mean time from scheduled arrival to the last token."""
        return self.e2e.mean

    def e2e_at(self, percentile: float) -> float:
        """Percentile of the time from scheduled arrival to the last token."""
        return self.e2e.at(percentile)

    @property
    def cost_per_million_tokens(self) -> float | None:
        """Price in USD per million output tokens; None where a pool's chip has no price."""
        hourly = 0.0
        for pool in (self.prefill, self.decode):
            price = pool.machines.hardware.price_usd_per_chip_hour
            if price is None:
                return None
            hourly += price.value * pool.instances * pool.candidate.devices / pool.machines.devices_per_chip
        return hourly / (self.output_tokens_per_second * 3600) * 1_000_000


def end_to_end(ttft: Latency, decode: DecodeState, tokens_after_first: float) -> Latency:
    """Time from scheduled arrival to the last token: TTFT and decode are about independent.

    Not TPOT times a mean length: long answers spread it, and short ones have the long TPOT.
    """
    return independent_sum(ttft, decode.span) if tokens_after_first > 0 else ttft


def make_plan(
    question: Question,
    prefill: tuple[PrefillServer, int, float],
    decode: tuple[DecodeServer, int, float],
    rate_per_second: float,
) -> Plan | None:
    """Return the plan of (server, instances, rate of one instance) per role at a rate; None where it cannot keep up."""
    (first, first_count, first_rate), (second, second_count, second_rate) = prefill, decode
    ttft = first.ttft(rate_per_second / first_count, first_count)
    transfer = kv_transfer_seconds(question, first.candidate.deployment)
    if transfer != second.transfer_seconds:
        second = replace(second, transfer_seconds=transfer)
    state = second.state(rate_per_second / second_count)
    if ttft is None or state is None:
        return None
    prefill_pool = PrefillPool(
        question=question,
        candidate=first.candidate,
        machines=question.prefill,
        instances=first_count,
        capacity_per_second=first_count * first_rate,
        utilisation=rate_per_second / (first_count * first.candidate.requests_per_second),
    )
    decode_pool = DecodePool(
        question=question,
        candidate=second.candidate,
        machines=question.decode,
        instances=second_count,
        capacity_per_second=second_count * second_rate,
        utilisation=state.utilisation,
        state=state,
    )
    return Plan(
        question=question,
        prefill=prefill_pool,
        decode=decode_pool,
        requests_per_second=rate_per_second,
        ttft=ttft,
        tpot=state.tpot,
        transfer_seconds=transfer,
    )


def same_pools(plan: Plan, question: Question) -> Callable[[float], Plan | None]:
    """Return what the pools of a plan do under a question, by the rate; None where they cannot keep up."""
    prefill, decode = plan.prefill, plan.decode
    first = PrefillServer(question, prefill.candidate)
    second = DecodeServer(question, decode.candidate, plan.transfer_seconds)
    pools = (
        (first, prefill.instances, prefill.capacity_per_second / prefill.instances),
        (second, decode.instances, decode.capacity_per_second / decode.instances),
    )
    return lambda rate_per_second: make_plan(question, *pools, rate_per_second)


def decode_prediction(question: Question, candidate: DecodeCandidate) -> Prediction:
    """Every operator of the full batch at the workload's mean KV."""
    return predict(
        Configuration(
            model=question.model,
            hardware=question.decode.hardware,
            phase="decode",
            strategy=candidate.row.strategy,
            weights=question.decode.weights,
            kv_dtype=question.kv_dtype,
            balance=question.balance,
            redundant=candidate.row.redundant,
            shared=candidate.row.dedicated,
            drafts=candidate.drafts,
            acceptance=question.acceptance,
            microbatches=candidate.microbatches,
            batch=candidate.batch,
            kv_tokens=running_kv_tokens(question.workload).mean_tokens,
            host=host_costs(None if question.engine == "reference" else question.engine),
        )
    )


def prefill_prediction(question: Question, candidate: PrefillCandidate) -> Prediction:
    """Every operator of a full pass of prompts of mean length."""
    return predict(
        Configuration(
            model=question.model,
            hardware=question.prefill.hardware,
            phase="prefill",
            strategy=candidate.row.strategy,
            weights=question.prefill.weights,
            kv_dtype=question.kv_dtype,
            balance=question.balance,
            redundant=candidate.row.redundant,
            shared=candidate.row.dedicated,
            microbatches=candidate.microbatches,
            tokens=candidate.tokens_per_device,
            prompt_tokens=question.workload.input_tokens.mean,
            prefix_reuse=question.workload.prefix_reuse,
        )
    )


def decode_memory(question: Question, candidate: DecodeCandidate) -> Memory:
    """Bytes per device with the mean KV of a full batch."""
    load = decode_load(candidate.deployment, candidate.batch, running_kv_tokens(question.workload).mean_tokens)
    tokens = candidate.batch * (1 + candidate.drafts) / candidate.row.strategy.pp
    return memory(
        candidate.deployment, kv_tokens=load.decode_kv_tokens, sequences=float(candidate.batch), tokens=tokens
    )


def prefill_memory(question: Question, candidate: PrefillCandidate) -> Memory:
    """Bytes per device with the KV of a running pass and of one that is being sent."""
    prompt = question.workload.input_tokens.mean
    computed = candidate.prompts * prompt * (1 - question.workload.prefix_reuse) / candidate.chunks
    tokens = computed / candidate.row.strategy.pp
    prompts = 2.0 * candidate.prompts
    return memory(candidate.deployment, kv_tokens=prompts * prompt, sequences=prompts, tokens=tokens)


def binding_limit(question: Question, prefill: PrefillPool, decode: DecodePool) -> str:
    """Name what stops the plan from doing more: the tighter pool's limit, behind it the devices."""
    if question.rate_per_second is not None and question.objective != "throughput":
        return "rate"
    tighter_decode = decode.capacity_per_second <= prefill.capacity_per_second
    limit = decode.candidate.limited_by if tighter_decode else "ttft"
    return f"devices, {'decode' if tighter_decode else 'prefill'} {limit}"


def explain_binding(prefill: PrefillPool, decode: DecodePool, binding: str) -> str:
    """One sentence with the numbers behind the binding limit."""
    batch, limit = decode.candidate.batch, "TPOT" if decode.candidate.limited_by == "tpot" else "memory"
    return (
        f"Decode runs {batch} requests per DP rank because {limit} allows no more, and is bound by "
        f"{decode.prediction.bottleneck}; a prefill pass is bound by {prefill.prediction.bottleneck}; the pools carry "
        f"{prefill.capacity_per_second:.1f} (prefill) and {decode.capacity_per_second:.1f} (decode) requests/s, and "
        f"the smaller of them on the devices at hand is the plan's rate ({binding})."
    )
