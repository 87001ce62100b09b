"""`podplan.place`: experts and their replicas on devices, from measured loads."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ground.errors import BadInput, Fault
from ground.files import read_text
from ground.units import number_of
from models.loader import load_model
from planner.balance.imbalance import measured_distribution
from planner.costs.predict import Configuration
from planner.manifest.mapformats import WRITERS, MoeMap, read_map
from planner.placement.arranged import LeavingTokens, MapChange, Timed, moved_little, time_experts, weigh_traffic
from planner.placement.decide import Choice, Verdict, best_choice, curve, redundancies, verdict
from planner.placement.dual import Certified, certify
from planner.placement.eplb import eplb, eplb_as_published
from planner.placement.loadfiles import LoadFile, read_loads
from planner.placement.methods import HeldOut, Placement, Split, hold_out, measure, place as place_experts, trivial
from planner.placement.problem import Problem
from podplan.options import Flags, PredictFlags, Text, argument, flag, flag_name, flags_of, switch
from podplan.prediction import read_configuration
from podplan.readers import read_choice
from podplan.result import Result, Row, as_data, as_json, picked

ANSWER = "placement.json"
FILES = (*WRITERS, ANSWER)
MOST_DEVICES = 4096
MOST_SLOTS = 65_536
OF_A_MACHINE = ("phase", "batch", "kv_len", "tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceFlags(Flags):
    """Flags as they were typed; None where one was not given."""

    loads: Path = argument("LOADS", "Token counts of experts: CSV, NPY, NPZ, JSON or SGLang .pt.")
    devices: Text = flag("G", "Devices that share the experts.", needed=True)
    nodes: Text = flag("N", "Nodes that they stand in [1].")
    redundant_experts: Text = flag("R", "Slots beyond one per expert, or auto [the fewest that divide].")
    slots_per_device: Text = flag("S", "Instead of --redundant-experts.")
    groups: Text = flag("K", "Groups of the router, such as 8 for DeepSeek-V3 [1].")
    keep_groups: bool = switch("Keep every group on one node.")
    method: str = flag("M", "auto, eplb, joint, ... [auto].", default="auto")
    certify: bool = switch("Search longer and prove more: up to 15 s per layer.")
    objective: Text = flag("O", "slices, mean or seconds [slices, if any].")
    holdout: str = flag("H", "alternate, later or none: slices kept back [alternate].", default="alternate")
    model: Text = flag("MODEL", "Model whose dense layers and groups are taken.")
    hw: Text = flag("HW", "With --model: what imbalance costs on this hardware.")
    phase: Text = flag("PHASE", "With --hw: decode or prefill [decode].")
    batch: Text = flag("REQUESTS", "With --hw: requests per device [32].")
    kv_len: Text = flag("TOKENS", "With --hw: cached tokens per request [4096].")
    tokens: Text = flag("TOKENS", "With --hw: prompt tokens per device [8192].")
    current: Path | None = flag("MAP", "Map that runs now, in any format of --out.")
    max_moves: Text = flag("M", "With --current: experts to load per layer at most.")
    traffic_weight: Text = flag("W", "Weight of the share of tokens that leave their node, beside the imbalance.")
    curve: bool = switch("Show imbalance, memory and time against redundant experts.")

    @property
    def by_seconds(self) -> bool:
        """Whether seconds are to be balanced, not tokens."""
        return self.objective is not None and self.objective.strip().lower() == "seconds"

    @property
    def by_planner(self) -> bool:
        """Whether podplan chooses the number of redundant experts."""
        return self.redundant_experts is not None and self.redundant_experts.strip().lower() == "auto"


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
        choices: of redundancy, if they were asked for.
        verdict: whether balancing is worth it.
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
    choices: tuple[Choice, ...] = ()
    verdict: Verdict | None = None
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
            **self._told_json(),
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

    def _told_json(self) -> dict[str, Any]:
        """Return the keys of what was asked besides: redundancy, whether it is worth it, traffic, migration."""
        data: dict[str, Any] = {"redundancy": as_data(self.choices)} if self.choices else {}
        if self.verdict is not None:
            data["verdict"] = as_data(self.verdict) | picked(self.verdict, "saves worth_it")
        if self.traffic is not None:
            data["traffic"] = _summed(self.traffic, "weight leaving_share=leaving objective_bound=bound")
        if self.migration is not None:
            loaded = picked(self.migration, "experts_to_load=loads experts_to_load_without_limit=unlimited_loads")
            data["migration"] = {"current_imbalance": _mean_max(self.migration.current), **loaded}
        return data

    def files(self) -> dict[str, str]:
        """Return the map in every engine's format, each read back, and the answer as JSON."""
        problem = self.problem
        moe = MoeMap(
            slots=self.placed.slots, experts=problem.experts, ranks=problem.ranks, dense_layers=self.dense_layers
        )
        texts = {name: write(moe) for name, write in WRITERS.items()}
        for name, text in texts.items():
            rows = read_map(text, name, experts=moe.experts, ranks=moe.ranks).slots
            if (rows[-len(moe.slots) :] != moe.slots).any():
                raise Fault(f"{name} does not read back as it was written")
        return {**texts, ANSWER: as_json(self.to_dict())}


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
    problem, choices, told = decide(typed, read, asked)
    # Which slices are kept back; None where there are none to keep
    known: tuple[Split | Literal["none"], ...] = ("alternate", "later", "none")
    word = read_choice(typed.holdout, "--holdout", known)
    split = None if word == "none" or not problem.sliced else word
    running, weight = read_current(typed, problem), read_weight(typed, problem)
    start = time.perf_counter()
    found = place_experts(problem, typed.method)
    timed = traffic = migration = None
    if asked is not None:
        found, timed = time_experts(problem, asked, found, search=typed.by_seconds)
    if weight is not None:
        found, traffic = weigh_traffic(problem, found, weight)
    certified = certify(problem, found) if typed.certify else Certified(placement=found, certificates={})
    if running is not None:
        most = typed.count("max_moves", None, zero=True)
        found, migration = moved_little(problem, certified.placement, running, most)
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
        choices=choices,
        verdict=told,
        timed=timed,
        traffic=traffic,
        migration=migration,
    )


