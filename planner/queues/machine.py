"""What forms and runs the passes of a prefill instance, and how long a pass lasts by what its busiest group carries."""

from dataclasses import dataclass

import numpy as np

from planner.manifest.stepcost import evaluate
from planner.manifest.terms import Number, StepCost, StepLoad
from planner.serving.latency import Array

Loads = tuple[Array, Array, Array, Array]
"""Of a DP group: computed tokens, context, pairs, finishing prompts."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What forms and runs passes: step cost, DP groups, tokens that a group takes, most microbatches."""

    cost: StepCost
    ranks: int
    budget_tokens: float
    microbatches: int


def pass_load(load: Loads, mean_tokens: Array) -> StepLoad:
    """Return what a step cost is asked with for passes whose busiest group carries ``load``, ``mean_tokens`` each."""
    computed, context, pairs, finishing = load
    return StepLoad(
        prefill_tokens=computed,
        prefill_context_tokens=context,
        prefill_pairs=pairs,
        finishing_prompts=finishing,
        mean_tokens=mean_tokens,
    )


def pass_durations(machine: Machine, load: Loads, mean_tokens: Array) -> Array:
    """Seconds of passes whose busiest group carries ``load``; the experts serve all groups: ``mean_tokens`` of each."""
    step = pass_load(load, mean_tokens)
    found: Number = evaluate(machine.cost, step, 1).seconds
    if machine.microbatches > 1:
        found = np.minimum(found, evaluate(machine.cost, step, 2).seconds)
    return np.broadcast_to(np.asarray(found, dtype=np.float64), load[0].shape)
