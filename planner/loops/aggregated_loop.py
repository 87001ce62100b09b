"""Compiled: aggregated instances, step by step; ``rules`` states the rule, and ``aggregated`` sets the arrays up.

A step is scheduled, launched and resolved. Without overlap the three follow one another; with it the next step is
scheduled when the last one begins, so it does not know who ends with that one, and arrivals wait a step longer. Steps
without prompts are added up until somebody leaves, arrives or lacks memory. With pipeline stages the batches in flight
take turns (``turns_loop``), and each turn is one step unless one batch is alone. Turns in which nothing but decode
happens are passed over quickly (``iterations_loop``).
"""

import numpy as np

from ground.arrays import Floats
from planner.loops.admission_loop import fill, hold
from planner.loops.arrays import TableArrays
from planner.loops.batch_loop import (
    BUCKETS,
    ESTIMATE,
    INBOX,
    NOBODY,
    RESERVE,
    RUNS,
    SEEN,
    WAITS,
    Instances,
    Records,
    Rule,
    append,
    blocks_of,
    deal,
    join,
    leave,
    part,
    tell,
)
from planner.loops.compiled import njit, once, outermost
from planner.loops.iterations_loop import alone, count_steps, pass_turns, stretch
from planner.loops.tables_loop import loaded_seconds
from planner.loops.turns_loop import acting, any_launched, next_batch, pass_stages

IN_TURN, LEAST_LOAD = 0, 1
_STEP, _NO_STEP = 1, 2


@outermost
def play(
    requests: Records,
    pool: Instances,
    policy: int,
    rule: Rule,
    times: TableArrays,
    part: tuple[int, int],
    until: float,
) -> None:
    """Deal a ``part`` of the requests, from one on up to another, to the instances, and play them all until ``until``.

    In turn, or to the instance that holds fewest prompt tokens. Of a closed loop on one instance, those that follow
    arrive once whom they follow has left.
    """
    instances, everybody = pool.heads.size // rule.stages, policy == LEAST_LOAD
    p, end = part
    while True:
        comes = p < end
        now = requests[p].arrival if comes else until
        i = p % instances
        for k in range(instances):  # the only place that advances, for the whole step is inlined there
            if k == i or everybody or not comes:
                advance(k, now, now, requests, pool, rule, times)
        if comes:
            for k in range(instances if everybody else 0):
                own, least = pool.heads[acting(k, pool, rule)], pool.heads[acting(i, pool, rule)]
                if k == 0 or own.prompt_tokens < least.prompt_tokens:
                    i = k
            add(i, p, now, requests, pool, rule)
            p += 1
        elif pool.following[2] < pool.following[0]:
            p = int(pool.following[2])
            end = p + 1
            pool.following[2] = end
        else:
            return


@outermost
def so_far(requests: Records, now: float, first: Floats, left: Floats) -> None:
    """Fill in when the first of the requests have their first and last tokens: where they do not yet, now or later."""
    for p in range(first.size):
        known, gone = requests[p].first, requests[p].left
        first[p] = known if known >= 0 else max(now, requests[p].arrival)
        left[p] = gone if gone >= 0 else max(now, first[p])


@njit
def add(k: int, p: int, now: float, requests: Records, pool: Instances, rule: Rule) -> None:
    """Let a request arrive at instance ``k``, which has advanced to that moment."""
    i = acting(k, pool, rule)
    if not pool.heads[i].launched and not pool.heads[i].planned:
        pool.heads[i].clock = max(pool.heads[i].clock, now)
    pool.heads[i].prompt_tokens += requests[p].length
    append(i, INBOX, p, requests, pool)
    if rule.interval == 1:
        deal(i, requests, pool, rule)


@once
def advance(
    k: int, until: float, ahead: float, requests: Records, pool: Instances, rule: Rule, times: TableArrays
) -> None:
    """Schedule every step of instance ``k`` that is due before ``until``, and resolve those that end by then.

    Without end: until it idles or, in a closed loop, somebody follows. Iterations that are added up begin before
    ``ahead``.
    """
    while True:
        if rule.stages > 1:
            pass_turns(k, until, requests, pool, rule, times)
        if not _turn(acting(k, pool, rule), until, ahead, requests, pool, rule, times):
            return


