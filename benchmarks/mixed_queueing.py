"""How far the queue of aggregated instances is from the reference runtime, at several utilisations.

    python benchmarks/mixed_queueing.py [--cases NAME,...] [--utilisations 0.5,0.7,0.85] [--requests N]

The instances are given, not planned: dense and MoE models, small and large token budgets, one DP rank and many, equal
and varied lengths. A utilisation is the rate over the one at which requests begin to wait for ever. Errors are
predicted / simulated - 1, over requests that come and go while the instance is in balance.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from queueing import COLUMNS

from hardware.loader import load_hardware
from hardware.spec import HardwareSpec
from models.loader import load_model
from models.spec import ModelSpec
from planner.balance.imbalance import Balance
from planner.costs.cache import device_cache
from planner.costs.deployment import Deployment, default_weights
from planner.costs.latency import balanced_cost, tokens_per_iteration
from planner.costs.layouts import redundancy_choices
from planner.manifest.checks import spec_hash
from planner.manifest.costs import StepCostModel
from planner.manifest.layout import Degrees, Instance
from planner.manifest.ranks import group_rules, layers_per_stage, rank_table, shard_rules
from planner.manifest.schema import Manifest
from planner.manifest.stacks import stacked
from planner.mixed.queue import MixedQueue, MixedState
from planner.mixed.steps import Aggregate
from planner.queues.prefill_queue import thinned_squared_cv
from planner.strategy import parse_strategy
from planner.workload import Lengths, Workload
from runtime.simulate.options import SimulationOptions
from runtime.simulate.run import simulate
from runtime.simulate.workload import open_loop

SEEDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An aggregated pool and its traffic; ``budget`` and ``places`` are of one DP rank."""

    model: str
    hardware: str
    strategy: str
    budget: int
    places: int
    prompt: int
    answer: int
    prompt_cv: float = 0.0
    answer_cv: float = 0.0
    instances: int = 1


CASES = {
    "llama-8b tp1, 2048": Case(
        model="llama-3.1-8b", hardware="h100", strategy="TP=1", budget=2048, places=96, prompt=2048, answer=256
    ),
    "llama-70b tp4, 8192": Case(
        model="llama-3.1-70b", hardware="h200", strategy="TP=4", budget=8192, places=160, prompt=1024, answer=256
    ),
    "llama-70b tp4, 512": Case(
        model="llama-3.1-70b", hardware="h200", strategy="TP=4", budget=512, places=160, prompt=1024, answer=256
    ),
    "3 × llama-70b tp4, 2048": Case(
        model="llama-3.1-70b",
        hardware="h200",
        strategy="TP=4",
        budget=2048,
        places=160,
        prompt=1024,
        answer=256,
        instances=3,
    ),
    "r1 tp8, 2048": Case(
        model="deepseek-r1", hardware="h200", strategy="TP=8", budget=2048, places=256, prompt=1024, answer=512
    ),
    "qwen3-30b dp8 ep8, 4096": Case(
        model="qwen3-30b-a3b", hardware="h100", strategy="DP=8, EP=8", budget=4096, places=64, prompt=4096, answer=512
    ),
    "qwen3-30b dp8 ep8, 1024": Case(
        model="qwen3-30b-a3b", hardware="h100", strategy="DP=8, EP=8", budget=1024, places=64, prompt=4096, answer=512
    ),
    "r1 dp32 ep32, 4096": Case(
        model="deepseek-r1", hardware="cm384", strategy="DP=32, EP=32", budget=4096, places=32, prompt=4096, answer=512
    ),
    "llama-8b tp1, 4096, varied": Case(
        model="llama-3.1-8b",
        hardware="h100",
        strategy="TP=1",
        budget=4096,
        places=160,
        prompt=1200,
        answer=256,
        prompt_cv=1.0,
        answer_cv=0.8,
    ),
    "qwen3-30b dp4 ep4, 4096, varied": Case(
        model="qwen3-30b-a3b",
        hardware="h100",
        strategy="DP=4, EP=4",
        budget=4096,
        places=256,
        prompt=1200,
        answer=256,
        prompt_cv=1.0,
        answer_cv=0.8,
    ),
}


def manifest_of(case: Case) -> Manifest:
    """Return a manifest of one mixed pool: routers and ranks take requests in turn."""
    model, hardware = load_model(case.model), load_hardware(case.hardware)
    nodes = _nodes_each(case, hardware) * case.instances
    return Manifest.model_validate(
        {
            "manifest_version": 1,
            "made_by": {"podplan": "benchmark"},
            "clusters": {hardware.name: {"nodes": nodes, "sha256": spec_hash(hardware), "spec": hardware}},
            "model": {"sha256": spec_hash(model), "spec": model},
            "engine": {"id": "reference", "version": "0"},
            "workload": {
                "input_tokens": case.prompt,
                "output_tokens": case.answer,
                "input_cv2": case.prompt_cv**2,
                "output_cv2": case.answer_cv**2,
            },
            "service_levels": {},
            "pools": [_pool_of(case, model, hardware)],
            "kv_transfer": None,
            "routing": {"prefill": "round_robin", "decode": "round_robin"},
        }
    )


