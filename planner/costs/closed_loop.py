"""What a benchmark client with a fixed number of open requests measures: a run of its loop, step by step.

Serving benchmarks keep ``concurrency`` requests open: all of them start at once, each is replaced
when it ends, and the run is over after ten times as many (InferenceMAX's README: ``--num-prompts
CONC*10 --request-rate inf``; GenAI-Perf's examples: ``--request-count concurrency*10``). So a tenth
of the requests queue behind all others' prompts, which no steady state shows. After that first
wave requests of one length stay in the cohorts that their prompts were computed in, while
requests of varying length drift apart.

The engine runs continuous batching with chunked prefill: a step carries one token of every
running request and as many waiting prompt tokens as the budget leaves, first come first served.
"""

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.costs.latency import causal_pairs
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepCost, StepLoad

WAVES = 10
"""Requests of a benchmark run over those open at a time; see the module's first paragraph."""

SIMULATED_WAVES = 4
"""The first wave is run as it is; the third and fourth stand for all later ones."""

_CHUNKS, _BATCHES = 25, 3
_GOLDEN = 0.6180339887498949  # multiples of it spread evenly over (0, 1): lengths without a random generator


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """``concurrency`` requests on the busiest DP rank, each replaced on completion.

    ``filled`` is the mean over the ranks of their requests, in units of the busiest rank's. With
    ``whole_prompts`` the engine cuts no prompt that fits a step; with ``prompts_first`` decode waits while any prompt
    does. Requests are received every ``receive_steps`` decode steps.
    """

    concurrency: float
    prompt_tokens: float
    output_tokens: float
    batched_tokens: float
    reuse: float = 0.0
    acceptance_tokens: float = 1.0
    filled: float = 1.0
    whole_prompts: bool = False
    prompts_first: bool = False
    receive_steps: int = 1

    @property
    def new_tokens(self) -> float:
        """Prompt tokens to compute per request."""
        return self.prompt_tokens * (1 - self.reuse)


@dataclass(frozen=True, slots=True)
class Measured:
    """Means over all requests of a run; loads are of a mean step without and with prompts."""

    ttft_seconds: float
    tpot_seconds: float
    requests_per_second: float
    prompt_steps: float
    decode_load: StepLoad
    mixed_load: StepLoad


@dataclass(slots=True)
class _Request:
    arrival: float
    prompt: float
    left: float
    answer: int
    first_token: float = 0.0


class StepTimes:
    """Seconds of a step, from two grids evaluated at once: decode steps are linear in their KV tokens,
    mixed ones are interpolated over prompt tokens and running requests.
    """

    def __init__(self, cost: StepCost, loop: ClosedLoop, microbatches: int | None) -> None:
        """Evaluate the grids of ``loop`` on one rank."""
        self._loop, self.queries = loop, int(cost.queries_per_sequence)
        most = int(np.ceil(loop.concurrency))
        counts = np.arange(1.0, most + 1.0)
        low, high = (self._decode(cost, counts, longer, microbatches) for longer in (0.0, 100.0))
        self.fixed, self.per_token = low.tolist(), ((high - low) / 100.0).tolist()
        widest = max(min(loop.batched_tokens, loop.concurrency * loop.new_tokens), 1.0)
        self._chunks: list[float] = (widest * np.linspace(0.0, 1.0, _CHUNKS) ** 2)[1:].tolist()
        self._batches: list[float] = np.linspace(0.0, float(most), _BATCHES).tolist()
        self._mixed = self._grid(cost, microbatches).tolist()

    def _decode(
        self, cost: StepCost, counts: NDArray[np.float64], longer: float, microbatches: int | None
    ) -> NDArray[np.float64]:
        """[counts] seconds of decode steps; at the mean length of requests, or tokens ``longer``."""
        kv = self._loop.prompt_tokens + self._loop.output_tokens / 2
        load = StepLoad(
            decode_sequences=counts,
            decode_kv_tokens=counts * (kv + longer),
            mean_tokens=counts * self.queries * self._loop.filled,
        )
        return _fastest(cost, load, microbatches, splittable=counts >= 2)

    def _grid(self, cost: StepCost, microbatches: int | None) -> NDArray[np.float64]:
        """[batches, chunks] seconds of steps with prompts, at the mean KV tokens of running requests."""
        batch, chunk = np.meshgrid(self._batches, self._chunks, indexing="ij")
        load = mixed_load(self._loop, batch, chunk, self.queries)
        return _fastest(cost, load, microbatches, splittable=chunk >= 2)

    def decode(self, count: int, kv_tokens: float) -> float:
        """Return seconds of a step of ``count`` running requests that hold ``kv_tokens``."""
        mean = count * (self._loop.prompt_tokens + self._loop.output_tokens / 2)
        return float(self.fixed[count - 1] + self.per_token[count - 1] * (kv_tokens - mean) / count)

    def mixed(self, count: int, chunk: float) -> float:
        """Return seconds of a step of ``count`` running requests and ``chunk`` prompt tokens."""
        right = min(max(bisect_right(self._chunks, chunk), 1), len(self._chunks) - 1)
        upper = min(max(bisect_right(self._batches, count), 1), _BATCHES - 1)
        x = (chunk - self._chunks[right - 1]) / (self._chunks[right] - self._chunks[right - 1])
        y = (count - self._batches[upper - 1]) / (self._batches[upper] - self._batches[upper - 1])
        below, above = self._mixed[upper - 1], self._mixed[upper]
        low = below[right - 1] + x * (below[right] - below[right - 1])
        return float(low + y * (above[right - 1] + x * (above[right] - above[right - 1]) - low))


