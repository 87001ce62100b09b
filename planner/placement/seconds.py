"""What a rank's experts take, in seconds: the grouped products of one layer with their weights streamed from memory.

In memory-bound decode a rank waits for the weights of the experts that some token hits, not for tokens: an expert whose
replica expects n tokens of an iteration is read with probability 1 - exp(-n). So a replica has two components, tokens
and expected reads, and a rank's cost is the roofline of its grouped products over both.

Ref: METRO (arXiv 2512.09277) balances activated experts for the same reason; the roofline is ``costs.roofline``.
"""

from dataclasses import dataclass

import numpy as np

from ground.arrays import Floats, Ints
from planner.costs.deployment import Deployment
from planner.costs.expert_operators import expert_terms
from planner.manifest.terms import Number, timing
from planner.placement.eplb import eplb
from planner.placement.improve import search_jointly
from planner.placement.problem import Problem
from planner.placement.rows import Objective

_STEPS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Maps for the least seconds of the busiest rank, [layers, slots], and those seconds beside others', [layers]."""

    slots: Ints
    seconds: Floats
    balanced_tokens: Floats
    """Seconds of the map that balances tokens."""
    eplb: Floats


def seconds_objective(deployment: Deployment) -> Objective:
    """Return the objective of a deployment; loads are tokens of one iteration, [rows, experts]."""
    terms = [term for term in expert_terms(deployment) if term.stage == "experts"]

    def weights(loads: Floats, counts: Ints) -> Floats:
        tokens = loads / counts
        return np.stack([tokens, -np.expm1(-tokens)], axis=2)

    def cost(sums: Floats) -> Floats:
        values: dict[str, Number] = {"one": 1.0, "routed": sums[..., 0], "hit": sums[..., 1]}
        return np.asarray(sum(np.asarray(timing(term, values).seconds()) for term in terms))

    return Objective(weights, cost)


def tokens_per_iteration(loads: Floats, deployment: Deployment, tokens: float) -> Floats:
    """Scale loads to one iteration in which the whole instance routes ``tokens`` tokens."""
    routed = tokens * deployment.moe.experts_per_token
    return np.asarray(loads * (routed / loads.sum(axis=1, keepdims=True)))


def busiest_seconds(loads: Floats, slots: Ints, ranks: int, objective: Objective) -> Floats:
    """Seconds of the busiest rank, [layers], from tokens of an iteration [layers, experts] and maps [layers, slots]."""
    counts = np.stack([np.bincount(row, minlength=loads.shape[1]) for row in slots])
    weight = objective.weights(loads, counts)
    held = weight[np.arange(len(loads))[:, None], slots]  # [layers, slots, components]
    sums = held.reshape(len(loads), ranks, -1, weight.shape[2]).sum(axis=2)
    return np.asarray(objective.cost(sums).max(axis=1))


def place_for_seconds(
    problem: Problem, deployment: Deployment, tokens: float, usual: Ints, *, search: bool = True
) -> Timed:
    """Place so that the busiest rank's experts take least seconds in an iteration of ``tokens`` tokens in all.

    The search starts from ``usual``, a map that balances tokens, or from EPLB's where that is quicker; without
    ``search`` the usual map is only timed. Kept groups stay as they are.
    """
    objective = seconds_objective(deployment)
    loads = tokens_per_iteration(problem.mean_loads, deployment, tokens)
    theirs = eplb(problem)
    by_tokens, by_eplb = (busiest_seconds(loads, slots, problem.ranks, objective) for slots in (usual, theirs))
    if not search:
        return Timed(slots=usual, seconds=by_tokens, balanced_tokens=by_tokens, eplb=by_eplb)
    found = np.where((by_eplb < by_tokens)[:, None], theirs, usual)
    if problem.slots_per_rank > 1 and not problem.keep_groups:
        held = found.reshape(problem.layers, problem.ranks, -1)
        # No rank can take less than its share of the tokens with no weights read.
        share = np.stack([loads.sum(axis=1) / problem.ranks, np.zeros(problem.layers)], axis=1)
        found = search_jointly(loads, held, objective.cost(share), _STEPS, objective=objective)
        found = np.sort(found, axis=2).reshape(problem.layers, -1)
    reached = busiest_seconds(loads, found, problem.ranks, objective)
    return Timed(slots=found, seconds=reached, balanced_tokens=by_tokens, eplb=by_eplb)
