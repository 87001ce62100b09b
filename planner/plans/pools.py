"""Pools of a plan: identical instances at the planned rate, the operators of their full step, and their memory.

Requests that leave a pool of encode instances are the arrivals at the next role.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from ground.arrays import Floats
from planner.closed_forms.birth_death import DecodeState
from planner.costs.memory import Memory, kv_capacity_tokens, memory
from planner.costs.predict import Configuration, Prediction, predict
from planner.engines.behaviour import HostCosts, host_costs
from planner.instances.candidates import Candidate, DecodeCandidate, PrefillCandidate
from planner.instances.encoding import before, behind, embedding_seconds
from planner.instances.operating import DecodeServer, PrefillServer
from planner.instances.space import Role, Row, machines_of
from planner.question import Machines, Question
from planner.serving.latency import Latency, independent_sum, one_or_other
from planner.serving.played import MANY
from planner.serving.prefill import play_prefill
from planner.serving.streams import Stream, decoded_share, stationary
from planner.workload import Workload, running_kv_tokens

WHY_BATCH = {
    "batch": "as is given",
    "memory": "as memory holds no more",
    "tpot": "with which the largest rate keeps TPOT",
}
"""Reasons for a decode batch, by what limits it."""
ROUNDING = 1e-6  # relative distance within which a rate reaches a limit of it


@dataclass(frozen=True, kw_only=True)
class PlannedPool:
    """Identical instances at the planned rate; ``prediction`` is that of a full step."""

    role: ClassVar[Role]

    question: Question
    candidate: Candidate
    machines: Machines
    instances: int
    capacity_per_second: float
    utilisation: float

    @property
    def drafts(self) -> int:
        """Drafted tokens per iteration; 0 for prefill."""
        return self.candidate.drafts

    @cached_property
    def prediction(self) -> Prediction:
        """Every operator of a full step."""
        raise NotImplementedError

    @cached_property
    def memory(self) -> Memory:
        """Bytes per device of a full instance."""
        raise NotImplementedError

    @property
    def devices(self) -> int:
        """Devices of all instances."""
        return self.instances * self.candidate.devices

    @property
    def chips(self) -> float:
        """Chips of all instances."""
        return self.devices / self.machines.devices_per_chip


@dataclass(frozen=True, kw_only=True)
class PlannedPrefill(PlannedPool):
    """Prefill instances at the planned rate; ``prediction`` is that of a full pass."""

    role: ClassVar[Role] = "prefill"
    candidate: PrefillCandidate
    limit: str  # what the capacity reaches: utilisation, TTFT or the KV links

    def server(self, question: Question) -> PrefillServer:
        """Return the server of one instance under a question."""
        return PrefillServer(behind(question), self.candidate)

    @cached_property
    def prediction(self) -> Prediction:
        """Every operator of a full pass."""
        return prefill_prediction(self.question, self.candidate)

    @cached_property
    def memory(self) -> Memory:
        """Bytes per device with the KV of a running pass and of one that is being sent."""
        question = self.question
        candidate = self.candidate
        prompt = question.workload.input_tokens.mean
        computed = candidate.prompts * prompt * (1 - question.workload.prefix_reuse) / candidate.chunks
        tokens = computed / candidate.row.strategy.pp
        prompts = 2.0 * candidate.prompts
        return memory(candidate.deployment, kv_tokens=prompts * prompt, sequences=prompts, tokens=tokens)

    @property
    def room_prompts(self) -> float:
        """Prompts of mean length whose KV one instance holds."""
        capacity = kv_capacity_tokens(self.candidate.deployment, self.memory)
        return self.candidate.row.strategy.attention_dp * capacity // self.question.workload.input_tokens.mean


@dataclass(frozen=True, kw_only=True)
class PlannedEncode(PlannedPrefill):
    """Encode instances at the planned rate; ``prediction`` is that of a full pass of picture tokens."""

    role: ClassVar[Role] = "encode"
    latency: Latency  # time from arrival until the embeddings of a request's pictures have reached prefill

    def server(self, question: Question) -> PrefillServer:
        """Return the server of one instance under the question of its plan."""
        return PrefillServer(before(question), self.candidate)


@dataclass(frozen=True, kw_only=True)
class PlannedDecode(PlannedPool):
    """Decode instances at the planned rate; ``prediction`` is that of the full batch."""

    role: ClassVar[Role] = "decode"
    candidate: DecodeCandidate
    limit: str
    """What the capacity reaches: TPOT, the KV links, or utilisation, of all that memory holds or of the given batch."""
    state: DecodeState

    @cached_property
    def prediction(self) -> Prediction:
        """Every operator of an iteration with the full batch."""
        return decode_prediction(self.question, self.candidate)

    @cached_property
    def memory(self) -> Memory:
        """Bytes per device with the mean KV of a full batch."""
        return self.candidate.memory(self.question.decoded)


def limit_of(server: PrefillServer | DecodeServer, each: float, linked: float) -> str:
    """Name what the rate of an instance reaches: the rate ``linked`` of its KV links, a latency limit, or saturation.

    Where a full decode batch keeps TPOT, it is waits for a slot that do not, so what leaves no more slots binds.
    """
    if each >= linked * (1 - ROUNDING):
        return "kv_links"
    saturated = each >= server.most_per_second * (1 - ROUNDING)
    if isinstance(server, DecodeServer) and server.candidate.limited_by != "tpot":
        slow = server.candidate.iteration_seconds > server.question.tpot_seconds * server.decoding.accepted
        return "tpot" if slow and not saturated else server.candidate.limited_by
    return "utilisation" if saturated else "tpot" if isinstance(server, DecodeServer) else "ttft"


def asked_of(question: Question, role: Role, row: Row) -> Configuration:
    """Return the arguments that every prediction of a role's row shares."""
    machines = machines_of(question, role)
    return Configuration(
        model=question.model,
        hardware=machines.hardware,
        phase="prefill" if role == "encode" else role,
        strategy=row.strategy,
        weights=machines.weights,
        kv_dtype=question.kv_dtype,
        balance=question.balance,
        redundant=row.redundant,
        shared=row.dedicated,
        seen=question.workload.seen,
        driven=question.driven,
        host=HostCosts(engine=host_costs(question.engine).engine),
    )


