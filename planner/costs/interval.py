"""How far off a predicted duration may be: residuals of the fits it rests on, and of how they are composed.

Errors of one fit are common to all operators that use it; errors of different fits, and of
different composition effects, are independent. A median residual r of a normal error is 0.6745
standard deviations.
"""

import math
from collections.abc import Iterable
from statistics import NormalDist
from typing import NamedTuple

from planner.costs.breakdown import Operator
from planner.costs.deployment import Phase

LEVEL = 0.8  # share of outcomes that an interval is to hold

# Standard deviations of what no operator measurement covers, as shares of what they are of. Assumed: no publication
# states them; `plan accuracy` shows how many published values the intervals hold.
UNLISTED_DEVIATION = 0.04  # of the whole step: small kernels that the list of operators lacks, clocks, host jitter

OVERLAP_DEVIATION = 0.05
"""Of the time that overlap hides: xLLM's report (arXiv 2510.14686) hides 80 % of communication where two streams could
hide all, its Table 7 slows both streams by a third; both are in the model, a twentieth either way is left."""

STRAGGLER_DEVIATION = 0.5
"""Of the wait for the busiest expert rank: busiest ranks of 1.11 to 1.2 times the mean are published for the same
redundancy (NVIDIA's TensorRT-LLM tech blog 4; the H800 and CloudMatrix384 prefill comparisons)."""

EXCHANGE_DEVIATION = 0.15
"""Of the exposed dispatch and combine: fitted on unit tests; xDeepServe (arXiv 2508.02520 section 7.1) sees 185 us at
least and 234 in the mean in place."""

LOAD_DEVIATION = {"decode": 0.0, "prefill": 0.08, "mixed": 0.06}
"""Of a step, for what it carries: prompts are unequal and ranks wait for the fullest (CloudMatrix384 section 4.3.1);
token budgets and lengths of a closed loop are not stated."""

LOOP_DEVIATION = 0.17
"""Of the logarithm of a closed loop's time to first token: clients and schedulers that sources do not state.
Of 837 released runs 80 % lie within what 0.16 gives; models that nothing was fitted on are farther off."""


class Interval(NamedTuple):
    """Central interval of a duration in seconds."""

    low: float
    high: float
    level: float

    @property
    def half(self) -> float:
        """Half its width in seconds."""
        return (self.high - self.low) / 2


def interval(
    seconds: float, operators: Iterable[Operator], level: float = LEVEL, *, phase: Phase = "decode"
) -> Interval:
    """Return the central interval of ``seconds``, the duration of a step of ``operators``, at ``level``.

    variance = Σ over fits (Σ exposed · residual / 0.6745)² + (unlisted · seconds)² + (overlap · hidden)²
             + (straggler · wait)² + (exchange · exposed dispatch and combine)² + (load · seconds)²

    with hidden at most the step itself.
    """
    rows = list(operators)
    fits: dict[tuple[str, float], float] = {}
    for operator in rows:
        key = (operator.bound, operator.residual)
        fits[key] = fits.get(key, 0.0) + operator.exposed_seconds * operator.residual / 0.6745
    hidden = min(sum(max(row.seconds - row.exposed_seconds, 0.0) for row in rows), seconds)
    waiting = sum(row.exposed_seconds for row in rows if row.name == "straggler_wait")
    exchanged = sum(row.exposed_seconds for row in rows if row.name in ("dispatch", "combine"))
    effects = (
        UNLISTED_DEVIATION * seconds,
        OVERLAP_DEVIATION * hidden,
        STRAGGLER_DEVIATION * waiting,
        EXCHANGE_DEVIATION * exchanged,
        LOAD_DEVIATION[phase] * seconds,
    )
    return _central(seconds, sum(deviation**2 for deviation in (*fits.values(), *effects)), level)


def loop_interval(ttft_seconds: float, step: Interval, step_seconds: float) -> Interval:
    """Return the interval of a closed loop's time to first token, whose steps are as uncertain as ``step``.

    Waiting multiplies what a step takes, so the error is of the logarithm: TTFT · exp(± quantile · deviation).
    """
    quantile = NormalDist().inv_cdf(0.5 + step.level / 2)
    deviation = math.hypot(step.half / quantile / step_seconds, LOOP_DEVIATION)
    factor = math.exp(quantile * deviation)
    return Interval(ttft_seconds / factor, ttft_seconds * factor, step.level)


def _central(seconds: float, variance: float, level: float) -> Interval:
    half = NormalDist().inv_cdf(0.5 + level / 2) * math.sqrt(variance)
    return Interval(max(seconds - half, 0.0), seconds + half, level)


def scaled(known: Interval, factor: float) -> Interval:
    """Return the interval of ``factor`` times the duration that ``known`` is about."""
    return Interval(known.low * factor, known.high * factor, known.level)
