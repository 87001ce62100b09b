"""Compiled: who comes, waits, runs and leaves on the ranks of aggregated instances.

Requests that run leave by the count of their rank's decode iterations, and their KV is a line over that count, so no
step visits each of them.
"""

from typing import Any, NamedTuple, cast

import numpy as np

from ground.arrays import Floats, Ints
from planner.loops.compiled import COMPILES, njit

Records = np.recarray[Any, Any]  # records beside each other: loops read several fields of a request or a rank at once

RESERVE, NEED, ESTIMATE = 0, 1, 2
ROUND_ROBIN, LEAST_REQUESTS, LEAST_KV = 0, 1, 2
BUCKETS = 1024
ROUNDS = 3  # of batches that take turns: the last ones, which are kept
NOBODY = -1
INBOX = -1
WAITS, ENDS, RUNS, SEEN = 0, 1, 2, 3
REQUEST = np.dtype(
    [
        ("arrival", "f8"),
        ("length", "i8"),  # of the prompt
        ("reused", "i8"),  # tokens of it whose KV is there
        ("answer", "i8"),
        ("growth", "f8"),  # tokens of each decode iteration
        ("need", "f8"),  # KV tokens that are reserved
        ("begun", "f8"),  # when a step first carries its prompt, seconds; negative until then
        ("first", "f8"),  # seconds of its first and last token; negative until then
        ("left", "f8"),
        ("preempted", "i8"),  # how often
        ("rank", "i8"),
        ("batch", "i8"),  # that it runs in
        ("state", "i8"),  # waits, has a prompt that ends with a step, runs, or runs and the token of that step is out
        ("todo", "i8"),  # tokens until the next one comes out: of the prompt, after a preemption of the answer, too
        ("done", "i8"),  # of those
        ("after", "i8"),  # iterations that follow that token
        ("joined", "i8"),  # iterations of its rank when it joined, and when it has all tokens
        ("ends", "i8"),
        ("behind", "i8"),  # next in its line
        ("chain", "i8"),  # next of those whose prompts end with the same step
        ("later", "i8"),  # neighbours in its bucket
        ("sooner", "i8"),
        ("newer", "i8"),  # neighbours among the running requests of its rank, by when they joined
        ("older", "i8"),
    ]
)
RANK = np.dtype(
    [
        ("taken", "i8"),  # requests: that have a place where answers are reserved, else all
        ("held", "f8"),  # KV tokens that they reserve
        ("dealt", "i8"),  # when it had its last turn
        ("waited", "i8"),  # steps that prompts have waited for more of them
        ("under", "i8"),  # whether the head of its line has begun
        ("admitted", "i8"),  # requests that have KV, of all batches in flight
        ("running", "i8"),
        ("ghosts", "i8"),  # requests that ended and still stand in the running batch
        ("full", "i8"),  # whether nobody is let in until somebody ends
        ("ratio", "f8"),  # share of what answers may still take that is set aside
        ("free", "f8"),  # blocks of KV
        ("cached", "f8"),  # KV tokens of running requests, and what an iteration adds
        ("grows", "f8"),
        ("spare", "f8"),  # tokens that running requests still lack, and all of their answers
        ("whole", "f8"),
        ("oldest", "i8"),  # of the running requests
        ("newest", "i8"),
        ("count", "i8"),  # iterations, scheduled ones included
        ("phase", "i8"),  # of the next iteration among ``phases``, while turns are passed
    ]
)
HEAD = np.dtype(
    [
        ("clock", "f8"),  # when the next step is scheduled, or the last one was resolved
        ("current", "i8"),  # which of the two steps was launched last
        ("launched", "i8"),  # whether that one is unresolved
        ("planned", "i8"),  # whether the other one is scheduled
        ("acting", "i8"),  # of the first batch in flight: which of them is resolved and scheduled next
        ("received", "i8"),  # iterations since arrivals were received
        ("turn", "i8"),
        ("waited", "i8"),  # steps that prompts have waited for those of other ranks
        ("held", "i8"),  # whether they do in the step that is formed
        ("prompt_tokens", "i8"),  # that wait or run
        ("busy", "f8"),
        ("steps", "i8"),
        ("single", "i8"),  # of those, turns of batches that were played one by one
        ("prompt_steps", "i8"),  # of those, with prompts
        ("beside", "i8"),  # running requests in these, and prompt tokens of the rank that has most, added up
        ("chunks", "f8"),
        ("room", "i8"),  # least tokens of the budget that a step left to a rank with prompts
        ("places", "i8"),  # batch slots that would have let everybody in, as far as slots matter
        ("lacked", "i8"),  # whether KV memory made anybody wait, or took a place
    ]
)
LOAD = np.dtype([("tokens", "f8"), ("context", "f8"), ("pairs", "f8"), ("ended", "f8")])
LINE = np.dtype([("head", "i8"), ("tail", "i8")])
STEP = np.dtype(
    [
        ("start", "f8"),  # of the first of the iterations that it stands for
        ("begin", "f8"),  # of the last one
        ("end", "f8"),
        ("count", "i8"),  # how many those are
        ("running", "i8"),  # requests that decode in each
        ("tokens", "f8"),  # of prompts
        ("rows", "f8"),  # requests that get a token
        ("head", "i8"),  # of those whose prompts end with it
        ("tail", "i8"),
    ]
)
MARK = np.dtype(
    [
        ("counted", "i8"),  # iterations of a rank after a step; where it carries none, -1 less the prompts that end
        ("prompted", "i8"),  # whether it carries prompts of the rank
        ("ratio", "f8"),  # share that the rank set aside before the second of its iterations
    ]
)
CALM = np.dtype(
    [
        ("bare", "f8"),  # seconds of a step without prompts: ``tables_loop.Line``
        ("usual", "f8"),
        ("slope", "f8"),
        ("share", "f8"),
        ("sequence", "f8"),
        ("head", "f8"),  # of them those of the output head
        ("running", "i8"),  # requests
        ("begin", "f8"),  # of the last iteration that has begun, and its end
        ("end", "f8"),
        ("count", "i8"),  # of those that have begun since
        ("seconds", "f8"),  # of the first of rounds (``rounds_loop``) without its head, and what each next one adds
        ("more", "f8"),
    ]
)


