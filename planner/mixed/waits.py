"""How long a prompt waits for earlier ones of its own DP rank at an aggregated instance, where prompts are cut.

Prompts are dealt over the ranks in turn, so a rank is a single server that takes every r-th one, for as many steps as
that has parts. Of equal prompts only a crowd meets on a rank, which the chain of ``mixed.ranks`` tells; where
they differ a long one keeps those waiting that come behind it while other ranks are free. That is the difference that
the variance of the parts makes to GI/G/1's mean wait, met with a residual of the parts as in M/G/1 at low load.

Ref: W. Kraemer and M. Langenbach-Belz, as in ``mixed.even``; residual life, L. Kleinrock, Queueing Systems I,
section 5.2. The difference is derived here; it is still short of the runtime (docs/queueing.md).
"""

import numpy as np

from planner.mixed.even import wait_share
from planner.mixed.parts import CutPrompts
from planner.queues.queueing import Array

_POINTS = 12
_MOST_LOAD = 0.97


def behind_long_ones(prompts: CutPrompts, step_seconds: float, rate: float, squared_cv: float) -> tuple[Array, Array]:
    """Waits behind longer prompts as point masses, none the first of them; [points] seconds and their chances.

    Args: ``step_seconds`` with a full part on the own rank, ``rate`` of the prompts that a rank is dealt, whose gaps
    have that squared CV.
    """
    parts, mean = prompts.parts, prompts.mean_parts
    service = mean * step_seconds / prompts.together
    load = min(rate * service, _MOST_LOAD)
    varied = float(parts**2 @ prompts.weights) / mean**2 - 1
    gaps = min(squared_cv, 1.0)
    longer = (1 + varied) * wait_share(load, gaps, varied) - wait_share(load, gaps, 0.0)
    extra = load / (1 - load) * service / 2 * max(longer, 0.0)
    if extra <= 0:
        return np.zeros(1), np.ones(1)
    places = np.arange(float(parts.max()) + 1)
    left = np.minimum(parts, places[:, None]) @ prompts.weights / mean  # chance that so many parts are left at most
    seconds = np.interp((np.arange(_POINTS) + 0.5) / _POINTS, left, places) * step_seconds / (1 - load)
    chance = min(extra / float(seconds.mean()), 1.0)
    seconds *= extra / (chance * float(seconds.mean()))
    return np.append(0.0, seconds), np.append(1 - chance, np.full(_POINTS, chance / _POINTS))
