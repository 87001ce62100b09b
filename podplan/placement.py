"""`podplan.place`: experts and their replicas on devices, from measured loads."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ground.errors import Fault
from ground.units import parse_count
from planner.balance.skew import measured_distribution
from planner.costs.predict import Configuration, expert_layouts
from planner.manifest.mapformats import WRITERS, MoeMap, read_map
from planner.placement.certify import Certified, certify
from planner.placement.decide import Choice, Verdict, best_choice, curve, redundancies, verdict
from planner.placement.eplb import eplb, eplb_as_published
from planner.placement.heldout import HeldOut, hold_out
from planner.placement.loadfiles import LoadFile, read_loads
from planner.placement.methods import Placement, measure, trivial
from planner.placement.methods import place as place_experts
from planner.placement.migrate import few_moves, moves, renumbered
from planner.placement.problem import Problem
from planner.placement.seconds import Timed, place_for_seconds
from planner.placement.traffic import leaving_share, pay_for_leaving, trade_off_bound
from podplan.options import flags_of
from podplan.place_input import (
    PlaceFlags,
    read_asked,
    read_current,
    read_dense_layers,
    read_holdout,
    read_problem,
    read_weight,
)
from podplan.result import Result, Row, as_data, as_json, picked

ANSWER = "placement.json"
FILES = (*WRITERS, ANSWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Choices of redundancy, if they were asked for, and whether balancing is worth it."""

    choices: tuple[Choice, ...] = ()
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MapChange:
    """The current map's imbalance [layers], and experts to be loaded for the new one [layers]."""

    current: NDArray[np.float64]
    loads: NDArray[np.int64]
    unlimited_loads: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingTokens:
    """Share of tokens served away from their group's node, and the bound on imbalance + weight x share; [layers]."""

    weight: float
    leaving: NDArray[np.float64]
    bound: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PlaceResult(Result):
    """Experts and their replicas on devices.

    Attributes:
        read: the loads that were read.
        problem: what was to be placed.
        certified: the placement after all efforts, and what proves how good it is.
        seconds: how long placing took.
        dense_layers: layers before those with experts, which some engines' files count.
        held_out: what slices that were kept back say.
        decision: the choice of redundancy, and whether balancing is worth it.
        timed: the experts' seconds beside those of other placements.
        traffic: what leaves its group's node.
        migration: the way from the map that runs now.
    """

    read: LoadFile
    problem: Problem
    certified: Certified
    seconds: float
    dense_layers: int
    held_out: HeldOut | None = None
    decision: Decision | None = None
    timed: Timed | None = None
    traffic: LeavingTokens | None = None
    migration: MapChange | None = None

    @property
    def placed(self) -> Placement:
        """The placement after all efforts."""
        return self.certified.placement

    @property
    def headline(self) -> str:
        """What is placed on what."""
        problem, read = self.problem, self.read
        nodes = f" in {problem.nodes} nodes" if problem.nodes > 1 else ""
        slices = f", {problem.loads.shape[2]} time slices" if problem.sliced else ""
        dense = f" ({read.dense_layers} dense layers before them left out)" if read.dense_layers else ""
        return (
            f"{problem.layers} layers x {problem.experts} experts{slices}{dense} on {problem.ranks} devices{nodes}: "
            f"{problem.slots} slots, {problem.slots_per_rank} per device, {problem.redundant} redundant"
        )

    def compared(self) -> dict[str, NDArray[np.float64]]:
        """Return the imbalance [layers] that engines start from, of EPLB, of the placement, and the bound."""
        problem, placed, held = self.problem, self.placed, self.held_out
        found = {
            "as engines start": measure(problem, trivial(problem)),
            "EPLB": measure(problem, eplb_as_published(problem)),
            f"podplan ({placed.method})": placed.imbalance,
            "lower bound, groups kept" if problem.keep_groups else "lower bound": placed.lower_bound,
        }
        if held is not None:
            found |= {"EPLB on unseen slices": held.eplb_unseen, "podplan on unseen slices": held.unseen}
        return found

    def rows(self) -> list[Row]:
        """Return a row per placement that is compared."""
        return [{"placement": name, **_mean_max(values)} for name, values in self.compared().items()]

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``plan place --json`` prints."""
        problem, placed = self.problem, self.placed
        return {
            **picked(problem, "layers experts devices=ranks nodes redundant_experts=redundant"),
            "slots_per_device": problem.slots_per_rank,
            "method": placed.method,
            "imbalance": _mean_max(placed.imbalance),
            "lower_bound": _mean_max(placed.lower_bound),
            "gap": placed.gap,
            "proven_optimal_layers": int(placed.proven.sum()),
            "seconds": self.seconds,
            "objective": placed.method if placed.method == "seconds" else "slices" if problem.sliced else "mean",
            "held_out": _summed(self.held_out, "split imbalance=unseen imbalance_seen=seen eplb=eplb_unseen gain"),
            **_decision_json(self.decision),
            **self._change_json(),
            "expert_seconds": _summed(self.timed, "placement=seconds balanced_tokens eplb"),
            "imbalance_by_layer": placed.imbalance.tolist(),
            "lower_bound_by_layer": placed.lower_bound.tolist(),
            "baselines": {
                "as_engines_start": _mean_max(measure(problem, trivial(problem))),
                "eplb": _mean_max(measure(problem, eplb_as_published(problem))),
                "eplb_without_duplicates": _mean_max(measure(problem, eplb(problem))),
            },
            "certificates": [
                {"layer": layer, **picked(found, "target prices")}
                for layer, found in sorted(self.certified.certificates.items())
            ],
            "placement": {
                "physical_to_logical": placed.slots.tolist(),
                "replicas": [np.bincount(row, minlength=problem.experts).tolist() for row in placed.slots],
                "dense_layers": self.dense_layers,
            },
        }

    def _change_json(self) -> dict[str, Any]:
        """Return the keys of traffic and migration."""
        data: dict[str, Any] = {}
        if self.traffic is not None:
            data["traffic"] = _summed(self.traffic, "weight leaving_share=leaving objective_bound=bound")
        if self.migration is not None:
            loaded = picked(self.migration, "experts_to_load=loads experts_to_load_without_limit=unlimited_loads")
            data["migration"] = {"current_imbalance": _mean_max(self.migration.current), **loaded}
        return data

    def moe_map(self) -> MoeMap:
        """Return the placement behind the model's dense layers, which SGLang and TensorRT-LLM count."""
        problem = self.problem
        return MoeMap(
            slots=self.placed.slots, experts=problem.experts, ranks=problem.ranks, dense_layers=self.dense_layers
        )

    def files(self) -> dict[str, str]:
        """Return the map in every engine's format, each read back, and the answer as JSON."""
        moe = self.moe_map()
        texts = {name: write(moe) for name, write in WRITERS.items()}
        for name, text in texts.items():
            rows = read_map(text, name, experts=moe.experts, ranks=moe.ranks).slots
            if (rows[-len(moe.slots) :] != moe.slots).any():
                raise Fault(f"{name} does not read back as it was written")
        return {**texts, ANSWER: as_json(self.to_dict())}


