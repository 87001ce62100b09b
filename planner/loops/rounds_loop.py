"""Compiled: rounds of batches that take turns, in which each only ends an iteration of decode and begins the next one.

In round n batch j ends its iteration on stage s at

    x[n, j, s] = max(x[n, j, s - 1], end of the turn before on s) + its seconds there,

and its seconds grow evenly from round to round. While the same side of every maximum is the later one, each x soon is a
quadratic in n. So a few rounds are played, the quadratics through the last three are followed as long as no maximum
changes sides, and the rounds between are skipped.
"""

import math

import numpy as np

from planner.loops.arrays import TableArrays
from planner.loops.batch_loop import ROUNDS, Instances, Rule
from planner.loops.compiled import called, njit
from planner.loops.turns_loop import through_stages

_ROUNDING = 1e-7  # part of an iteration by which sides may differ that count as equal, and quadratics from equations
_LOOK = 4  # rounds that are played before others may be skipped, and that take as long as to see whether they may

Entry = tuple[int, int, int]
"""A turn, a stage, or the number of stages for when the iteration begins, and how many rounds before."""


@called
def pass_rounds(
    k: int, start: int, now: float, most: int, until: float, pool: Instances, rule: Rule, times: TableArrays
) -> tuple[int, float]:
    """Pass at most so many rounds of instance ``k`` that begin before ``until``; batch ``start`` begins.

    Returns:
        How many, and when the last turn began.
    """
    base, n, look = now, 0, _LOOK
    _begin(k, start, base, pool, rule)
    while n < most:
        _play(k, start, n, pool, rule, times)
        if pool.rounds[k, n % ROUNDS, rule.stages - 1, rule.stages] >= until - base:
            break
        n += 1
        if n == look:
            pool.heads[start].single += _LOOK * rule.stages
            skipped = _skipped(k, start, n - 1, most - n, until - base, pool, rule, times)
            if skipped:
                _skip(k, start, skipped, n - 1, pool, rule)
                n += skipped
            look = n + (_LOOK if skipped else n)
    if n:
        now = base + _end(k, start, n, base, pool, rule)
    return n, now


@njit
def _begin(k: int, start: int, base: float, pool: Instances, rule: Rule) -> None:
    """Note the ends of the iterations in flight as those of the round before; all times are kept relative to a base."""
    before = pool.rounds[k, ROUNDS - 1]
    for j in range(rule.stages):
        before[j, rule.stages - 1] = pool.calm[_turn(k, start, j, rule)].end - base
    for s in range(rule.stages):
        before[rule.stages - 1, s] = pool.passed[k, s] - base
    before[rule.stages - 1, rule.stages] = 0.0


@njit
def _turn(k: int, start: int, j: int, rule: Rule) -> int:
    """Return the batch of instance ``k`` whose turn is the one ``j`` after that of batch ``start``."""
    i = start + j
    return i if i < (k + 1) * rule.stages else i - rule.stages


@njit
def _play(k: int, start: int, n: int, pool: Instances, rule: Rule, times: TableArrays) -> None:
    """Play round ``n``: when each batch begins its iteration, and when it ends on each stage."""
    last, begins = rule.stages - 1, rule.stages
    row = pool.rounds[k, (n - 1) % ROUNDS, last]
    for j in range(rule.stages):
        calm, before = pool.calm[_turn(k, start, j, rule)], row
        ends, row = pool.rounds[k, (n - 1) % ROUNDS, j, last], pool.rounds[k, n % ROUNDS, j]
        if calm.running:
            row[begins] = max(before[begins], ends) if rule.overlapped else ends
            through_stages(row[begins], calm.seconds + n * calm.more, calm.head, before, row, times)
        else:
            for s in range(rule.stages + 1):
                row[s] = before[s]


@njit
def _skipped(
    k: int, start: int, n: int, most: int, until: float, pool: Instances, rule: Rule, times: TableArrays
) -> int:
    """Return how many rounds after round ``n`` may be skipped, at most so many, all of which begin before ``until``."""
    last, begins = rule.stages - 1, rule.stages
    now, rise, bend = _curve(k, n, (last, begins, 0), pool)
    due = _rounds_below(now - until, rise, bend) if until < np.inf else np.inf
    rounds = min(float(most), due - 1.0)
    for j in range(rule.stages):
        calm, (before, back) = pool.calm[_turn(k, start, j, rule)], (j - 1, 0) if j else (last, 1)
        near = _ROUNDING * (calm.seconds + calm.head)
        if rounds >= 1.0 and calm.running:
            if rule.overlapped:
                rounds = _rounds_alike(k, n, rounds, (j, last, 1), (before, begins, back), near, pool)
            for s in range(rule.stages):
                one = j, s - 1 if s else begins, 0
                rounds = _rounds_alike(k, n, rounds, one, (before, s, back), near, pool)
    skipped = int(max(rounds, 0.0))
    return skipped if skipped and _holds(k, start, n, skipped, pool, rule, times) else 0