class Rule(NamedTuple):
    """The scheduling rule in numbers; limits are of one rank."""

    together: bool  # whether prompts and decode share a step
    whole_prompts: bool  # whether a prompt is cut only where it has a step's budget to itself
    wait_steps: int  # steps that prompts wait for beside running requests, unless a step would carry ``wait_tokens``
    wait_tokens: float
    balance_steps: int  # the same until every rank has prompts
    admission: int
    overlapped: bool
    interval: int  # arrivals are received every so many decode iterations, and after every step with prompts
    dealing: int
    budget: int
    queries: int  # tokens of the budget that a running request takes
    slots: int
    batch_slots: int  # requests of one of the batches in flight
    stages: int  # pipeline stages: so many batches are in flight
    capacity: int  # blocks of KV; tokens where whole answers are reserved
    block: int  # tokens of a block
    whole_blocks: bool  # whether requests gain one token a step, so that blocks are counted one by one
    clipped: bool  # whether answers are longer than ``clip``
    clip: float
    fixed_lengths: bool  # whether the engine knows that no answer ends early, and looks ahead instead of estimating
    initial_ratio: float
    least_ratio: float
    ratio_step: float
    retract_tokens: float
    request_seconds: float
    """A request's way to the engine in a closed loop, and what each prompt token takes before that, one prompt after
    another."""
    token_seconds: float


class Instances(NamedTuple):
    """What instances hold: each of them one batch, or as many as it has pipeline stages, all in flight.

    Batches of one instance stand beside each other and count as instances below. They have running requests of their
    own. Waiting requests and KV are held by the batch whose turn it is, which hands them on (``turns_loop``).
    """

    heads: Records  # [instances]
    ranks: Records  # [instances, ranks]
    lines: Records  # [instances, ranks + 1]: prompts of each rank, and last those who arrived and are not dealt to any
    steps: Records  # [instances, 2]: the step that was launched last and the other one
    marks: Records  # [instances, 2, ranks]
    buckets: Ints  # [instances, ranks, BUCKETS]: who leaves at an iteration, modulo the number of buckets
    phases: Ints
    """[instances, ranks, block]: running requests by the iteration at which they next need a block, modulo the block.
    """
    loads: Records  # [ranks]: tokens, context, query-key pairs and ended prompts of the step that is scheduled
    calm: Records  # [instances]: what the next steps of a batch take while nobody joins or leaves it
    passed: Floats  # [instances, stages] of whole instances: when each pipeline stage is free
    rounds: Floats  # [instances, rounds, stages, stages + 1] of whole instances, see ``rounds_loop``
    following: Ints
    """[3] of a closed loop: the next request to send, how many there are in all, and how many have arrived."""
    news: Ints
    """How many requests got their first or last token since somebody looked, then these; [1] where nobody looks."""


