"""What a manifest does with one request at a time: nothing waits, so its steps are summed."""

import math

import numpy as np
from numpy.typing import NDArray

from planner.costs.latency import causal_pairs
from planner.manifest.drafts import step_chances
from planner.manifest.schema import KvTransfer, Manifest, PhaseName, Pool, Prediction, Statistics
from planner.manifest.stepcost import evaluate, evaluate_best
from planner.manifest.terms import StepCost, StepLoad
from planner.plans.expectation import Expectation, mixed_pool, pool_pair
from planner.serving.deployed import group_budget
from planner.workload import Workload

Floats = NDArray[np.float64]


def expect_alone(manifest: Manifest, workload: Workload) -> Expectation:
    """Return what is expected of one request at a time: a closed loop of one, on instances of either shape.

    Nothing waits, so TTFT is the time of the prompt's own passes, and E2E adds the transfer and an iteration with one
    running request per step: exact for fixed lengths, but for the spread of the number of iterations under MTP,
    which is taken as normal.
    """
    aggregated = mixed_pool(manifest)
    pools = pool_pair(manifest) if aggregated is None else (aggregated, aggregated)
    if isinstance(pools, str):
        return Expectation(prediction=None, basis=pools)
    if workload.input_tokens.squared_cv or workload.output_tokens.squared_cv or workload.prefix_reuse:
        return Expectation(
            prediction=None, basis="one request at a time is summed only for fixed lengths without prefix reuse"
        )
    prompt = max(round(workload.input_tokens.mean), 1)
    output = max(round(workload.output_tokens.mean), 1)
    return Expectation(prediction=_alone(manifest, pools, prompt, output), basis="the steps of a single request")


def _alone(manifest: Manifest, pools: tuple[Pool, Pool], prompt: int, output: int) -> Prediction:
    prefill, decode = pools
    ttft, levels, moved = alone_pass_seconds(prefill, prompt), manifest.service_levels, 0.0
    if output > 1 and prefill is not decode:
        assert manifest.kv_transfer is not None, "a manifest with prefill and decode pools has links"
        moved = kv_transfer_seconds(manifest.kv_transfer, prefill, decode, prompt)
    running, deviation = alone_decode_seconds(decode, prompt, output)
    after, spread = moved + running, deviation / max(output - 1, 1)
    tpot = after / max(output - 1, 1)
    end_to_end = ttft + after
    good = (levels.ttft_seconds is None or ttft <= levels.ttft_seconds) and (
        output == 1 or levels.tpot_seconds is None or tpot <= levels.tpot_seconds
    )
    return Prediction(
        requests_per_second=1 / end_to_end,
        output_tokens_per_second=output / end_to_end,
        ttft_seconds=_normal(ttft, 0.0),
        tpot_seconds=_normal(tpot, spread) if output > 1 else None,
        e2e_seconds=_normal(end_to_end, deviation),
        slo_attainment=float(good),
        goodput_requests_per_second=good / end_to_end,
        utilisation={"mixed": 1 / len(prefill.instances)}
        if prefill is decode
        else {
            "prefill": ttft / end_to_end / len(prefill.instances),
            "decode": running / end_to_end / len(decode.instances),
        },
    )


def kv_transfer_seconds(kv: KvTransfer, prefill: Pool, decode: Pool, prompt_tokens: float) -> float:
    """Seconds that one prompt's KV takes alone: tokens · bytes / (links · bandwidth) + latency.

    Links are those of the prompt's DP group, at most as many as the receiving group has
    (CloudMatrix384 section 4.3.3).
    """
    links = min(pool.degrees.attention_tp * pool.degrees.pp for pool in (prefill, decode))
    return (
        float(kv.charged(prompt_tokens)) * kv.bytes_per_token / (links * kv.bandwidth_bytes_per_second)
        + kv.latency_seconds
    )


def _normal(mean: float, deviation: float) -> Statistics:
    """Mean and percentiles of a normal distribution."""
    scores = {"p50": 0.0, "p90": 1.2815515655446004, "p99": 2.3263478740408408}
    return Statistics(mean=mean, **{name: mean + score * deviation for name, score in scores.items()})


def alone_pass_seconds(pool: Pool, prompt_tokens: int) -> float:
    """Seconds of the passes of a single prompt on one DP group of an otherwise empty instance."""
    cost, budget = _cost(pool, "prefill"), group_budget(pool)
    total = 0.0
    for done in range(0, prompt_tokens, budget):
        computed = min(budget, prompt_tokens - done)
        load = StepLoad(
            prefill_tokens=float(computed),
            prefill_context_tokens=float(done),
            prefill_pairs=float(causal_pairs(computed, done)),
            finishing_prompts=float(done + computed == prompt_tokens),
            mean_tokens=computed / pool.degrees.attention_dp,
        )
        total += float(evaluate_best(cost, load, pool.microbatches).seconds)
    return total


def alone_decode_seconds(pool: Pool, prompt_tokens: int, output_tokens: int) -> tuple[float, float]:
    """Mean and standard deviation of the seconds in which a single request decodes all tokens but the first.

    Mean = sum over n < N of u(n) · tau(prompt + n): u(n) is the chance that an iteration starts with n tokens out,
    the renewal density of steps of 1 + accepted drafts; exact. Deviation = tau · sqrt(N · variance / mean³) of the step
    (W. L. Smith 1955, the central limit of renewal counts). Without drafts u = 1 and the deviation is 0.
    """
    steps = step_chances(pool.mtp.drafts, pool.mtp.acceptance)
    count = output_tokens - 1
    if not count:
        return 0.0, 0.0
    starts = np.zeros(count)
    starts[0] = 1.0
    for n in range(1, count):
        reach = min(n, steps.size)
        starts[n] = float(starts[n - reach : n][::-1] @ steps[:reach])
    seconds = _alone_iterations(_cost(pool, "decode"), prompt_tokens + np.arange(float(count)))
    tokens = np.arange(1.0, steps.size + 1)
    mean = float(tokens @ steps)
    variance = float(tokens**2 @ steps) - mean**2
    return float(starts @ seconds), float(seconds.mean()) * math.sqrt(max(count * variance / mean**3, 0.0))


def _cost(pool: Pool, phase: PhaseName) -> StepCost:
    """Step cost of a phase; an aggregated pool has one for both."""
    return pool.step_costs["mixed" if pool.role == "mixed" else phase].to_step_cost()


def _alone_iterations(cost: StepCost, kv_tokens: Floats) -> Floats:
    """Seconds of iterations with one running request that holds ``kv_tokens`` [iterations]."""
    load = StepLoad(
        decode_sequences=1.0, decode_kv_tokens=kv_tokens, mean_tokens=cost.queries_per_sequence / cost.attention_groups
    )
    return np.broadcast_to(np.asarray(evaluate(cost, load, 1).seconds, dtype=np.float64), kv_tokens.shape)
