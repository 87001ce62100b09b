"""What no queue of prefill passes carries: prompts per second that bound it from above, on arrays."""

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.manifest.stepcost import evaluate
from planner.manifest.terms import Number, StepCost, StepLoad
from planner.question import Question
from planner.serving.played import MANY
from planner.serving.streams import stationary
from planner.workload import Workload

Floats = NDArray[np.float64]


def varied(question: Question) -> bool:
    """Whether prompts differ, in length or in what is cached of them."""
    workload = question.workload
    return bool(workload.prompts is not None or workload.input_tokens.squared_cv or workload.prefix_reuse)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sample:
    """Prompts as they are played, [requests]: tokens to compute, and those that are reused."""

    new: Floats
    reused: Floats
    percentile: float
    _rooms: dict[float, float] = field(default_factory=dict)

    @cached_property
    def pairs(self) -> float:
        """Mean query-key pairs of the new tokens."""
        return float((self.new * self.reused + self.new * (self.new + 1) / 2).mean())

    def room(self, budget_tokens: float) -> float:
        """Mean tokens of budgets that prompts take: whole budgets that are reused take none."""
        if budget_tokens not in self._rooms:
            reused = self.reused[self.reused > 0]
            self._rooms[budget_tokens] = float(self.new.mean() + (reused % budget_tokens).sum() / self.new.size)
        return self._rooms[budget_tokens]

    @cached_property
    def longest(self) -> tuple[float, float]:
        """Tokens to compute at the percentile, and the least that is reused of prompts with as many."""
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
    """Prompts per second that no stream of passes exceeds; the shape of ``seconds``.

    Equal prompts fill every pass alike: as many as it holds, over its seconds. Passes of others hold as many on
    average, all groups together, and take at least as long as one with their mean tokens and pairs, which is even over
    the groups: the seconds are about convex in the load, the busiest group has at least the mean, and a pass takes the
    less per token the more it has. Args: ``held`` prompts of a group and groups; ``cut`` the parts of a prompt and
    microbatches.
    """
    prompts, ranks = held
    if not varied(question):
        return np.asarray(prompts * ranks / seconds)
    chunks, parts = cut
    sample, prompt = _played(question), question.workload.input_tokens.mean
    held_tokens = np.atleast_1d(np.asarray(prompts, dtype=np.float64)) * prompt / chunks
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


def longest_alone(question: Question, cost: StepCost, ranks: Number, microbatches: int) -> Floats:
    """Seconds that the prompt at the percentile takes at least, alone in an instance and in one pass.

    Cut over several passes it only takes longer: each reads the weights anew. The shape of ``ranks``.
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
