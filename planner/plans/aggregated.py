"""Plans of aggregated instances: one pool that does prefill and decode, without KV transfer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from ground.units import carried_rate, format_duration
from planner.costs.memory import Memory
from planner.costs.predict import Prediction, predict
from planner.instances.aggregated import AggregatedServer, AggregatedState, aggregated_outcome
from planner.instances.candidates import AggregatedCandidate
from planner.instances.space import Role, machines_of
from planner.plans.plan import Plan
from planner.plans.pools import ROUNDING, Leaving, PlannedEncode, PlannedPool, answering
from planner.question import Question
from planner.serving.latency import Latency
from planner.serving.played import MANY


@dataclass(frozen=True, kw_only=True)
class PlannedAggregated(PlannedPool):
    """Aggregated instances at the planned rate; ``prediction`` is that of the mean step at that rate."""

    role: ClassVar[Role] = "mixed"
    candidate: AggregatedCandidate
    state: AggregatedState
    """State at the planned rate; latencies begin at the arrival at encode instances, if there are any."""

    @cached_property
    def prediction(self) -> Prediction:
        """Every operator of the mean step, averaged over steps with and without prompts."""
        return aggregated_prediction(self.question, self.candidate, self.state)

    @cached_property
    def memory(self) -> Memory:
        """Bytes per device with a full step and the mean KV of a full batch."""
        return self.candidate.memory(self.question.workload)


@dataclass(frozen=True, kw_only=True)
class AggregatedPlan(Plan):
    """One pool of aggregated instances."""

    mixed: PlannedAggregated

    def language_pools(self) -> tuple[tuple[Role, PlannedPool], ...]:
        """Return the pool with its role."""
        return (("mixed", self.mixed),)

    @property
    def e2e(self) -> Latency:
        """Time from scheduled arrival to the last token."""
        return self.mixed.state.e2e

    @property
    def reached_limit(self) -> str:
        """The latency limit with least room, and the devices."""
        question = self.question
        if self.encode and self.encode.capacity_per_second <= self.mixed.capacity_per_second:
            return f"devices, encode {self.encode.limit}"
        return f"{'devices' if question.pin('mixed').instances is None else 'instances'}, {limit_of(self)}"

    @property
    def explanation(self) -> str:
        """What limits the pool, with its numbers."""
        pool, state = self.mixed, self.mixed.state
        share = f"{state.prompt_steps:.0%}" if state.prompt_steps >= 0.01 else "less than 1%"
        steps = (
            f"A step of an aggregated instance takes {format_duration(state.mean_step_seconds)} in the mean over "
            f"tokens; {share} of the steps carry prompts, which lengthen those of all that are answered"
            if state.mean_step_seconds
            else "Answers end with their first token, so steps carry prompts alone"
        )
        return (
            f"{self.encode_text}{steps}. The pool carries {carried_rate(pool.capacity_per_second)}"
            f"{', spare instances included' if self.question.survive else ''}."
        )

    def behind(self, encode: PlannedEncode, requests: Leaving) -> "AggregatedPlan":
        """Return the plan behind an encode pool, its instances played on the requests that leave that pool."""
        pool, stream = self.mixed, requests.stream
        server, times = AggregatedServer(self.question, pool.candidate), self.question.stretch_of("mixed")
        seen = aggregated_outcome(replace(server.pool, instances=pool.instances), stream.at_rate(times))
        counted = replace(
            seen,
            ttft_seconds=(seen.ttft_seconds + requests.encode_seconds / times)[stream.counting],
            tpot_seconds=seen.tpot_seconds[stream.counting],
        )
        later, each = stream.answer_tokens[stream.counting] - 1, self.requests_per_second / pool.instances
        state = server.player.state_of(times * each, counted, later).scaled(times)
        return replace(self, encode=encode, mixed=replace(pool, state=state), ttft=state.ttft, tpot=state.tpot)

    def language_under(
        self, question: Question, share: float = 1.0, requests: int | None = MANY
    ) -> Callable[[float], "AggregatedPlan | None"]:
        """Return the pool's plan under a question as a function of the rate; None beyond saturation."""
        if question.queueing == "mixserve":
            return lambda _: None
        pool = self.mixed
        server = AggregatedServer(question, pool.candidate)
        each = pool.capacity_per_second / pool.instances / share
        return lambda rate: make_aggregated(question, server, pool.instances, each, rate, requests)


def limit_of(plan: AggregatedPlan) -> str:
    """Name what the pool's rate reaches: saturation, or the limit with least room: ttft or tpot."""
    question, level, pool = plan.question, plan.question.percentile, plan.mixed
    full = pool.utilisation * pool.capacity_per_second / plan.requests_per_second
    if full >= question.most_utilisation * (1 - ROUNDING):
        return "utilisation"
    ttft, tpot = plan.ttft.at(level) / question.ttft_seconds, plan.tpot.at(level) / question.tpot_seconds
    return "ttft" if ttft >= tpot else "tpot"


def make_aggregated(
    question: Question,
    server: AggregatedServer,
    instances: int,
    capacity_of_each: float,
    rate_per_second: float,
    requests: int | None = MANY,
) -> AggregatedPlan | None:
    """Return the plan of so many instances at a rate, played over so many requests; None beyond saturation."""
    times = question.stretch_of("mixed")
    state = server.state(times * rate_per_second / instances, instances, requests)
    server.planned()
    if state is None:
        return None
    if times != 1:
        state = state.scaled(times)
    pool = PlannedAggregated(
        question=question,
        candidate=server.candidate,
        machines=machines_of(question, "mixed"),
        instances=instances,
        capacity_per_second=instances * capacity_of_each,
        utilisation=state.utilisation,
        state=state,
    )
    carried = capacity_of_each, instances * server.most_per_second
    told = None if question.stretch else server.player.told(rate_per_second / instances, instances, carried, requests)
    return AggregatedPlan(
        question=question,
        mixed=pool,
        requests_per_second=rate_per_second,
        ttft=state.ttft,
        tpot=state.tpot,
        played=told,
    )


def aggregated_prediction(question: Question, candidate: AggregatedCandidate, state: AggregatedState) -> Prediction:
    """Every operator of a mean step with the mean number of open requests at the planned rate.

    TPOT and its interval are the plan's own: in a closed loop ranks compute prompts at the same time, in an open stream
    one after another, so that more steps are long.
    """
    workload = question.workload
    found = predict(
        replace(
            answering(question, "mixed", candidate.row, candidate.drafts),
            microbatches=1 if candidate.microbatches == 1 else None,
            prompt_tokens=workload.input_tokens.mean,
            output_tokens=workload.output_tokens.mean,
            prefix_reuse=workload.prefix_reuse,
            concurrency=max(state.mean_requests, 1.0),
            batched_tokens=float(candidate.batched_tokens),
        )
    )
    if not found.tpot_seconds:  # answers of one token have none
        return found
    return replace(found, tpot_seconds=state.tpot.mean)
