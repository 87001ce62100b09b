"""Compiled: prefill instances, pass by pass. ``planner.serving.prefill`` states the rule and sets the arrays up."""

from typing import NamedTuple

import numpy as np

from ground.arrays import Floats, Ints
from planner.loops.arrays import TableArrays
from planner.loops.compiled import njit, outermost
from planner.loops.tables_loop import computing_seconds, keep_worth_loading, pass_seconds

__all__ = [
    "IN_TURN",
    "LEAST_LOAD",
    "Instances",
    "OfflinePrompts",
    "Prompts",
    "computing_seconds",
    "count_late",
    "keep_worth_loading",
    "offline_room",
    "play",
]


IN_TURN, LEAST_LOAD = 0, 1
_NOBODY = -1
_ROUNDING = 1e-9  # part of a prompt by which its arrival may be late


class Prompts(NamedTuple):
    """The stream and what becomes of it, [requests] each."""

    arrival: Floats
    length: Ints
    reused: Ints
    behind: Ints  # next in the line of its instance, or in the list of those whose last pass runs
    first: Floats  # seconds at which its last pass ends
    origin: Ints  # DP rank that holds its KV, counted over all instances
    started: Floats  # seconds at which its first pass begins


class Instances(NamedTuple):
    """What instances hold, [instances] or [instances, ranks]."""

    head: Ints
    tail: Ints  # of the line of prompts that wait
    under: Ints  # [instances, ranks]: the prompt that a rank is in the middle of
    done: Ints  # [instances, ranks]: tokens of it that are there
    ended: Ints  # first of those whose last pass runs
    free: Floats  # when the pass under way ends, or the last one did
    held: Ints  # prompt tokens that wait or run
    turn: Ints
    busy: Floats
    passes: Ints
    room: Ints  # [ranks]: tokens that the pass which is made up has left
    load: Floats  # [ranks, 5]: what it carries
    offline: Ints  # tokens of offline prompts that have been in a pass


class OfflinePrompts(NamedTuple):
    """Offline prompts, which come to each instance evenly and are cut anywhere, and the time that they may take."""

    gap_seconds: float  # between two of them at one instance; infinite: there are none
    prompt_tokens: int
    token_seconds: float  # seconds of a full pass per token of a rank
    guard_seconds: float  # TTFT up to which they may keep an online prompt waiting
    in_time_seconds: float  # TTFT that counts as in time


@njit
def advance(
    i: int, until: float, prompts: Prompts, pool: Instances, budget: int, times: TableArrays, beside: OfflinePrompts
) -> None:
    """Run every pass of instance ``i`` that begins before ``until``; who comes at its very begin is in the pass."""
    ranks = pool.under.shape[1]
    room, load = pool.room, pool.load
    while True:
        begin = _begin(i, until, prompts, pool, beside)
        if begin >= until:
            break
        _let_go(i, prompts, pool)
        room[:] = budget
        load[:] = 0.0
        for r in range(ranks):
            if pool.under[i, r] >= 0:
                _take(i, r, pool.under[i, r], pool.done[i, r], room, load, prompts, pool)
        _fill(i, begin, budget, room, load, prompts, pool)
        if pool.head[i] < 0 or prompts.arrival[pool.head[i]] > begin:
            _fill_offline(i, begin, prompts, pool, times, beside)
        seconds = _slowest(load, times)
        pool.free[i] = begin + seconds
        pool.busy[i] += seconds
        pool.passes[i] += 1
        p = pool.ended[i]
        while p >= 0:
            prompts.first[p] = pool.free[i]
            p = prompts.behind[p]
    if pool.free[i] <= until:
        _let_go(i, prompts, pool)


