"""KV of the fullest of an instance's DP ranks, for which the others wait in every layer (xDeepServe section 4.1).

A request goes to the rank with least reserved KV, its prompt and its whole answer. So the rank takes a request when its
level is the least of all, and requests that end then bring it down again: above the least, reserved KV is distributed
as the residual of a request's size in a renewal process (D. R. Cox, Renewal Theory, section 5.2), on every rank by
itself. Of the reservation, what is still to be answered is not held yet: independent, about normal for many requests.

    held by the fullest = n E[X] + sqrt(uneven^2 + z^2 n Var[answered])

where ``uneven`` is how far the expected largest residual of R ranks exceeds the mean one, beyond that of equal
requests, S (R - 1) / 2 (R + 1), which the number n of requests on the fullest rank tells; z is the expected largest of
R standard normals. Derived here; tests/planner/instances/test_fullest.py deals requests and compares.
"""

from functools import lru_cache, partial
from typing import NamedTuple, Self

import numpy as np

from ground.arrays import Ints, by_value
from planner.balance.imbalance import expected_maximum_normal
from planner.manifest.terms import Number
from planner.serving.streams import lengths_at
from planner.workload import KvLoad, Lengths, Workload, running_kv_tokens

_LEVELS = np.concatenate([(np.arange(200) + 0.5) / 200, 1 - np.geomspace(2e-3, 1e-7, 60)])
_BELOW = np.linspace(0.0, 1.0, 64, endpoint=False)  # parts of the smallest size, below which no residual ends


class FullestRank(NamedTuple):
    """How KV lies on the fullest of so many DP ranks; numbers, or [rows]."""

    kv: KvLoad  # of a running request
    deviations: Number  # expected maximum of as many standard normals as there are ranks
    uneven_tokens: Number

    @classmethod
    def of(cls, workload: Workload, ranks: Number) -> Self:
        """Return it for an instance of so many ranks, or for each of many instances."""
        prompt, answer = workload.input_tokens, workload.output_tokens
        mean = prompt.mean + answer.mean
        variance = prompt.variance + answer.variance + 2 * workload.length_covariance
        squared_cv = max(variance, 0.0) / mean**2
        uneven = by_value(partial(_uneven, mean, squared_cv), ranks)
        return cls(running_kv_tokens(workload), expected_maximum_normal(ranks), uneven)

    def kv_tokens(self, requests: Number) -> Number:
        """Tokens that the fullest rank holds with so many requests."""
        spread = self.uneven_tokens**2 + self.deviations**2 * requests * self.kv.variance_squared_tokens
        return requests * self.kv.mean_tokens + spread**0.5

    def at(self, rows: Ints) -> Self:
        """Return it for some of the instances."""
        deviations, uneven = (np.asarray(each)[rows] if np.ndim(each) else each for each in self[1:])
        return self._replace(deviations=deviations, uneven_tokens=uneven)


@lru_cache(maxsize=1024)
def _uneven(mean: float, squared_cv: float, ranks: float) -> float:
    """Return tokens by which the largest of the ranks' residuals exceeds that of equal requests."""
    if not squared_cv:
        return 0.0
    sizes = lengths_at(Lengths(mean=mean, squared_cv=squared_cv), _LEVELS)
    tokens = np.concatenate([_BELOW * sizes[0], sizes])
    longer = np.concatenate([np.ones_like(_BELOW), 1 - _LEVELS])  # share of requests of more tokens
    steps = np.diff(tokens)
    ended = np.append(0.0, np.cumsum(steps * (longer[1:] + longer[:-1]) / 2))
    ended /= ended[-1]  # share of residuals of fewer tokens
    above = ended - ended**ranks  # integrates to the largest of all less the mean
    excess = float(steps @ (above[1:] + above[:-1])) / 2
    return max(excess - mean * (ranks - 1) / (2 * (ranks + 1)), 0.0)
