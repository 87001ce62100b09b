"""`python -m tests.fuzz --cases 20000 --seed 1`: the whole hunt; what it finds is written as files that replay.

`python -m tests.fuzz --truths 500 --seed 1` asks random questions whose answers may not contradict each other.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from zlib import crc32

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.cases import WEIGHTS, Case, cases, read_case
from tests.fuzz.hunt import judged
from tests.fuzz.truths import TRUTHS, contradictions


def drawn(count: int, number: int, commands: Collection[str] = ()) -> list[Case]:
    """Return about so many cases, of each command its share; the same seed draws the same."""
    found: list[Case] = []
    shares = {name: share for name, share in WEIGHTS.items() if name in (commands or WEIGHTS)}
    for name, share in shares.items():

        @seed(number)
        @settings(
            max_examples=max(count * share // sum(shares.values()), 1),
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(cases(name))
        def collect(case: Case) -> None:
            found.append(case)

        collect()
    return sorted(found, key=lambda case: crc32(repr(case.arguments).encode()))


def hunt(everything: list[Case], jobs: int) -> Iterator[tuple[Case, list[str]]]:
    """Yield each case with its faults, as they end; workers are single-threaded, so that they can be copied."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(judged, everything, chunksize=8)


def ask(count: int, number: int, jobs: int, only: Collection[str] = ()) -> int:
    """Tell what contradicts itself around so many random questions, and return around how many."""
    bad, truths = 0, [truth for truth in TRUTHS if truth.__name__ in only]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        found_of = partial(contradictions, seed=number, truths=truths)
        for place, (flags, found) in enumerate(pool.map(found_of, range(count))):
            bad += bool(found)
            for told in found:
                sys.stdout.write(f"{number}-{place} {json.dumps(flags)}: {told}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{count} questions of seed {number}: {bad} with a contradiction\n")
    return min(bad, 100)


def run() -> int:
    """Hunt, tell, and return how many cases failed, 100 at most."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--truths", type=int, help="so many random questions, in place of cases")
    parser.add_argument("--only", default="", help="these truths, such as alike,told [each with its share]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--commands", default="", help="such as place,deploy [all]")
    parser.add_argument("--found", type=Path, default=Path("fuzz-found"), help="folder of what was found")
    parser.add_argument("--replay", type=Path, nargs="*", help="run these again")
    given = parser.parse_args()
    if given.truths is not None:
        return ask(given.truths, given.seed, given.jobs, given.only.split(","))
    if given.replay:
        everything = [read_case(json.loads(path.read_text(encoding="utf-8"))["case"]) for path in given.replay]
    else:
        everything = drawn(given.cases, given.seed, given.commands.split(",") if given.commands else ())
    count, bad = Counter[str](), 0
    for number, (case, found) in enumerate(hunt(everything, given.jobs)):
        count[case.command] += 1
        if found:
            bad += 1
            given.found.mkdir(exist_ok=True)
            path = given.found / f"{given.seed}-{number}.json"
            path.write_text(json.dumps({"faults": found, "case": case.told()}, indent=1), encoding="utf-8")
            sys.stdout.write(f"{path}: {' '.join(case.arguments)[:150]!r}: {'; '.join(found)[:400]}\n")
            sys.stdout.flush()
    told = ", ".join(f"{name} {number}" for name, number in sorted(count.items()))
    sys.stdout.write(f"{len(everything)} cases of seed {given.seed} ({told}): {bad} with a fault\n")
    return min(bad, 100)


if __name__ == "__main__":
    sys.exit(run())
