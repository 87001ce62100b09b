"""What aggregated instances carry at most, for many of them at once, whatever their queues do.

Of ``n`` running requests on a rank, n / I leave in a step and as many prompts must be computed in one, so a step takes
p n / I prompt tokens on average. Steps of any mix lie above the lower convex hull of their seconds over the prompt
tokens, and a rank has at least the mean of them; so no queue has shorter steps on average, and with them goes the
rate, n · ranks / (I · seconds).

Ref: that the mean of a mix lies above the hull is J. L. W. V. Jensen's inequality (Acta Math. 30, 1906); derived here.
"""

from dataclasses import dataclass

import numpy as np

from planner.latency import causal_pairs
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import Number, StepCost, StepLoad
from planner.operating import MOST_UTILISATION
from planner.queueing import Array
from planner.workload import Workload, running_kv_tokens

_ROUNDS = 7
_MARGIN = 1.02
"""For what lies between the points at which hull and queue evaluate steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """Aggregated instances side by side; fields broadcast against the cost's arrays.

    ``batch`` requests and ``budget_tokens`` of a step are of one DP rank; ``accepted`` tokens per request and step.
    """

    cost: StepCost
    ranks: Number
    batch: Number
    budget_tokens: Number
    microbatches: int = 1
    accepted: float = 1.0


@dataclass(frozen=True, slots=True)
class Bound:
    """Upper bounds of instances, arrays of one shape."""

    requests_per_second: Array
    guess_per_second: Array
    """About what they carry."""
    batch: Array
    """Running requests of a rank there."""
    step_seconds: Array


def mixed_bound(workload: Workload, instances: Instances, tpot_seconds: float, ttft_seconds: float) -> Bound:
    """Return what instances carry at most with mean TPOT within the limit, and at 98 % of saturation.

    A TPOT whose percentile keeps a limit keeps it on average, for percentiles from 75 on. Zero where one request alone
    does not keep it, or a prompt alone takes longer than ``ttft_seconds`` (prompts of one length).
    """
    shape = np.broadcast_shapes(
        np.shape(instances.batch), np.shape(instances.budget_tokens), np.shape(instances.ranks), _cost_shape(instances)
    )
    new, each = _new_tokens(workload), _iterations(workload, instances)
    queries = instances.cost.queries_per_sequence
    fed = instances.budget_tokens * each / (new + queries * each)  # as many as full steps feed
    most = np.broadcast_to(np.minimum(instances.batch, fed), shape).astype(np.float64)
    limit = tpot_seconds * instances.accepted
    full = _least_seconds(workload, instances, most)
    low, high = np.minimum(1.0 / np.broadcast_to(instances.ranks, shape), most), most.copy()
    bottom, top = _least_seconds(workload, instances, low), full
    for _ in range(_ROUNDS):
        open_ = top > limit
        if not open_.any():
            break
        part = np.clip((limit - bottom) / np.maximum(top - bottom, 1e-12), 0.02, 0.9)
        # A little beyond the straight line: the upper end has to come down, for it is the answer.
        tried = np.where(open_, low + (high - low) * np.minimum(part * 1.05 + 0.02, 0.98), high)
        took = _least_seconds(workload, instances, tried)
        keeps = open_ & (took <= limit)
        low, bottom = np.where(keeps, tried, low), np.where(keeps, took, bottom)
        above = open_ & ~keeps
        high, top = np.where(above, tried, high), np.where(above, took, top)
    seconds = np.minimum(np.maximum(top, bottom), limit)
    rate = np.where(bottom <= limit, high * instances.ranks / (each * seconds), 0.0)
    rate = np.minimum(rate, MOST_UTILISATION * most * instances.ranks / (each * full)) * _MARGIN
    alone = _alone_seconds(workload, instances, shape)
    if not workload.input_tokens.squared_cv and workload.prompts is None:
        rate = np.where(alone <= ttft_seconds, rate, 0.0)
    guess = 0.9 * rate * np.minimum(1.0, ttft_seconds / (3 * alone))
    return Bound(rate, guess, high, seconds)


def _cost_shape(instances: Instances) -> tuple[int, ...]:
    return np.shape(instances.cost.attention_ranks)


def _new_tokens(workload: Workload) -> float:
    return max(workload.input_tokens.mean * (1 - workload.prefix_reuse), 1.0)


def _iterations(workload: Workload, instances: Instances) -> float:
    return max(workload.output_tokens.mean - 1, 1.0) / instances.accepted


def _least_seconds(workload: Workload, instances: Instances, running: Array) -> Array:
    """Least mean seconds of steps with ``running`` requests on a rank and the prompts that they need."""
    mean = running * (_new_tokens(workload) / _iterations(workload, instances))
    room = np.maximum(instances.budget_tokens - running * instances.cost.queries_per_sequence, mean)
    chunks = np.stack([0.0 * mean, mean, np.sqrt(mean * room), room])
    seconds = _step_seconds(workload, instances, running, chunks)
    below, above = seconds[0], seconds[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        for place in (2, 3):
            share = np.where(chunks[place] > 0, mean / chunks[place], 1.0)
            above = np.minimum(above, below + (seconds[place] - below) * share)
    return np.asarray(above)


def _step_seconds(workload: Workload, instances: Instances, running: Array, chunks: Array) -> Array:
    """Seconds of steps that are alike on all ranks, the shape of ``chunks``."""
    prompt = workload.input_tokens.mean
    new, cached = _new_tokens(workload), prompt * workload.prefix_reuse
    prompts = chunks / new
    load = StepLoad(
        decode_sequences=running,
        decode_kv_tokens=running * running_kv_tokens(workload).mean_tokens,
        prefill_tokens=chunks,
        # The least that can be: every prompt whole in one step.
        prefill_context_tokens=prompts * cached,
        prefill_pairs=prompts * causal_pairs(new, cached),
        finishing_prompts=prompts,
        mean_tokens=running * instances.cost.queries_per_sequence + chunks,
    )
    counts = range(1, (instances.microbatches if instances.cost.moe_layers else 1) + 1)
    found = [np.broadcast_to(np.asarray(evaluate(instances.cost, load, n).seconds), chunks.shape) for n in counts]
    return np.asarray(np.minimum.reduce(found))


def _alone_seconds(workload: Workload, instances: Instances, shape: tuple[int, ...]) -> Array:
    """Seconds of the steps of one prompt in an instance that is empty otherwise, at least."""
    new, cached = _new_tokens(workload), workload.input_tokens.mean * workload.prefix_reuse
    budget = np.broadcast_to(np.asarray(instances.budget_tokens, dtype=np.float64), shape)
    count = np.ceil(new / budget - 1e-9)
    chunk = new / count
    load = StepLoad(
        prefill_tokens=chunk,
        prefill_context_tokens=cached + 0 * chunk,
        prefill_pairs=causal_pairs(new, cached) / count,
        finishing_prompts=1 / count,
        mean_tokens=chunk / instances.ranks,
    )
    return np.broadcast_to(np.asarray(count * evaluate(instances.cost, load, 1).seconds), shape)
