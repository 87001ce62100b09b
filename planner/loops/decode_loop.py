"""Compiled: a pool of decode instances and the links that bring KV. ``planner.serving.decode`` states the rule."""

from typing import NamedTuple

import numpy as np

from ground.arrays import Floats, Ints
from planner.loops.arrays import TableArrays
from planner.loops.compiled import njit, outermost
from planner.loops.tables_loop import alone_line, lasting, reached, seconds_on

LEAST_KV, LEAST_REQUESTS, IN_TURN = 0, 1, 2
_NOBODY = -1


class Jobs(NamedTuple):
    """Requests in the order in which they are placed: as their prompts end, [requests] each."""

    ready: Floats  # seconds at which the first token is out
    kv: Floats  # cached tokens with which a request begins
    need: Floats  # KV tokens that are set aside for it
    steps: Ints  # iterations that it takes, at least 1
    growth: Floats  # cached tokens that each of them adds
    held: Floats  # seconds for which its transfer keeps its links
    source: Ints  # attention group of the prefill pool that holds its KV
    behind: Ints  # next in a list: of the line, of those whose KV is on its way, or of those who leave together
    rank: Ints
    there: Floats  # seconds at which its KV is there
    left: Floats
    waited: Floats  # seconds from room in decode until its links were free


class Ranks(NamedTuple):
    """What the ranks hold, [instances, ranks]."""

    taken: Ints
    reserved: Floats
    running: Ints
    cached: Floats
    growth: Floats
    turns: Ints


class Clocks(NamedTuple):
    """Where the instances are, [instances], and who leaves them when."""

    free: Floats  # end of the iterations under way; infinite where none is
    start: Floats
    first: Floats  # seconds of the first of the iterations under way
    more: Floats  # seconds by which each is longer than the one before it
    steps: Ints  # iterations under way
    done: Ints  # iterations so far
    total: Ints  # running requests
    coming: Ints  # first of the requests whose KV is on its way or there, by ``there``
    leaving: Ints  # [instances, span]: first of those who leave with an iteration, by its number modulo the span
    busy: Floats
    turn: Ints  # [1]: requests that were placed


class Links(NamedTuple):
    """When the channels of each attention group are free, [groups, channels]."""

    source: Floats
    target: Floats
    latency: Floats  # [1] seconds


@njit
def _begin(i: int, begin: float, jobs: Jobs, ranks: Ranks, clocks: Clocks, times: TableArrays) -> None:
    """Let in whose KV is there at ``begin`` and start iterations, up to those with which somebody leaves or joins."""
    span = clocks.leaving.shape[1]
    clocks.free[i] = np.inf
    if clocks.total[i] == 0:
        if clocks.coming[i] < 0:
            return
        begin = max(begin, jobs.there[clocks.coming[i]])
    while clocks.coming[i] >= 0 and jobs.there[clocks.coming[i]] <= begin:
        p = clocks.coming[i]
        clocks.coming[i] = jobs.behind[p]
        r = jobs.rank[p] % ranks.running.shape[1]
        ranks.running[i, r] += 1
        ranks.cached[i, r] += jobs.kv[p]
        ranks.growth[i, r] += jobs.growth[p]
        clocks.total[i] += 1
        slot = (clocks.done[i] + jobs.steps[p]) % span
        jobs.behind[p] = clocks.leaving[i, slot]
        clocks.leaving[i, slot] = p
    steps = 1
    while clocks.leaving[i, (clocks.done[i] + steps) % span] < 0:
        steps += 1
    line, slowest, first = alone_line(times, clocks.total[i], 0.0), 0, 0.0
    for r in range(ranks.running.shape[1]):
        own = seconds_on(line, float(ranks.running[i, r]), ranks.cached[i, r])
        if ranks.running[i, r] > 0 and own > first:
            first, slowest = own, r
    more = line[2] * ranks.growth[i, slowest]
    if clocks.coming[i] >= 0:
        steps = reached(jobs.there[clocks.coming[i]] - begin, first, more, steps)
    clocks.start[i], clocks.first[i], clocks.more[i], clocks.steps[i] = begin, first, more, steps
    clocks.free[i] = begin + lasting(first, more, steps)


@njit
def _end(i: int, jobs: Jobs, ranks: Ranks, clocks: Clocks) -> None:
    """End the iterations under way: whoever has all tokens leaves."""
    steps, now = clocks.steps[i], clocks.free[i]
    clocks.busy[i] += now - clocks.start[i]
    clocks.done[i] += steps
    for r in range(ranks.running.shape[1]):
        ranks.cached[i, r] += ranks.growth[i, r] * steps
    slot = clocks.done[i] % clocks.leaving.shape[1]
    p = clocks.leaving[i, slot]
    clocks.leaving[i, slot] = _NOBODY
    while p >= 0:
        r = jobs.rank[p] % ranks.running.shape[1]
        ranks.running[i, r] -= 1
        ranks.taken[i, r] -= 1
        ranks.reserved[i, r] -= jobs.need[p]
        ranks.cached[i, r] -= jobs.kv[p] + jobs.growth[p] * jobs.steps[p]
        ranks.growth[i, r] -= jobs.growth[p]
        clocks.total[i] -= 1
        jobs.left[p] = now
        p = jobs.behind[p]


