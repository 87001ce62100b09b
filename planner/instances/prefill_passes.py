"""Prefill passes whose prompts are dealt evenly to DP groups: how long they take, and whether bulk service is exact.

Then upper bounds on the prompts per second of prefill instances, as arrays.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from ground.arrays import Floats
from planner.closed_forms.bulk_lattice import Passes
from planner.instances.candidates import busiest_prompts, each_pass_seconds
from planner.loops.arrays import TableArrays
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import Number, StepCost, StepLoad
from planner.question import Question
from planner.serving.played import MANY
from planner.serving.prefill import OfflineBeside
from planner.serving.streams import longest_prompt, stationary
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


def has_closed_form(workload: Workload, chunks: int, beside: OfflineBeside | None) -> bool:
    """Whether bulk service is exact: equal prompts alone, not chunked, Poisson arrivals or Poisson dealt in turn."""
    return (
        beside is None
        and not workload.varied
        and workload.trace is None
        and workload.arrival_squared_cv == 1
        and chunks == 1
    )


def is_played(question: Question, chunks: int) -> bool:
    """Whether prefill instances of a question are played, with prompts in so many chunks."""
    return question.queueing != "mixserve" and not has_closed_form(question.workload, chunks, question.beside)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sample:
    """Prompts of a stream, [requests]: computed tokens and reused tokens."""

    new: Floats
    reused: Floats
    percentile: float
    _rooms: dict[float, float] = field(default_factory=dict)

    @cached_property
    def pairs(self) -> float:
        """Mean query-key pairs of the new tokens."""
        return float((self.new * self.reused + self.new * (self.new + 1) / 2).mean())

    def room(self, budget_tokens: float) -> float:
        """Mean tokens that a prompt takes of budgets; whole budgets of reused tokens take none."""
        if budget_tokens not in self._rooms:
            reused = self.reused[self.reused > 0]
            self._rooms[budget_tokens] = float(self.new.mean() + (reused % budget_tokens).sum() / self.new.size)
        return self._rooms[budget_tokens]

    @cached_property
    def longest(self) -> tuple[float, float]:
        """Computed tokens at the percentile, and the fewest reused tokens of prompts with at least as many."""
        new = float(np.percentile(self.new, self.percentile, method="lower"))
        return new, float(self.reused[self.new >= new].min())


@lru_cache(maxsize=8)
def _sample(workload: Workload, most_tokens: float, percentile: float) -> _Sample:
    stream = stationary(workload, MANY, most_tokens=most_tokens).counted()
    reused = stream.reused_tokens.astype(np.float64)
    return _Sample(new=stream.prompt_tokens - reused, reused=reused, percentile=percentile)


def _played(question: Question) -> _Sample:
    return _sample(question.workload, float(question.model.max_position), question.percentile)


def saturated(
    question: Question, cost: StepCost, held: tuple[Number, Number], seconds: Floats, cut: tuple[int, int]
) -> Floats:
    """Upper bound on prompts per second of any sequence of passes beside offline ones; shaped like ``seconds``.

    Equal prompts: prompts of a full pass over its seconds. Unequal prompts: a pass takes at least as long as one with
    mean tokens and pairs, even over its groups, because seconds are about convex in the load, the busiest group has at
    least the mean, and seconds per token fall with the tokens of a pass.

    Args: ``held``: prompts per group, groups; ``seconds`` of full passes; ``cut``: chunks per prompt, microbatches.
    """
    (prompts, ranks), (chunks, parts) = held, cut
    held_tokens = np.atleast_1d(np.asarray(prompts, dtype=np.float64)) * question.workload.input_tokens.mean / chunks
    if question.offline is not None:
        alone = saturated(replace(question, offline=None), cost, held, seconds, cut)
        return np.asarray(1 / (1 / alone + offline_seconds(question, cost, held_tokens, ranks, parts)))
    if not question.workload.varied:
        return np.asarray(prompts * ranks / seconds)
    sample = _played(question)
    rooms = np.array([sample.room(tokens) for tokens in held_tokens.ravel().tolist()])
    each = held_tokens / rooms.reshape(held_tokens.shape)
    load = StepLoad(
        prefill_tokens=each * sample.new.mean(),
        prefill_context_tokens=each * sample.reused.mean() if chunks == 1 else 0.0,
        prefill_pairs=each * sample.pairs,
        finishing_prompts=each,
        mean_tokens=each * sample.new.mean(),
    )
    return np.asarray(each * ranks / evaluate(cost, load, parts).seconds)


def offline_seconds(
    question: Question, cost: StepCost, held_tokens: Number, ranks: Number, microbatches: int
) -> Number:
    """Seconds of full passes that the offline prompts beside an online one take; 0 where there are none.

    They fill what passes leave in parts of any length, so only their tokens and pairs count. Args: ``held_tokens`` of a
    pass and group, ``ranks``: groups.
    """
    offline = question.offline
    if offline is None:
        return 0.0
    prompt = offline.input_tokens
    each = held_tokens / prompt
    load = StepLoad(
        prefill_tokens=held_tokens,
        prefill_context_tokens=np.maximum(prompt - held_tokens, 0.0) / 2,
        prefill_pairs=each * prompt * (prompt + 1) / 2,
        finishing_prompts=each,
        mean_tokens=held_tokens,
    )
    return np.asarray(offline.per_request * evaluate(cost, load, microbatches).seconds / (each * ranks))


def longest_alone(question: Question, cost: StepCost, ranks: Number, microbatches: int) -> Floats:
    """Least seconds of the prompt at the percentile, alone in an instance and in one pass; shaped like ``ranks``.

    Chunks only take longer: each pass reads the weights again.
    """
    new, reused = _played(question).longest
    load = StepLoad(
        prefill_tokens=new,
        prefill_context_tokens=reused,
        prefill_pairs=new * reused + new * (new + 1) / 2,
        finishing_prompts=1.0,
        mean_tokens=new / ranks,
    )
    return np.broadcast_to(np.asarray(evaluate(cost, load, microbatches).seconds), np.shape(ranks))
