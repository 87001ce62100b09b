"""Compiled: what a rank of an aggregated instance takes into a step, by the engine's order and admission.

``RESERVE`` lets a request in when its whole answer fits. ``NEED`` lets in what fits now and, when a running request
finds no block, preempts who came last (vLLM V1: vllm/v1/core/sched/scheduler.py). ``ESTIMATE`` sets aside a share of
what answers may still take, which falls while nothing goes wrong, and preempts who has fewest tokens (SGLang:
srt/managers/schedule_policy.py, schedule_batch.py); of requests whose lengths are fixed it looks ahead instead.
"""

import numpy as np

from planner.loops.batch_loop import (
    ENDS,
    ESTIMATE,
    NEED,
    NOBODY,
    RESERVE,
    RUNS,
    Instances,
    Records,
    Rule,
    append,
    blocks_of,
    pop,
    preempt,
    prepend,
    unseen,
)
from planner.loops.compiled import making, njit


@njit
def _left(i: int, r: int, room: int, pool: Instances) -> None:
    """Note how much of the budget a rank with prompts did not take."""
    if pool.loads[r].tokens > 0.0 or pool.lines[i, r].head >= 0:
        pool.heads[i].room = min(pool.heads[i].room, room)


@njit
def _seats(i: int, batch: int, pool: Instances, rule: Rule) -> bool:
    """Whether a batch of so many requests has a place for one more."""
    pool.heads[i].places = max(pool.heads[i].places, rule.stages * (batch + 1))
    return batch < rule.batch_slots


@njit
def fill(i: int, s: int, r: int, requests: Records, pool: Instances, rule: Rule) -> tuple[bool, bool]:
    """Put prompts of a rank into step ``s``.

    Returns:
        Whether its running requests decode in it, and whether the step after it may take others, though nobody leaves.
    """
    load = pool.loads[r]
    load.tokens = load.context = load.pairs = load.ended = 0.0
    if rule.admission == ESTIMATE:
        return _by_estimate(i, s, r, requests, pool, rule)
    room = rule.budget
    if rule.together:
        room -= pool.ranks[i, r].running * rule.queries
    if rule.admission == NEED:
        return _by_need(i, s, r, room, requests, pool, rule)
    decodes = rule.together or pool.lines[i, r].head < 0
    if pool.heads[i].held and pool.ranks[i, r].running == 0:
        return False, True
    if pool.heads[i].held or (rule.wait_steps and _waits(i, r, requests, pool, rule)):
        return decodes, True
    room = max(room, 1)  # a rank full of drafts would never take a prompt
    while pool.lines[i, r].head >= 0 and room > 0 and not _uncut(i, r, room, requests, pool, rule):
        if not _seats(i, pool.ranks[i, r].running + int(load.ended), pool, rule):
            _left(i, r, room, pool)
            return decodes and pool.ranks[i, r].running > 0, True
        room -= _take(i, s, r, room, requests, pool, rule)
    _left(i, r, room if pool.lines[i, r].head < 0 else 0, pool)
    return decodes and pool.ranks[i, r].running > 0, False


@njit
def hold(i: int, pool: Instances, rule: Rule) -> bool:
    """Whether prompts wait for those of other ranks beside what runs (py_executor.py, _balance_adp_requests)."""
    waiting = running = 0
    for r in range(pool.ranks.shape[1]):
        waiting += pool.lines[i, r].head >= 0
        running += pool.ranks[i, r].running > 0
    head = pool.heads[i]
    if not 0 < waiting < pool.ranks.shape[1] or not running or head.waited >= rule.balance_steps:
        head.waited = 0
        return False
    head.waited += 1
    return True


@njit
def _waits(i: int, r: int, requests: Records, pool: Instances, rule: Rule) -> bool:
    """Whether prompts wait for more of them beside what runs (TensorRT-LLM's _torch/pyexecutor/py_executor.py)."""
    rank, p = pool.ranks[i, r], pool.lines[i, r].head
    if rank.running == 0 or p < 0:
        return False
    tokens = rank.running * rule.queries
    while p >= 0 and tokens < rule.wait_tokens:
        tokens += requests[p].todo - requests[p].done
        p = requests[p].behind
    if tokens >= rule.wait_tokens or rank.waited >= rule.wait_steps:
        rank.waited = 0
        return False
    rank.waited += 1
    return True


@njit
def _uncut(i: int, r: int, room: int, requests: Records, pool: Instances, rule: Rule) -> bool:
    """Whether the first prompt in line waits for a step that it need not be cut for."""
    q = requests[pool.lines[i, r].head]
    return bool(rule.whole_prompts and pool.loads[r].tokens > 0.0 and q.todo - q.done > room)


