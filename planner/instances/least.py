"""Lower bounds on the time of a request in an instance at a rate, by which the quickest instances are found.

An instance with n requests in service finishes them at a rate mu(n): n / T(n) in prefill passes of n prompts, n / (I
tau(n)) in decode iterations of which a request takes I. Little's law ties the mean number in service N to the rate:

    rate = E[mu(n)] <= the concave envelope of mu at N,    mean time in service = N / rate

T and tau are evaluated at some n. As neither falls, mu between two of them is at most n over the seconds at the smaller
one. Waiting before service only adds time.

Ref: J. D. C. Little, A proof for the queuing formula L = lambda W, Operations Research 9:383, 1961; derived here.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from ground.arrays import Floats, Ints
from planner.costs.latency import accepted_tokens, balanced_cost
from planner.instances.candidates import Count
from planner.instances.operating import iteration_seconds
from planner.instances.space import Group
from planner.manifest.stacks import stacked
from planner.question import Question

BATCHES = (1, 2, 3, 4, 6, 8, 11, 16, 22, 32, 45, 64, 90, 128, 181, 256, 362, 512, 724, 1024, 1448, 2048, 2896, 4096)
"""Requests per DP rank at which iterations are evaluated."""
_SLACK = 0.999  # factor that keeps the bound below the queue, which interpolates iteration times linearly


class Least(NamedTuple):
    """Bounds by offer: seconds of a request alone, [offers], and corners of the envelope, [offers, corners].

    At ``finished`` requests per second an instance holds at least ``held`` requests, interpolated linearly between
    corners. ``fixed`` seconds, [offers], are added, such as a transfer.
    """

    alone: Floats
    finished: Floats
    held: Floats
    fixed: Floats

    @classmethod
    def of(cls, requests: Floats, seconds: Floats, fixed: Floats) -> Self:
        """Return the bounds of instances that take ``seconds`` for so many ``requests`` at once, [offers, points].

        Both rise, from one request on; points with infinite seconds are ignored.
        """
        known = np.isfinite(seconds)
        finished = np.where(known, requests / np.where(known, seconds, 1.0), 0.0)
        before = np.concatenate([seconds[:, :1], seconds[:, :-1]], axis=1)  # where the stretch to a point begins
        held = np.where(known, np.where(known, before, 0.0) * finished, 0.0)
        return cls(_SLACK * seconds[:, 0], finished, held, fixed)

    @classmethod
    def joined(cls, parts: Sequence["Least"]) -> Self:
        """Return the bounds of several parts, one after another; missing corners repeat the last one."""
        most = max(part.finished.shape[1] for part in parts)
        return cls(
            np.concatenate([part.alone for part in parts]),
            np.concatenate([_padded(part.finished, most) for part in parts]),
            np.concatenate([_padded(part.held, most) for part in parts]),
            np.concatenate([part.fixed for part in parts]),
        )

    def stretched(self, times: float) -> "Least":
        """Return the bounds on a clock that runs slower by a factor."""
        return Least(self.alone * times, self.finished / times, self.held, self.fixed * times)

    def select(self, index: Ints) -> "Least":
        """Return the bounds of some offers."""
        return Least(self.alone[index], self.finished[index], self.held[index], self.fixed[index])

    def seconds(self, offers: Ints, rate_per_second: Floats) -> Floats:
        """Return the least mean seconds of a request, given the offer and the rate of one instance, each [columns]."""
        rate, alone = rate_per_second, self.alone[offers]
        finished = np.column_stack([np.zeros(offers.size), self.finished[offers]])
        held = np.column_stack([np.zeros(offers.size), self.held[offers]])
        least = np.full(offers.size, np.inf)
        for low in range(finished.shape[1] - 1):
            for high in range(low + 1, finished.shape[1]):
                span = finished[:, high] - finished[:, low]
                inside = (finished[:, low] <= rate) & (rate <= finished[:, high]) & (span > 0)
                share = (rate - finished[:, low]) / np.where(span > 0, span, 1.0)
                between = held[:, low] + share * (held[:, high] - held[:, low])
                least = np.where(inside, np.minimum(least, between), least)
        crowded = np.where(np.isfinite(least), least / rate, 0.0)
        return np.asarray(np.maximum(alone, _SLACK * crowded) + self.fixed[offers], dtype=np.float64)


def _padded(values: Floats, columns: int) -> Floats:
    missing = columns - values.shape[1]
    if not missing:
        return values
    last = values[:, -1:] if values.shape[1] else np.zeros((values.shape[0], 1))
    return np.concatenate([values, np.repeat(last, missing, axis=1)], axis=1)


def decode_least(question: Question, group: Group, most_batch: float, count: Count) -> Least:
    """Return the bounds of decode rows with up to ``most_batch`` requests per DP rank."""
    deployment = group.deployment
    ranks = np.broadcast_to(np.asarray(deployment.strategy.attention_groups, dtype=np.float64), (len(group.rows),))
    accepted = accepted_tokens(deployment, question.acceptance)
    iterations = question.workload.decoded_tokens / accepted
    parts = max(question.microbatches) if question.model.moe is not None else 1
    cost = stacked(balanced_cost(deployment, question.balance), decoding=True)
    batches = BATCHES[: 1 + int(np.searchsorted(BATCHES, most_batch))]
    requests = np.stack([np.ones_like(ranks), *(batch * ranks for batch in batches)])  # [points, rows]
    even = np.maximum(requests / ranks, np.minimum(requests, 1.0))
    seconds = iteration_seconds(cost, question.workload, ranks, parts, requests, (even, even))
    count.evaluated += seconds.size * parts
    return Least.of(requests.T, (iterations * seconds).T, np.zeros_like(ranks))