def records(shape: int | tuple[int, ...], dtype: np.dtype[np.void]) -> Records:
    """Return empty records.

    Loops take fields as attributes. Plain Python needs a ``recarray`` for that; compiled ones do without, and tell the
    type of a plain array in 0.1 us, not in 2 us at each call and 13 us at the first.
    """
    made: Any = np.zeros(shape, dtype)
    return cast(Records, made if COMPILES else made.view(np.recarray))


@njit
def tell(p: int, pool: Instances) -> None:
    """Note that a request has its first or last token."""
    if pool.news.size > 1:
        pool.news[0] += 1
        pool.news[pool.news[0]] = p


@njit
def append(i: int, k: int, p: int, requests: Records, pool: Instances) -> None:
    """Put a request behind a line of instance ``i``."""
    line = pool.lines[i, k]
    requests[p].behind = NOBODY
    if line.tail >= 0:
        requests[line.tail].behind = p
    else:
        line.head = p
    line.tail = p


@njit
def prepend(i: int, k: int, p: int, requests: Records, pool: Instances) -> None:
    """Put a request before all others in a line."""
    line = pool.lines[i, k]
    requests[p].behind = line.head
    line.head = p
    if line.tail < 0:
        line.tail = p


@njit
def pop(i: int, k: int, requests: Records, pool: Instances) -> int:
    """Take out and return the first in a line."""
    line = pool.lines[i, k]
    p = int(line.head)
    line.head = requests[p].behind
    if line.head < 0:
        line.tail = NOBODY
    return p


@njit
def deal(i: int, requests: Records, pool: Instances, rule: Rule) -> None:
    """Give who arrived to the ranks: where answers are reserved while the first one fits, else all of them."""
    while pool.lines[i, INBOX].head >= 0:
        p = pool.lines[i, INBOX].head
        best, best_fits, best_key = -1, False, 0.0
        for r in range(pool.ranks.shape[1]):
            fits = rule.admission != RESERVE or reserves(i, r, p, requests, pool, rule)
            if rule.dealing == LEAST_REQUESTS:
                key = float(pool.ranks[i, r].taken)
            elif rule.dealing == LEAST_KV:
                key = pool.ranks[i, r].held
            else:
                key = float(pool.ranks[i, r].dealt)
            if best < 0 or (fits and not best_fits) or (fits == best_fits and key < best_key):
                best, best_fits, best_key = r, fits, key
        if not best_fits:
            return
        pool.heads[i].turn += 1
        pool.ranks[i, best].dealt = pool.heads[i].turn
        pool.ranks[i, best].taken += 1
        pool.ranks[i, best].held += requests[p].need
        requests[p].rank = best
        append(i, best, pop(i, INBOX, requests, pool), requests, pool)


@njit
def reserves(i: int, r: int, p: int, requests: Records, pool: Instances, rule: Rule) -> bool:
    """Whether a rank has a place and memory for the whole answer of a request."""
    rank, head = pool.ranks[i, r], pool.heads[i]
    head.places = max(head.places, rank.taken + 1)
    lacks = rank.taken > 0 and rank.held + requests[p].need > rule.capacity
    head.lacked |= lacks
    return bool(rank.taken < rule.slots and not lacks)