@njit
def _by_need(i: int, s: int, r: int, room: int, requests: Records, pool: Instances, rule: Rule) -> tuple[bool, bool]:
    preempted = False
    if not rule.together:
        _left(i, r, _need(i, s, r, room, requests, pool, rule), pool)
        if pool.loads[r].tokens > 0.0:
            return False, True
        preempted = _make_room(i, r, requests, pool, rule)
    else:
        preempted = _make_room(i, r, requests, pool, rule)
        if not preempted:
            _left(i, r, _need(i, s, r, room, requests, pool, rule), pool)
    return bool(pool.ranks[i, r].running > 0), preempted


@njit
def _by_estimate(i: int, s: int, r: int, requests: Records, pool: Instances, rule: Rule) -> tuple[bool, bool]:
    rank = pool.ranks[i, r]
    if rule.together and pool.marks[i, pool.heads[i].current, r].prompted:
        rank.ghosts = 0
    _estimate(i, s, r, requests, pool, rule)
    if pool.loads[r].tokens == 0.0:
        return _keep(i, r, requests, pool, rule), bool(pool.lines[i, r].head >= 0 and not rank.full)
    if rule.together:
        _grow(i, r, pool, rule)
        rank.ghosts = 0
    return bool(rule.together and rank.running > 0), True


@njit
def _take(i: int, s: int, r: int, room: int, requests: Records, pool: Instances, rule: Rule) -> int:
    """Put what fits of the first prompt in line into a step; return its tokens."""
    p = pool.lines[i, r].head
    done = requests[p].done
    if requests[p].begun < 0.0:
        requests[p].begun = max(pool.heads[i].clock, pool.steps[i, pool.heads[i].current].end)
    new = min(room, requests[p].todo - done)
    pool.loads[r].tokens += new
    pool.loads[r].context += done
    pool.loads[r].pairs += new * done + new * (new + 1) / 2
    if rule.admission != RESERVE:
        pool.ranks[i, r].free -= blocks_of(done + new, rule) - (blocks_of(done, rule) if pool.ranks[i, r].under else 0)
    requests[p].done = done + new
    pool.ranks[i, r].admitted += 1 - pool.ranks[i, r].under
    pool.ranks[i, r].under = 1
    if done + new == requests[p].todo:
        pool.loads[r].ended += 1.0
        pool.ranks[i, r].under = 0
        pop(i, r, requests, pool)
        requests[p].state = ENDS
        requests[p].chain = NOBODY
        if pool.steps[i, s].tail >= 0:
            requests[pool.steps[i, s].tail].chain = p
        else:
            pool.steps[i, s].head = p
        pool.steps[i, s].tail = p
    return int(new)


@njit
def _need(i: int, s: int, r: int, room: int, requests: Records, pool: Instances, rule: Rule) -> int:
    """Take prompts whose blocks are free now; return what is left of the budget, 0 where a prompt waits for it.

    Whole prompts must fit, though parts take theirs one by one.
    """
    head = pool.heads[i]
    while pool.lines[i, r].head >= 0:
        if room <= 0 or _uncut(i, r, room, requests, pool, rule):
            return 0
        p = pool.lines[i, r].head
        alone = pool.ranks[i, r].admitted == pool.ranks[i, r].under  # who lies alone may have more than there is
        if pool.ranks[i, r].under:
            new = min(room, requests[p].todo - requests[p].done)
            lacks = blocks_of(requests[p].done + new, rule) - blocks_of(requests[p].done, rule) > pool.ranks[i, r].free
            if lacks and not alone:
                head.lacked = 1
                _put_back(i, r, requests, pool, rule)
                return room
        else:
            lacks = blocks_of(requests[p].todo, rule) > pool.ranks[i, r].free
            head.places = max(head.places, pool.ranks[i, r].admitted + 1)
            head.lacked |= lacks and not alone
            if pool.ranks[i, r].admitted >= rule.slots or (lacks and not alone):
                return room
        room -= _take(i, s, r, room, requests, pool, rule)
    return room


@njit
def _put_back(i: int, r: int, requests: Records, pool: Instances, rule: Rule) -> None:
    """Take the KV of a prompt that has begun."""
    p = pool.lines[i, r].head
    pool.ranks[i, r].free += blocks_of(requests[p].done, rule)
    requests[p].done = requests[p].reused
    requests[p].preempted += 1
    pool.ranks[i, r].under = 0
    pool.ranks[i, r].admitted -= 1


@njit
def lacking(i: int, r: int, pool: Instances, rule: Rule) -> float:
    """Blocks that running requests need for the next iteration."""
    return lacking_at(i, r, -pool.ranks[i, r].count % rule.block, pool, rule)


