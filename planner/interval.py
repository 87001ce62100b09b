"""How far off a predicted duration may be: residuals of the fits it rests on, and of the composition.

Errors of one fit are common to all operators that use it; errors of different fits are
independent. A median residual r of a normal error is 0.6745 standard deviations.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

from planner.breakdown import Operator

LEVEL = 0.8

# Standard deviation granted to what no operator measurement covers: how terms overlap, which small
# kernels exist, host jitter. Assumed; a tenth is the spread of the published end-to-end rows around
# any one of the peers' models (AIConfigurator 7-10 % on its own measured kernels).
COMPOSITION_DEVIATION = 0.08


@dataclass(frozen=True, slots=True)
class Interval:
    """Central interval of a duration in seconds."""

    low: float
    high: float
    level: float


def interval(seconds: float, operators: Iterable[Operator], level: float = LEVEL) -> Interval:
    """Return the central interval of ``seconds`` at ``level``.

    variance = (composition · seconds)² + Σ over residual classes (Σ exposed · residual / 0.6745)².
    """
    families: dict[tuple[str, float], float] = {}
    for operator in operators:
        key = (operator.bound, operator.residual)
        families[key] = families.get(key, 0.0) + operator.exposed_seconds * operator.residual / 0.6745
    variance = (COMPOSITION_DEVIATION * seconds) ** 2 + sum(deviation**2 for deviation in families.values())
    half = NormalDist().inv_cdf(0.5 + level / 2) * math.sqrt(variance)
    return Interval(max(seconds - half, 0.0), seconds + half, level)


def scaled(known: Interval, factor: float) -> Interval:
    """Return the interval of ``factor`` times the duration that ``known`` is about."""
    return Interval(known.low * factor, known.high * factor, known.level)
