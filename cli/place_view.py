"""What `plan place` shows: tables for people, one object for programs, pictures."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cli.placing import Decision, Migration, TimedPlacement, Traffic
from ground.units import format_bytes, format_duration
from planner.manifest.loads import rank_loads
from planner.manifest.mapformats import MoeMap
from planner.placement.certify import Certified
from planner.placement.eplb import eplb, eplb_as_published
from planner.placement.heldout import HeldOut
from planner.placement.loadfiles import LoadFile
from planner.placement.methods import Placement, measure, trivial
from planner.placement.problem import Problem
from podplan.result import as_data, picked

LOADS, REDUNDANCY = PLOTS = ("device_loads.svg", "redundancy.svg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was asked and what came out."""

    problem: Problem
    certified: Certified
    seconds: float
    held_out: HeldOut | None = None
    decision: Decision | None = None
    timed: TimedPlacement | None = None
    traffic: Traffic | None = None
    migration: Migration | None = None

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
        ("EPLB", measure(problem, eplb_as_published(problem))),
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


CURVE_COLUMNS = ["redundant", "per device", "imbalance", "worst layer", "bound", "weights per device", "time", "fits"]


def curve_rows(decision: Decision) -> list[list[str]]:
    """Return a row per number of redundant experts."""
    rows = []
    for choice in decision.choices:
        effect = choice.effect
        costs = ["", "", ""]
        if effect is not None:
            costs = [
                format_bytes(effect.weights_bytes),
                format_duration(effect.seconds),
                "yes" if effect.fits else "no",
            ]
        figures = [f"{value:.4f}" for value in (choice.imbalance, choice.worst, choice.lower_bound)]
        rows.append([str(choice.redundant), str(choice.slots_per_rank), *figures, *costs])
    return rows


def decision_lines(answer: Answer) -> list[str]:
    """Return whether balancing is worth it, with what it saves and what its copies take."""
    lines = _change_lines(answer)
    if answer.timed is not None:
        timed = answer.timed.timed
        lines.append(
            f"experts of a layer on the busiest device: {format_duration(timed.seconds.mean())}, "
            f"under EPLB {format_duration(timed.eplb.mean())}"
        )
    found = None if answer.decision is None else answer.decision.verdict
    if found is not None:
        before, after = found.unbalanced, found.balanced
        copies = after.weights_bytes - before.weights_bytes
        lines.append(
            f"balancing is {'worth it' if found.worth_it else 'not worth it'} here: "
            f"{format_duration(before.seconds)} as engines start, {format_duration(after.seconds)} with "
            f"{found.redundant} redundant experts ({abs(found.saves):.1%} "
            f"{'less' if found.saves >= 0 else 'more'} time, {format_bytes(copies)} more weights "
            f"per device{'' if after.fits else ', which do not fit'})"
        )
    return lines


def _change_lines(answer: Answer) -> list[str]:
    """Return what traffic between nodes and the way from the current map look like."""
    lines = []
    if answer.traffic is not None:
        traffic, reached = answer.traffic, answer.placed.imbalance
        total = (reached + traffic.weight * traffic.leaving).mean()
        lines.append(
            f"{traffic.leaving.mean():.1%} of the tokens leave their group's node; imbalance + {traffic.weight:g} x "
            f"that share is {total:.4f}, at least {traffic.bound.mean():.4f} for any map"
        )
    if answer.migration is not None:
        change = answer.migration
        lines.append(
            f"from an imbalance of {change.current.mean():.4f} now, by loading {change.loads.mean():.1f} experts per "
            f"layer ({change.loads.sum()} in all; without a limit {change.unlimited_loads.sum()})"
        )
    return lines


def _change_json(answer: Answer) -> dict[str, Any]:
    """Return the keys of traffic and migration."""
    data: dict[str, Any] = {}
    if answer.traffic is not None:
        data["traffic"] = {
            "weight": answer.traffic.weight,
            "leaving_share": _mean_max(answer.traffic.leaving),
            "objective_bound": _mean_max(answer.traffic.bound),
        }
    if answer.migration is not None:
        data["migration"] = {
            "current_imbalance": _mean_max(answer.migration.current),
            "experts_to_load": answer.migration.loads.tolist(),
            "experts_to_load_without_limit": answer.migration.unlimited_loads.tolist(),
        }
    return data


