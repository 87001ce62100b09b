"""Whether predictions order engines and layouts as measured runs do: python scripts/engine_order.py RUNS.csv.

Prints the share of pairs of engines, on one machine at one load, whose throughput per chip is ordered right, with one
layout and with any; and of every load what the layout that predictions pick falls short of the best measured one.
"""

import sys
from itertools import combinations
from pathlib import Path
from statistics import fmean

from planner.verification.runs import METRICS, read_runs
from planner.verification.verify import Verified, verify_runs

LOAD = ("model", "hardware", "weights", "isl", "osl", "concurrency")
THROUGHPUT = METRICS[2]


def ordered(group: list[Verified]) -> list[bool]:
    """Return for each pair of runs of two engines whether the better one is predicted to be."""
    return [
        (one.run.measured[THROUGHPUT] > other.run.measured[THROUGHPUT])
        == (one.predicted[THROUGHPUT] > other.predicted[THROUGHPUT])
        for one, other in combinations(group, 2)
        if one.run.labels["engine"] != other.run.labels["engine"]
    ]


def main(path: Path) -> None:
    """Compare."""
    runs = [run for run in verify_runs(read_runs(path)) if THROUGHPUT in run.error]
    for told, keys in (("one layout", (*LOAD, "strategy")), ("any layout", LOAD)):
        groups: dict[tuple[str, ...], list[Verified]] = {}
        for each in runs:
            groups.setdefault(tuple(each.run.cells.get(key, "") for key in keys), []).append(each)
        right = [pair for group in groups.values() for pair in ordered(group)]
        print(f"{told}: {fmean(right):.1%} of {len(right)} pairs of engines ordered right")
    losses = []
    for group in groups.values():
        if len(group) > 1:
            picked = max(group, key=lambda each: each.predicted[THROUGHPUT])
            best = max(each.run.measured[THROUGHPUT] for each in group)
            losses.append(1 - picked.run.measured[THROUGHPUT] / best)
    near = fmean(loss <= 0.03 for loss in losses)
    print(f"picked of {len(losses)} loads: {fmean(losses):.1%} below the best measured, within 3 % in {near:.0%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
