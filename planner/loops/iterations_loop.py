"""Compiled: steps without prompts: what one takes, how many follow alike, and those of batches that take turns."""

import numpy as np

from planner.loops.admission_loop import lacking_at
from planner.loops.arrays import TableArrays
from planner.loops.batch_loop import (
    BUCKETS,
    ESTIMATE,
    INBOX,
    NEED,
    NOBODY,
    RESERVE,
    Instances,
    Records,
    Rule,
    blocks_of,
)
from planner.loops.compiled import called, njit
from planner.loops.rounds_loop import pass_rounds
from planner.loops.tables_loop import Line, alone_line, head_seconds, lasting, reached, seconds_on
from planner.loops.turns_loop import acting, any_launched, hand_on, only_batch, through_stages

_NEVER = 1 << 60
_NEAR = 4  # steps per running request in which nobody leaves, until it is quicker to look through all who run


@njit
def count_steps(i: int, s: int, r: int, steps: int, pool: Instances, rule: Rule) -> None:
    """Count the iterations of a step; memory of the first of them is taken already."""
    at = (i, r)
    pool.ranks[at].count += 1
    pool.marks[i, s, r].ratio = pool.ranks[at].ratio
    more = steps - 1
    _take_memory(i, r, -pool.ranks[at].count % rule.block, more, i, pool, rule)
    pool.ranks[at].count += more
    pool.marks[i, s, r].counted = pool.ranks[at].count
    pool.ranks[at].cached += steps * pool.ranks[at].grows
    pool.ranks[at].spare -= steps * pool.ranks[at].grows