@njit
def blocks_of(tokens: int, rule: Rule) -> int:
    """Blocks that so many KV tokens take."""
    return int(-(-tokens // rule.block))


@njit
def join(i: int, p: int, requests: Records, pool: Instances, rule: Rule) -> None:
    """Let a request whose prompt has ended run from its rank's next iteration on."""
    q = requests[p]
    r = int(q.rank)
    rank = pool.ranks[i, r]
    q.state, q.batch, q.joined, q.ends = RUNS, i, rank.count, rank.count + q.after
    rank.running += 1
    rank.cached += q.todo
    rank.grows += q.growth
    rank.spare += q.after * q.growth
    rank.whole += q.answer
    if rule.whole_blocks:
        pool.phases[i, r, (q.todo - rank.count) % rule.block] += 1
    q.older, q.newer = rank.newest, NOBODY
    if q.older >= 0:
        requests[q.older].newer = p
    else:
        rank.oldest = p
    rank.newest = p
    if q.after > 0:
        bucket = q.ends % BUCKETS
        q.sooner, q.later = NOBODY, pool.buckets[i, r, bucket]
        if q.later >= 0:
            requests[q.later].sooner = p
        pool.buckets[i, r, bucket] = p


@njit
def part(i: int, p: int, requests: Records, pool: Instances, rule: Rule) -> None:
    """Take a running request out and free its KV."""
    q = requests[p]
    r = int(q.rank)
    rank = pool.ranks[i, r]
    ran = rank.count - q.joined
    grown = ran * q.growth
    rank.running -= 1
    rank.cached -= q.todo + grown
    rank.grows -= q.growth
    rank.spare -= q.after * q.growth - grown
    rank.whole -= q.answer
    if rule.whole_blocks:
        pool.phases[i, r, (q.todo - q.joined) % rule.block] -= 1
        rank.free += blocks_of(q.todo + ran, rule)
    else:
        rank.free += blocks_of(q.todo, rule) + grown / rule.block
    if not rank.running:  # sums of what came and went do not drift
        rank.cached = rank.grows = rank.spare = 0.0
    if q.older >= 0:
        requests[q.older].newer = q.newer
    else:
        rank.oldest = q.newer
    if q.newer >= 0:
        requests[q.newer].older = q.older
    else:
        rank.newest = q.older
    if q.after > 0:
        _unlink(i, q, requests, pool)


@njit
def _unlink(i: int, q: Any, requests: Records, pool: Instances) -> None:
    """Take a request out of its bucket."""
    if q.later >= 0:
        requests[q.later].sooner = q.sooner
    if q.sooner >= 0:
        requests[q.sooner].later = q.later
    else:
        pool.buckets[i, q.rank, q.ends % BUCKETS] = q.later


@njit
def leave(i: int, p: int, now: float, requests: Records, pool: Instances, rule: Rule) -> None:
    """Let a request go that has all tokens and is no longer in the running batch; a closed loop sends the next one."""
    q, head = requests[p], pool.heads[i]
    rank = pool.ranks[i, q.rank]
    q.left = now
    tell(p, pool)
    if rank.taken == rule.slots and rule.admission == RESERVE:  # a full rank takes its turn again when it has room
        rank.dealt = head.turn
    rank.taken -= 1
    rank.admitted -= 1
    rank.held -= q.need
    if pool.following[0] < pool.following[1]:
        following = int(pool.following[0])
        pool.following[0] += 1
        ready = max(now + rule.request_seconds, requests[following - 1].arrival)
        requests[following].arrival = ready + rule.token_seconds * requests[following].length


@njit
def unseen(i: int, p: int, requests: Records, pool: Instances) -> int:
    """Return 1 where a step under way has a token for a running request, which the engine does not know yet."""
    q, a = requests[p], pool.heads[i].current
    return int(pool.heads[i].launched and (pool.marks[i, a, q.rank].counted >= 0 or q.state != SEEN))


@njit
def preempt(i: int, p: int, requests: Records, pool: Instances, rule: Rule) -> None:
    """Take a running request's KV, so that it is computed again with what was answered so far.

    Of a step that is under way the engine does not know the token yet, and drops it.
    """
    q = requests[p]
    rest = q.ends - pool.ranks[i, q.rank].count + unseen(i, p, requests, pool)
    part(i, p, requests, pool, rule)
    pool.ranks[i, q.rank].admitted -= 1
    q.after = max(rest - 1, 0)
    q.todo = q.length + (round(q.answer - rest * q.growth) if q.first >= 0.0 else 0)
    q.done = q.reused
    q.state = WAITS
    q.preempted += 1
