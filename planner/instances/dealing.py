"""Prefill passes whose prompts are dealt evenly to DP groups: how long they take, and whether bulk service is exact."""

from typing import NamedTuple

import numpy as np

from ground.arrays import Floats
from planner.closed_forms.bulk_lattice import Passes
from planner.instances.candidates import busiest_prompts, each_pass_seconds
from planner.loops.arrays import TableArrays
from planner.manifest.terms import StepCost
from planner.serving.streams import longest_prompt
from planner.serving.tables import Loads, step_table
from planner.workload import Workload


class Dealing(NamedTuple):
    """An instance whose work is dealt evenly to its DP groups: its step cost and number of groups."""

    cost: StepCost
    workload: Workload
    ranks: int
    microbatches: int


def dealt_pass_seconds(dealing: Dealing, prompts: Floats, chunks: int) -> Floats:
    """Seconds of passes with ``prompts`` prompts in all groups, each in ``chunks``; shaped like ``prompts``."""
    busy_groups = np.minimum(prompts, dealing.ranks)
    busiest = busiest_prompts(dealing.workload, np.ceil(prompts / dealing.ranks), np.maximum(busy_groups, 1.0))
    mean = prompts / dealing.ranks
    counts = range(1, dealing.microbatches + 1)
    options = each_pass_seconds(dealing.cost, dealing.workload, (busiest, mean), chunks, counts)
    return np.asarray(np.minimum.reduce([np.broadcast_to(option, prompts.shape) for option in options]))


def mean_passes(dealing: Dealing, most_prompts: int, chunks: int) -> Passes:
    """Return the pass times for 1 to ``most_prompts`` prompts of mean length, each in ``chunks``."""
    return Passes.tabulated(lambda prompts: dealt_pass_seconds(dealing, prompts, chunks), most_prompts)


def pass_times(dealing: Dealing, budget_tokens: float, most_tokens: float) -> TableArrays:
    """Return the table of pass times for DP groups with a token budget and a model with context ``most_tokens``."""
    loads = Loads(
        ranks=dealing.ranks,
        budget_tokens=budget_tokens,
        longest_prompt=min(longest_prompt(dealing.workload), most_tokens),
        microbatches=dealing.microbatches,
    )
    return step_table(dealing.cost, loads)


def has_closed_form(workload: Workload, chunks: int) -> bool:
    """Whether bulk service is exact: equal prompts, not chunked, with Poisson arrivals or Poisson dealt in turn."""
    return not workload.varied and workload.trace is None and workload.arrival_squared_cv == 1 and chunks == 1
