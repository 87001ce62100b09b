"""`python -m tests.fuzz --cases 20000 --seed 1`: the whole hunt; what it finds is written as files that replay.

`python -m tests.fuzz --truths 500 --seed 1` asks random questions whose answers may not contradict each other.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from ground.workers import spare_threads
from tests.fuzz.cases import blocks
from tests.fuzz.hunt import hunted, replayed
from tests.fuzz.truths import TRUTHS, contradictions


def ask(numbers: Sequence[int], seed: int, jobs: int, only: Collection[str] = ()) -> int:
    """Tell what contradicts itself around the random questions of these numbers, and return around how many."""
    bad, truths = 0, [truth for truth in TRUTHS if truth.__name__ in only]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        found_of = partial(contradictions, seed=seed, truths=truths)
        for number, (flags, found) in zip(numbers, pool.map(found_of, numbers), strict=True):
            bad += bool(found)
            for told in found:
                sys.stdout.write(f"{seed}-{number} {json.dumps(flags)}: {told}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{len(numbers)} questions of seed {seed}: {bad} with a contradiction\n")
    return min(bad, 100)


def run() -> int:
    """Hunt, tell, and return how many cases failed, 100 at most."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--truths", type=int, help="so many random questions, in place of cases")
    parser.add_argument("--at", default="", help="the questions of these numbers alone, such as 51,67")
    parser.add_argument("--only", default="", help="these truths, such as alike,told [each with its share]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--commands", default="", help="such as place,deploy [all]")
    parser.add_argument("--found", type=Path, default=Path("fuzz-found"), help="folder of what was found")
    parser.add_argument("--replay", type=Path, nargs="*", help="run these again")
    given = parser.parse_args()
    spare_threads()  # of the processes that are started: several on all cores wait for each other
    if given.at or given.truths is not None:
        numbers = [int(one) for one in given.at.split(",")] if given.at else range(given.truths)
        return ask(numbers, given.seed, given.jobs, given.only.split(","))
    if given.replay:
        outcomes = map(replayed, given.replay)
    else:
        everything = blocks(given.cases, given.seed, given.commands.split(",") if given.commands else ())
        pool = ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn"))  # single-threaded, so that it can fork
        outcomes = pool.map(hunted, everything)
    count, bad = Counter[str](), 0
    for command, cases_run, ended in outcomes:
        count[command] += cases_run
        sys.stderr.write(f"{count.total()} cases, {command} last\n")
        for name, case, found in ended:
            bad += 1
            given.found.mkdir(exist_ok=True)
            path = given.found / f"{name}.json"
            path.write_text(json.dumps({"faults": found, "case": case.told()}, indent=1), encoding="utf-8")
            sys.stdout.write(f"{path}: {' '.join(case.arguments)[:150]!r}: {'; '.join(found)[:400]}\n")
            sys.stdout.flush()
    told = ", ".join(f"{name} {number}" for name, number in sorted(count.items()))
    sys.stdout.write(f"{count.total()} cases of seed {given.seed} ({told}): {bad} with a fault\n")
    return min(bad, 100)


if __name__ == "__main__":
    sys.exit(run())