@njit
def lacking_at(i: int, r: int, phase: int, pool: Instances, rule: Rule) -> float:
    """Blocks that running requests need for an iteration, given its place among ``phases``."""
    if rule.whole_blocks:
        return float(pool.phases[i, r, phase])
    return float(pool.ranks[i, r].grows / rule.block)


@njit
def _grow(i: int, r: int, pool: Instances, rule: Rule) -> None:
    pool.ranks[i, r].free -= lacking(i, r, pool, rule)


@njit
def _make_room(i: int, r: int, requests: Records, pool: Instances, rule: Rule) -> bool:
    """Give running requests their blocks in the order in which they came; say if the last ones were preempted."""
    if lacking(i, r, pool, rule) <= pool.ranks[i, r].free:
        _grow(i, r, pool, rule)
        return False
    pool.heads[i].lacked = 1
    preempted = False
    p = pool.ranks[i, r].oldest
    while p >= 0:
        blocks = requests[p].growth / rule.block
        if rule.whole_blocks:
            tokens = requests[p].todo + pool.ranks[i, r].count - requests[p].joined
            blocks = 1.0 if tokens % rule.block == 0 else 0.0
        while blocks > pool.ranks[i, r].free and pool.ranks[i, r].admitted > 1:
            preempted = True
            if pool.ranks[i, r].under:
                _put_back(i, r, requests, pool, rule)
                continue
            last = pool.ranks[i, r].newest
            preempt(i, last, requests, pool, rule)
            prepend(i, r, last, requests, pool)
            if last == p:
                return True
        pool.ranks[i, r].free -= blocks
        p = requests[p].newer
    return preempted


@njit
def _set_aside(i: int, r: int, requests: Records, pool: Instances, rule: Rule) -> float:
    """Tokens that running requests may still take, each at most ``clip``, as far as the engine knows their answers."""
    if not rule.clipped:
        return float(pool.ranks[i, r].spare + _unseen(i, r, pool))
    total, p = 0.0, pool.ranks[i, r].oldest
    while p >= 0:
        total += min(_lacks(i, r, p, requests, pool), rule.clip)
        p = requests[p].newer
    return total


@njit
def _lacks(i: int, r: int, p: int, requests: Records, pool: Instances) -> float:
    """Tokens of its answer that a request lacks, as far as the engine knows."""
    q = requests[p]
    if q.state < RUNS:
        return float((q.after + 1) * q.growth)
    return float((q.ends - pool.ranks[i, r].count + unseen(i, p, requests, pool)) * q.growth)


@njit
def _fits(i: int, s: int, p: int, now: float, ever: float, requests: Records, pool: Instances, rule: Rule) -> bool:
    """Whether there is memory for a request where so many tokens are free now, and ever after all that is set aside."""
    r = int(requests[p].rank)
    lacks = min(_lacks(i, r, p, requests, pool), rule.clip)
    if not rule.fixed_lengths:
        return bool(requests[p].todo + lacks + rule.block < ever)
    prompt = blocks_of(requests[p].todo - requests[p].done, rule) * rule.block + rule.block
    if prompt > min(now, ever):
        return False
    members = pool.ranks[i, r].running + pool.loads[r].ended + 1
    ample = not rule.clipped and ever - prompt - lacks > members  # for all answers at once
    return bool(ample or _lasts(i, s, p, now - prompt, requests, pool))


@making
def _lasts(i: int, s: int, p: int, free: float, requests: Records, pool: Instances) -> bool:
    """Whether memory lasts until all answers are out, with request ``p``: who lacks least leaves first."""
    r = int(requests[p].rank)
    members = np.empty(pool.ranks[i, r].running + int(pool.loads[r].ended) + 1, dtype=np.int64)
    members[0] = p
    n, q = 1, pool.steps[i, s].head
    while q >= 0:
        if requests[q].rank == r:
            members[n] = q
            n += 1
        q = requests[q].chain
    q = pool.ranks[i, r].oldest
    while q >= 0:
        members[n] = q
        n += 1
        q = requests[q].newer
    lacks = np.empty(n)
    for k in range(n):
        lacks[k] = _lacks(i, r, members[k], requests, pool)
    for k in np.argsort(lacks):
        if free - lacks[k] * n <= n:  # each keeps a token more
            return False
        free += requests[members[k]].length + requests[members[k]].answer - lacks[k]
        n -= 1
    return True


@njit
def _unseen(i: int, r: int, pool: Instances) -> float:
    """Tokens of the step that is under way, for all running requests of a rank."""
    a = pool.heads[i].current
    if not pool.heads[i].launched:
        return 0.0
    return float(pool.ranks[i, r].grows if pool.marks[i, a, r].counted >= 0 else -1 - pool.marks[i, a, r].counted)


