"""The composition: a decode iteration or a prefill pass of one instance, as loads and as seconds.

Service times only: no waiting for arrivals, no KV transfer; those are ``serving``.
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ground.arrays import placed
from planner.balance.imbalance import Balance, expected_maximum_normal, static_factor
from planner.costs.deployment import Deployment
from planner.costs.operators import build_step_cost
from planner.costs.vision_operators import with_encoder
from planner.manifest.drafts import Acceptance, tokens_per_iteration
from planner.manifest.terms import Number, StepCost, StepLoad


class Pass(NamedTuple):
    """A load and how often it occurs in a row to serve one prompt."""

    load: StepLoad
    tokens: float


def balanced_cost(deployment: Deployment, balance: Balance) -> StepCost:
    """Return the step cost with the busiest expert rank that a balance setting implies."""
    cost = with_encoder(build_step_cost(deployment), deployment)
    if deployment.model.moe is None or not deployment.expert_parallel or balance.kind == "perfect":
        return cost
    if balance.kind == "factor":
        return replace(cost, balance=balance.factor)
    balanced, experts = balance.kind == "measured", deployment.moe.experts
    if not isinstance(deployment.expert_ranks, np.ndarray):
        count, extra = int(deployment.expert_ranks), int(deployment.redundant)
        one = static_factor(experts, count, extra, balance.distribution, balanced)
        return replace(cost, balance=one, sampling_deviations=deviations(count))
    ranks, redundant = np.broadcast_arrays(deployment.expert_ranks, deployment.redundant)
    most = int(redundant.max(initial=0)) + 1
    layouts, where = placed((ranks * most + redundant).ravel())
    each = [divmod(layout, most) for layout in layouts.astype(np.intp).tolist()]
    static = np.array([static_factor(experts, *layout, balance.distribution, balanced) for layout in each])
    noise = np.array([deviations(count) for count, _ in each])
    return replace(cost, balance=static[where], sampling_deviations=noise[where])


@lru_cache(maxsize=4096)
def deviations(ranks: int) -> float:
    """Expected maximum of ``ranks`` standard normals: how far the busiest rank lies above its mean."""
    return float(expected_maximum_normal(ranks)) if ranks > 1 else 0.0


def accepted_tokens(deployment: Deployment, acceptance: Acceptance) -> Number:
    """Tokens of one request in an iteration, of an instance or of each of many."""
    if not isinstance(deployment.drafts, np.ndarray):
        return tokens_per_iteration(int(deployment.drafts), acceptance)
    depths = deployment.drafts.astype(np.intp)
    return np.array([tokens_per_iteration(depth, acceptance) for depth in range(depths.max(initial=0) + 1)])[depths]


def decode_load(deployment: Deployment, batch: Number, kv_tokens: Number, mean_batch: Number | None = None) -> StepLoad:
    """Load of a decode iteration with ``batch`` requests of ``kv_tokens`` each on the busiest DP rank.

    ``mean_batch`` requests are on the mean rank; all ranks alike where it is not given. With PP the
    batch is spread over the stages.
    """
    queries = deployment.queries
    mean = batch if mean_batch is None else mean_batch
    return StepLoad(decode_sequences=batch, decode_kv_tokens=batch * kv_tokens, mean_tokens=mean * queries)


def causal_pairs(new: Number, cached: Number) -> Number:
    """Query-key pairs of ``new`` tokens on top of ``cached`` ones: c·p + c·(c + 1)/2."""
    return new * cached + new * (new + 1) / 2


def prefill_passes(deployment: Deployment, tokens_per_device: float, prompt: float, reuse: float) -> list[Pass]:
    """Loads of the passes that serve prompts of ``prompt`` tokens, of which ``reuse`` are cached.

    A pass holds ``tokens_per_device`` x devices prompt tokens, so each DP group its share of them:
    several whole prompts, or one chunk of a longer prompt.
    """
    strategy = deployment.strategy
    share = float(tokens_per_device * strategy.devices / strategy.attention_dp)
    new, cached = prompt * (1 - reuse), prompt * reuse
    if share >= prompt:
        prompts = share / prompt
        load = StepLoad(
            prefill_tokens=prompts * new,
            prefill_context_tokens=prompts * cached,
            prefill_pairs=prompts * causal_pairs(new, cached),
            finishing_prompts=prompts,
            mean_tokens=prompts * new,
            loaded_tokens=prompts * cached,
        )
        return [Pass(load, share)]
    count = int(np.ceil(prompt / share))
    chunk = new / count
    passes = []
    for number in range(count):
        context = cached + number * chunk
        load = StepLoad(
            prefill_tokens=chunk,
            prefill_context_tokens=context,
            prefill_pairs=causal_pairs(chunk, context),
            finishing_prompts=1.0 if number == count - 1 else 0.0,
            mean_tokens=chunk,
            loaded_tokens=0.0 if number else cached,
        )
        passes.append(Pass(load, prompt / count))
    return passes