@njit
def _rounds_alike(k: int, n: int, most: float, one: Entry, other: Entry, near: float, pool: Instances) -> float:
    """Return the rounds after round ``n``, at most so many, in which the same of two entries is later."""
    one_now, one_rise, one_bend = _curve(k, n, one, pool)
    now, rise, bend = _curve(k, n, other, pool)
    lead, rise, bend = one_now - now, one_rise - rise, one_bend - bend
    if abs(lead) - near >= most * (abs(rise) + most * abs(bend)):
        return most
    return min(most, max(_rounds_below(lead - near, rise, bend), _rounds_below(-lead - near, -rise, -bend)))


@njit
def _rounds_below(now: float, rise: float, bend: float) -> float:
    """Return the rounds until a quadratic, see ``_curve``, is above 0."""
    inner = rise * rise - 4.0 * bend * now
    if now > 0.0:
        return 0.0
    if inner < 0.0 or rise + math.sqrt(inner) <= 0.0:
        return np.inf
    return -2.0 * now / (rise + math.sqrt(inner))


@njit
def _holds(k: int, start: int, n: int, more: int, pool: Instances, rule: Rule, times: TableArrays) -> bool:
    """Whether the quadratics satisfy the equations so many rounds after round ``n``."""
    last, begins = rule.stages - 1, rule.stages
    for j in range(rule.stages):
        calm, (before, back) = pool.calm[_turn(k, start, j, rule)], (j - 1, 0) if j else (last, 1)
        if not calm.running:
            continue
        seconds = calm.seconds + (n + more) * calm.more
        near = _ROUNDING * (seconds + calm.head)
        at = _ahead(k, n, more, (j, last, 1), pool)
        if rule.overlapped:
            at = max(at, _ahead(k, n, more, (before, begins, back), pool))
        own = _ahead(k, n, more, (j, begins, 0), pool)
        for s in range(rule.stages):
            if abs(own - at) > near:
                return False
            at = max(own, _ahead(k, n, more, (before, s, back), pool))
            at += seconds * times.layers[s] + (calm.head if s == last else 0.0)
            own = _ahead(k, n, more, (j, s, 0), pool)
        if abs(own - at) > near:
            return False
    return True


@njit
def _curve(k: int, n: int, entry: Entry, pool: Instances) -> tuple[float, float, float]:
    """Return the quadratic through an entry of round ``n`` and the two before: now, rise, bend.

    So many rounds m later it is now + m rise + m^2 bend. Of an entry of rounds before, it is moved by so many.
    """
    j, s, back = entry
    x, y, z = (
        pool.rounds[k, (n - 2) % ROUNDS, j, s],
        pool.rounds[k, (n - 1) % ROUNDS, j, s],
        pool.rounds[k, n % ROUNDS, j, s],
    )
    bend = 0.5 * (x - 2.0 * y + z)
    rise = z - y + bend
    return z - back * (rise - back * bend), rise - 2.0 * back * bend, bend


@njit
def _ahead(k: int, n: int, more: int, entry: Entry, pool: Instances) -> float:
    """Return an entry so many rounds after round ``n``, on its quadratic."""
    now, rise, bend = _curve(k, n, entry, pool)
    return float(now + more * (rise + more * bend))


@njit
def _skip(k: int, start: int, skipped: int, n: int, pool: Instances, rule: Rule) -> None:
    """Keep the round that is so many after round ``n``; those before it are played over before anybody reads them."""
    for j in range(rule.stages):
        pool.heads[start].single -= skipped if pool.calm[_turn(k, start, j, rule)].running else 0
        for s in range(rule.stages + 1):
            pool.rounds[k, (n + skipped) % ROUNDS, j, s] = _ahead(k, n, skipped, (j, s, 0), pool)


@njit
def _end(k: int, start: int, n: int, base: float, pool: Instances, rule: Rule) -> float:
    """Note when the last of so many rounds ends; return when its last turn began, relative to the base."""
    rows, last = pool.rounds[k, (n - 1) % ROUNDS], rule.stages - 1
    for j in range(rule.stages):
        calm = pool.calm[_turn(k, start, j, rule)]
        if calm.running:
            calm.begin, calm.end, calm.count = base + rows[j, rule.stages], base + rows[j, last], calm.count + n
    pool.heads[start].busy += base + rows[last, last] - pool.passed[k, last]
    for s in range(rule.stages):
        pool.passed[k, s] = base + rows[last, s]
    return float(rows[last, rule.stages])
