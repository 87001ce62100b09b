"""How long questions take: `python benchmarks/speed.py [FOLDER of traces]` in an environment with podplan installed.

Whole processes are started anew each time, with files in the page cache; medians of several runs, for shared machines
are noisy. Seconds of the processor tell more than those of the wall where other work runs beside. Nothing is tested.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRACE = "azure_llm_2023_conv_first20min.csv.gz"
VARIED = "--isl-cv 1 --osl-cv 1"
QUESTIONS = (
    # command line of plan, runs
    ("--help", 5),
    ("predict deepseek-r1 --hw cm384 --phase decode --strategy DP=320,EP=320 --batch 48", 5),
    ("deepseek-r1 --hw cm384", 5),
    ("deepseek-r1 --hw cm384 --engine reference", 5),
    ("deepseek-r1 --hw cm384 --isl-cv 1", 1),
    ("deepseek-r1 --hw cm384 --nodes 1", 1),
    ("qwen3-235b-a22b --hw h100 --nodes 8 --isl 3000 --isl-cv 0.8 --osl 400 --osl-cv 0.8", 3),
    (f"qwen3-8b --hw h100 --nodes 8 {VARIED}", 1),
    (f"qwen3-8b --hw h100 --nodes 8 {VARIED} --engine vllm", 3),
    (f"explain qwen3-8b --hw h100 --nodes 1 {VARIED}", 1),
    ("explain deepseek-r1 --hw cm384", 3),
    ("check examples/questions/capacity.yaml", 3),
    ("fleet examples/fleets/two-pools.yaml", 3),
    (f"qwen3-8b --hw h100 --nodes 1 --trace {TRACE}", 3),
    (f"deepseek-r1 --hw cm384 --trace {TRACE}", 1),
)


def seconds(arguments: list[str], runs: int) -> tuple[float, float]:
    """Median seconds of the wall and of the processor that a call of `plan` takes, after one that fills caches."""
    command = [sys.executable, "-m", "cli", *arguments]
    # As users have it: the second start finds its bytecode cached.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    found = []
    for _ in range(runs + 1):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, time.perf_counter()
        done = subprocess.run(command, capture_output=True, env=environment, cwd=ROOT)
        if done.returncode not in (0, 3):
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        found.append((time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before))
    wall, processor = zip(*found[1:], strict=True)
    return statistics.median(wall), statistics.median(processor)


def loop_seconds() -> float:
    """A million turns of an empty loop: how fast the machine is just now, about 0.025 s on a quiet 2.5 GHz core."""
    start = time.perf_counter()
    for _ in range(1_000_000):
        pass
    return time.perf_counter() - start


def main() -> None:
    """Print a line per question; those on a trace where its folder is given."""
    print(f"wall     user, s; a million empty loops take {loop_seconds():.3f} s just now")
    for question, runs in QUESTIONS:
        if TRACE in question and len(sys.argv) < 2:
            continue
        arguments = [str(Path(sys.argv[1]).resolve() / TRACE) if word == TRACE else word for word in question.split()]
        wall, processor = seconds(arguments, runs)
        print(f"{wall:8.2f} {processor:8.2f}  plan {question}", flush=True)


if __name__ == "__main__":
    main()