@njit
def _take_memory(i: int, r: int, phase: int, steps: int, holder: int, pool: Instances, rule: Rule) -> None:
    """Take what a rank needs for so many iterations, the first at ``phase``, from what batch ``holder`` holds for all.

    There is enough for them.
    """
    rank, held = pool.ranks[i, r], pool.ranks[holder, r]
    if rule.admission == RESERVE or not steps or not rank.running:
        return
    held.ratio = max(held.ratio - steps * rule.ratio_step, rule.least_ratio)
    if rule.whole_blocks:
        held.free -= rank.running * (steps // rule.block)
        for n in range(steps % rule.block):
            held.free -= pool.phases[i, r, (phase - n) % rule.block]
    else:
        held.free -= steps * lacking_at(i, r, phase, pool, rule)


@njit
def alone(i: int, s: int, decoding: int, mean: float, pool: Instances, times: TableArrays) -> tuple[float, int]:
    """Seconds of the slowest rank without prompts, and which it is."""
    return slowest_on(i, s, alone_line(times, decoding, mean), mean, pool)


@njit
def slowest_on(i: int, s: int, line: Line, mean: float, pool: Instances) -> tuple[float, int]:
    """``alone``, read off its line."""
    seconds, slowest = 0.0, -1
    for r in range(pool.ranks.shape[1]):
        if pool.marks[i, s, r].counted < 0 or (mean > 0.0 and pool.loads[r].tokens > 0.0):
            continue
        own = seconds_on(line, float(pool.ranks[i, r].running), pool.ranks[i, r].cached)
        if slowest < 0 or own > seconds:
            seconds, slowest = own, r
    return seconds, slowest


@njit
def steps_as_slowest(i: int, s: int, slowest: int, line: Line, most: int, pool: Instances) -> int:
    """Return the steps, at least one and at most so many, in which a rank stays the slowest as all KV grows."""
    first = pool.ranks[i, slowest]
    for r in range(pool.ranks.shape[1]):
        rank = pool.ranks[i, r]
        if pool.marks[i, s, r].counted >= 0 and rank.grows > first.grows and line[2] > 0.0:
            ahead = first.cached - rank.cached + (first.running - rank.running) * line[4] / line[2]
            most = int(min(float(most), max(ahead, 0.0) / (rank.grows - first.grows) + 1.0))
    return most


@njit
def stretch(
    i: int, s: int, decoding: int, until: float, requests: Records, pool: Instances, rule: Rule, times: TableArrays
) -> tuple[int, float, float]:
    """Return how many steps without prompts follow one another alike, their seconds, and those of the last.

    They end when somebody leaves, lacks memory or arrives; the last begins before ``until``.
    """
    a, steps = pool.heads[i].current, _NEVER if rule.stages == 1 or only_batch(i, pool, rule) else 1
    for r in range(pool.ranks.shape[1]):
        rank = pool.ranks[i, r]
        if pool.marks[i, s, r].counted >= 0 and rule.admission != RESERVE:
            spare = rank.free / rank.running - 1.0  # each takes at most one block more than its tokens fill
            steps = min(steps, max(int(spare * rule.block), 1))
        if rule.overlapped and pool.heads[i].launched and pool.marks[i, a, r].prompted:
            steps = 1
    if pool.lines[i, INBOX].head >= 0 and pool.heads[i].received < rule.interval:
        steps = min(steps, max(rule.interval - pool.heads[i].received, 1))
    line = alone_line(times, decoding, 0.0)
    first, slowest = slowest_on(i, s, line, 0.0, pool)
    more, steps = line[2] * pool.ranks[i, slowest].grows, steps_as_slowest(i, s, slowest, line, steps, pool)
    begin = max(pool.heads[i].clock, pool.steps[i, a].end)
    if steps > 1 and until < np.inf:
        steps = reached(until - begin, first, more, steps)
    steps = leaving(i, s, steps, requests, pool, rule)
    return steps, lasting(first, more, steps), first + more * (steps - 1)


@njit
def leaving(i: int, s: int, most: int, requests: Records, pool: Instances, rule: Rule) -> int:
    """Return the steps until somebody leaves, at most so many; one where the step under way may end somebody."""
    return max(_steps_until_leaving(i, s, 0, 0 if rule.overlapped else 1, most, requests, pool), 1)


@njit
def _steps_until_leaving(i: int, s: int, since: int, least: int, most: int, requests: Records, pool: Instances) -> int:
    """Return the steps until somebody leaves, at least and at most so many; ``since`` steps are not counted yet.

    The next steps are looked through one by one; where nobody leaves in them, all who run are.
    """
    steps, running = least, 0
    for r in range(pool.ranks.shape[1]):
        running += pool.ranks[i, r].running if pool.marks[i, s, r].counted >= 0 else 0
    near = min(most, least + _NEAR * running)
    while steps < near:
        for r in range(pool.ranks.shape[1]):
            if pool.marks[i, s, r].counted < 0:
                continue
            if _ends_with(i, r, pool.ranks[i, r].count + since + steps, requests, pool):
                return steps
        steps += 1
    for r in range(pool.ranks.shape[1]):
        p = pool.ranks[i, r].oldest if steps < most and pool.marks[i, s, r].counted >= 0 else NOBODY
        while p >= 0:
            left = requests[p].ends - pool.ranks[i, r].count - since
            if requests[p].after > 0 and steps <= left < most:
                most = left
            p = requests[p].newer
    return most


@njit
def _ends_with(i: int, r: int, count: int, requests: Records, pool: Instances) -> bool:
    """Whether somebody on a rank leaves with its iteration ``count``."""
    p = pool.buckets[i, r, count % BUCKETS]
    while p >= 0:
        if requests[p].ends == count:
            return True
        p = requests[p].later
    return False


@called
def pass_turns(k: int, until: float, requests: Records, pool: Instances, rule: Rule, times: TableArrays) -> None:
    """Pass the turns of instance ``k`` in which a batch only ends an iteration of decode and begins the next one.

    Nobody arrives, leaves, is let in or lacks memory in them, so that all a turn does in general comes down to this.
    """
    first, i = k * rule.stages, acting(k, pool, rule)
    awaited = until == np.inf and pool.following[2] < pool.following[0]
    if rule.interval > 1 or awaited or only_batch(i, pool, rule) or not any_launched(k, pool, rule):
        return
    if not _shut(i, requests, pool, rule):
        return
    start, turns, now = i, 0, pool.heads[i].clock
    while turns >= rule.stages or _decodes_alone(i, start, pool, rule, times):
        calm = pool.calm[i]
        ends = calm.end if calm.running else now
        begins = max(now, ends) if rule.overlapped else ends
        if ends > until or (now if rule.overlapped else ends) >= until:
            break
        if calm.running:
            if not _goes_on(i, start, requests, pool, rule):
                break
            _iterate(k, i, start, begins, pool, rule, times)
            now = begins
        i = i + 1 if i + 1 < first + rule.stages else first
        turns += 1
        if turns == rule.stages:
            most = _certain_rounds(first, start, requests, pool, rule)
            if most > 0:
                rounds, now = pass_rounds(k, start, now, most, until, pool, rule, times)
                _count_rounds(first, start, rounds, pool, rule)
    pool.heads[start].clock = now
    for turn in range(min(turns, rule.stages)):
        _settle(first + (start - first + turn) % rule.stages, start, pool, rule)
    hand_on(start, i, pool, rule)


@njit
def _shut(i: int, requests: Records, pool: Instances, rule: Rule) -> bool:
    """Whether nobody who waits is let in before somebody leaves.

    By estimate ``_stays`` tells. Where answers are reserved, all who are dealt to a rank must have been let in.
    """
    for r in range(pool.ranks.shape[1]):
        rank, p = pool.ranks[i, r], pool.lines[i, r].head
        if rank.under or (p >= 0 and rule.admission == RESERVE):
            return False
        if p >= 0 and rule.admission == NEED and rank.admitted < rule.slots:
            lacks = rank.admitted > 0 and blocks_of(requests[p].todo, rule) > rank.free
            if not lacks:
                return False
    return bool(pool.heads[i].waited == 0)


@njit
def _stays(i: int, r: int, waits: bool, pool: Instances) -> bool:
    """Whether a step of decode alone changes nothing of whom a rank lets in by estimate."""
    rank = pool.ranks[i, r]
    return bool(rank.ghosts == 0 and (not waits if rank.full == 0 else rank.running > 0))


@njit
def _decodes_alone(i: int, start: int, pool: Instances, rule: Rule, times: TableArrays) -> bool:
    """Whether batch ``i`` has an iteration of decode in flight, or nothing; note what the next ones take.

    Who waits is with batch ``start``.
    """
    head, calm = pool.heads[i], pool.calm[i]
    step, running = pool.steps[i, head.current], 0
    if head.planned or (head.launched and step.head >= 0):
        return False
    for r in range(pool.ranks.shape[1]):
        rank = pool.ranks[i, r]
        if rule.admission == ESTIMATE and not _stays(i, r, pool.lines[start, r].head >= 0, pool):
            return False
        running += rank.running
        rank.phase = -rank.count % rule.block
        pool.marks[i, 1 - head.current, r].counted = 0 if rank.running > 0 else NOBODY
    if bool(head.launched) != (running > 0):
        return False
    calm.bare, calm.usual, calm.slope, calm.share, calm.sequence = alone_line(times, running, 0.0)
    calm.head, calm.running = head_seconds(times, float(running)), running
    calm.end, calm.count = step.end, 0
    return True


@njit
def _calm_line(i: int, pool: Instances) -> Line:
    calm = pool.calm[i]
    return calm.bare, calm.usual, calm.slope, calm.share, calm.sequence


@njit
def _certain_rounds(first: int, start: int, requests: Records, pool: Instances, rule: Rule) -> int:
    """Return how many more iterations each batch goes on for: nobody leaves, and there is memory for all of them."""
    rounds = _NEVER
    for r in range(pool.ranks.shape[1]):
        running, grows, free = 0, 0.0, pool.ranks[start, r].free
        for i in range(first, first + rule.stages):
            running += pool.ranks[i, r].running
            grows += pool.ranks[i, r].grows
        if running and rule.admission != RESERVE:
            blocks = int(free / running) * rule.block if rule.whole_blocks else int(free * rule.block / grows)
            rounds = min(rounds, blocks)
    for i in range(first, first + rule.stages):
        s, calm = 1 - pool.heads[i].current, pool.calm[i]
        rounds = _steps_until_leaving(i, s, calm.count, 0, rounds, requests, pool)
        line = _calm_line(i, pool)
        seconds, slowest = slowest_on(i, s, line, 0.0, pool)
        calm.head = min(calm.head, seconds)
        if calm.running:
            calm.seconds, calm.more = seconds - calm.head, calm.slope * pool.ranks[i, slowest].grows
            rounds = steps_as_slowest(i, s, slowest, line, rounds, pool)
    return rounds


@njit
def _count_rounds(first: int, start: int, rounds: int, pool: Instances, rule: Rule) -> None:
    """Take the memory of so many iterations of each batch, for which there is enough."""
    for i in range(first, first + rule.stages):
        for r in range(pool.ranks.shape[1]):
            rank = pool.ranks[i, r]
            _take_memory(i, r, rank.phase, rounds, start, pool, rule)
            rank.phase = (rank.phase - rounds) % rule.block
            rank.cached += rounds * rank.grows


@njit
def _goes_on(i: int, start: int, requests: Records, pool: Instances, rule: Rule) -> bool:
    """Whether nobody leaves batch ``i`` with the iteration in flight, and there is memory for the next."""
    for r in range(pool.ranks.shape[1]):
        rank = pool.ranks[i, r]
        if rule.admission != RESERVE and lacking_at(i, r, rank.phase, pool, rule) > pool.ranks[start, r].free:
            return False
        if _ends_with(i, r, rank.count + pool.calm[i].count, requests, pool):
            return False
    return True


@njit
def _iterate(k: int, i: int, start: int, begins: float, pool: Instances, rule: Rule, times: TableArrays) -> None:
    """Begin the next iteration of batch ``i`` of instance ``k``."""
    calm = pool.calm[i]
    seconds = slowest_on(i, 1 - pool.heads[i].current, _calm_line(i, pool), 0.0, pool)[0]
    for r in range(pool.ranks.shape[1]):
        rank = pool.ranks[i, r]
        _take_memory(i, r, rank.phase, 1, start, pool, rule)
        rank.phase = rank.phase - 1 if rank.phase > 0 else rule.block - 1
        rank.cached += rank.grows
    passed, head = pool.passed[k], min(calm.head, seconds)
    before = passed[rule.stages - 1]
    calm.begin, calm.count = begins, calm.count + 1
    calm.end = through_stages(begins, seconds - head, head, passed, passed, times)
    pool.heads[i].busy += calm.end - max(begins, before)


@njit
def _settle(i: int, start: int, pool: Instances, rule: Rule) -> None:
    """Count the iterations of batch ``i`` that have begun, and put the last one in flight."""
    head, calm = pool.heads[i], pool.calm[i]
    if not calm.count:
        return
    head.current = (head.current + calm.count) % 2
    head.steps += calm.count
    head.single += calm.count
    step = pool.steps[i, head.current]
    step.start, step.begin, step.end, step.count = calm.begin, calm.begin, calm.end, 1
    step.running, step.rows, step.tokens = calm.running, calm.running, 0.0
    step.head = step.tail = NOBODY
    for r in range(pool.ranks.shape[1]):
        rank, mark = pool.ranks[i, r], pool.marks[i, head.current, r]
        mark.prompted, mark.counted, mark.ratio = 0, NOBODY, pool.ranks[start, r].ratio
        if rank.running > 0:
            rank.count += calm.count
            rank.spare -= calm.count * rank.grows
            mark.counted = rank.count
