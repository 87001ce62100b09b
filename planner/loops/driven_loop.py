"""Compiled: one instance that is driven from outside, a step at a time, as ``plan simulate`` does it.

An aggregated instance has the steps of ``aggregated_loop`` (``proceed``); a decode instance has iterations of requests
that enter with their KV (``iterate``). What is added is what an event from outside may do to them: end early the
iterations that were added up, halt or give up the step that runs, take a request out, or move it to another rank.
"""

import numpy as np

from ground.arrays import Ints
from planner.loops.admission_loop import lacking
from planner.loops.aggregated_loop import add, advance, resolve
from planner.loops.arrays import TableArrays
from planner.loops.batch_loop import (
    INBOX,
    RESERVE,
    RUNS,
    SEEN,
    Instances,
    Records,
    Rule,
    blocks_of,
    join,
    part,
    reserves,
)
from planner.loops.compiled import called, njit, outermost
from planner.loops.iterations_loop import count_steps, leaving, slowest_on, steps_as_slowest
from planner.loops.tables_loop import alone_line, lasting, reached
from planner.loops.turns_loop import acting, any_launched, pass_stages


@outermost
def proceed(
    k: int,
    now: float,
    until: float,
    ahead: float,
    fresh: Ints,
    state: tuple[Records, Instances],
    rule: Rule,
    times: TableArrays,
) -> tuple[float, int]:
    """Resolve the steps that end by ``now`` and schedule those that are due before ``until``; requests arrive between.

    Args:
        k: the instance.
        now: seconds.
        until: ``now``, or just after it to schedule the step that begins now.
        ahead: iterations that are added up begin before it.
        fresh: how many requests have arrived since the last call, then their indices.
        state: requests and instances.
        rule: of the engine.
        times: of steps.

    Returns:
        When the next step ends or is to be scheduled, infinite where the instance idles, and how many iterations the
        last one that is scheduled stands for.
    """
    requests, pool = state
    if fresh[0] > 0:
        _end_early(acting(k, pool, rule), now, pool, rule, times)
    for n in range(1, fresh[0] + 1):
        if requests[fresh[n]].arrival < now:
            add(k, fresh[n], requests[fresh[n]].arrival, requests, pool, rule)
    _advance(k, now, now, requests, pool, rule, times)
    for n in range(1, fresh[0] + 1):
        if requests[fresh[n]].arrival >= now:
            add(k, fresh[n], now, requests, pool, rule)
    fresh[0] = 0
    if until > now:
        _advance(k, until, ahead, requests, pool, rule, times)
    i = acting(k, pool, rule)
    head = pool.heads[i]
    count = int(pool.steps[i, 1 - head.current if head.planned else head.current].count)
    if head.launched and (head.planned or not rule.overlapped):
        return float(pool.steps[i, head.current].end), count
    waits = pool.lines[i, INBOX].head >= 0 or any_launched(k, pool, rule)
    for r in range(pool.ranks.shape[1]):
        waits = waits or pool.lines[i, r].head >= 0 or pool.ranks[i, r].running > 0
    if head.launched or (waits and head.clock >= until):
        return float(head.clock), count
    return np.inf, 1


@called
def _advance(
    k: int, until: float, ahead: float, requests: Records, pool: Instances, rule: Rule, times: TableArrays
) -> None:
    """``advance``, compiled once for both of its places."""
    advance(k, until, ahead, requests, pool, rule, times)


@outermost
def end_early(
    k: int, now: float, state: tuple[Records, Instances], rule: Rule, times: TableArrays
) -> tuple[float, float]:
    """Let the iterations that were added up end with the one that runs at ``now``; return its begin and end."""
    i = acting(k, state[1], rule)
    _end_early(i, now, state[1], rule, times)
    head = state[1].heads[i]
    step = state[1].steps[i, 1 - head.current if head.planned else head.current]
    return float(step.begin), float(step.end)


