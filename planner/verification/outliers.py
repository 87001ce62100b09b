"""Possible causes of a measured value outside its interval: steps, waiting, memory or expert imbalance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ground.units import format_duration
from planner.manifest.schema import Manifest
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepLoad
from planner.verification.reports import Report
from planner.verification.verify import Verified

NAMES = {"ttft_seconds": "TTFT", "tpot_seconds": "TPOT", "output_tokens_per_second_per_chip": "throughput"}
MOST_TOLD = 20
SAME_STEP = 0.1
FULL = 0.9  # share of the KV cache from which requests probably wait for it, as lengths vary around their means


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A deployment under the load of a report."""

    manifest: Manifest
    report: Report


def outliers(found: Sequence[Verified]) -> list[str]:
    """Return sentences on possible causes of runs outside their intervals, the farthest first."""
    out = [(each, name) for each in found for name, held in each.inside.items() if not held]
    out.sort(key=lambda pair: -abs(math.log(pair[0].run.measured[pair[1]] / pair[0].predicted[pair[1]])))
    return [
        f"{each.run.id}: {NAMES[name]} is {each.run.measured[name] / each.predicted[name]:.2f} times the prediction, "
        f"{_told(name, each)}."
        for each, name in out[:MOST_TOLD]
    ]


def _told(name: str, each: Verified) -> str:
    measured, predicted = each.run.measured, each.predicted
    step = measured.get("tpot_seconds", 0.0) / predicted.get("tpot_seconds", 1.0)
    if name == "ttft_seconds":
        if step and abs(step - 1) > SAME_STEP:
            return f"and TPOT {step:.2f} times: steps take longer or shorter than predicted, and waiting multiplies it"
        where = "with TPOT as predicted: prompts wait elsewhere (client, scheduler, admission, or a load near the knee)"
        return where + memory(each)
    if name == "tpot_seconds":
        seconds = format_duration(abs(measured[name] - predicted[name]))
        if not isinstance(each.run.configuration, Loaded):
            return f"{seconds} a step: kernels, host time or expert imbalance differ from what was assumed"
        return f"{seconds} a step: kernels or host time differ from what was assumed" + imbalance(each, step)
    return "which follows from TTFT and TPOT in a closed loop"


def _rank_load(each: Verified, manifest: Manifest) -> tuple[float, float]:
    """Return the requests and the KV tokens of a DP rank of the role that decodes, under the load of the report."""
    pool = manifest.pools[-1]
    _, running, prompt, answer = each.run.features
    requests = running / (len(pool.instances) * pool.degrees.attention_dp)
    return requests, requests * (prompt + answer / 2)


def memory(each: Verified) -> str:
    """Return a sentence on whether requests wait for KV, or on the smaller KV cache that would make them wait."""
    loaded = each.run.configuration
    if not isinstance(loaded, Loaded) or each.run.measured["ttft_seconds"] < each.predicted["ttft_seconds"]:
        return ""
    tokens = _rank_load(each, loaded.manifest)[1]
    planned = loaded.manifest.pools[-1].kv.capacity_tokens_per_rank
    if tokens > FULL * planned:
        return f"; the load takes {tokens / planned:.0%} of the KV cache: requests wait for memory or are preempted"
    return (
        f"; for memory only where the engine's log says a DP rank has less than {tokens:,.0f} tokens of KV "
        f"({planned:,.0f} planned)"
    )


def imbalance(each: Verified, ratio: float) -> str:
    """Return a sentence with the busiest expert rank's load that makes a step ``ratio`` times as long, if one does."""
    loaded = each.run.configuration
    assert isinstance(loaded, Loaded), "of a report with its manifest"
    pool = loaded.manifest.pools[-1]
    cost = pool.step_costs[pool.role].to_step_cost()
    if not cost.moe_layers or cost.expert_ranks < 2 or ratio <= 1:
        return ""
    requests, tokens = _rank_load(each, loaded.manifest)
    load = StepLoad(
        decode_sequences=requests, decode_kv_tokens=tokens, mean_tokens=requests * float(cost.queries_per_sequence)
    )

    def seconds(balance: float) -> float:
        return float(evaluate(replace(cost, balance=balance), load, 1).seconds)

    assumed, most = float(cost.balance), float(cost.expert_ranks)  # at worst one rank has every token
    target = ratio * seconds(assumed)
    if seconds(most) < target:
        return ", and no imbalance of experts alone would explain it"
    low, high = assumed, most
    while high - low > 0.01 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if seconds(middle) < target else (low, middle)
    return f", or the busiest expert rank has {high:.2f} times the mean load ({assumed:.2f} assumed)"