def _decision_json(decision: Decision | None) -> dict[str, Any]:
    """Return the choices and the verdict."""
    if decision is None:
        return {}
    found = decision.verdict
    told = {} if found is None else {"verdict": as_data(found) | picked(found, "saves worth_it")}
    return {**({"redundancy": as_data(decision.choices)} if decision.choices else {}), **told}


def _summed(one: object | None, keys: str) -> dict[str, Any] | None:
    """Return attributes as ``picked`` does, arrays by their mean and their largest value; None of nothing."""
    if one is None:
        return None
    return {
        key: _mean_max(np.array(each)) if isinstance(each, list) else each for key, each in picked(one, keys).items()
    }


def _mean_max(values: NDArray[np.float64]) -> dict[str, float]:
    return {"mean": float(values.mean()), "max": float(values.max())}


def place(loads: str | Path, *, devices: int | str, **flags: object) -> PlaceResult:
    """Place experts and their replicas on devices from measured loads.

    Args:
        loads: token counts, layers × experts or layers × experts × slices: CSV, NPY, NPZ, JSON or SGLang .pt.
        devices: devices that share the experts.
        flags: the long flags of ``plan place``, such as ``nodes=4, redundant_experts=32``.

    Raises:
        BadInput: a keyword that is no flag, or a value that it cannot have; before anything that takes long.
    """
    typed = flags_of(PlaceFlags, {"loads": Path(loads), "devices": devices, **flags})
    read = read_loads(typed.loads)
    dense_layers, asked = read_dense_layers(typed, read), read_asked(typed)
    problem, decision = decide(typed, read, asked)
    split = read_holdout(typed, problem)
    running, weight = read_current(typed, problem), read_weight(typed, problem)
    start = time.perf_counter()
    found = place_experts(problem, typed.method)
    timed = traffic = migration = None
    if asked is not None:
        found, timed = time_experts(typed, problem, asked, found)
    if weight is not None:
        found, traffic = weigh_traffic(problem, found, weight)
    certified = certify(problem, found) if typed.certify else Certified(placement=found, certificates={})
    if running is not None:
        found, migration = migrate(typed, problem, certified.placement, running)
        certified = replace(certified, placement=found)
    seconds = time.perf_counter() - start
    held_out = hold_out(problem, split, typed.method) if split else None
    return PlaceResult(
        read=read,
        dense_layers=dense_layers,
        problem=problem,
        certified=certified,
        seconds=seconds,
        held_out=held_out,
        decision=decision,
        timed=timed,
        traffic=traffic,
        migration=migration,
    )