@njit
def _end_early(i: int, now: float, pool: Instances, rule: Rule, times: TableArrays) -> None:
    head = pool.heads[i]
    s = 1 - head.current if head.planned else head.current
    step = pool.steps[i, s]
    if not (head.launched or head.planned) or step.count == 1 or step.begin < now:
        return
    first, more = _growing(i, s, pool)
    _keep(i, s, reached(now - step.start, first, more, step.count), pool, rule)
    if rule.stages > 1:
        last = step.end - step.begin
        head.busy -= last
        for stage in range(rule.stages):
            pool.passed[i // rule.stages, stage] = step.begin
        pass_stages(i, s, last, pool, rule, times)
    if not head.planned:
        head.clock = min(head.clock, step.begin)


@njit
def _growing(i: int, s: int, pool: Instances) -> tuple[float, float]:
    """Seconds of the first iteration of a step, and by which each is longer than the one before it."""
    step = pool.steps[i, s]
    last = step.end - step.begin
    first = 2.0 * (step.end - step.start) / step.count - last
    return first, (last - first) / max(step.count - 1, 1)


@njit
def _keep(i: int, s: int, kept: int, pool: Instances, rule: Rule) -> None:
    """Take back the last iterations of a step, so that so many are left of it."""
    head, step = pool.heads[i], pool.steps[i, s]
    first, more = _growing(i, s, pool)
    back, end = step.count - kept, step.start + lasting(first, more, kept)
    head.busy -= step.end - end
    head.steps -= back
    head.received = (head.received - 1 - back) % rule.interval + 1
    step.count, step.end, step.begin = kept, end, end - first - more * (kept - 1)
    for r in range(pool.ranks.shape[1]):
        mark, rank = pool.marks[i, s, r], pool.ranks[i, r]
        if mark.counted < 0:
            continue
        for _ in range(back):
            rank.count -= 1
            rank.free += lacking(i, r, pool, rule)
        rank.ratio = max(mark.ratio - (kept - 1) * rule.ratio_step, rule.least_ratio)
        mark.counted = rank.count
        rank.cached -= back * rank.grows
        rank.spare += back * rank.grows


@outermost
def enter(i: int, now: float, fresh: Ints, state: tuple[Records, Instances], rule: Rule) -> None:
    """Let requests run whose KV is on their ranks already; ``fresh`` as of ``proceed``."""
    requests, pool = state
    for k in range(1, fresh[0] + 1):
        p = fresh[k]
        pool.ranks[i, requests[p].rank].taken += 1
        pool.ranks[i, requests[p].rank].admitted += 1
        requests[p].first = now
        join(i, p, requests, pool, rule)
        requests[p].state = SEEN
    fresh[0] = 0


@outermost
def iterate(
    i: int, now: float, most: int, state: tuple[Records, Instances], rule: Rule, times: TableArrays
) -> tuple[float, float]:
    """Begin iterations of all that run; return when the last one of them begins and ends.

    So many at most, until somebody leaves or another rank is the slowest, for which all wait.
    """
    requests, pool = state
    head = pool.heads[i]
    s, total = 1 - head.current, 0
    for r in range(pool.ranks.shape[1]):
        rank = pool.ranks[i, r]
        pool.marks[i, s, r].counted = rank.count + 1 if rank.running else -1
        total += rank.running
    line = alone_line(times, total, 0.0)
    first, slowest = slowest_on(i, s, line, 0.0, pool)
    most = steps_as_slowest(i, s, slowest, line, most, pool)
    steps = leaving(i, s, most, requests, pool, rule)
    step, more = pool.steps[i, s], line[2] * pool.ranks[i, slowest].grows
    step.start, step.end = now, now + lasting(first, more, steps)
    step.begin = step.end - first - more * (steps - 1)
    step.count, step.running, step.tokens = steps, total, 0.0
    head.busy += step.end - now
    head.steps += steps
    head.current, head.launched, head.clock = s, 1, now
    for r in range(pool.ranks.shape[1]):
        if pool.marks[i, s, r].counted >= 0:
            count_steps(i, s, r, steps, pool, rule)
    return float(step.begin), float(step.end)


@outermost
def finish(i: int, state: tuple[Records, Instances], rule: Rule) -> None:
    """End the iterations that were begun: who has all tokens leaves."""
    resolve(i, state[1].heads[i].current, state[0], state[1], rule)


@outermost
def give_up(i: int, now: float, state: tuple[Records, Instances], rule: Rule) -> None:
    """Keep the iterations that have ended and give up the one that runs; nobody leaves before the last one ends."""
    pool = state[1]
    head = pool.heads[i]
    if not head.launched:
        return
    step = pool.steps[i, head.current]
    first, more = _growing(i, head.current, pool)
    kept = reached(now - step.start, first, more, step.count)
    if kept == step.count or step.start + lasting(first, more, kept) > now:
        kept -= 1
    _keep(i, head.current, kept, pool, rule)
    head.busy += max(now - step.end, 0.0)
    head.launched, head.clock = 0, now


@outermost
def halt(k: int, now: float, resumes: float, state: tuple[Records, Instances], rule: Rule, times: TableArrays) -> None:
    """Give up what runs; the step, of several batches in flight the oldest one, begins anew at ``resumes``."""
    _, pool = state
    i = acting(k, pool, rule)
    _end_early(i, now, pool, rule, times)
    head = pool.heads[i]
    if head.launched:
        oldest = pool.steps[i, head.current].begin
        head.busy += max(now - oldest, 0.0)
        for j in range(k * rule.stages, (k + 1) * rule.stages):
            _put_off(j, resumes - oldest, pool)
        for stage in range(rule.stages):
            pool.passed[k, stage] += resumes - oldest
    head.clock = max(head.clock, resumes)


@njit
def _put_off(i: int, later: float, pool: Instances) -> None:
    """Let the steps of a batch that are launched or planned begin and end so many seconds later."""
    head = pool.heads[i]
    step, other = pool.steps[i, head.current], pool.steps[i, 1 - head.current]
    if head.launched:
        step.begin += later
        step.end += later
    if head.planned:
        other.start += later
        other.begin += later
        other.end += later


@njit
def _unresolved(i: int, r: int, pool: Instances) -> int:
    """Iterations of a rank that are counted and have not ended, of those that are added up but the last one."""
    head = pool.heads[i]
    count = int(head.launched and pool.marks[i, head.current, r].counted >= 0)
    return count + int(head.planned and pool.marks[i, 1 - head.current, r].counted >= 0)


@outermost
def answered(p: int, state: tuple[Records, Instances]) -> int:
    """Return the tokens that a request has of its answer, those of iterations that ended by the last call."""
    requests, pool = state
    q = requests[p]
    if q.first < 0.0:
        return 0
    if q.state != SEEN and q.state != RUNS:
        return int(max(q.todo - q.length, 1))
    i, r = int(q.batch), int(q.rank)
    rest = min(q.ends - pool.ranks[i, r].count + _unresolved(i, r, pool), q.after)
    return int(min(max(round(q.answer - rest * q.growth), 1), q.answer - 1))


@outermost
def take_out(k: int, p: int, state: tuple[Records, Instances], rule: Rule) -> None:
    """Take out a request that runs and whose first token is out, with its KV, which all batches in flight share."""
    requests, pool = state
    q, i = requests[p], acting(k, pool, rule)
    own, rank = pool.ranks[q.batch, q.rank], pool.ranks[i, q.rank]
    before = own.free
    part(q.batch, p, requests, pool, rule)
    if q.batch != i:
        rank.free += own.free - before
    rank.taken -= 1
    rank.admitted -= 1
    rank.held -= q.need


@outermost
def uneven(k: int, beyond: float, state: tuple[Records, Instances], rule: Rule) -> tuple[int, int]:
    """Return who may move to which rank while the fullest one holds so much more KV than the mean; -1 where nobody may.

    Of those that half the gap holds, the longest may go to the emptiest rank that does not run most requests. So
    neither the most KV nor the most requests of a rank grow. Of several batches in flight this is said of the one that
    is scheduled next.
    """
    requests, pool = state
    i = acting(k, pool, rule)
    ranks = pool.ranks.shape[1]
    top, low, total, most = 0, -1, 0.0, 0
    for r in range(ranks):
        most = max(most, pool.ranks[i, r].running)
    for r in range(ranks):
        rank = pool.ranks[i, r]
        total += rank.cached
        if rank.cached > pool.ranks[i, top].cached:
            top = r
        if rank.running < most and (low < 0 or rank.cached < pool.ranks[i, low].cached):
            low = r
    if low < 0 or low == top or pool.ranks[i, top].cached <= (1.0 + beyond) * total / ranks:
        return -1, -1
    half = (pool.ranks[i, top].cached - pool.ranks[i, low].cached) / 2
    return _longest(i, top, half, requests, pool), low


@njit
def _longest(i: int, r: int, most: float, requests: Records, pool: Instances) -> int:
    """Return who holds most KV of a rank, up to so much of it, of those that run on; -1 where nobody does."""
    best, longest, p = -1, 0.0, pool.ranks[i, r].oldest
    while p >= 0:
        q = requests[p]
        held = q.todo + (pool.ranks[i, r].count - q.joined) * q.growth
        if q.state == SEEN and q.ends > pool.ranks[i, r].count and held <= most and held > longest:
            best, longest = p, held
        p = q.newer
    return int(best)


@outermost
def has_room(k: int, p: int, r: int, state: tuple[Records, Instances], rule: Rule) -> bool:
    """Whether a rank has room for a request of another one."""
    requests, pool = state
    i, q = acting(k, pool, rule), requests[p]
    rank = pool.ranks[i, r]
    if rule.admission == RESERVE:
        return reserves(i, r, p, requests, pool, rule)
    return bool(rank.admitted < rule.slots and blocks_of(q.todo + q.answer, rule) <= rank.free)


@outermost
def move(k: int, p: int, r: int, state: tuple[Records, Instances], rule: Rule) -> None:
    """Let a running request go on on another rank, with its KV."""
    requests, pool = state
    q, i = requests[p], acting(k, pool, rule)
    old, new = pool.ranks[i, q.rank], pool.ranks[i, r]
    grown, rest = round((old.count - q.joined) * q.growth), q.ends - old.count
    part(i, p, requests, pool, rule)
    old.taken -= 1
    old.admitted -= 1
    old.held -= q.need
    new.taken += 1
    new.admitted += 1
    new.held += q.need
    q.rank, q.todo, q.after = r, q.todo + grown, rest
    new.free -= blocks_of(q.todo, rule)
    join(i, p, requests, pool, rule)
    q.state = SEEN
