"""Aggregated instances: continuous batching with chunked prefill in a closed loop of equal requests.

Requests that finish their prompts in one step run in lockstep from then on: they produce their last
tokens in one step, and the prompts of their successors again share one. So prompts come in cohorts
that fill the token budget, however long the loop runs.
"""

from dataclasses import dataclass

from planner.latency import causal_pairs, fastest_step
from planner.manifest.stepcost import StepSeconds
from planner.manifest.terms import StepCost, StepLoad

_ROUNDS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """``concurrency`` requests on the busiest DP rank, each replaced on completion.

    ``filled`` is the mean over the ranks of their requests, in units of the busiest rank's. With
    ``whole_prompts`` the engine cuts no prompt that fits a step.
    """

    concurrency: float
    prompt_tokens: float
    output_tokens: float
    batched_tokens: float
    reuse: float = 0.0
    acceptance_tokens: float = 1.0
    filled: float = 1.0
    whole_prompts: bool = False

    @property
    def new_tokens(self) -> float:
        """Prompt tokens to compute per request."""
        return self.prompt_tokens * (1 - self.reuse)

    @property
    def iterations(self) -> float:
        """Decode iterations of a request, after the first token that prefill gives."""
        return max(self.output_tokens - 1, 0.0) / self.acceptance_tokens


@dataclass(frozen=True, slots=True)
class Cycle:
    """Steps from a request's arrival to its successor's: ``mixed_steps`` of ``steps`` hold prompts.

    ``chunk`` prompt tokens and ``running`` decoding requests are in a mixed step; a prompt waits and
    is computed in ``prompt_steps`` of them.
    """

    steps: float
    mixed_steps: float
    prompt_steps: float
    chunk: float
    running: float


@dataclass(frozen=True, slots=True)
class MixedState:
    """Steady state of the loop; loads are of the busiest rank in a step with and without prompts.

    ``prompt_steps`` is the share of steps that hold prompts, ``requests_per_second`` of that rank.
    """

    tpot_seconds: float
    ttft_seconds: float
    requests_per_second: float
    prompt_steps: float
    mixed_load: StepLoad
    mixed_step: StepSeconds
    decode_load: StepLoad
    decode_step: StepSeconds

    @property
    def microbatches(self) -> int:
        """Microbatches of the kind of step that is more frequent."""
        return (self.mixed_step if self.prompt_steps > 0.5 else self.decode_step).microbatches


def cycle_of(loop: ClosedLoop, queries: int) -> Cycle:
    """Return the cycle of ``loop`` with ``queries`` query tokens per decoding request.

    A cohort's prompts fill what the running requests leave of the budget B:
    chunk = min(c·n, B - running·queries). All c prompts take m = c·n / chunk steps, one takes
    s = max(1, n / chunk), so a cycle has L = max(iterations + s, m) steps. Where L = m prompts bind:
    every step holds some and a request waits L - iterations of them.

    >>> loop = ClosedLoop(concurrency=8, prompt_tokens=2048, output_tokens=513, batched_tokens=8192)
    >>> cycle = cycle_of(loop, 1)
    >>> round(cycle.steps), round(cycle.mixed_steps, 2), round(cycle.chunk)
    (513, 2.0, 8188)
    """
    new, count, iterations = loop.new_tokens, loop.concurrency, loop.iterations
    running = max(count - loop.batched_tokens / new, 0.0)
    for _ in range(_ROUNDS):
        chunk = min(count * new, max(loop.batched_tokens - running * queries, 1.0))
        mixed, each = count * new / chunk, max(1.0, new / chunk)
        steps = max(iterations + each, mixed)
        running = max(count - chunk / new, 0.0) if steps > mixed else count * iterations / steps
    return Cycle(steps, mixed, steps - iterations, chunk, running)


def mixed_state(cost: StepCost, loop: ClosedLoop, microbatches: int | None) -> MixedState:
    """Return the steady state of the closed loop, all requests having started together.

    cycle seconds = m·t_mixed + (L - m)·t_decode; TTFT = (L - iterations)·t_mixed, the loop's waiting
    included; TPOT = (cycle - TTFT) / (output tokens - 1), so Little's law holds exactly:
    concurrency = rate·cycle. For equal requests, but for the short steps that the remainders of cut
    prompts add; requests of unequal lengths fall out of step, which lowers TTFT towards one prompt's time.
    """
    cycle = cycle_of(loop, cost.queries_per_sequence)
    decode, mixed = _loads(loop, cycle, cost.queries_per_sequence)
    mixed_step, decode_step = (fastest_step(cost, load, microbatches) for load in (mixed, decode))
    together, alone = float(mixed_step.seconds), float(decode_step.seconds)
    seconds = cycle.mixed_steps * together + (cycle.steps - cycle.mixed_steps) * alone
    ttft = cycle.prompt_steps * together
    return MixedState(
        tpot_seconds=(seconds - ttft) / max(loop.output_tokens - 1, 1.0),
        ttft_seconds=ttft,
        requests_per_second=loop.concurrency / seconds,
        prompt_steps=cycle.mixed_steps / cycle.steps,
        mixed_load=mixed,
        mixed_step=mixed_step,
        decode_load=decode,
        decode_step=decode_step,
    )


def _loads(loop: ClosedLoop, cycle: Cycle, queries: int) -> tuple[StepLoad, StepLoad]:
    """Loads of the busiest rank in a step without and with prompts."""
    kv = loop.prompt_tokens + loop.output_tokens / 2
    prompts = cycle.chunk / loop.new_tokens
    cached = loop.prompt_tokens * loop.reuse
    # A prompt in several chunks: a later chunk reads the keys of the earlier ones again.
    earlier = max(loop.new_tokens - cycle.chunk, 0.0) / 2
    decode = StepLoad(
        decode_sequences=loop.concurrency,
        decode_kv_tokens=loop.concurrency * kv,
        mean_tokens=loop.concurrency * queries * loop.filled,
    )
    mixed = StepLoad(
        decode_sequences=cycle.running,
        decode_kv_tokens=cycle.running * kv,
        prefill_tokens=cycle.chunk,
        prefill_context_tokens=cached * max(prompts, 1.0) + earlier,
        prefill_pairs=prompts * causal_pairs(loop.new_tokens, cached),
        finishing_prompts=prompts,
        mean_tokens=(cycle.running * queries + cycle.chunk) * loop.filled,
    )
    return decode, mixed
