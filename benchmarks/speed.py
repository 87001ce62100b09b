"""Speed figures that the README quotes: run `python benchmarks/speed.py` in an environment with podplan installed.

Whole processes are started cold (a new interpreter each time, files in the page cache); medians of
several runs, because shared machines are noisy. Nothing here is a test.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.question import Question

RUNS = 5
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command sets it: small matrices gain nothing from threads


def median_seconds(work: Callable[[], object], runs: int = RUNS) -> float:
    """Median wall time of ``work`` over ``runs`` calls after one warm-up."""
    work()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def process(*arguments: str, codes: Sequence[int] = (0,)) -> Callable[[], object]:
    """A call of the `plan` command as a new process, which must end with one of the exit codes."""
    command = [sys.executable, "-c", "from cli.main import run; run()", *arguments]
    # As users have it: the second start finds its bytecode cached.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}

    def call() -> None:
        done = subprocess.run(command, capture_output=True, env=environment)
        if done.returncode not in codes:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)

    return call


def predict_seconds() -> float:
    """One in-process prediction of the CloudMatrix384 decode configuration, all operators included."""
    from hardware.loader import load_hardware
    from models.loader import load_model
    from planner.costs.predict import Configuration, predict
    from planner.strategy import parse_strategy

    configuration = Configuration(
        model=load_model("deepseek-r1"),
        hardware=load_hardware("cm384"),
        phase="decode",
        strategy=parse_strategy("DP=320, EP=320"),
        weights="int8",
        redundant=32,
        shared=32,
        drafts=1,
        microbatches=2,
        batch=48,
    )
    return median_seconds(lambda: [predict(configuration) for _ in range(200)]) / 200


def main_question() -> "Question":
    """The main job's question."""
    from hardware.loader import load_hardware
    from models.loader import load_model
    from planner.question import Machines, Question
    from planner.workload import Lengths, Workload

    hardware = load_hardware("cm384")
    machines = Machines(hardware=hardware, devices=768, weights="int8", budget="cm384")
    return Question(
        model=load_model("deepseek-r1"),
        prefill=machines,
        decode=machines,
        workload=Workload(input_tokens=Lengths(mean=4096), output_tokens=Lengths(mean=1024)),
        ttft_seconds=2.0,
        tpot_seconds=0.05,
        drafts=(0, 1),
    )