def _decision_json(decision: Decision | None) -> dict[str, Any]:
    """Return the choices and the verdict."""
    if decision is None:
        return {}
    data: dict[str, Any] = {}
    if decision.choices:
        data["redundancy"] = as_data(decision.choices)
    if decision.verdict is not None:
        found = decision.verdict
        data["verdict"] = as_data(found) | picked(found, "saves worth_it")
    return data


def as_json(answer: Answer, moe: MoeMap) -> dict[str, Any]:
    """Return the answer with the keys of the command's fixed points."""
    problem, placed = answer.problem, answer.placed
    held = answer.held_out
    return {
        **picked(problem, "layers experts devices=ranks nodes redundant_experts=redundant"),
        "slots_per_device": problem.slots_per_rank,
        "method": placed.method,
        "imbalance": _mean_max(placed.imbalance),
        "lower_bound": _mean_max(placed.lower_bound),
        "gap": placed.gap,
        "proven_optimal_layers": int(placed.proven.sum()),
        "seconds": answer.seconds,
        "objective": placed.method if placed.method == "seconds" else "slices" if problem.sliced else "mean",
        "held_out": None
        if held is None
        else {
            "split": held.split,
            "imbalance": _mean_max(held.unseen),
            "imbalance_seen": _mean_max(held.seen),
            "eplb": _mean_max(held.eplb_unseen),
            "gain": held.gain,
        },
        **_decision_json(answer.decision),
        **_change_json(answer),
        "expert_seconds": None
        if answer.timed is None
        else {
            "placement": _mean_max(answer.timed.timed.seconds),
            "balanced_tokens": _mean_max(answer.timed.timed.balanced_tokens),
            "eplb": _mean_max(answer.timed.timed.eplb),
        },
        "imbalance_by_layer": placed.imbalance.tolist(),
        "lower_bound_by_layer": placed.lower_bound.tolist(),
        "baselines": {
            "as_engines_start": _mean_max(measure(problem, trivial(problem))),
            "eplb": _mean_max(measure(problem, eplb_as_published(problem))),
            "eplb_without_duplicates": _mean_max(measure(problem, eplb(problem))),
        },
        "certificates": [
            {"layer": layer, **picked(found, "target prices")}
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


def plot_files(folder: Path, answer: Answer) -> dict[Path, str]:
    """Return the picture of the loads and, where the curve was asked for, that of it, as they are to be written."""
    from matplotlib.figure import Figure

    problem = answer.problem
    figures = {LOADS: Figure(figsize=(9, 4), layout="constrained")}
    axes = figures[LOADS].subplots()
    for name, slots in (("as engines start", trivial(problem)), ("placed", answer.placed.slots)):
        loads = rank_loads(problem.mean_loads, slots, problem.ranks)
        relative = np.sort(loads / loads.mean(axis=1, keepdims=True), axis=1)[:, ::-1]
        axes.plot(range(1, problem.ranks + 1), relative.mean(axis=0), drawstyle="steps-mid", label=name)
        axes.fill_between(
            range(1, problem.ranks + 1), relative.min(axis=0), relative.max(axis=0), alpha=0.2, step="mid"
        )
    axes.set(xlabel="device of a layer, busiest first", ylabel="load over the mean device")
    axes.legend(title="mean over layers, all layers shaded")
    if answer.decision is not None and answer.decision.choices:
        figures[REDUNDANCY] = Figure(figsize=(6, 4), layout="constrained")
        axes = figures[REDUNDANCY].subplots()
        choices = answer.decision.choices
        redundant = [choice.redundant for choice in choices]
        axes.plot(redundant, [choice.imbalance for choice in choices], marker="o", label="placed")
        axes.plot(redundant, [choice.lower_bound for choice in choices], linestyle="--", label="lower bound")
        axes.set(xlabel="redundant experts", ylabel="imbalance, mean over layers")
        axes.legend()
    texts = {}
    for name, figure in figures.items():
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        texts[folder / name] = buffer.getvalue()
    return texts
