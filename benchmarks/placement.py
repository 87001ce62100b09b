"""The figures of docs/placement.md: imbalance, bounds and seconds of every regime.

Loads: share falls with the rank's power alpha, times exp(0.1 normal), shuffled per layer, 10 million tokens per layer,
58 layers of 256 experts, one seed. Usage: python benchmarks/placement.py [layers]
"""

import sys
import time

import numpy as np

from planner.placement.dual import certify
from planner.placement.eplb import eplb
from planner.placement.methods import measure, place
from planner.placement.problem import Problem


def power_law(layers: int, experts: int, alpha: float) -> np.ndarray:
    """Token counts, [layers, experts]."""
    rng = np.random.default_rng(0)
    loads = np.arange(1, experts + 1) ** -alpha * np.exp(0.1 * rng.standard_normal((layers, experts)))
    loads = rng.permuted(loads, axis=1)
    return np.round(loads / loads.sum(axis=1, keepdims=True) * 1e7)


def row(layers: int, ranks: int, redundant: int, alpha: float, *, grouped: bool, proven: bool) -> None:
    """Print one line: EPLB, placement, bound, gap, seconds."""
    problem = Problem(
        loads=power_law(layers, 256, alpha),
        ranks=ranks,
        redundant=redundant,
        nodes=4 if grouped else 1,
        groups=8 if grouped else 1,
        keep_groups=grouped,
    )
    start = time.perf_counter()
    placed = place(problem)
    if proven:
        placed = certify(problem, placed).placement
    seconds = time.perf_counter() - start
    theirs = measure(problem, eplb(problem))
    worst = (1 - placed.lower_bound / placed.imbalance).max()
    kind = " groups kept" if grouped else " certified" if proven else ""
    print(
        f"{problem.slots:4d} slots on {ranks:3d}{kind:12s} "
        f"alpha {alpha}: EPLB {theirs.mean():.4f}  podplan {placed.imbalance.mean():.4f}  bound "
        f"{placed.lower_bound.mean():.4f}  gap {placed.gap:.3%} (worst layer {worst:.2%})  proven "
        f"{int(placed.proven.sum())}/{layers}  {seconds:.2f} s  "
        f"worse than EPLB {int((placed.imbalance > theirs).sum())}",
        flush=True,
    )


def main() -> None:
    """Print every regime."""
    layers = int(sys.argv[1]) if len(sys.argv) > 1 else 58
    for alpha in (0.6, 0.8, 1.0, 1.2):
        row(layers, 288, 32, alpha, grouped=False, proven=False)
        row(layers, 32, 32, alpha, grouped=False, proven=False)
        row(layers, 32, 64, alpha, grouped=False, proven=False)
        row(layers, 32, 32, alpha, grouped=True, proven=False)
        row(layers, 32, 64, alpha, grouped=True, proven=False)
    for ranks, redundant in ((72, 32), (144, 32), (160, 64)):
        for alpha in (0.6, 0.8, 1.0, 1.2):
            row(min(layers, 6), ranks, redundant, alpha, grouped=False, proven=True)


if __name__ == "__main__":
    main()
