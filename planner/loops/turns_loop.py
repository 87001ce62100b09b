"""Compiled: the batches that an instance with pipeline stages has in flight, which take turns.

An engine with p stages keeps p batches in flight (vLLM: v1/engine/core.py, step_with_batch_queue; SGLang:
scheduler_pp_mixin.py, event_loop_pp; TensorRT-LLM: py_executor.py, _executor_loop_pp). A request in flight is in no
other batch, so each batch keeps its own running requests. Batches are resolved and scheduled one after the other, and
one that has nothing to do gives up its turn at once. Requests that wait, KV and batch slots belong to all of them.

Batch b leaves stage s, which takes t(b, s) for it, at

    end(b, s) = max(end(b - 1, s), end(b, s - 1)) + t(b, s)
"""

from ground.arrays import Floats
from planner.loops.arrays import TableArrays
from planner.loops.batch_loop import NOBODY, Instances, Rule
from planner.loops.compiled import njit
from planner.loops.tables_loop import head_seconds


@njit
def acting(k: int, pool: Instances, rule: Rule) -> int:
    """Return which batch of instance ``k`` is resolved and scheduled next."""
    return int(pool.heads[k * rule.stages].acting)


@njit
def any_launched(k: int, pool: Instances, rule: Rule) -> bool:
    """Whether any batch of instance ``k`` is in flight."""
    for i in range(k * rule.stages, (k + 1) * rule.stages):  # noqa: SIM110 - numba compiles no generator without counts
        if pool.heads[i].launched:
            return True
    return False


@njit
def only_batch(i: int, pool: Instances, rule: Rule) -> bool:
    """Whether batch ``i``, whose turn it is, stays the only one until it is resolved: no other runs, and nobody waits.

    Where arrivals are received now and then, a batch that has nothing to do receives them before its turn.
    """
    first = i // rule.stages * rule.stages
    for j in range(first, first + rule.stages):
        for r in range(pool.ranks.shape[1]):
            if j != i and (pool.heads[j].launched or pool.ranks[j, r].running > 0):
                return False
    for r in range(pool.lines.shape[1]):
        if pool.lines[i, r].head >= 0:
            return False
    return rule.interval == 1


@njit
def next_batch(i: int, pool: Instances, rule: Rule) -> bool:
    """Give the turn to the batch after ``i``; return True."""
    hand_on(i, i // rule.stages * rule.stages + (i + 1) % rule.stages, pool, rule)
    return True


@njit
def hand_on(i: int, j: int, pool: Instances, rule: Rule) -> None:
    """Let it be the turn of batch ``j`` after that of ``i``: it gets the clock, all who wait, KV and places."""
    pool.heads[i // rule.stages * rule.stages].acting = j
    if i == j:
        return
    own, other = pool.heads[i], pool.heads[j]
    other.clock, other.received, other.turn = own.clock, own.received, own.turn
    other.waited, other.prompt_tokens = own.waited, own.prompt_tokens
    for r in range(pool.ranks.shape[1]):
        give, take = pool.ranks[i, r], pool.ranks[j, r]
        take.taken, take.held, take.dealt, take.waited = give.taken, give.held, give.dealt, give.waited
        take.under, take.admitted, take.ratio, take.free = give.under, give.admitted, give.ratio, give.free
    for r in range(pool.lines.shape[1]):
        pool.lines[j, r].head, pool.lines[j, r].tail = pool.lines[i, r].head, pool.lines[i, r].tail
        pool.lines[i, r].head = pool.lines[i, r].tail = NOBODY


@njit
def pass_stages(i: int, s: int, seconds: float, pool: Instances, rule: Rule, times: TableArrays) -> None:
    """Let the last iteration of step ``s`` go through the pipeline stages, where it takes ``seconds`` if it is alone.

    The instance is busy while any batch is in flight. The last stage computes the output head besides its layers, and
    there prompts wait to be taken in, as one loop does that for all batches.
    """
    k, step = i // rule.stages, pool.steps[i, s]
    head = min(head_seconds(times, step.rows) + (times.prompt_seconds if step.tokens > 0.0 else 0.0), seconds)
    passed = pool.passed[k]
    before = passed[rule.stages - 1]
    step.end = through_stages(step.begin, seconds - head, head, passed, passed, times)
    pool.heads[i].busy += step.end - max(step.start, before)


@njit
def through_stages(
    begins: float, seconds: float, head: float, before: Floats, after: Floats, times: TableArrays
) -> float:
    """Let an iteration go through the stages, given the seconds of its layers and of its head; return its end.

    Args: ``before``: when the turn before leaves each stage; ``after`` is filled in with when this one does.
    """
    now, last = begins, times.layers.size - 1
    for stage in range(last + 1):
        now = max(now, before[stage]) + seconds * times.layers[stage]
        if stage == last:
            now += head
        after[stage] = now
    return now