def costing_rate(microbatches: int, batches: int = 32) -> tuple[int, float]:
    """Decode candidates costed, and per second: every row of the main job's space at every batch to ``batches``.

    This is the search's own array evaluation, term by term, as many points at once as it takes, without the pruning
    that spares it most of them.
    """
    import numpy as np

    from planner.balance.imbalance import expected_maximum_normal
    from planner.costs.latency import balanced_cost
    from planner.instances.decode_candidates import iteration
    from planner.instances.space import groups, role_rows
    from planner.manifest.stacks import stacked
    from planner.offers.prefill_offers import POINTS_AT_ONCE
    from planner.workload import running_kv_tokens

    question = main_question()
    kv = running_kv_tokens(question.workload)
    rows = role_rows(question, "decode")
    batch = np.arange(2.0, batches + 2)[:, None]  # [batches, 1]
    built = []
    for group in groups(question, "decode", rows, 1):
        cost = stacked(balanced_cost(group.deployment, question.balance), decoding=True)
        parts = np.array_split(batch, -(-batches // max(POINTS_AT_ONCE // len(group.rows), 1)))
        built.append((cost, expected_maximum_normal(group.deployment.strategy.attention_groups), parts))

    def cost_all() -> None:
        for cost, deviations, parts in built:
            for part in parts:
                iteration(cost, deviations, part, kv, microbatches)

    count = len(rows) * batches
    return count, count / median_seconds(cost_all)


def pruned_search() -> tuple[int, float]:
    """Candidates that the main job costs after pruning, and the seconds of its search."""
    from planner.search.search import search

    question = main_question()
    evaluated = search(question).candidates_evaluated
    return evaluated, median_seconds(lambda: search(question))


def loop_seconds() -> float:
    """A million turns of an empty loop: how fast the machine is just now, about 0.025 s on a quiet 2.5 GHz core."""

    def loop() -> None:
        for _ in range(1_000_000):
            pass

    return median_seconds(loop)


LENGTHS = ((512, 512), (1024, 512), (1500, 300), (2048, 512), (3000, 1000), (4096, 1024), (4096, 2350), (6000, 700))
LENGTHS += ((8192, 512), (16384, 500))


def check_seconds(asked: Sequence[str]) -> float:
    """`plan check` of questions about the main job's model and machine, whole process; each adds its own keys."""
    listed = "".join(f"  - {{name: question {number}, {keys}}}\n" for number, keys in enumerate(asked))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "questions.yaml"
        file.write_text(f"model: deepseek-r1\nhw: cm384\nttft: 2s\ntpot: 50ms\nquestions:\n{listed}")
        return median_seconds(process("check", str(file), codes=(0, 3)), 3)


def fleet_seconds() -> tuple[int, float]:
    """Columns solved and seconds of three models that share all of CloudMatrix384."""
    from dataclasses import replace

    from models.loader import load_model
    from planner.search.cluster import plan_cluster
    from planner.search.fleet import Fleet, Member

    question = main_question()
    rates = {"deepseek-r1": 120.0, "kimi-k2": 30.0, "qwen3-235b-a22b": 60.0}
    members = tuple(
        Member(
            name=name,
            question=replace(
                question,
                model=load_model(name),
                rate_per_second=rate,
                objective="chips",
                drafts=(0, 1) if load_model(name).mtp_layers else (0,),
            ),
        )
        for name, rate in rates.items()
    )
    fleet = Fleet(members=members, devices={"cm384": 768})
    bound = plan_cluster(fleet).bound
    return bound.queues_solved if bound else 0, median_seconds(lambda: plan_cluster(fleet), 3)


def main() -> None:
    """Print the table."""
    print(f"a million empty loops, the machine just now      {loop_seconds():8.3f} s")
    print(f"plan --help, whole process                       {median_seconds(process('--help')):8.3f} s")
    main_job = median_seconds(process("deepseek-r1", "--hw", "cm384"))
    largest = median_seconds(process("fleet", str(Path(__file__).parents[1] / "examples/fleets/two-pools.yaml")), 3)
    print(f"plan fleet examples/fleets/two-pools.yaml        {largest:8.3f} s")
    print(f"plan deepseek-r1 --hw cm384, whole process       {main_job:8.3f} s")
    rates = check_seconds([f"rate: {30 * (number + 1)}/s" for number in range(10)])
    print(f"plan check, ten questions of other rates         {rates:8.3f} s")
    lengths = check_seconds([f"rate: 40/s, isl: {isl}, osl: {osl}" for isl, osl in LENGTHS])
    print(f"plan check, ten questions of other lengths       {lengths:8.3f} s")
    explained = median_seconds(process("explain", "deepseek-r1", "--hw", "cm384"), 3)
    print(f"plan explain deepseek-r1 --hw cm384              {explained:8.3f} s")
    print(f"one prediction with every operator, in process   {predict_seconds() * 1000:8.3f} ms")
    for microbatches in (1, 2):
        count, rate = costing_rate(microbatches)
        how = f"{microbatches} microbatch{'es' if microbatches > 1 else ''}"
        print(f"candidates costed per second, {how:14}     {rate:8,.0f}   ({count:,} decode candidates)")
    solved, fleet = fleet_seconds()
    print(f"three models on all of CloudMatrix384            {fleet:8.3f} s ({solved:,} queues solved)")
    evaluated, seconds = pruned_search()
    print(f"search of the main job, in process               {seconds:8.3f} s ({evaluated:,} costed after pruning)")


if __name__ == "__main__":
    main()
