"""Step durations: the manifest's step cost for the slowest rank, tabulated for decode and remembered for prefill."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ground.errors import BadInput
from planner.manifest.prepared import prepared
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepCost, StepLoad

Floats = NDArray[np.float64]

MOST_REMEMBERED = 100_000
MOST_BLOCKS = 20_000
FIXED_POINT_BITS = 16
"""KV tokens of a rank are integers of 1/65536 token: sums of what joins and leaves never drift."""
_KV_BITS, _TOTAL_BITS, _SEQUENCE_BITS, _GROUP_BITS = 7, 7, 3, 3
_FEW = 6


class RankLoad(NamedTuple):
    """What a step carries on one DP rank."""

    decode_sequences: float = 0.0
    decode_kv_tokens: float = 0.0
    tokens: float = 0.0
    context: float = 0.0
    pairs: float = 0.0
    finishing: float = 0.0


class _Block(NamedTuple):
    """Durations on the knots of an octave of KV tokens, for a number of sequences and a total."""

    knots: list[float]
    array: Floats


class StepTimer:
    """Durations of the steps of one instance.

    Decode iterations are read off a table that is filled where it is needed: exact in the number of sequences, linear
    between knots of KV tokens and of total sequences, which are every number up to 128 and then 64 to an octave. So a
    smooth cost is off by less than 1e-4, and one with kinks by as much as they bend within 1.6 %: tests and
    docs/simulate.md tell what that comes to.
    """

    __slots__ = ("_blocks", "_cost", "_cut", "_known", "_most", "_token_share")

    def __init__(self, cost: StepCost, microbatches: int) -> None:
        self._cost = prepared(cost)
        self._most = microbatches if cost.moe_layers else 1
        self._token_share = cost.queries_per_sequence / float(cost.attention_groups)
        self._known: dict[object, float] = {}
        self._cut: dict[tuple[int, bool], int] = {}
        self._blocks: dict[tuple[int, int, int, int], list[list[_Block]]] = {}

    def step_seconds(self, loads: Sequence[RankLoad], ranks: int) -> float:
        """Return the duration of a step that all ``ranks`` leave together: that of its slowest one.

        The experts serve all ranks, so their part follows the mean over ranks.
        """
        queries = float(self._cost.queries_per_sequence)
        mean = sum(load.decode_sequences * queries + load.tokens for load in loads) / ranks
        kept = _undominated(loads)
        key = (mean, *kept)
        return self._known.get(key) or self._remember(key, self._slowest(kept, mean))

    def decode_seconds(self, sequences: int, kv_fixed: int, total: int) -> float:
        """Return the duration of a decode iteration from upper envelopes over the ranks.

        Most sequences and most cached tokens (fixed point) of any rank are taken together although they may stand on
        different ranks; ``total`` sequences of all ranks set the load of the experts.
        """
        whole = kv_fixed >> FIXED_POINT_BITS
        octave = max(whole.bit_length() - _KV_BITS, 0)
        cell = whole >> octave
        part = (kv_fixed - (cell << octave + FIXED_POINT_BITS)) / (1 << octave + FIXED_POINT_BITS)
        if octave:
            cell -= 1 << _KV_BITS - 1
        low, high, share = _total_knots(total)
        knots = self._block(sequences, low, octave).knots
        seconds = knots[cell] * (1.0 - part) + knots[cell + 1] * part
        if not share:
            return seconds
        knots = self._block(sequences, high, octave).knots
        return seconds * (1.0 - share) + (knots[cell] * (1.0 - part) + knots[cell + 1] * part) * share

    def decode_stretch(self, sequences: int, kv_fixed: NDArray[np.int64], total: int) -> Floats:
        """Return ``decode_seconds`` for each of ``kv_fixed`` [iterations], not falling, to the last bit."""
        result = np.empty(kv_fixed.size)
        low, high, share = _total_knots(total)
        done = 0
        while done < kv_fixed.size:
            whole = int(kv_fixed[done]) >> FIXED_POINT_BITS
            octave = max(whole.bit_length() - _KV_BITS, 0)
            end = int(np.searchsorted(kv_fixed, 1 << octave + _KV_BITS + FIXED_POINT_BITS))
            fixed = kv_fixed[done:end]
            cells = fixed >> octave + FIXED_POINT_BITS
            parts = (fixed - (cells << octave + FIXED_POINT_BITS)) / (1 << octave + FIXED_POINT_BITS)
            if octave:
                cells -= 1 << _KV_BITS - 1
            seconds = _between(self._block(sequences, low, octave).array, cells, parts)
            if share:
                other = _between(self._block(sequences, high, octave).array, cells, parts)
                seconds = seconds * (1.0 - share) + other * share
            result[done:end] = seconds
            done = end
        return result

    def _block(self, sequences: int, total: int, octave: int) -> _Block:
        step = max(total.bit_length() - _TOTAL_BITS, 0)
        group, index = divmod(total >> step, 1 << _GROUP_BITS)
        key = (sequences >> _SEQUENCE_BITS, group, step, octave)
        blocks = self._blocks.get(key)
        if blocks is None:
            if len(self._blocks) >= MOST_BLOCKS:
                self._blocks.clear()
            blocks = self._blocks[key] = self._tabulate(*key)
        return blocks[index][sequences & (1 << _SEQUENCE_BITS) - 1]

    def _tabulate(self, sequences_group: int, total_group: int, step: int, octave: int) -> list[list[_Block]]:
        """Evaluate the step cost on all knots of an octave of KV, for a few sequences and totals side by side."""
        knots = np.arange(0 if octave == 0 else 1 << _KV_BITS - 1, (1 << _KV_BITS) + 1, dtype=np.float64)
        width = 1 << _SEQUENCE_BITS
        sequences = np.arange(float(sequences_group * width), (sequences_group + 1) * width)[:, None]
        first = total_group << _GROUP_BITS
        totals = np.arange(float(first), first + (1 << _GROUP_BITS))[:, None, None] * (1 << step)
        load = StepLoad(
            decode_sequences=sequences, decode_kv_tokens=knots * (1 << octave), mean_tokens=totals * self._token_share
        )
        shape = (totals.size, sequences.size, knots.size)
        seconds = np.broadcast_to(np.asarray(evaluate(self._cost, load, 1).seconds, dtype=np.float64), shape)
        if self._most > 1:
            double = np.broadcast_to(np.asarray(evaluate(self._cost, load, 2).seconds, dtype=np.float64), shape)
            seconds = np.where(sequences >= 2, np.minimum(seconds, double), seconds)
        used = seconds[int(first == 0) :, int(sequences_group == 0) :]
        if not (np.isfinite(used).all() and (used > 0).all()):
            raise _bad_step(float(used.min()))
        return [[_Block(row.tolist(), row) for row in table] for table in seconds]

    def _slowest(self, loads: Sequence[RankLoad], mean_tokens: float) -> float:
        """Return the duration of the slowest rank with the better number of microbatches.

        Both numbers are tried once for each class of size, eight to an octave of mean tokens; later steps of the class
        are cut as the first one was.
        """
        if self._most == 1 or not any(load.decode_sequences >= 2 or load.tokens >= 2 for load in loads):
            return max(self._evaluate(loads, mean_tokens, 1))
        size = (round(8 * math.log2(mean_tokens + 1e-9)), any(load.decode_sequences for load in loads))
        count = self._cut.get(size)
        if count is not None:
            return max(self._evaluate(loads, mean_tokens, count))
        single, double = (max(self._evaluate(loads, mean_tokens, count)) for count in (1, 2))
        self._cut[size] = 1 if single <= double else 2
        return min(single, double)

    def _evaluate(self, loads: Sequence[RankLoad], mean_tokens: float, microbatches: int) -> list[float]:
        """Return the seconds of each rank; few of them one by one, for numbers are quicker than short arrays."""
        if len(loads) <= _FEW:
            return [float(evaluate(self._cost, _step_load(load, mean_tokens), microbatches).seconds) for load in loads]
        columns = RankLoad(*np.array(loads, dtype=np.float64).T)
        seconds = evaluate(self._cost, _step_load(columns, mean_tokens), microbatches).seconds
        return [float(value) for value in np.atleast_1d(seconds)]

    def _remember(self, key: object, seconds: float) -> float:
        """Keep and return ``seconds`` if virtual time can advance by it."""
        if not 0 < seconds < float("inf"):
            raise _bad_step(seconds)
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        self._known[key] = seconds
        return seconds


def _bad_step(seconds: float) -> BadInput:
    return BadInput(f"step_costs: a step takes {seconds:g} seconds; its terms must give a positive, finite time")


def _step_load(load: RankLoad, mean_tokens: float) -> StepLoad:
    return StepLoad(
        decode_sequences=load.decode_sequences,
        decode_kv_tokens=load.decode_kv_tokens,
        prefill_tokens=load.tokens,
        prefill_context_tokens=load.context,
        prefill_pairs=load.pairs,
        finishing_prompts=load.finishing,
        mean_tokens=mean_tokens,
    )


def _total_knots(total: int) -> tuple[int, int, float]:
    """Return the knots around a number of sequences, and how far between them it lies."""
    octave = max(total.bit_length() - _TOTAL_BITS, 0)
    low = total >> octave << octave
    return low, low + (1 << octave), (total - low) / (1 << octave)


def _between(knots: Floats, cells: NDArray[np.int64], parts: Floats) -> Floats:
    return np.asarray(knots[cells] * (1.0 - parts) + knots[cells + 1] * parts)


def _undominated(loads: Sequence[RankLoad]) -> list[RankLoad]:
    """Return the loads that no other exceeds or equals in every respect, each once: only those can be slowest.

    Rows of the output head are counted as on the rank that has most of them: they cost little, and a prompt more or
    less would keep many ranks apart.
    """
    if len(loads) == 1:
        return list(loads)
    finishing = max(load.finishing for load in loads)
    kept: list[RankLoad] = []
    for load in sorted(loads, key=_by_pairs, reverse=True):
        sequences, kv, tokens, context, _, _ = load
        for other in kept:
            if other[0] >= sequences and other[1] >= kv and other[2] >= tokens and other[3] >= context:
                break
        else:
            kept.append(load)
    return [load._replace(finishing=finishing) for load in kept]


def _by_pairs(load: RankLoad) -> tuple[float, ...]:
    return (load.pairs, *load)
