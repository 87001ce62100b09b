"""The flags of `plan place`, and the problem that they ask; every refusal names the flag and what would be right."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ground.errors import BadInput
from ground.files import read_text
from ground.units import number_of, parse_count
from models.loader import load_model
from planner.costs.predict import Configuration
from planner.manifest.mapformats import read_map
from planner.placement.heldout import Split
from planner.placement.loadfiles import LoadFile
from planner.placement.problem import Problem
from podplan.options import Flags, PredictFlags, Text, argument, flag, flag_name, switch
from podplan.prediction import read_configuration
from podplan.readers import read_choice

MOST_DEVICES = 4096
MOST_SLOTS = 65_536
OF_A_MACHINE = ("phase", "batch", "kv_len", "tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceFlags(Flags):
    """Flags as they were typed; None where one was not given."""

    loads: Path = argument("LOADS", "Token counts: CSV, NPY, NPZ, JSON or SGLang .pt.")
    devices: Text = flag("G", "Devices that share the experts.", needed=True)
    nodes: Text = flag("N", "Nodes that they stand in [1].")
    redundant_experts: Text = flag("R", "Slots beyond one per expert, or auto [fewest].")
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
    traffic_weight: Text = flag("W", "Imbalance that tokens leaving their node are worth.")
    curve: bool = switch("Show imbalance, memory and time against redundant experts.")

    @property
    def by_seconds(self) -> bool:
        """Whether seconds are to be balanced, not tokens."""
        return self.objective is not None and self.objective.strip().lower() == "seconds"

    @property
    def by_planner(self) -> bool:
        """Whether podplan chooses the number of redundant experts."""
        return self.redundant_experts is not None and self.redundant_experts.strip().lower() == "auto"


def read_problem(flags: PlaceFlags, read: LoadFile) -> Problem:
    """Return what is to be placed; BadInput naming the flag."""
    ranks = parse_count(flags.devices or "", "--devices")
    if ranks > MOST_DEVICES:
        raise BadInput(f"--devices: {ranks} are more than the {MOST_DEVICES} that experts are placed on")
    experts = read.loads.shape[1]
    redundant = _redundant(flags, experts, ranks)
    if experts + redundant > MOST_SLOTS:
        raise BadInput(
            f"--redundant-experts: {experts + redundant} slots are more than the {MOST_SLOTS} that are placed"
        )
    return Problem(
        loads=_objective_loads(flags, read),
        ranks=ranks,
        redundant=redundant,
        nodes=flags.count("nodes", 1),
        groups=_groups(flags),
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


def _groups(flags: PlaceFlags) -> int:
    """Groups of the router, as given or as the model has them."""
    if flags.groups is not None:
        return parse_count(flags.groups, "--groups")
    spec = None if flags.model is None else load_model(flags.model)
    return spec.moe.groups if spec is not None and spec.moe is not None else 1


def read_holdout(flags: PlaceFlags, problem: Problem) -> Split | None:
    """Which slices are kept back; None where there are none to keep."""
    word = read_choice(flags.holdout, "--holdout", ("alternate", "later", "none"))
    if not problem.sliced or word == "none":
        return None
    return "alternate" if word == "alternate" else "later"


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