def decide(flags: PlaceFlags, read: LoadFile, asked: Configuration | None) -> tuple[Problem, Decision | None]:
    """Return the problem, with the redundancy chosen where that was left to podplan, and how it was decided."""
    problem = read_problem(flags, read)
    mean = replace(problem, loads=problem.mean_loads)
    distribution = measured_distribution(mean.loads, "the loads")
    choices: tuple[Choice, ...] = ()
    if flags.curve or flags.by_planner:
        choices = tuple(curve(mean, redundancies(mean.experts, mean.ranks), asked, distribution))
    if flags.by_planner:
        problem = replace(problem, redundant=best_choice(choices).redundant)
    if asked is None:
        return problem, Decision(choices=choices) if choices else None
    return problem, Decision(choices=choices, verdict=verdict(asked, mean, problem.redundant, distribution))


def time_experts(
    flags: PlaceFlags, problem: Problem, asked: Configuration, placed: Placement
) -> tuple[Placement, Timed]:
    """Return the placement, with ``--objective seconds`` the one for them, and the experts' seconds."""
    deployment = expert_layouts(replace(asked, redundant=problem.redundant, shared="local"))[0]
    rows = asked.tokens if asked.phase == "prefill" else asked.batch
    timed = place_for_seconds(problem, deployment, rows * problem.ranks, placed.slots, search=flags.by_seconds)
    return (_moved(problem, placed, timed.slots, "seconds") if flags.by_seconds else placed), timed


def _moved(problem: Problem, placed: Placement, slots: NDArray[np.int64], method: str | None = None) -> Placement:
    """Return a placement with other slots; what bounds it is the bound that was, or less where it is better."""
    reached = measure(problem, slots)
    bound = placed.lower_bound.clip(max=reached)
    return replace(placed, slots=slots, imbalance=reached, lower_bound=bound, method=method or placed.method)


def migrate(
    flags: PlaceFlags, problem: Problem, placed: Placement, current: NDArray[np.int64]
) -> tuple[Placement, MapChange]:
    """Return the placement that keeps experts where they are as far as it can, within ``--max-moves`` per layer."""
    before = measure(problem, current)
    slots = renumbered(current, placed.slots, problem)
    unlimited = loaded = moves(current, slots, problem.ranks).sum(axis=1)
    if flags.max_moves is not None:
        most, rows = parse_count(flags.max_moves, "--max-moves", allow_zero=True), []
        for layer, loads in enumerate(problem.mean_loads):
            if unlimited[layer] <= most:
                rows.append(slots[layer])
                continue
            trace = few_moves(loads, current[layer], problem.ranks, most)
            rows.append(trace.slots[trace.within(most)])
        slots = np.stack(rows)
        loaded = moves(current, slots, problem.ranks).sum(axis=1)
    change = MapChange(current=before, loads=loaded, unlimited_loads=unlimited)
    return _moved(problem, placed, slots), change


def weigh_traffic(problem: Problem, placed: Placement, weight: float) -> tuple[Placement, LeavingTokens]:
    """Return the map with the least imbalance + weight x leaving share, of the one given and those on the way."""
    kept = replace(problem, keep_groups=True)
    slots = pay_for_leaving(kept, weight)
    ours, usual = (measure(problem, rows) + weight * leaving_share(problem, rows) for rows in (slots, placed.slots))
    slots = np.where((usual < ours)[:, None], placed.slots, slots)
    told = LeavingTokens(weight=weight, leaving=leaving_share(problem, slots), bound=trade_off_bound(problem, weight))
    return _moved(problem, placed, slots, "traffic"), told
