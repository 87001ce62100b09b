"""What no queue of prefill passes carries: prompts per second that bound it from above, on arrays."""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.instances.prefill_candidates import pass_seconds
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import Number, StepCost, StepLoad
from planner.question import Question
from planner.queues.prompts import longest_of

Floats = NDArray[np.float64]

# A pass of prompts that differ may hold so many times as many as of their mean.
_SHORT_PROMPTS = 8
# A limit is counted so much longer: queues tell percentiles to a hundredth (``queues.prefill_queue``).
_TOLD = 1.01
# Times the share that may be late: so many of the longest prompts are looked at, for lengths are told in levels.
_SURE = 1.1
# Shares of the DP groups that have a prompt in passes with less than one a group.
_FILLED = np.arange(8) / 8

Passes = tuple[Floats, Floats]
"""Prompts and seconds."""


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


def longest_alone(question: Question, cost: StepCost, ranks: Number, microbatches: int) -> Floats:
    """Seconds that as many prompts as may be late take at least, alone in an instance and in one pass each.

    Cut over several passes they only take longer: each reads the weights anew. The shape of ``ranks``.
    """
    new, reused = longest_of(question.workload, min(_SURE * (1 - question.percentile / 100), 1.0))
    load = StepLoad(
        prefill_tokens=new,
        prefill_context_tokens=reused,
        prefill_pairs=new * reused + new * (new + 1) / 2,
        finishing_prompts=1.0,
        mean_tokens=new / ranks,
    )
    return np.broadcast_to(np.asarray(evaluate(cost, load, microbatches).seconds), np.shape(ranks))


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


def few_prompts(ranks: int) -> Floats:
    """Prompts of passes with less than one a DP group, from one in the instance on, [points]."""
    return np.asarray(np.maximum(_FILLED * ranks, 1.0), dtype=np.float64)


def short_enough(question: Question, few: Passes, full: Passes) -> float:
    """Largest rate of equal prompts at which an instance's passes are short enough on average.

    Who comes while a pass of D seconds runs waits for the rest of it and then at least for the next, D': those who come
    in its first D + D' - L seconds miss the limit L. The more come, the longer D', so at a rate r at least
    r (E D + E min(D', L) - L) - 1 miss it per pass (the 1 for where in the dealing of arrivals a pass begins), of
    r E D + 1 at most. Where that may be a share q, t = E min(D, L) <= (L + (1 + q)/r) / (2 - q), half the limit. And
    passes of t seconds hold no more on average than the concave hull of (seconds, prompts) has there, yet at least the
    r t that come. Infinite where a full pass of the smallest budget is late, for then this says little. Derived here.

    Args:
        question: asks for the limit and the percentile.
        few: prompts in the instance, from one on, and seconds of passes with less than one a group, [points].
        full: of full passes of rising budgets, each of which takes the less per prompt, [budgets].
    """
    limit, late = question.ttft_seconds, 1 - question.percentile / 100
    if question.queueing == "mixserve" or full[1][0] > limit:
        return math.inf
    prompts, seconds = (np.concatenate(pair) for pair in zip(few, full, strict=True))
    # Between two points passes take as long as at the first, and hold what that allows at the second's rate.
    per_second = np.append((prompts / seconds)[1:], prompts[-1] / seconds[-1])
    good = seconds <= limit
    times, held = seconds[good], (seconds * np.maximum(prompts / seconds, per_second))[good]
    sure = _on_hull(times, held, limit / (2 - late))
    longest = (_TOLD * limit + (1 + late) / sure) / (2 - late) if sure else math.inf
    return _on_hull(times, held, longest)


def _on_hull(seconds: Floats, prompts: Floats, most: float) -> float:
    """Most prompts per second of passes that take at most so long on average, by the points of a hull."""
    below = seconds <= most
    best = float((prompts / seconds)[below].max(initial=0.0))
    if below.all():
        return best
    left, held = seconds[below, None], prompts[below, None]
    straight = held + (prompts[~below] - held) * (most - left) / (seconds[~below] - left)
    return max(best, float(straight.max(initial=0.0)) / most)