def answering(question: Question, role: Role, row: Row, drafts: int) -> Configuration:
    """Return the arguments of ``asked_of`` for a role that decodes, with its drafts and the engine's time per step."""
    return replace(
        asked_of(question, role, row),
        drafts=drafts,
        beams=question.workload.beams,
        acceptance=question.acceptance,
        host=host_costs(None if question.engine == "reference" else question.engine),
    )


def decode_prediction(question: Question, candidate: DecodeCandidate) -> Prediction:
    """Every operator of the full batch at the workload's mean KV."""
    asked = answering(question, "decode", candidate.row, candidate.drafts)
    kv = running_kv_tokens(question.decoded).mean_tokens
    return predict(replace(asked, microbatches=candidate.microbatches, batch=candidate.batch, kv_tokens=kv))


def prefill_prediction(question: Question, candidate: PrefillCandidate) -> Prediction:
    """Every operator of a full pass of prompts of mean length."""
    return predict(
        replace(
            asked_of(question, "prefill", candidate.row),
            microbatches=candidate.microbatches,
            tokens=candidate.tokens_per_device,
            prompt_tokens=question.workload.input_tokens.mean,
            prefix_reuse=question.workload.prefix_reuse,
            cache_plane=question.prefix_pool.plane if question.prefix_pool else None,
        )
    )


