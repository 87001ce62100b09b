"""How long a request takes in an aggregated instance at least, at a rate, and the token budget that is quickest at it.

Requests in decode and the rate are tied by Little's law, as in ``instances.least``: with n of them running on a rank
the mean step is no shorter than ``mixed.screen`` says, with the prompts that such a rate brings. Before that the prompt
is computed, in steps that are as large as they can be and hold nothing else at best.
"""

import math
from collections.abc import Sequence

import numpy as np

from planner.instances.least import BATCHES, Least
from planner.mixed.screen import Screen
from planner.mixed.server import MixedServer
from planner.offers.offer import Ints

_NONE = 1e-9
_SURE = 0.8
"""Of a guessed mean TTFT, which the sample of steps in its place does not fall below: on one rank the guess is up to a
sixth long, on several it is short (``mixed.rank_line``).
"""


def mixed_least(screen: Screen, most_running: float) -> Least:
    """Return the bounds of instances, [rows], that run up to so many requests on each rank."""
    ranks = screen.ranks
    batches = np.array(BATCHES[: 1 + int(np.searchsorted(BATCHES, most_running))], dtype=np.float64)
    crowded = screen.steps(np.repeat(batches[:, None], ranks.size, axis=1)).mean  # [points, rows]
    alone = screen.steps(1 / ranks).bare
    # Answers of one token end with it.
    iterations = screen.iterations if screen.workload.output_tokens.mean > 1 else _NONE
    seconds = iterations * np.concatenate([alone[None], crowded])
    requests = np.concatenate([np.ones((1, ranks.size)), batches[:, None] * ranks])
    return Least.of(requests.T, np.maximum.accumulate(seconds).T, screen.alone())


def quickest_server(
    servers: Sequence[MixedServer], least: Least, able: Ints, instances: int, rate_per_second: float
) -> tuple[int, float]:
    """Return which of the able servers has the least mean time end to end in so many instances, and that time.

    Each is asked whose bound, [servers], does not exclude it; infinite where none keeps the limits.
    """
    each = rate_per_second / instances
    bounds = least.seconds(able, np.full(able.size, each))
    best, place = math.inf, int(able[0]) if able.size else 0
    for number in np.argsort(bounds, kind="stable"):
        if bounds[number] >= best:
            break
        seconds = mean_seconds(servers[able[number]], instances, each, best)
        if seconds < best:
            best, place = seconds, int(able[number])
    return place, best


def mean_seconds(server: MixedServer, instances: int, rate_of_one: float, known_seconds: float = math.inf) -> float:
    """Mean time from arrival to the last token; infinite where a limit is missed.

    Where it cannot be below ``known_seconds``, a bound of it that is not either: steps are not sampled for that.
    """
    if server.excess(rate_of_one, instances) > 1:
        return math.inf
    state = server.state(rate_of_one, instances)
    if state is None:
        return math.inf
    if state.find_guess is not None:
        least = _SURE * state.find_guess().mean + state.span.mean
        if least >= known_seconds:
            return least
    return state.ttft.mean + state.span.mean