@njit
def _choose(p: int, policy: int, slots: int, capacity: float, jobs: Jobs, ranks: Ranks) -> int:
    """Return the rank, of all instances, that takes a request; -1 where none has room. An empty one always has."""
    taken, reserved, turns = ranks.taken, ranks.reserved, ranks.turns
    instances, width = taken.shape
    first = best = _NOBODY
    for i in range(instances):
        for r in range(width):
            if taken[i, r] >= slots or (taken[i, r] > 0 and reserved[i, r] + jobs.need[p] > capacity):
                continue
            if policy == LEAST_KV:
                sooner = best >= 0 and reserved[i, r] < reserved[first, best]
            elif policy == LEAST_REQUESTS:
                sooner = best >= 0 and taken[i, r] < taken[first, best]
            else:
                sooner = best >= 0 and turns[i, r] < turns[first, best]
            if best < 0 or sooner:
                first, best = i, r
    return first * width + best if best >= 0 else _NOBODY


@njit
def _place(p: int, chosen: int, now: float, jobs: Jobs, ranks: Ranks, clocks: Clocks, links: Links) -> None:
    """Set room aside on a rank, pull the KV over both ends' links, and let the request join when it is there."""
    width = ranks.taken.shape[1]
    i, r = chosen // width, chosen % width
    ranks.taken[i, r] += 1
    ranks.reserved[i, r] += jobs.need[p]
    clocks.turn[0] += 1
    ranks.turns[i, r] = clocks.turn[0]
    jobs.rank[p] = chosen
    sends, gets = links.source[jobs.source[p]], links.target[chosen]
    out, into = int(np.argmin(sends)), int(np.argmin(gets))
    leaves, comes = max(now, sends[out]), max(now, gets[into])
    sends[out], gets[into] = leaves + jobs.held[p], comes + jobs.held[p]
    begun = max(leaves, comes)
    jobs.waited[p] = begun - now
    there = begun + jobs.held[p] + links.latency[0]
    jobs.there[p] = there
    before, after = _NOBODY, clocks.coming[i]
    while after >= 0 and jobs.there[after] <= there:
        before, after = after, jobs.behind[after]
    jobs.behind[p] = after
    if before >= 0:
        jobs.behind[before] = p
    else:
        clocks.coming[i] = p


@njit
def _shorten(i: int, p: int, jobs: Jobs, ranks: Ranks, clocks: Clocks, times: TableArrays) -> None:
    """Let the iterations under way end with the one in which the KV of a request arrives; wake an idle instance."""
    there = jobs.there[p]
    if np.isinf(clocks.free[i]):
        _begin(i, there, jobs, ranks, clocks, times)
    elif clocks.free[i] > there and clocks.steps[i] > 1:
        steps = reached(there - clocks.start[i], clocks.first[i], clocks.more[i], clocks.steps[i])
        clocks.steps[i] = steps
        clocks.free[i] = clocks.start[i] + lasting(clocks.first[i], clocks.more[i], steps)


@outermost
def play(
    jobs: Jobs,
    ranks: Ranks,
    clocks: Clocks,
    links: Links,
    rule: tuple[int, int, float],
    times: TableArrays,
    until: float,
) -> None:
    """Serve jobs until ``until``, first come, first served.

    Each goes to the rank that the policy names among those with room: ``rule`` is (policy, slots, KV tokens) of a rank.
    Those with a rank already when it begins come first and are not placed again.
    """
    policy, slots, capacity = rule
    n = jobs.ready.size
    head = 0
    while head < n and jobs.rank[head] >= 0:
        head += 1
    come = head
    while True:
        i = int(np.argmin(clocks.free))
        now = clocks.free[i]
        ended = _NOBODY
        if come < n and jobs.ready[come] < now:
            now = jobs.ready[come]
            if now > until:
                break
            come += 1
        elif np.isinf(now) or now > until:
            break
        else:
            ended = i
            _end(i, jobs, ranks, clocks)
        while head < come:
            chosen = _choose(head, policy, slots, capacity, jobs, ranks)
            if chosen < 0:
                break
            _place(head, chosen, now, jobs, ranks, clocks, links)
            i = chosen // ranks.taken.shape[1]
            if i != ended:
                _shorten(i, head, jobs, ranks, clocks, times)
            head += 1
        if ended >= 0:
            _begin(ended, now, jobs, ranks, clocks, times)