@njit
def _begin(i: int, until: float, prompts: Prompts, pool: Instances, beside: OfflinePrompts) -> float:
    """Return when the next pass begins; infinite where nothing is left, but for offline prompts in the end."""
    for r in range(pool.under.shape[1]):
        if pool.under[i, r] >= 0:
            return float(pool.free[i])
    if pool.head[i] < 0 and until == np.inf:
        return np.inf
    first = prompts.arrival[pool.head[i]] if pool.head[i] >= 0 else np.inf
    offline = beside.gap_seconds * (pool.offline[i] // beside.prompt_tokens + 1 - i / pool.free.size)
    return float(max(pool.free[i], min(first, offline)))


@njit
def _let_go(i: int, prompts: Prompts, pool: Instances) -> None:
    """Count out the prompts whose last pass has ended."""
    p = pool.ended[i]
    while p >= 0:
        pool.held[i] -= prompts.length[p]
        p = prompts.behind[p]
    pool.ended[i] = _NOBODY


@njit
def _fill(i: int, begin: float, budget: int, room: Ints, load: Floats, prompts: Prompts, pool: Instances) -> None:
    """Take who waits, first come first served, each to the rank with most room, until one does not fit.

    A prompt within the budget is not split; of a longer one, whole budgets that are reused take no pass.
    """
    ranks = room.size
    while pool.head[i] >= 0 and prompts.arrival[pool.head[i]] <= begin:
        p = pool.head[i]
        best = pool.turn[i] % ranks
        k = 1
        while k < ranks and room[best] < budget:
            r = (pool.turn[i] + k) % ranks
            if room[r] > room[best]:
                best = r
            k += 1
        start = prompts.reused[p] // budget * budget
        left = prompts.length[p] - start
        if room[best] < (left if left <= budget else 1):
            break
        pool.head[i] = prompts.behind[p]
        if pool.head[i] < 0:
            pool.tail[i] = _NOBODY
        pool.turn[i] += 1
        prompts.started[p] = begin
        load[best, 4] += prompts.reused[p]
        _take(i, best, p, start, room, load, prompts, pool)


@njit
def _take(i: int, r: int, p: int, done: int, room: Ints, load: Floats, prompts: Prompts, pool: Instances) -> None:
    """Put what fits of a prompt, reused tokens included, into the room of a rank."""
    length = prompts.length[p]
    end = min(done + room[r], length)
    room[r] -= end - done
    cached = min(max(done, prompts.reused[p]), end)
    new = end - cached
    if new > 0:
        load[r, 0] += new
        load[r, 1] += cached
        load[r, 2] += new * cached + new * (new + 1) / 2
        load[r, 3] += end == length
    if end < length:
        pool.under[i, r] = p
        pool.done[i, r] = end
        return
    pool.under[i, r] = _NOBODY
    prompts.origin[p] = i * room.size + r
    prompts.behind[p] = pool.ended[i]
    pool.ended[i] = p


@njit
def _fill_offline(
    i: int, begin: float, prompts: Prompts, pool: Instances, times: TableArrays, beside: OfflinePrompts
) -> None:
    """Fill a pass with the offline prompts that have come, cut anywhere, as far as it may be longer."""
    came = int(begin / beside.gap_seconds + i / pool.free.size + _ROUNDING)
    left = came * beside.prompt_tokens - pool.offline[i]
    if left <= 0:
        return
    room, load = pool.room, pool.load
    _leave_time(i, begin, prompts, pool, times, beside)
    while left > 0:
        r = int(np.argmax(room))
        new = min(beside.prompt_tokens, room[r], left)
        if new <= 0:
            break
        room[r] -= new
        left -= new
        pool.offline[i] += new
        load[r, 0] += new
        load[r, 1] += (beside.prompt_tokens - new) / 2
        load[r, 2] += new * (beside.prompt_tokens + 1) / 2
        load[r, 3] += new / beside.prompt_tokens


@outermost
def offline_room(
    now: float, arrivals: tuple[float, float], seconds: tuple[float, float], limits: tuple[float, float, float]
) -> tuple[float, float]:
    """Return tokens up to which offline prompts may fill each rank, and the share of what it lacks of the fullest one.

    They lengthen a pass to at most half the time that an online prompt has: one that comes just after its begin waits
    for it and takes one more; those in it have waited already. Other ranks are filled up to the fullest one, which they
    wait for, as far as prompts in the pass, with what it leaves of them, stay in time: experts serve all ranks, so a
    pass grows with what the others carry.

    Args:
        now: begin of the pass.
        arrivals: of the oldest online prompt in the pass, and the earliest less what is left of a prompt; infinite:
            there is none.
        seconds: of the pass without offline prompts, and with all ranks as full as the fullest.
        limits: TTFT up to which they may keep an online prompt waiting, TTFT that is in time, seconds of a token.
    """
    (oldest, latest), (least, most), (guard, in_time, token) = arrivals, seconds, limits
    share = min(max((latest + in_time - now - least) / (most - least), 0.0), 1.0) if least < most else 1.0
    return max(min(guard / 2, guard - now + oldest) / token, 0.0 if oldest < np.inf else 1.0), share


@njit
def _leave_time(
    i: int, begin: float, prompts: Prompts, pool: Instances, times: TableArrays, beside: OfflinePrompts
) -> None:
    """Cut room to what ``offline_room`` lets a pass be longer."""
    room, load, ranks = pool.room, pool.load, pool.room.size
    oldest = np.inf
    p = pool.ended[i]
    while p >= 0:
        oldest = min(oldest, prompts.arrival[p])
        p = prompts.behind[p]
    latest = oldest
    for r in range(ranks):
        p = pool.under[i, r]
        if p >= 0:
            oldest = min(oldest, prompts.arrival[p])
            rest = (prompts.length[p] - pool.done[i, r]) * beside.token_seconds
            latest = min(latest, prompts.arrival[p] - rest)
    r = int(np.argmax(load[:, 0]))
    alone, slowest, longest = 0.0, 0.0, load[r, 0]
    if oldest < np.inf and longest:
        alone = _slowest(load, times)
        slowest = pass_seconds(times, longest, load[r, 1], load[r, 2], load[r, 3], longest)
    limits = beside.guard_seconds, beside.in_time_seconds, beside.token_seconds
    tokens, share = offline_room(begin, (oldest, latest), (alone, slowest), limits)
    for r in range(ranks):
        room[r] = int(min(float(room[r]), max(tokens - load[r, 0], share * (longest - load[r, 0]), 0.0)))


@njit
def _slowest(load: Floats, times: TableArrays) -> float:
    """Seconds of a pass: of the rank with most tokens, or of that with most query-key pairs, behind the last load."""
    ranks = load.shape[0]
    most, deepest, total, loading = 0, 0, 0.0, 0.0
    for r in range(ranks):
        total += load[r, 0]
        loading = max(loading, load[r, 4] * times.loading_seconds)
        if load[r, 0] > load[most, 0]:
            most = r
        if load[r, 2] > load[deepest, 2]:
            deepest = r
    if total == 0.0:
        return 0.0
    mean = total / ranks
    seconds = pass_seconds(times, load[most, 0], load[most, 1], load[most, 2], load[most, 3], mean)
    if deepest != most:
        other = pass_seconds(times, load[deepest, 0], load[deepest, 1], load[deepest, 2], load[deepest, 3], mean)
        seconds = max(seconds, other)
    return float(seconds + loading)


@njit
def add(i: int, p: int, prompts: Prompts, pool: Instances) -> None:
    """Let a prompt wait at instance ``i``."""
    prompts.behind[p] = _NOBODY
    if pool.tail[i] >= 0:
        prompts.behind[pool.tail[i]] = p
    else:
        pool.head[i] = p
    pool.tail[i] = p
    pool.held[i] += prompts.length[p]


@outermost
def play(
    prompts: Prompts,
    pool: Instances,
    rule: tuple[int, int],
    times: TableArrays,
    beside: OfflinePrompts,
    part: tuple[int, int],
    dealt: int,
    until: float,
) -> None:
    """Deal a ``part`` of the prompts, from one on up to another, to the instances and play them all until ``until``.

    In turn, ``dealt`` being the number of those before, or to the instance that holds fewest prompt tokens: ``rule`` is
    (policy, token budget).
    """
    policy, budget = rule
    instances = pool.free.size
    for p in range(part[0], part[1]):
        now = prompts.arrival[p]
        i = (dealt + p - part[0]) % instances
        if policy == LEAST_LOAD:
            for k in range(instances):
                advance(k, now, prompts, pool, budget, times, beside)
            i = int(np.argmin(pool.held))
        add(i, p, prompts, pool)
    for i in range(instances):
        advance(i, until, prompts, pool, budget, times, beside)


@outermost
def count_late(prompts: Prompts, counted: tuple[int, int], until: float, limit: float, late: Ints, there: Ints) -> None:
    """Count in equal parts of some prompts who are ``late`` and who are ``there``, [parts] each.

    Who waits or runs at ``until`` has the first token then at the earliest.
    """
    p, size = counted[0], counted[1] - counted[0]
    for k in range(late.size):
        late[k], there[k] = 0, size // late.size + (k < size % late.size)
        for _ in range(there[k]):
            first = until if np.isinf(prompts.first[p]) else prompts.first[p]
            late[k] += first - prompts.arrival[p] > limit
            p += 1