def decide(
    flags: PlaceFlags, read: LoadFile, asked: Configuration | None
) -> tuple[Problem, tuple[Choice, ...], Verdict | None]:
    """Return the problem, with the redundancy chosen where that was left to podplan, of which, and if it pays."""
    problem = read_problem(flags, read)
    mean = replace(problem, loads=problem.mean_loads)
    distribution = measured_distribution(mean.loads, "the loads")
    choices: tuple[Choice, ...] = ()
    if flags.curve or flags.by_planner:
        choices = tuple(curve(mean, redundancies(mean.experts, mean.ranks), asked, distribution))
    if flags.by_planner:
        problem = replace(problem, redundant=best_choice(choices).redundant)
    return problem, choices, None if asked is None else verdict(asked, mean, problem.redundant, distribution)


def read_problem(flags: PlaceFlags, read: LoadFile) -> Problem:
    """Return what is to be placed; BadInput naming the flag."""
    ranks = flags.count("devices", 0)
    if ranks > MOST_DEVICES:
        raise BadInput(f"--devices: {ranks} are more than the {MOST_DEVICES} that experts are placed on")
    experts = read.loads.shape[1]
    redundant = _redundant(flags, experts, ranks)
    if experts + redundant > MOST_SLOTS:
        raise BadInput(
            f"--redundant-experts: {experts + redundant} slots are more than the {MOST_SLOTS} that are placed"
        )
    moe = None if flags.model is None else load_model(flags.model).moe
    return Problem(
        loads=_objective_loads(flags, read),
        ranks=ranks,
        redundant=redundant,
        nodes=flags.count("nodes", 1),
        groups=flags.count("groups", 1 if moe is None else moe.groups),
        keep_groups=flags.keep_groups,
    )


def read_dense_layers(flags: PlaceFlags, read: LoadFile) -> int:
    """Return the dense layers before those with experts; BadInput where the loads are of another model."""
    if flags.model is None:
        return read.dense_layers
    spec, (layers, experts) = load_model(flags.model), read.loads.shape[:2]
    if spec.moe is None:
        raise BadInput(f"--model: {spec.name} has no experts to place")
    if (spec.moe_layers, spec.moe.experts) != (layers, experts):
        raise BadInput(
            f"--model: {spec.name} has {spec.moe_layers} layers of {spec.moe.experts} experts, the loads "
            f"{layers} of {experts}"
        )
    if spec.moe_layer_numbers != list(range(spec.dense_layers, spec.layers)):
        raise BadInput(f"--model: {spec.name} alternates dense and MoE layers, which no map is written for yet")
    return spec.dense_layers


