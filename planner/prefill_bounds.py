"""What no queue of prefill passes carries: prompts per second that bound it from above, on arrays."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.manifest.terms import Number, StepCost
from planner.prefill_candidates import pass_seconds
from planner.question import Question

Floats = NDArray[np.float64]

# A pass of prompts that differ may hold so many times as many as of their mean.
_SHORT_PROMPTS = 8


def varied(question: Question) -> bool:
    """Whether prompts differ, in length or in what is cached of them."""
    workload = question.workload
    return bool(workload.prompts is not None or workload.input_tokens.squared_cv or workload.prefix_reuse)


def saturated(
    question: Question, cost: StepCost, held: tuple[Number, Number], seconds: Floats, cut: tuple[int, int]
) -> Floats:
    """Prompts per second that no stream of passes exceeds; the shape of ``seconds``.

    Equal prompts fill every pass alike: as many as it holds, over its seconds. Of others a pass of the same tokens
    may hold more, and short ones attend to less: bounded by passes of eight times as many equal prompts, even over the
    groups, for a pass takes the less per token the more it has, pairs are convex in the length, and the busiest
    group has at least the mean. Args: ``held`` prompts of a group and groups; ``cut`` the parts of a prompt and
    microbatches.
    """
    prompts, ranks = held
    if not varied(question):
        return np.asarray(prompts * ranks / seconds)
    chunks, parts = cut
    lengths = replace(question.workload.input_tokens, squared_cv=0.0)
    workload = replace(question.workload, input_tokens=lengths, length_covariance=0.0, prompts=None)
    many = _SHORT_PROMPTS * prompts
    return np.asarray(many * ranks / pass_seconds(cost, workload, many, many, chunks, parts))


def timely(question: Question, single: Floats, full: Floats, most: Number) -> Floats:
    """Largest rate of equal prompts whose requests can all but few be in passes within the limit.

    A share p of the prompts is in passes of at most n, T(n) = limit; passes of n take T(n)/n per prompt or longer, and
    the rest at least T(most)/most: rate <= 1 / (p T(n)/n + (1 - p) T(most)/most), with T straight between one prompt
    and a full pass. Infinite where a full pass keeps the limit. Args: seconds of a pass with one prompt in the
    instance and of one with ``most``, the arrays of one broadcast shape.
    """
    limit, share = question.ttft_seconds, question.percentile / 100
    open_ended = (full <= limit) | (np.asarray(most) == 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        within = 1 + (most - 1) * (limit - single) / (full - single)
        rate = 1 / (share * limit / within + (1 - share) * full / most)
    return np.asarray(np.where(open_ended, np.inf, rate), dtype=np.float64)
