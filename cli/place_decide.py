"""What `plan place` asks of the cost model: the number of redundant experts, the verdict, seconds of the experts."""

from dataclasses import dataclass, replace

from cli.place_flags import PlaceFlags, check_objective, read_problem
from cli.predict_flags import PredictFlags, read_configuration
from planner.balance.skew import measured_distribution
from planner.costs.predict import Configuration, expert_layouts
from planner.placement.decide import Choice, Verdict, best_choice, curve, redundancies, verdict
from planner.placement.loadfiles import LoadFile
from planner.placement.methods import Placement, measure
from planner.placement.problem import Problem
from planner.placement.seconds import Timed, place_for_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Choices of redundancy, if they were asked for, and whether balancing is worth it."""

    choices: tuple[Choice, ...] = ()
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPlacement:
    """The placement that was timed, and its experts' seconds beside those of others."""

    placement: Placement
    timed: Timed


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


def decide(flags: PlaceFlags, read: LoadFile, asked: Configuration | None) -> tuple[Problem, Decision | None]:
    """Return the problem, with the redundancy chosen where that was left to podplan, and how it was decided."""
    problem = read_problem(flags, read)
    mean = replace(problem, loads=problem.mean_loads)
    distribution = measured_distribution(mean.loads, "the loads")
    choices: tuple[Choice, ...] = ()
    if flags.curve or flags.by_planner:
        choices = tuple(_curve(mean, asked))
    if flags.by_planner:
        problem = replace(problem, redundant=best_choice(choices).redundant)
    if asked is None:
        return problem, Decision(choices=choices) if choices else None
    return problem, Decision(choices=choices, verdict=verdict(asked, mean, problem.redundant, distribution))


def _curve(mean: Problem, asked: Configuration | None) -> list[Choice]:
    distribution = measured_distribution(mean.loads, "the loads")
    return curve(mean, redundancies(mean.experts, mean.ranks), asked, distribution)


def time_experts(flags: PlaceFlags, problem: Problem, asked: Configuration, placed: Placement) -> TimedPlacement:
    """Return the experts' seconds; with ``--objective seconds`` the map that was placed for them."""
    deployment = expert_layouts(replace(asked, redundant=problem.redundant, shared="local"))[0]
    rows = asked.tokens if asked.phase == "prefill" else asked.batch
    timed = place_for_seconds(problem, deployment, rows * problem.ranks, placed.slots, search=flags.by_seconds)
    if not flags.by_seconds:
        return TimedPlacement(placement=placed, timed=timed)
    reached = measure(problem, timed.slots)
    bound = placed.lower_bound.clip(max=reached)
    found = replace(placed, slots=timed.slots, imbalance=reached, lower_bound=bound, method="seconds")
    return TimedPlacement(placement=found, timed=timed)