def check_objective(flags: PlaceFlags) -> None:
    """Raise BadInput where seconds are asked of no machine, told of one that is not there, or to be proven least."""
    if flags.certify and (flags.by_seconds or flags.traffic_weight is not None):
        given = "--objective seconds" if flags.by_seconds else "--traffic-weight"
        raise BadInput(f"--certify: proves the least imbalance of tokens; leave it or {given} out")
    if flags.by_seconds and flags.hw is None:
        raise BadInput("--objective: seconds needs --model and --hw, whose expert products are timed")
    if flags.by_planner and flags.hw is None:
        raise BadInput("--redundant-experts: auto weighs memory and time, which needs --model and --hw")
    if flags.hw is not None and flags.model is None:
        raise BadInput("--hw: needs --model, whose experts are costed")
    for name in OF_A_MACHINE:
        if flags.hw is None and getattr(flags, name) is not None:
            raise BadInput(
                f"{flag_name(name)} is for timing the experts; give --model and --hw with it or leave it out"
            )


def _objective_loads(flags: PlaceFlags, read: LoadFile) -> NDArray[np.float64]:
    """The loads with slices, or their sum where the objective is the mean."""
    sliced = read.loads.ndim == 3 and read.loads.shape[2] > 1
    word = ("slices" if sliced else "mean") if flags.objective is None else flags.objective.strip().lower()
    read_choice(word, "--objective", ("slices", "mean", "seconds"))
    if word == "slices" and not sliced:
        raise BadInput("--objective: slices needs loads of several time slices; use mean")
    if word == "slices":
        return read.loads
    return read.loads.sum(axis=2) if read.loads.ndim == 3 else read.loads


def _redundant(flags: PlaceFlags, experts: int, ranks: int) -> int:
    flags.check_apart(("redundant_experts", "slots_per_device"), "give the slots")
    slots = flags.count("slots_per_device", None)
    if slots is None:
        fewest = -experts % ranks
        return fewest if flags.by_planner else flags.count("redundant_experts", fewest, zero=True)
    if not experts <= slots * ranks or slots > experts:
        least = -(-experts // ranks)
        raise BadInput(f"--slots-per-device: {slots} must be from {least}, where {experts} experts fit, to {experts}")
    return slots * ranks - experts


def read_asked(flags: PlaceFlags) -> Configuration | None:
    """Return the configuration that experts are timed in: one DP and one EP rank per device; None without --hw."""
    check_objective(flags)
    if flags.hw is None or flags.model is None:
        return None
    phase = (flags.phase or "decode").strip().lower()
    decode = phase != "prefill"
    return read_configuration(
        PredictFlags(
            model=flags.model,
            hw=flags.hw,
            phase=phase,
            strategy=f"DP={flags.devices}, EP={flags.devices}",
            batch=flags.batch or ("32" if decode else None),
            kv_len=flags.kv_len,
            tokens=flags.tokens,
        )
    )


def read_current(flags: PlaceFlags, problem: Problem) -> NDArray[np.int64] | None:
    """Return the slots [layers, slots] of the map that runs; BadInput where it belongs to another deployment."""
    path = flags.current
    if path is None:
        if flags.max_moves is not None:
            raise BadInput("--max-moves: needs --current, the map that experts move from")
        return None
    found = read_map(read_text(path), str(path), experts=problem.experts, ranks=problem.ranks)
    slots = found.slots[-problem.layers :]
    if found.ranks != problem.ranks or slots.shape != (problem.layers, problem.slots):
        raise BadInput(
            f"--current: {path} has {len(found.slots)} layers of {found.slots.shape[1]} slots on {found.ranks} "
            f"devices; expected are {problem.layers} of {problem.slots} on {problem.ranks}"
        )
    return slots


def read_weight(flags: PlaceFlags, problem: Problem) -> float | None:
    """Return ``--traffic-weight``; BadInput unless it is a number from 0 and there are groups and nodes to leave."""
    if flags.traffic_weight is None:
        return None
    weight = number_of(flags.traffic_weight)
    if not weight >= 0:
        raise BadInput(f"--traffic-weight: {flags.traffic_weight[:20]!r} is not a number from 0, such as 0.5")
    if problem.sliced or problem.nodes < 2 or problem.groups < 2 or problem.groups % problem.nodes:
        raise BadInput(
            "--traffic-weight: needs --nodes of 2 or more that divide --groups, and loads without time slices "
            "(--objective mean)"
        )
    return weight
