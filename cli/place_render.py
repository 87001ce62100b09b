"""What `plan place` prints: tables for people, one object for programs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.manifest.loads import imbalance, rank_loads
from planner.placement.certify import Certified
from planner.placement.eplb import eplb
from planner.placement.loadfiles import LoadFile
from planner.placement.methods import Placement, trivial
from planner.placement.problem import Problem


def headline(problem: Problem, read: LoadFile) -> str:
    """Return one line: what is placed on what."""
    nodes = f" in {problem.nodes} nodes" if problem.nodes > 1 else ""
    slices = f", {problem.loads.shape[2]} time slices" if problem.sliced else ""
    dense = f" ({read.dense_layers} dense layers before them left out)" if read.dense_layers else ""
    return (
        f"{problem.layers} layers x {problem.experts} experts{slices}{dense} on {problem.ranks} devices{nodes}: "
        f"{problem.slots} slots, {problem.slots_per_rank} per device, {problem.redundant} redundant"
    )


def table_rows(problem: Problem, placed: Placement) -> list[list[str]]:
    """Return the imbalance of the layout that engines start from, of EPLB, of the placement, and the bound."""
    bound = "lower bound, groups kept" if problem.keep_groups else "lower bound"
    rows = [
        ("as engines start", _imbalance(problem, trivial(problem))),
        ("EPLB", _imbalance(problem, eplb(problem))),
        (f"podplan ({placed.method})", placed.imbalance),
        (bound, placed.lower_bound),
    ]
    return [[name, f"{values.mean():.4f}", f"{values.max():.4f}"] for name, values in rows]


def _imbalance(problem: Problem, slots: NDArray[np.int64]) -> NDArray[np.float64]:
    return imbalance(rank_loads(problem.mean_loads, slots, problem.ranks))


def summary_lines(placed: Placement, seconds: float) -> list[str]:
    """Return the gap and what is proven."""
    return [
        f"gap {placed.gap:.2%} of the mean; proven optimal in {int(placed.proven.sum())} of {len(placed.imbalance)} "
        f"layers; {seconds:.2g} s"
    ]


def as_json(problem: Problem, certified: Certified, seconds: float) -> dict[str, Any]:
    """Return the answer with the keys of the command's fixed points."""
    placed = certified.placement
    return {
        "layers": problem.layers,
        "experts": problem.experts,
        "devices": problem.ranks,
        "nodes": problem.nodes,
        "redundant_experts": problem.redundant,
        "slots_per_device": problem.slots_per_rank,
        "method": placed.method,
        "imbalance": _mean_max(placed.imbalance),
        "lower_bound": _mean_max(placed.lower_bound),
        "gap": placed.gap,
        "proven_optimal_layers": int(placed.proven.sum()),
        "seconds": seconds,
        "imbalance_by_layer": placed.imbalance.tolist(),
        "lower_bound_by_layer": placed.lower_bound.tolist(),
        "baselines": {
            "as_engines_start": _mean_max(_imbalance(problem, trivial(problem))),
            "eplb": _mean_max(_imbalance(problem, eplb(problem))),
        },
        "certificates": [
            {"layer": layer, "target": found.target, "prices": found.prices.tolist()}
            for layer, found in sorted(certified.certificates.items())
        ],
        "placement": {"physical_to_logical": placed.slots.tolist()},
    }


def _mean_max(values: NDArray[np.float64]) -> dict[str, float]:
    return {"mean": float(values.mean()), "max": float(values.max())}
