"""What of a step is no linear form: seconds along a measured curve, and the part of the context that is within reach.

A curve is the power law between neighbouring points, which stand at loads 1, 2, 4, 8, ... Below the first point a
kernel takes what it takes there, beyond the last one what the last doubling added for as many loads more, as a power
law steeper than the load would grow without bound, and without load nothing is launched.

Attention may reach only part of the context: sliding windows, chunks, the top-k of a sparse indexer. A layer of
reach W attends to at most W keys per query, and in a window it keeps only the last W tokens. All functions of it
take numbers or arrays of one broadcast shape, so they serve one step and a million.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ground.arrays import Floats

Number = float | Floats
ROUNDING = 1e-9  # share of the pairs by which those within reach may fall short of them though all are


def curve_seconds(points: Sequence[float | Floats], load: float | Floats) -> float | Floats:
    """Return the seconds at a load; points (numbers or arrays over instances) and load broadcast."""
    if isinstance(load, np.ndarray) or any(isinstance(point, np.ndarray) for point in points):
        return along(logarithms(points), load)
    return at(points, load)


def logarithms(points: Sequence[float | Floats]) -> Floats:
    """Return base-2 logarithms of points, [points] or [points, instances]."""
    return np.asarray(np.log2(np.stack(np.broadcast_arrays(*points))))


def at(points: Sequence[Any], load: float) -> float:
    """Return the seconds at one load.

    >>> at((10.0, 10.0, 20.0), 0.5), at((10.0, 10.0, 20.0), 8.0), at((10.0, 20.0), 0.0)
    (10.0, 40.0, 0.0)
    """
    beyond = load * 2.0 ** (1 - len(points)) - 1.0
    if beyond > 0.0:
        return float(points[-1] + 2.0 * beyond * max(points[-1] - points[-2], 0.0))
    if load <= 1.0:
        return float(points[0]) if load > 0.0 else 0.0
    place = math.log2(load)
    left = min(int(place), len(points) - 2)
    low = points[left]
    return float(low * (points[left + 1] / low) ** (place - left))


def along(points: Floats, load: float | Floats) -> Floats:
    """Return the seconds at loads [..., instances], from the ``logarithms`` of the points."""
    load = np.asarray(load, dtype=np.float64)
    place = np.log2(np.maximum(load, 1.0))
    left = np.minimum(place.astype(np.intp), len(points) - 2)
    if points.ndim == 1 or points.shape[-1] == 1:
        rows = points.reshape(-1)
        low, high = rows[left], rows[left + 1]
    else:
        instances = np.arange(points.shape[-1])
        low, high = points[left, instances], points[left + 1, instances]
    beyond = np.maximum(load * 2.0 ** (1 - len(points)) - 1.0, 0.0)
    seconds = np.exp2(low + np.minimum(place - left, 1.0) * (high - low))
    if beyond.any():
        seconds = seconds + 2.0 * beyond * np.maximum(np.exp2(high) - np.exp2(low), 0.0)
    return np.asarray(seconds * (load > 0.0))


def kept_tokens(tokens: Number, sequences: Number, reach: int) -> Number:
    """Tokens within reach of ``sequences`` requests that hold ``tokens`` in all: min(tokens, W·sequences).

    Exact where all requests are on the same side of W, else an upper bound (the minimum is concave).

    >>> float(kept_tokens(4000.0, 8.0, 128))
    1024.0
    """
    return np.minimum(tokens, reach * sequences)


def keys_of_a_query(pairs: Number, tokens: Number) -> Number:
    """Mean keys of a query of prompts, 0 without any."""
    if not isinstance(tokens, np.ndarray):
        return pairs / tokens if tokens else 0.0
    return np.divide(pairs, tokens, out=np.zeros(np.broadcast(pairs, tokens).shape), where=tokens > 0)


def pairs_within(tokens: Number, context: Number, pairs: Number, reach: int) -> Number:
    """Query-key pairs of prompts whose queries see at most W keys, themselves included.

    Args: new ``tokens``, the ``context`` before them and their causal ``pairs``, each over all prompts of a step.
    Equal prompts of c new tokens on p cached ones have pairs/tokens = p + (c+1)/2 and context/tokens = p/c, so

        c = (pairs/tokens - 1/2) / (context/tokens + 1/2)

    and a prompt has Σ min(p+j, W) over j = 1..c = f·p + f·(f+1)/2 + (c-f)·W pairs, with f = min(max(W-p, 0), c) the
    queries that see everything. Prompts of different lengths are taken as that many equal ones. Derived here.

    >>> float(pairs_within(1000.0, 0.0, 500500.0, 128))  # 128·129/2 + 872·128
    119872.0
    """
    some = np.maximum(tokens, 1e-12)
    chunk = np.maximum((pairs / some - 0.5) / (context / some + 0.5), 1e-12)
    past = chunk * context / some
    free = np.minimum(np.maximum(reach - past, 0.0), chunk)
    each = free * past + free * (free + 1) / 2 + (chunk - free) * reach
    return np.minimum(each * tokens / chunk, pairs)


def context_within(tokens: Number, context: Number, pairs: Number, reach: int) -> Number:
    """Cached tokens that such prompts read again: at most W of each, for as many prompts as ``pairs_within`` finds.

    >>> float(context_within(512.0, 2048.0, 512 * 2048 + 512 * 513 / 2, 128))
    128.0
    """
    some = np.maximum(tokens, 1e-12)
    chunk = np.maximum((pairs / some - 0.5) / (context / some + 0.5), 1e-12)
    return np.minimum(context, reach * some / chunk)


def choices(values: Mapping[str, Number]) -> dict[str, Number]:
    """Return the variables of ``planner.manifest.terms`` that depend on whether keys of prompts are out of reach."""
    pairs, within = values["pairs"], values["pairs_within"]
    some: Number = np.multiply(pairs > within * (1.0 + ROUNDING), 1.0)
    if np.ndim(some) == 0:
        some = float(some)
    return {
        "kv_beyond": np.maximum(values["kv"] - values["kv_within"], 0.0),
        "chunk_chosen": some * values["chunk"],
        "pairs_chosen": some * pairs,
        "picked": some * within,
        "chunk_short": (1.0 - some) * values["chunk"],
        "context_short": (1.0 - some) * values["context"],
        "pairs_short": (1.0 - some) * pairs,
    }


def charged_tokens(
    tokens: Number, sequences: Number, *, reach: int, reach_share: Number, sequence_tokens: Number
) -> Number:
    """Tokens' worth of cache that requests take: (1-s)·tokens + s·min(tokens, W·sequences) + sequences·state.

    ``reach_share`` s is the share of a token's bytes in layers that keep W tokens only, ``sequence_tokens`` the
    recurrent state of one request in tokens' worth of bytes. Without either it is ``tokens``, bit for bit.

    >>> float(charged_tokens(1000.0, 1.0, reach=128, reach_share=0.5, sequence_tokens=0.0))
    564.0
    """
    if isinstance(reach_share, np.ndarray) or reach_share:
        tokens = (1.0 - reach_share) * tokens + reach_share * kept_tokens(tokens, sequences, reach)
    if np.any(np.asarray(sequence_tokens)):
        tokens = tokens + sequences * sequence_tokens
    return tokens