def _fastest(
    cost: StepCost, load: StepLoad, microbatches: int | None, *, splittable: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Seconds of each load with one microbatch, or two where that is asked for or faster."""
    single = np.asarray(evaluate(cost, load, microbatches or 1).seconds)
    if microbatches is not None or not cost.moe_layers:
        return single
    return np.where(splittable, np.minimum(single, np.asarray(evaluate(cost, load, 2).seconds)), single)


def mixed_load(
    loop: ClosedLoop, running: float | NDArray[np.float64], chunk: float | NDArray[np.float64], queries: int
) -> StepLoad:
    """Return the load of a step of ``running`` requests with ``chunk`` prompt tokens, numbers or arrays."""
    kv = loop.prompt_tokens + loop.output_tokens / 2
    prompts = chunk / loop.new_tokens
    cached = loop.prompt_tokens * loop.reuse
    # A prompt in several chunks: a later chunk reads the keys of the earlier ones again.
    earlier = np.maximum(loop.new_tokens - chunk, 0.0) / 2
    return StepLoad(
        decode_sequences=running,
        decode_kv_tokens=running * kv,
        prefill_tokens=chunk,
        prefill_context_tokens=cached * np.maximum(prompts, 1.0) + earlier,
        prefill_pairs=prompts * causal_pairs(loop.new_tokens, cached),
        finishing_prompts=prompts,
        mean_tokens=(running * queries + chunk) * loop.filled,
    )


def lengths(mean: float, spread: float, phase: float) -> Iterator[float]:
    """Yield lengths spread evenly over mean · (1 ± spread), in an order without pattern; all equal without spread.

    A Weyl sequence: the fractional parts of multiples of the golden ratio.
    """
    place = phase
    while True:
        place = (place + _GOLDEN) % 1.0
        yield mean * (1.0 + spread * (2.0 * place - 1.0))


@dataclass(slots=True)
class _Run:
    """State of the loop: what waits, what runs (by the step in which it ends), and what was seen."""

    loop: ClosedLoop
    times: StepTimes
    spread: float
    now: float = 0.0
    step: int = 0
    waiting: deque[_Request] = field(default_factory=deque)
    unseen: int = 0
    """Decode steps since requests were last received."""
    running: list[tuple[int, int, _Request]] = field(default_factory=list)
    held_tokens: float = 0.0
    ttfts: list[float] = field(default_factory=list)
    finished: list[tuple[float, float]] = field(default_factory=list)
    decode_steps: int = 0
    decode_requests: float = 0.0
    mixed_steps: int = 0
    mixed_requests: float = 0.0
    mixed_tokens: float = 0.0


def measure(cost: StepCost, loop: ClosedLoop, microbatches: int | None, spread: float = 0.0) -> Measured:
    """Return what a client of ``WAVES`` waves measures; lengths vary by ``spread`` around their means.

    Means over requests: TTFT from the moment a request is sent, TPOT per request. Deterministic.
    """
    run = _Run(loop, StepTimes(cost, loop, microbatches), spread)
    count = int(np.ceil(loop.concurrency))
    prompts, answers = lengths(loop.new_tokens, spread, 0.0), lengths(loop.output_tokens, spread, 0.5)
    for _ in range(count):
        _send(run, prompts, answers)
    issued, total = count, SIMULATED_WAVES * count
    while run.waiting or run.running:
        ended = _advance(run)
        for _ in range(min(ended, total - issued)):
            _send(run, prompts, answers)
        issued = min(total, issued + ended)
    return _summary(run, count)


def _send(run: _Run, prompts: Iterator[float], answers: Iterator[float]) -> None:
    prompt = max(next(prompts), 1.0)
    run.waiting.append(_Request(run.now, prompt, prompt, max(round(next(answers)), 1)))


def _advance(run: _Run) -> int:
    """Run one step with prompts, or all steps until a request ends; return how many ended."""
    hidden = run.loop.receive_steps - run.unseen if run.running and run.unseen else 0
    if run.waiting and not hidden:
        _mixed_step(run)
    else:
        _decode_steps(run, hidden if run.waiting else None)
    ended = 0
    while run.running and run.running[0][0] <= run.step:
        _, _, request = heapq.heappop(run.running)
        run.held_tokens -= request.prompt + request.answer
        run.finished.append((request.arrival, (run.now - request.first_token) / max(request.answer - 1, 1)))
        ended += 1
    return ended


def _decode_steps(run: _Run, most: int | None) -> None:
    """All steps until the next request ends, at most so many, at the mean KV tokens of the stretch."""
    count, steps = len(run.running), run.running[0][0] - run.step
    steps = steps if most is None else min(steps, most)
    run.unseen = (run.unseen + steps) % run.loop.receive_steps
    seconds = run.times.decode(count, run.held_tokens + _made(run) + count * steps * run.loop.acceptance_tokens / 2)
    run.now += steps * seconds
    run.step += steps
    run.decode_steps += steps
    run.decode_requests += steps * count


def _made(run: _Run) -> float:
    """Tokens that running requests still lack to their full length, as a negative number."""
    return -sum((end - run.step) * run.loop.acceptance_tokens for end, _, _ in run.running)


def _mixed_step(run: _Run) -> None:
    count, budget = 0 if run.loop.prompts_first else len(run.running), run.loop.batched_tokens
    room = max(budget - count * run.times.queries, 1.0)
    chunk, done = 0.0, []
    while run.waiting and room > chunk:
        request = run.waiting[0]
        if run.loop.whole_prompts and chunk and request.left > room - chunk:
            break
        part = min(request.left, room - chunk)
        request.left -= part
        chunk += part
        if request.left > 0:
            break
        done.append(run.waiting.popleft())
    run.now += run.times.mixed(count, chunk)
    run.step += 0 if run.loop.prompts_first else 1
    run.unseen = 0
    run.mixed_steps += 1
    run.mixed_requests += count
    run.mixed_tokens += chunk
    for request in done:
        _start(run, request)


def _start(run: _Run, request: _Request) -> None:
    """The prompt is computed: its first token is out, and the rest follows step by step."""
    request.first_token = run.now
    run.ttfts.append(run.now - request.arrival)
    steps = max(round((request.answer - 1) / run.loop.acceptance_tokens), 0)
    run.held_tokens += request.prompt + request.answer
    heapq.heappush(run.running, (run.step + steps, len(run.ttfts), request))


def _summary(run: _Run, count: int) -> Measured:
    """Means of a whole run of ``WAVES`` waves, of which ``SIMULATED_WAVES`` were run."""
    first, later = run.ttfts[:count], run.ttfts[2 * count :]
    tpots = [tpot for _, tpot in run.finished]
    early, steady = tpots[:count], tpots[count : 3 * count]
    ttft = _blend(first, later)
    tpot = _blend(early, steady)
    loop, queries = run.loop, run.times.queries
    running = run.decode_requests / max(run.decode_steps, 1) or loop.concurrency
    kv = loop.prompt_tokens + loop.output_tokens / 2
    decode = StepLoad(
        decode_sequences=running, decode_kv_tokens=running * kv, mean_tokens=running * queries * loop.filled
    )
    mixed = mixed_load(loop, run.mixed_requests / run.mixed_steps, run.mixed_tokens / run.mixed_steps, queries)
    return Measured(
        ttft_seconds=ttft,
        tpot_seconds=tpot,
        requests_per_second=loop.concurrency / (ttft + tpot * max(loop.output_tokens - 1, 1.0)),
        prompt_steps=run.mixed_steps / (run.mixed_steps + run.decode_steps),
        decode_load=decode,
        mixed_load=mixed,
    )


def _blend(first: list[float], later: list[float]) -> float:
    """Mean over all waves: one like the first, the others like the later ones."""
    return (sum(first) / len(first) + (WAVES - 1) * sum(later) / len(later)) / WAVES
