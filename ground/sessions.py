"""Sessions of several turns: whose prompt begins with which text of the turns before it."""

from dataclasses import replace
from itertools import count

import numpy as np

from ground.prefix_cache import POOL_BLOCK_TOKENS
from ground.traces import Integers, Trace

_APART = 1 << 24
"""Identifiers of a chain of blocks: more than the blocks of any prompt."""


def with_blocks(trace: Trace, block_tokens: int = POOL_BLOCK_TOKENS, *, keeps_answers: bool = True) -> Trace:
    """Return a trace of sessions with the identifiers of its blocks, full ones alone; as it is where it has some.

    A turn's prompt begins with the prompt and the answer of the turn before, unless it is shorter than both: then it
    begins anew. Turns beside another one (a delay below 0) share what that began with. Where answers are kept, their
    blocks stand behind the prompt's.
    """
    if trace.session is None or trace.delay_seconds is None or trace.hash_ids is not None:
        return trace
    chains, told = count(1), dict[int, tuple[int, int, int]]()
    ids: list[Integers] = []
    columns = (trace.session, trace.input_tokens, trace.output_tokens, trace.delay_seconds)
    for session, prompt, answer, delay in zip(*(column.tolist() for column in columns), strict=True):
        kept = (prompt + (answer if keeps_answers else 0)) // block_tokens
        chain, before, held = told.get(session, (0, 0, 0))
        if session < 0 or not chain or (prompt < held and not delay < 0):
            chain, held = next(chains), 0
        own = chain * _APART + np.arange(kept)
        if delay < 0 and session in told:
            own[before // block_tokens :] += (next(chains) - chain) * _APART
        else:
            told[session] = chain, held, prompt + answer
        ids.append(own)
    return replace(trace, hash_ids=tuple(ids), block_tokens=block_tokens)
