"""How far the queue of prefill passes is from streams of hundreds of thousands of prompts.

    python benchmarks/prefill_queue.py [--cases NAME;...] [--utilisations 0.5,0.7,0.85] [--prompts N] [--seed S]

One instance, prompts drawn from the kinds that plans count with, arrivals that so many instances get in turn, passes
formed by the rule of the runtime (``queues.recorded_prefill``, which is within 1 % of it). Lengths
with heavy tails take that many: ± is the 90 % interval of the stream's figure, from 20 batches of it. A utilisation is
of what the same prompts take when all are there at once.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from queueing import CASES, HISTOGRAM, plan_of

from hardware.loader import load_hardware
from models.loader import load_model
from planner.balance.imbalance import parse_balance
from planner.costs.deployment import Deployment
from planner.costs.latency import balanced_cost
from planner.instances.operating import PrefillServer
from planner.queues.machine import Machine
from planner.queues.passes import varied_service
from planner.queues.prefill_queue import latency_of
from planner.queues.prompts import Prompts, length_kinds, prompts_of
from planner.queues.queueing import Array
from planner.queues.recorded_prefill import prefill_recorded
from planner.strategy import Strategy
from planner.workload import Lengths, Trace

PLANNED = ("qwen3-30b-cm384-varied", "llama-70b-h200-half", "qwen3-8b-h100-twice", "r1-cm384-varied")
PLANNED += ("qwen3-30b-h100-histogram",)
GROUPS: dict[str, tuple[int, float, float, float, int]] = {
    # name: DP groups, budget of each, mean prompt, CV (0: the histogram of lengths), instances; Qwen3-30B on H800
    "2 groups, 4 means": (2, 4096.0, 1024.0, 0.5, 4),
    "16 groups, 4 means": (16, 8192.0, 2048.0, 0.5, 2),
    "4 groups, 8 means": (4, 16_384.0, 2048.0, 1.0, 3),
    "32 groups, 4 means": (32, 16_384.0, 4096.0, 1.0, 1),
    "2 groups, 16 means": (2, 16_384.0, 1000.0, 2.0, 2),
    "8 groups, histogram": (8, 32_768.0, 0.0, 0.0, 1),
    "4 groups, 8 means, few cut": (4, 16_384.0, 2048.0, 1.0, 3),
    "8 groups, 16 means, few cut": (8, 32_768.0, 2048.0, 1.0, 2),
    "4 groups, 2 means, long ones cut": (4, 4096.0, 2048.0, 1.0, 2),
    "8 groups, 4 means, long ones cut": (8, 8192.0, 2048.0, 1.0, 2),
    "8 groups, histogram, long ones cut": (8, 8192.0, 0.0, 0.0, 2),
}
BATCHES = 20
Measure = Callable[[Array], float]


@dataclass(frozen=True, slots=True)
class Case:
    """An instance, its prompts, and how many of it take arrivals in turn."""

    machine: Machine
    prompts: Prompts
    instances: int

    def waited(self, prompts: int, rate_per_second: float, seed: int = 0) -> tuple[Array, float]:
        """Return the TTFT of drawn prompts, [prompts], and how long the instance was busy; rate 0: all at once."""
        rng = np.random.default_rng(seed)
        kinds = rng.choice(self.prompts.weights.size, prompts, p=self.prompts.weights / self.prompts.weights.sum())
        arrivals = np.zeros(prompts)
        if rate_per_second:
            gaps = rng.gamma(self.instances, 1 / (self.instances * rate_per_second), prompts)
            arrivals = np.cumsum(gaps)
        rows = Trace(
            arrival_seconds=arrivals,
            input_tokens=np.maximum(np.rint(self.prompts.tokens[kinds]), 1),
            output_tokens=np.ones(prompts),
            reused_tokens=np.rint(self.prompts.reused[kinds]),
        )
        found = prefill_recorded(self.machine, 1, "round_robin", rows)
        return found.first_token_seconds - arrivals, found.busy_seconds


def planned(name: str) -> Case:
    """Return the prefill instance of a plan."""
    plan = plan_of(name)
    candidate, strategy = plan.prefill.candidate, plan.prefill.candidate.row.strategy
    budget = float(candidate.tokens_per_device * strategy.attention_tp * strategy.pp)
    server = PrefillServer(plan.question, candidate)
    machine = Machine(server.cost, strategy.attention_dp, budget, candidate.microbatches)
    return Case(machine, prompts_of(plan.question.workload), plan.prefill.instances)


def made(name: str) -> Case:
    """Return an instance of several groups; where the name does not say that prompts are cut none passes the budget."""
    groups, budget, mean, cv, instances = GROUPS[name]
    deployment = Deployment(
        model=load_model("qwen3-30b-a3b"),
        hardware=load_hardware("h800"),
        strategy=Strategy(attention_dp=groups, moe_ep=groups),
        phase="prefill",
        weights="bf16",
    )
    if mean:
        tokens, weights = length_kinds(Lengths(mean=mean, squared_cv=cv**2))
    else:
        tokens, weights = np.loadtxt(HISTOGRAM, delimiter=",", skiprows=1).T
    keep = (tokens <= budget) | ("cut" in name)
    prompts = Prompts(tokens[keep], np.zeros(int(keep.sum())), weights[keep] / weights[keep].sum())
    return Case(Machine(balanced_cost(deployment, parse_balance("perfect")), groups, budget, 1), prompts, instances)


def told(seconds: Array, measure: Measure) -> tuple[float, float]:
    """Return a figure of a stream and half its 90 % interval over it; the first fiftieth is left out."""
    kept = seconds[seconds.size // 50 :]
    batches = np.array([measure(part) for part in np.array_split(kept, BATCHES)])
    value = measure(kept)
    return value, 1.73 * float(batches.std(ddof=1)) / BATCHES**0.5 / value


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=";".join([*PLANNED, *GROUPS]), help="names, ; between them")
    parser.add_argument("--utilisations", default="0.5,0.7,0.85")
    parser.add_argument("--prompts", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0, help="of the stream")
    asked = parser.parse_args()
    print(
        "| case | utilisation | stream's TTFT mean | p99 | mean | p50 | p90 | p99 |\n|---|---|---|---|---|---|---|---|"
    )
    for name in asked.cases.split(";"):
        case = planned(name) if name in CASES else made(name)
        service = varied_service(case.machine, case.prompts)
        saturation = asked.prompts / case.waited(asked.prompts, 0.0)[1]
        for utilisation in map(float, asked.utilisations.split(",")):
            rate = utilisation * saturation
            seconds = case.waited(asked.prompts, rate, asked.seed)[0]
            latency = latency_of(service, rate, 1 / case.instances)
            mean, tail = told(seconds, lambda part: float(part.mean())), told(seconds, lambda part: _at(part, 99))
            figures = [f"{value * 1e3:.1f} ms ± {half:.0%}" for value, half in (mean, tail)]
            errors = ["none"] * 4
            if latency is not None:
                errors = [f"{latency.mean / mean[0] - 1:+.1%}"]
                errors += [f"{latency.at(level) / _at(seconds, level) - 1:+.1%}" for level in (50.0, 90.0, 99.0)]
            print(f"| {name} | {utilisation:.2f} |", " | ".join(figures + errors), "|", flush=True)


def _at(seconds: Array, level: float) -> float:
    return float(np.percentile(seconds, level))


if __name__ == "__main__":
    main()