@once
def _turn(
    i: int, until: float, ahead: float, requests: Records, pool: Instances, rule: Rule, times: TableArrays
) -> bool:
    """Advance batch ``i`` while it is its turn; return whether it is another one's now."""
    head = pool.heads[i]
    while True:
        a = head.current
        if head.launched and (head.planned or not rule.overlapped):
            if pool.steps[i, a].end > until:
                return False
            resolve(i, a, requests, pool, rule)
        if until == np.inf and pool.following[2] < pool.following[0]:
            return False
        if head.planned:
            _launch(i, pool)
            if rule.stages > 1 and not (head.launched and pool.steps[i, head.current].count > 1):
                return next_batch(i, pool, rule)
        elif head.clock >= until:
            return False
        elif not _plan(i, ahead, requests, pool, rule, times):
            return rule.stages > 1 and any_launched(i // rule.stages, pool, rule) and next_batch(i, pool, rule)


@once
def _plan(i: int, ahead: float, requests: Records, pool: Instances, rule: Rule, times: TableArrays) -> bool:
    """Schedule the next step; return whether there is one, or one under way to wait for."""
    head = pool.heads[i]
    a = head.current
    step = pool.steps[i, 1 - a]
    seconds, last = _schedule(i, 1 - a, ahead, requests, pool, rule, times)
    if seconds == 0.0:
        head.planned = _NO_STEP if head.launched else 0
        return bool(head.launched)
    step.start = max(head.clock, pool.steps[i, a].end)
    head.planned = _STEP
    if rule.stages > 1:
        step.begin = step.start + (seconds - last)
        pass_stages(i, 1 - a, last, pool, rule, times)
    else:
        step.end = step.start + seconds
        step.begin = step.end - last
        head.busy += seconds
    return True


@njit
def _launch(i: int, pool: Instances) -> None:
    """Launch the step that is scheduled, if any."""
    head = pool.heads[i]
    if head.planned == _STEP:
        head.current, head.launched = 1 - head.current, 1
        head.clock = max(head.clock, pool.steps[i, head.current].begin)
    head.planned = 0


@njit
def resolve(i: int, s: int, requests: Records, pool: Instances, rule: Rule) -> None:
    """End a step: who has all tokens leaves, and who has the first one runs."""
    now = pool.steps[i, s].end
    pool.heads[i].clock, pool.heads[i].launched = now, 0
    for r in range(pool.ranks.shape[1]):
        count = pool.marks[i, s, r].counted
        p = pool.buckets[i, r, count % BUCKETS] if count >= 0 else NOBODY
        while p >= 0:
            later = requests[p].later
            if requests[p].ends == count:
                part(i, p, requests, pool, rule)
                pool.ranks[i, r].ghosts += rule.admission == ESTIMATE
                leave(i, p, now, requests, pool, rule)
            p = later
    p = pool.steps[i, s].head
    while p >= 0:
        following = requests[p].chain
        if requests[p].state != WAITS:
            _first_token(i, p, now, requests, pool, rule)
        p = following
    if rule.interval == 1:
        deal(i, requests, pool, rule)


@njit
def _first_token(i: int, p: int, now: float, requests: Records, pool: Instances, rule: Rule) -> None:
    r = requests[p].rank
    if requests[p].first < 0.0:
        requests[p].first = now
        tell(p, pool)
        pool.heads[i].prompt_tokens -= requests[p].length
    if requests[p].after > 0:
        if requests[p].state != RUNS:
            join(i, p, requests, pool, rule)
        requests[p].state = SEEN
        return
    if requests[p].state == RUNS:
        part(i, p, requests, pool, rule)
        pool.ranks[i, r].ghosts += rule.admission == ESTIMATE
    elif rule.admission != RESERVE:
        pool.ranks[i, r].free += blocks_of(requests[p].todo, rule)
    leave(i, p, now, requests, pool, rule)


@once
def _schedule(
    i: int, s: int, until: float, requests: Records, pool: Instances, rule: Rule, times: TableArrays
) -> tuple[float, float]:
    """Form step ``s``, or as many without prompts as are alike; return its seconds and those of the last of them.

    Both are 0 where there is nothing to do.
    """
    head = pool.heads[i]
    if head.launched:
        p = pool.steps[i, head.current].head
        while p >= 0:
            join(i, p, requests, pool, rule)
            p = requests[p].chain
    prompts, decoding, opened = _form(i, s, requests, pool, rule)
    if not decoding and prompts == 0.0 and not any_launched(i // rule.stages, pool, rule):
        prompts, decoding, opened = _form(i, s, requests, pool, rule)  # an idle engine looks again at once
    steps = 1
    if prompts > 0.0:
        seconds = last = _loaded(i, s, decoding, prompts, pool, times)
        head.received = rule.interval
    elif decoding > 0:
        now = -np.inf if opened else until  # one step where the next may take others
        steps, seconds, last = stretch(i, s, decoding, now, requests, pool, rule, times)
        head.received = (head.received + steps - 1) % rule.interval + 1
    else:
        return 0.0, 0.0
    head.steps += steps
    head.single += rule.stages > 1
    step = pool.steps[i, s]
    step.count, step.running, step.tokens = steps, decoding, prompts
    for r in range(pool.ranks.shape[1]):
        if pool.marks[i, s, r].counted >= 0:
            count_steps(i, s, r, steps, pool, rule)
    return seconds, last


@njit
def _form(i: int, s: int, requests: Records, pool: Instances, rule: Rule) -> tuple[float, int, bool]:
    """Fill a step on every rank.

    Returns:
        Prompt tokens, requests in decode, and whether the step after it may take others though nobody leaves.
    """
    if rule.interval > 1 and (pool.heads[i].received >= rule.interval or not _busy(i, pool)):
        pool.heads[i].received = 0
        deal(i, requests, pool, rule)
    pool.steps[i, s].head = pool.steps[i, s].tail = NOBODY
    pool.heads[i].held = rule.balance_steps > 0 and hold(i, pool, rule)
    prompts, decoding, open_, ended = 0.0, 0, False, 0.0
    for r in range(pool.ranks.shape[1]):
        decodes, opened = fill(i, s, r, requests, pool, rule)
        mark, load = pool.marks[i, s, r], pool.loads[r]
        mark.prompted = load.tokens > 0.0
        mark.counted = pool.ranks[i, r].count + 1 if decodes else -1 - int(load.ended)
        prompts += load.tokens
        decoding += pool.ranks[i, r].running if decodes else 0
        ended += load.ended
        open_ = open_ or opened
    pool.steps[i, s].rows = decoding + ended
    return prompts, decoding, open_


@njit
def _busy(i: int, pool: Instances) -> bool:
    for r in range(pool.ranks.shape[1]):
        if pool.ranks[i, r].running > 0 or pool.lines[i, r].head >= 0:
            return True
    return bool(pool.heads[i].launched)


@njit
def _loaded(i: int, s: int, decoding: int, prompts: float, pool: Instances, times: TableArrays) -> float:
    """Seconds of a step with prompts, which lasts as long as its slowest rank."""
    ranks = pool.ranks.shape[1]
    most, mean, seconds = 0, prompts / ranks, 0.0
    for r in range(1, ranks):
        if pool.loads[r].tokens > pool.loads[most].tokens:
            most = r
    for r in range(ranks):
        if pool.loads[r].tokens > 0.0 and (r == most or not _dominated(i, s, r, most, pool)):
            load, rank = pool.loads[r], pool.ranks[i, r]
            prompt = (load.tokens, load.context, load.pairs, load.ended)
            sequences, kv = 0.0, 0.0
            if pool.marks[i, s, r].counted >= 0:
                sequences, kv = float(rank.running), rank.cached
            seconds = max(seconds, loaded_seconds(times, decoding, prompt, mean, sequences, kv))
    head = pool.heads[i]
    head.prompt_steps += 1
    head.beside += decoding
    head.chunks += pool.loads[most].tokens
    if ranks > 1 and decoding:
        seconds = max(seconds, alone(i, s, decoding, mean, pool, times)[0])
    return seconds


@njit
def _dominated(i: int, s: int, r: int, most: int, pool: Instances) -> bool:
    """Whether a rank has no more of anything than the one with most prompt tokens: it cannot be the slowest."""
    one, other, rank, first = pool.loads[r], pool.loads[most], pool.ranks[i, r], pool.ranks[i, most]
    if one.pairs > other.pairs or one.context > other.context or one.ended > other.ended:
        return False
    if pool.marks[i, s, r].counted < 0:
        return True
    return bool(pool.marks[i, s, most].counted >= 0 and rank.running <= first.running and rank.cached <= first.cached)
