"""What `plan place` prints: tables for people, one object for programs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.manifest.mapformats import MoeMap
from planner.placement.certify import Certified
from planner.placement.eplb import eplb
from planner.placement.heldout import HeldOut
from planner.placement.loadfiles import LoadFile
from planner.placement.methods import Placement, measure, trivial
from planner.placement.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was asked and what came out."""

    problem: Problem
    certified: Certified
    seconds: float
    held_out: HeldOut | None = None

    @property
    def placed(self) -> Placement:
        """The placement after all efforts."""
        return self.certified.placement


def headline(problem: Problem, read: LoadFile) -> str:
    """Return one line: what is placed on what."""
    nodes = f" in {problem.nodes} nodes" if problem.nodes > 1 else ""
    slices = f", {problem.loads.shape[2]} time slices" if problem.sliced else ""
    dense = f" ({read.dense_layers} dense layers before them left out)" if read.dense_layers else ""
    return (
        f"{problem.layers} layers x {problem.experts} experts{slices}{dense} on {problem.ranks} devices{nodes}: "
        f"{problem.slots} slots, {problem.slots_per_rank} per device, {problem.redundant} redundant"
    )


def table_rows(answer: Answer) -> list[list[str]]:
    """Return the imbalance of the layout that engines start from, of EPLB, of the placement, and the bound."""
    problem, placed = answer.problem, answer.placed
    bound = "lower bound, groups kept" if problem.keep_groups else "lower bound"
    rows = [
        ("as engines start", measure(problem, trivial(problem))),
        ("EPLB", measure(problem, eplb(problem))),
        (f"podplan ({placed.method})", placed.imbalance),
        (bound, placed.lower_bound),
    ]
    if answer.held_out is not None:
        held = answer.held_out
        rows += [("EPLB on unseen slices", held.eplb_unseen), ("podplan on unseen slices", held.unseen)]
    return [[name, f"{values.mean():.4f}", f"{values.max():.4f}"] for name, values in rows]


def summary_lines(answer: Answer) -> list[str]:
    """Return the gap, what is proven, and what slices that were not seen say."""
    placed = answer.placed
    lines = [
        f"gap {placed.gap:.2%} of the mean; proven optimal in {int(placed.proven.sum())} of {len(placed.imbalance)} "
        f"layers; {answer.seconds:.2g} s"
    ]
    if answer.problem.sliced:
        lines.append(
            "imbalance is the sum over slices of the busiest device over the sum of the means; "
            "the bound lets every slice have its own map"
        )
    if answer.held_out is not None:
        kept = "every second slice" if answer.held_out.split == "alternate" else "the later half of the slices"
        lines.append(f"placed without {kept}, those show {_less(answer.held_out.gain)} EPLB's imbalance")
    return lines


def _less(gain: float) -> str:
    return f"{abs(gain):.1%} {'less than' if gain >= 0 else 'more than'}"


def as_json(answer: Answer, moe: MoeMap) -> dict[str, Any]:
    """Return the answer with the keys of the command's fixed points."""
    problem, placed = answer.problem, answer.placed
    held = answer.held_out
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
        "seconds": answer.seconds,
        "objective": "slices" if problem.sliced else "mean",
        "held_out": None
        if held is None
        else {
            "split": held.split,
            "imbalance": _mean_max(held.unseen),
            "imbalance_seen": _mean_max(held.seen),
            "eplb": _mean_max(held.eplb_unseen),
            "gain": held.gain,
        },
        "imbalance_by_layer": placed.imbalance.tolist(),
        "lower_bound_by_layer": placed.lower_bound.tolist(),
        "baselines": {
            "as_engines_start": _mean_max(measure(problem, trivial(problem))),
            "eplb": _mean_max(measure(problem, eplb(problem))),
        },
        "certificates": [
            {"layer": layer, "target": found.target, "prices": found.prices.tolist()}
            for layer, found in sorted(answer.certified.certificates.items())
        ],
        "placement": {
            "physical_to_logical": placed.slots.tolist(),
            "replicas": [np.bincount(row, minlength=problem.experts).tolist() for row in placed.slots],
            "dense_layers": moe.dense_layers,
        },
    }


def _mean_max(values: NDArray[np.float64]) -> dict[str, float]:
    return {"mean": float(values.mean()), "max": float(values.max())}
