"""Closed-loop benchmarks: what a client with a fixed number of open requests measures on an aggregated instance.

Serving benchmarks keep ``concurrency`` requests open: all of them start at once, each is replaced when it ends, and the
run is over after ten times as many (InferenceMAX's README: ``--num-prompts CONC*10 --request-rate inf``; GenAI-Perf's
examples: ``--request-count concurrency*10``). So a tenth of the requests queue behind all others' prompts, which no
steady state shows. After that first wave requests of one length stay in the cohorts that their prompts were computed
in, while requests of varying length drift apart. The run is played whole, under the engine's own scheduling rule.
"""

import math
from dataclasses import dataclass

import numpy as np

from ground.arrays import Floats
from planner.manifest.terms import StepCost, StepLoad
from planner.serving.aggregated import AggregatedPool, Played, play_closed
from planner.serving.rules import REFERENCE_RULE, SchedulingRule
from planner.serving.streams import Stream
from planner.serving.tables import Loads, step_table

WAVES = 10  # requests of a benchmark run over its concurrency; see the module's docstring
MOST_OPEN = 100_000  # most requests of a closed loop, which are played one by one

_GOLDEN = 0.6180339887498949  # multiples of it spread evenly over (0, 1): lengths without a random generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A closed loop: ``concurrency`` requests kept open on an instance of ``ranks`` DP ranks; limits hold per rank."""

    concurrency: int
    prompt_tokens: float
    output_tokens: float
    spread: float = 0.0  # half width of the uniform length distributions over their means
    reuse: float = 0.0  # share of every prompt whose KV is cached
    accepted: float = 1.0  # tokens per request and iteration, above 1 with drafts
    ranks: int = 1
    budget_tokens: float
    capacity_tokens: float = math.inf
    rule: SchedulingRule = REFERENCE_RULE
    request_seconds: float = 0.0  # seconds from the client to the engine, per request
    token_seconds: float = 0.0  # seconds of tokenizing per prompt token; prompts are tokenized one after another
    microbatches: int | None = None  # microbatches of a step; None: each step takes the quicker number
    slots: int | None = None  # batch slots of a rank; None: all of its open requests run

    @property
    def usual_kv(self) -> float:
        """Mean KV tokens of a running request."""
        return self.prompt_tokens + self.output_tokens / 2

    @property
    def new_tokens(self) -> float:
        """Prompt tokens to compute per request."""
        return self.prompt_tokens * (1 - self.reuse)

    @property
    def most(self) -> int:
        """Running requests of the fullest rank."""
        return min(-(-self.concurrency // self.ranks), self.slots or self.concurrency)

    @property
    def running(self) -> int:
        """Running requests of all ranks."""
        return min(self.concurrency, self.most * self.ranks)

    @property
    def filled(self) -> float:
        """Running requests of the mean rank over those of the fullest."""
        return self.running / (self.ranks * self.most)


@dataclass(frozen=True, slots=True)
class Measured:
    """Means over all requests of a run. Loads are those of the fullest rank in a mean step without and with prompts."""

    ttft_seconds: float  # TTFT from the moment at which the client sends the request
    tpot_seconds: float
    prompt_steps: float  # share of steps that carry prompts
    decode_load: StepLoad
    mixed_load: StepLoad


def measure(cost: StepCost, run: Benchmark) -> Measured:
    """Return the means that a client of ``WAVES`` waves measures. Deterministic."""
    requests = requests_of(run)
    played = play_closed(_pool(cost, run), requests, run.concurrency)
    first, more = played.first_token_seconds, np.maximum(requests.answer_tokens - 1, 1)
    decode, mixed = _loads(run, requests, played, (int(cost.queries_per_sequence), int(cost.pipeline_stages)))
    return Measured(
        ttft_seconds=float((first - played.arrival_seconds).mean()),
        tpot_seconds=float(((played.left_seconds - first) / more).mean()),
        prompt_steps=played.prompt_steps / played.steps,
        decode_load=decode,
        mixed_load=mixed,
    )


def requests_of(run: Benchmark) -> Stream:
    """Return the requests of a run in the order in which they are sent; arrivals are unknown until it is played."""
    count = WAVES * run.concurrency
    prompts = np.maximum(np.rint(lengths(run.prompt_tokens, run.spread, 0.0, count)), 1).astype(np.int64)
    return Stream(
        arrival_seconds=np.zeros(count),
        prompt_tokens=prompts,
        reused_tokens=np.minimum((prompts * run.reuse).astype(np.int64), prompts - 1),
        answer_tokens=np.maximum(np.rint(lengths(run.output_tokens, run.spread, 0.5, count)), 1).astype(np.int64),
    )


def lengths(mean: float, spread: float, phase: float, count: int) -> Floats:
    """Return lengths spread evenly over mean · (1 ± spread), in an order without pattern; all equal without spread.

    A Weyl sequence: the fractional parts of multiples of the golden ratio.
    """
    places = (phase + _GOLDEN * np.arange(1, count + 1)) % 1.0
    return np.asarray(mean * (1.0 + spread * (2.0 * places - 1.0)))


def _pool(cost: StepCost, run: Benchmark) -> AggregatedPool:
    longest, stages = run.prompt_tokens * (1 + run.spread), int(cost.pipeline_stages)
    loads = Loads(
        ranks=run.ranks,
        budget_tokens=min(run.budget_tokens / stages, run.concurrency * longest),
        longest_prompt=longest,
        most_running=run.running,
        kv_tokens_per_request=run.usual_kv,
        fewest_microbatches=run.microbatches or 1,
        microbatches=run.microbatches or 2,
        stages=stages,
    )
    return AggregatedPool(
        times=step_table(cost, loads),
        ranks=run.ranks,
        budget_tokens=max(int(run.budget_tokens), 1),
        slots=run.most,
        capacity_tokens=run.capacity_tokens,
        rule=run.rule,
        queries=int(cost.queries_per_sequence),
        accepted=run.accepted,
        request_seconds=run.request_seconds,
        token_seconds=run.token_seconds,
    )


def _loads(run: Benchmark, requests: Stream, played: Played, setup: tuple[int, int]) -> tuple[StepLoad, StepLoad]:
    """Return the mean step without and the mean step with prompts, of all batches that are in flight.

    Every request takes part in as many steps as its answer needs, and every prompt token is computed once. So the
    totals less the load of steps with prompts are the load of the other steps.

    Args: ``setup`` has the tokens of a request in a step, and the pipeline stages.
    """
    queries, stages = setup
    iterations = float(np.ceil((requests.answer_tokens - 1) / run.accepted).sum())
    alone, loaded = max(played.steps - played.prompt_steps, 1), max(played.prompt_steps, 1)
    running = min(max(iterations - played.running_beside_prompts, 0.0) / alone, run.running) or run.running
    beside = played.running_beside_prompts / loaded / run.ranks
    new = float((requests.prompt_tokens - requests.reused_tokens).sum()) / loaded / run.ranks
    decode = StepLoad(
        decode_sequences=running / run.ranks / run.filled,
        decode_kv_tokens=running / run.ranks / run.filled * run.usual_kv,
        mean_tokens=running / run.ranks * queries,
    )
    chunk = played.longest_chunks / loaded
    prompts = chunk / run.new_tokens
    cached = run.prompt_tokens * run.reuse
    earlier = max(run.new_tokens - chunk, 0.0) / 2  # a later chunk reads the keys of the earlier ones again
    mixed = StepLoad(
        decode_sequences=beside / run.filled,
        decode_kv_tokens=beside / run.filled * run.usual_kv,
        prefill_tokens=chunk,
        prefill_context_tokens=cached * max(prompts, 1.0) + earlier,
        prefill_pairs=chunk * (cached + (run.new_tokens + 1) / 2),
        finishing_prompts=prompts,
        mean_tokens=beside * queries + new,
    )
    return _of_all(decode, stages), _of_all(mixed, stages)


def _of_all(load: StepLoad, stages: int) -> StepLoad:
    """Return the load of all batches in flight, which a step cost is asked for, where one of them has ``load``."""
    return StepLoad(*(value * stages for value in load))