def prefill_pool_of(
    question: Question, prefill: tuple[PrefillServer, int, float], rate_per_second: float, limit: str
) -> PlannedPrefill:
    """Return the prefill pool of (server, instances, rate of one) that reaches a limit."""
    server, instances, capacity_of_each = prefill
    return PlannedPrefill(
        question=question,
        candidate=server.candidate,
        machines=question.prefill,
        instances=instances,
        capacity_per_second=instances * capacity_of_each,
        utilisation=rate_per_second / (instances * server.candidate.requests_per_second * server.left_share),
        limit=limit,
    )


def decode_pool_of(
    question: Question, decode: tuple[DecodeServer, int, float], state: DecodeState, limit: str
) -> PlannedDecode:
    """Return the decode pool of (server, instances, rate of one) in a state that reaches a limit."""
    server, instances, capacity_of_each = decode
    return PlannedDecode(
        question=question,
        candidate=server.candidate,
        machines=question.decode,
        instances=instances,
        capacity_per_second=instances * capacity_of_each,
        utilisation=state.utilisation,
        limit=limit,
        state=state,
    )


def encode_pool(
    question: Question, encode: tuple[PrefillServer, int, float], rate_per_second: float
) -> PlannedEncode | None:
    """Return the encode pool of (server, instances, rate of one) for a question; None beyond saturation."""
    (server, instances, capacity_of_each), times = encode, question.stretch_of("encode")
    each = times * rate_per_second / instances
    latency = server.ttft(each, instances)
    if latency is None:
        return None
    return PlannedEncode(
        question=server.question,
        candidate=server.candidate,
        machines=question.prefill,
        instances=instances,
        capacity_per_second=instances * capacity_of_each,
        utilisation=each / server.candidate.requests_per_second,
        limit=limit_of(server, times * capacity_of_each, math.inf),
        latency=latency.later(embedding_seconds(question)).scaled(times),
    )


class Leaving(NamedTuple):
    """Requests in the order in which they leave encode, the times at which they leave, and their stays, [requests]."""

    stream: Stream
    encode_seconds: Floats


def leaving(question: Question, pool: PlannedEncode, rate_per_second: float) -> Leaving:
    """Play an encode pool that requests are dealt to in turn; return its requests as they leave.

    Requests of one pass leave together, once their embeddings have been sent. The next role is played on them.
    """
    server, context = pool.server(question), float(question.model.max_position)
    times = question.stretch_of("encode")
    stream = stationary(question.workload, MANY, most_tokens=context).at_rate(times * rate_per_second)
    none = np.zeros(len(stream), dtype=np.int64)
    pictures = replace(stream, prompt_tokens=none + round(pool.question.workload.input_tokens.mean), reused_tokens=none)
    ready = play_prefill(replace(server.pool, instances=pool.instances), pictures).first_token_seconds
    ready = times * (ready + embedding_seconds(question))
    order, stays = np.argsort(ready, kind="stable"), ready - times * stream.arrival_seconds
    return Leaving(replace(stream.select(order), arrival_seconds=ready[order]), stays[order])


def online_state(decode: DecodeState, online: Workload, decoded: Workload) -> DecodeState:
    """Return the state of decode with the time that online requests spend there, whose answers may be longer."""
    if online.output_tokens == decoded.output_tokens:
        return decode
    tokens, alike = online.decoded_tokens, not online.output_tokens.squared_cv
    times = tokens / decoded.decoded_tokens
    return replace(decode, span=decode.tpot.scaled(tokens) if alike else decode.span.scaled(times))


def end_to_end(ttft: Latency, decode: DecodeState, workload: Workload) -> Latency:
    """Time from scheduled arrival to the last token, with TTFT and decode as independent variables.

    It is not TPOT times the mean length: answers differ in length, and short answers have the longest TPOT. An answer
    of one token ends with prefill.
    """
    share = decoded_share(workload)
    both = independent_sum(ttft, decode.span) if share else ttft
    return both if share in (0.0, 1.0) else one_or_other(both, ttft, share)
