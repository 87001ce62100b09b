"""The slowest of an instance's DP ranks, for which the others wait in every layer (xDeepServe section 4.1).

A request goes to the rank with least reserved KV, its prompt and its whole answer. A rank above the level of the others
takes none until requests that end have brought it below; then it takes new ones until it is above again. Stepping down
and up by sizes of the same law, it lies above the level as far as it lies below, by the residual of a size in a renewal
process (D. R. Cox, Renewal Theory, section 5.2). Below it stays for one arrival, above for the R arrivals in which each
of R ranks loses one request. ``uneven`` is the expected largest reservation of R ranks less their mean.

Ranks that have reserved as much still differ: in the number of their requests, and in what these have still to answer,
which they do not hold yet. Both vary as the reward of a renewal process does (Cox, section 8.4). With n requests on the
mean rank, S the size of a running request, Y what it has still to answer, s = S / E[S], and z the expected largest of R
standard normals, the fullest rank holds

    n E[X] + sqrt(uneven^2 + z^2 n Var[Y - s E[Y]]),    X = S - Y its KV,

and the rank with most requests has n + z sqrt(n Var[s]). If these make the mean rank k and r seconds slower, the
slowest rank is slower by sqrt(k^2 + r^2 + 2 c k r), c the correlation of both. Equal requests are dealt by their
number: then the slowest rank has most requests and holds most. Derived here;
tests/planner/closed_forms/test_fullest.py deals requests and compares.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple, Self

import numpy as np

from ground.arrays import Floats, Ints, by_value
from planner.balance.imbalance import expected_maximum_normal
from planner.manifest.terms import Number
from planner.serving.played import MANY
from planner.serving.streams import stationary
from planner.workload import Workload, running_kv_tokens

_POINTS = 2_000  # of the distribution of residuals


class Running(NamedTuple):
    """Second moments of running requests, those of the traffic weighted by their answers; see above."""

    sizes: float  # Var[s]
    unanswered: float  # Var[Y - s E[Y]], in squared tokens
    both: float  # Cov[s, Y - s E[Y]], in tokens

    @classmethod
    def of(cls, workload: Workload) -> Self:
        """Return them: prompts depend on answers linearly, as their covariance says; Y ends at a uniform point."""
        prompt, answer = workload.input_tokens, workload.output_tokens
        slope = workload.length_covariance / answer.variance if answer.variance else 0.0
        mean, second = answer.second_moment / answer.mean, answer.third_moment / answer.mean
        answers = second - mean**2
        size = prompt.mean + slope * (mean - answer.mean) + mean
        apart = max(prompt.variance - slope**2 * answer.variance, 0.0)  # of prompts, what answers do not tell
        squared = (apart + (1 + slope) ** 2 * answers) / size**2
        with_left = (1 + slope) * answers / 2 / size  # Cov[s, Y]
        left = second / 3 - mean**2 / 4 - mean * with_left + mean**2 / 4 * squared
        return cls(squared, max(left, 0.0), with_left - mean / 2 * squared)


class FullestRank(NamedTuple):
    """How requests lie on so many DP ranks; numbers, or [rows]."""

    mean_tokens: float  # of a running request
    deviations: Number  # expected maximum of as many standard normals as there are ranks
    uneven_tokens: Number
    running: Running
    differ: bool  # whether requests have different sizes

    @classmethod
    def of(cls, workload: Workload, ranks: Number) -> Self:
        """Return it for an instance of so many ranks, or for each of many instances."""
        uneven = by_value(partial(_uneven, workload), ranks)
        mean, deviations = running_kv_tokens(workload).mean_tokens, expected_maximum_normal(ranks)
        return cls(mean, deviations, uneven, Running.of(workload), _differ(workload))

    def kv_tokens(self, requests: Number) -> Number:
        """Tokens that the fullest rank holds with so many requests on the mean one."""
        spread = self.uneven_tokens**2 + self.deviations**2 * requests * self.running.unanswered
        return requests * self.mean_tokens + spread**0.5

    def slowest(self, requests: Number, most: Number, seconds: Callable[[Number, Number], Number]) -> Number:
        """Seconds of the slowest rank with so many requests on the mean one, and at most so many on any.

        Args: ``seconds`` of a rank by its requests and its cached tokens.
        """
        held, kv, more = requests * self.mean_tokens, self.kv_tokens(requests), self.deviations * requests**0.5
        numbers = np.minimum(requests + more * self.running.sizes**0.5, most)
        each = np.stack(np.broadcast_arrays(requests, requests, np.maximum(numbers, requests)))
        mean, fuller, wider = np.asarray(seconds(each, np.stack(np.broadcast_arrays(held, kv, held))))
        by_kv, by_number = np.maximum(fuller - mean, 0.0), np.maximum(wider - mean, 0.0)
        alike = more * self.running.both / self.running.sizes**0.5 / np.maximum(kv - held, 1e-300)
        return mean + np.sqrt(np.maximum(by_kv**2 + by_number**2 + 2 * alike * by_kv * by_number, 0.0))

    def at(self, rows: Ints) -> Self:
        """Return it for some of the instances."""
        deviations, uneven = (np.asarray(each)[rows] if np.ndim(each) else each for each in self[1:3])
        return self._replace(deviations=deviations, uneven_tokens=uneven)


def _differ(workload: Workload) -> bool:
    """Whether requests have different sizes."""
    return bool(workload.input_tokens.squared_cv or workload.output_tokens.squared_cv)


@lru_cache(maxsize=8)
def _residuals(workload: Workload) -> tuple[Floats, Floats]:
    """Return numbers of tokens, and the share of residuals of requests' sizes that are fewer, each [points]."""
    stream = stationary(workload, MANY)
    sizes = np.sort((stream.prompt_tokens + stream.answer_tokens).astype(np.float64))
    tokens = np.linspace(0.0, sizes[-1], _POINTS)
    fewer = sizes.searchsorted(tokens)
    up_to = np.append(0.0, np.cumsum(sizes))[fewer] + tokens * (sizes.size - fewer)
    return tokens, up_to / up_to[-1]


@lru_cache(maxsize=1024)
def _uneven(workload: Workload, ranks: float) -> float:
    """Return tokens by which the largest reservation of a rank exceeds the mean one."""
    if not _differ(workload):
        return 0.0
    tokens, fewer = _residuals(workload)
    above, below = ranks / (ranks + 1), 1 / (ranks + 1)  # shares of time in which a rank is above the level, or below
    longer = 1 - fewer
    more = 1 - (below + above * fewer) ** ranks - (below * longer) ** ranks - (above - below) * longer
    return max(float(np.diff(tokens) @ (more[1:] + more[:-1])) / 2, 0.0)