@njit
def _estimate(i: int, s: int, r: int, requests: Records, pool: Instances, rule: Rule) -> None:
    """Take prompts for which there is memory by the estimate."""
    line, under = pool.lines[i, r], bool(pool.ranks[i, r].under)
    batch = pool.ranks[i, r].running + pool.ranks[i, r].ghosts
    if not under:
        if pool.ranks[i, r].full or line.head < 0:
            return
        if not _seats(i, batch, pool, rule):
            pool.ranks[i, r].full = 1
            return
    decode = batch if rule.together else 0
    room, there = rule.budget - decode, pool.ranks[i, r].free * rule.block
    now = float(decode)
    ever = now + (1.0 if rule.fixed_lengths else pool.ranks[i, r].ratio) * _set_aside(i, r, requests, pool, rule)
    taken, single = 0, False
    while line.head >= 0 and room > 0 and not _uncut(i, r, room, requests, pool, rule):
        p = line.head
        left = requests[p].todo - requests[p].done
        if not under:
            lies_alone = batch == 0 and taken == 0 and (rule.stages == 1 or pool.ranks[i, r].admitted == 0)
            fits = lies_alone or _fits(i, s, p, there - now, there - ever, requests, pool, rule)
            pool.heads[i].lacked |= not fits
            if not _seats(i, taken + batch, pool, rule) or not fits:
                pool.ranks[i, r].full = 1
                break
            now += requests[p].done  # what is reused stands in the pool, too
            ever += requests[p].done
        short = int(there - ever) if under else room
        new = min(left, room, short if short > 0 else room)
        pool.heads[i].lacked |= under and short < left
        single = single or (new == left and requests[p].after == 0)
        tokens = blocks_of(new, rule) * rule.block + rule.block
        now += tokens
        ever += tokens + (min(float(requests[p].answer), rule.clip) if new == left else 0.0)
        _take(i, s, r, new, requests, pool, rule)
        room -= blocks_of(new, rule) * rule.block
        taken += 1
        if new < left:
            room = 0
            break
        if not under and (there - ever <= 0 or there - now <= 0):
            pool.heads[i].lacked = pool.ranks[i, r].full = 1
            break
        under = False
    whole = line.head < 0 or (pool.ranks[i, r].full and not rule.whole_prompts)
    _left(i, r, room if whole else 0, pool)
    if taken and (rule.together or pool.ranks[i, r].under or not batch or (single and not rule.overlapped)):
        pool.ranks[i, r].full = 0


@njit
def _keep(i: int, r: int, requests: Records, pool: Instances, rule: Rule) -> bool:
    """Prepare a step of decode alone: forget who ended, and preempt those with fewest tokens while memory lacks."""
    if pool.ranks[i, r].ghosts:
        pool.ranks[i, r].ghosts = pool.ranks[i, r].full = 0
    if not pool.ranks[i, r].running:
        pool.ranks[i, r].full = 0
        return False
    if lacking(i, r, pool, rule) <= pool.ranks[i, r].free:
        pool.ranks[i, r].ratio = max(pool.ranks[i, r].ratio - rule.ratio_step, rule.least_ratio)
    elif pool.ranks[i, r].running > 1:
        pool.heads[i].lacked = 1
        while pool.ranks[i, r].running > 1:
            p = _fewest(i, r, requests, pool)
            preempt(i, p, requests, pool, rule)
            append(i, r, p, requests, pool)
            if lacking(i, r, pool, rule) <= pool.ranks[i, r].free:
                break
        answered = pool.ranks[i, r].whole - pool.ranks[i, r].spare - _unseen(i, r, pool)
        share = (answered + rule.retract_tokens * pool.ranks[i, r].running) / (pool.ranks[i, r].whole + 1.0)
        pool.ranks[i, r].ratio = min(share, 1.0)
        pool.ranks[i, r].full = 0
    _grow(i, r, pool, rule)
    return True


@njit
def _fewest(i: int, r: int, requests: Records, pool: Instances) -> int:
    """Return the running request with fewest tokens of its answer, of those the one with the longest prompt."""
    p = best = pool.ranks[i, r].oldest
    least = _answered(i, r, p, requests, pool)
    while p >= 0:
        answered = _answered(i, r, p, requests, pool)
        longer = requests[p].length >= requests[best].length
        if answered < least or (answered == least and longer):
            best, least = p, answered
        p = requests[p].newer
    return int(best)


@njit
def _answered(i: int, r: int, p: int, requests: Records, pool: Instances) -> float:
    """Tokens of its answer that a running request has."""
    return float(requests[p].answer - (requests[p].ends - pool.ranks[i, r].count) * requests[p].growth)