def _nodes_each(case: Case, hardware: HardwareSpec) -> int:
    """Nodes of an instance."""
    return -(-parse_strategy(case.strategy).devices // int(hardware.devices_per_node.value))


def _pool_of(case: Case, model: ModelSpec, hardware: HardwareSpec) -> dict[str, object]:
    """Return the one pool; memory holds whatever its places let run."""
    strategy = parse_strategy(case.strategy)
    deployment = Deployment(
        model=model,
        hardware=hardware,
        strategy=strategy,
        phase="mixed",
        weights=default_weights(hardware, model),
        redundant=next(iter(redundancy_choices(model.moe, strategy, 0, None))) if model.moe else 0,
    )
    degrees = Degrees(**{name: getattr(strategy, name) for name in Degrees.model_fields})
    nodes = _nodes_each(case, hardware)
    memory = ("weights", "kv_cache", "activations", "buffers", "reserve", "capacity")
    return {
        "role": "mixed",
        "hardware": hardware.name,
        "strategy": case.strategy,
        "degrees": degrees,
        "devices_per_instance": strategy.devices,
        "chips_per_instance": strategy.devices / hardware.devices_per_chip.value,
        "instances": [
            Instance(name=f"mixed-{number}", nodes=list(range(number * nodes, (number + 1) * nodes)))
            for number in range(case.instances)
        ],
        "rank_table": rank_table(degrees, int(hardware.devices_per_node.value)),
        "groups": group_rules(degrees),
        "layers_per_stage": layers_per_stage(model.layers, strategy.pp),
        "weight_shards": shard_rules(model, degrees, deployment.weights, "mixed"),
        "limits": {"requests_per_dp_rank": case.places, "tokens_per_device": case.budget // strategy.attention_tp},
        "microbatches": 2 if model.moe else 1,
        "weights_dtype": deployment.weights,
        "kv_dtype": "bf16",
        "memory_bytes_per_device": dict.fromkeys(memory, 1.0),
        "kv": {
            "block_tokens": 128,
            "bytes_per_token_per_device": float(device_cache(deployment).token_bytes),
            "capacity_tokens_per_rank": 10_000_000,  # places limit what runs
        },
        "step_costs": {"mixed": StepCostModel.from_step_cost(balanced_cost(deployment, Balance(kind="measured")))},
    }


def queue_of(case: Case, manifest: Manifest) -> MixedQueue:
    """Return the queue of one instance of a manifest."""
    pool = manifest.pools[0]
    workload = Workload(
        input_tokens=Lengths(mean=case.prompt, squared_cv=case.prompt_cv**2),
        output_tokens=Lengths(mean=case.answer, squared_cv=case.answer_cv**2),
    )
    return MixedQueue(
        Aggregate(
            cost=stacked(pool.step_costs["mixed"].to_step_cost()),
            workload=workload,
            ranks=pool.degrees.attention_groups,
            budget_tokens=float(case.budget),
            most_requests=case.places,
            microbatches=pool.microbatches,
            accepted=tokens_per_iteration(pool.mtp.drafts, pool.mtp.acceptance),
        )
    )


def runs(name: str, utilisations: list[float], requests: int) -> Iterator[str]:
    """Yield a row for each utilisation of a case."""
    case = CASES[name]
    manifest = manifest_of(case)
    queue = queue_of(case, manifest)
    for utilisation in utilisations:
        rate = utilisation * queue.saturation_per_second
        state = queue.state(rate, thinned_squared_cv(1.0, case.instances, "round_robin"))
        residence = queue.aggregate.most / queue.saturation_per_second if state is None else state.e2e.mean
        results = []
        for seed in range(SEEDS):
            warm, tail = 6 * residence, (1.5 if not case.answer_cv else 4.0) * residence
            total = rate * case.instances
            stream = open_loop(manifest.workload, total, int(requests + total * (warm + tail)), seed)
            last = float(stream.arrival_seconds[-1])
            options = SimulationOptions(seed=seed, warmup_seconds=warm, measured_until_seconds=last - tail)
            results.append(simulate(manifest, stream, options).to_dict())
        yield row(name, utilisation, results, state)


def row(name: str, utilisation: float, results: list[dict[str, Any]], state: MixedState | None) -> str:
    """Return a line of the table: the mean of several runs, and how far the prediction is from it."""
    cells = []
    for figure in COLUMNS:
        key, level = figure.split()
        measured = sum(result[f"{key}_seconds"][level] for result in results) / len(results)
        cells.append("-" if state is None else f"{getattr(getattr(state, key), level) / measured - 1:+.1%}")
    times = [sum(run["ttft_seconds"][level] for run in results) / len(results) * 1e3 for level in ("mean", "p99")]
    return f"| {name} | {utilisation:.2f} | {times[0]:.1f}, {times[1]:.1f} ms | " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=";".join(CASES), help="names, semicolons between")
    parser.add_argument("--utilisations", default="0.5,0.7,0.85")
    parser.add_argument("--requests", type=int, default=6_000)
    asked = parser.parse_args()
    utilisations = [float(text) for text in asked.utilisations.split(",")]
    print("| case | utilisation | simulated TTFT mean, p99 |", " | ".join(COLUMNS), "|")
    print("|---|---|---|" + "---|" * len(COLUMNS))
    for name in asked.cases.split(";"):
        for line in runs(name, utilisations, asked.requests):
            print(line, flush=True)


if __name__ == "__main__":
    main()
