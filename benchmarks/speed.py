"""Speed figures that the README quotes: run `python benchmarks/speed.py` in an environment with podplan installed.

Whole processes are started cold (a new interpreter each time, files in the page cache); medians of
several runs, because shared machines are noisy. Nothing here is a test.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

RUNS = 5


def median_seconds(work: Callable[[], object], runs: int = RUNS) -> float:
    """Median wall time of ``work`` over ``runs`` calls after one warm-up."""
    work()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def process(*arguments: str) -> Callable[[], object]:
    """A call of the `plan` command as a new process."""
    command = [sys.executable, "-c", "from cli.main import run; run()", *arguments]
    return lambda: subprocess.run(command, check=True, capture_output=True)


def predict_seconds() -> float:
    """One in-process prediction of the CloudMatrix384 decode configuration, all operators included."""
    from hardware.loader import load_hardware
    from models.loader import load_model
    from planner.predict import Configuration, predict
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


def candidates_per_second() -> tuple[int, float]:
    """Candidates costed, and per second of costing, in the main job's search (queues and fleet apart)."""
    from hardware.loader import load_hardware
    from models.loader import load_model
    from planner.decode_candidates import Count
    from planner.question import Machines, Question
    from planner.search import decode_all, prefill_found
    from planner.workload import Lengths, Workload

    hardware = load_hardware("cm384")
    machines = Machines(hardware=hardware, devices=768, weights="int8", budget="cm384")
    question = Question(
        model=load_model("deepseek-r1"),
        prefill=machines,
        decode=machines,
        workload=Workload(input_tokens=Lengths(mean=4096), output_tokens=Lengths(mean=1024)),
        ttft_seconds=2.0,
        tpot_seconds=0.05,
        drafts=(0, 1),
    )
    count = Count()

    def cost() -> None:
        count.evaluated = 0
        prefill_found(question, count)
        decode_all(question, count)

    seconds = median_seconds(cost)
    return count.evaluated, count.evaluated / seconds


def main() -> None:
    """Print the table."""
    print(f"plan --help, whole process                       {median_seconds(process('--help')):8.3f} s")
    main_job = median_seconds(process("deepseek-r1", "--hw", "cm384"))
    print(f"plan deepseek-r1 --hw cm384, whole process       {main_job:8.3f} s")
    print(f"one prediction with every operator, in process   {predict_seconds() * 1000:8.3f} ms")
    evaluated, rate = candidates_per_second()
    print(f"candidates costed in the main job                {evaluated:8,d}   ({rate:,.0f} per second)")


if __name__ == "__main__":
    main()
