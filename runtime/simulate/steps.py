"""Step durations: the manifest's step cost for the slowest rank, tabulated for decode and remembered for prefill."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ground.errors import BadInput
from planner.manifest.prepared import prepared
from planner.manifest.schema import Pool
from planner.manifest.stacks import stacked
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepCost, StepLoad
from planner.serving.tables import Loads, TableArrays, step_table

MOST_REMEMBERED = 100_000
FIXED_POINT_BITS = 16
"""KV tokens of a rank are integers of 1/65536 token: sums of what joins and leaves never drift."""
_FEW = 6


class RankLoad(NamedTuple):
    """What a step carries on one DP rank."""

    decode_sequences: float = 0.0
    decode_kv_tokens: float = 0.0
    tokens: float = 0.0
    context: float = 0.0
    pairs: float = 0.0
    finishing: float = 0.0


class Line(NamedTuple):
    """Seconds of a decode iteration with so many running requests of all ranks, over what its fullest rank holds."""

    base: float
    """Without cached tokens and requests on that rank."""
    kv_seconds: float
    """What a cached token adds."""
    sequence_seconds: float
    """What a request adds."""


class StepTimer:
    """Durations of the steps of one instance.

    Decode iterations are read off the step table that the compiled loops have (``planner.serving.tables``): straight in
    the cached tokens and the requests of the fullest rank. Steps with prompts are evaluated and remembered.
    """

    def __init__(self, cost: StepCost, pool: Pool, usual_tokens: float) -> None:
        """``usual_tokens`` are cached of a running request on average, near which iterations are known best."""
        self._cost = prepared(cost)
        self._stacked = cost
        self._most = pool.microbatches if cost.moe_layers else 1
        ranks = int(cost.attention_groups)
        self._loads = Loads(
            ranks=ranks,
            budget_tokens=2,
            longest_prompt=2.0,
            most_running=ranks * pool.limits.requests_per_dp_rank,
            kv_tokens_per_request=usual_tokens,
            microbatches=pool.microbatches,
        )
        self._known: dict[object, float] = {}
        self._cut: dict[tuple[int, bool], int] = {}
        self._lines: dict[int, Line] = {}

    def step_seconds(self, loads: Sequence[RankLoad], ranks: int) -> float:
        """Return the duration of a step that all ``ranks`` leave together: that of its slowest one.

        The experts serve all ranks, so their part follows the mean over ranks.
        """
        queries = float(self._cost.queries_per_sequence)
        mean = sum(load.decode_sequences * queries + load.tokens for load in loads) / ranks
        kept = _undominated(loads)
        key = (mean, *kept)
        return self._known.get(key) or self._remember(key, self._slowest(kept, mean))

    @cached_property
    def _table(self) -> TableArrays:
        return step_table(stacked(self._stacked), self._loads)

    def line(self, running: int) -> Line:
        """Return how long an iteration with so many requests of all ranks takes."""
        found = self._lines.get(running)
        if found is None:
            table, ranks = self._table, self._loads.ranks
            columns = (table.alone[:, 0], table.usual_kv, table.kv_seconds, table.sequence_seconds)
            alone, usual, kv, sequence = (float(np.interp(running, table.running, column)) for column in columns)
            found = self._lines[running] = Line(alone - usual * kv - running / ranks * sequence, kv, sequence)
        return found

    def iteration_seconds(self, running: int, sequences: int, kv_tokens: float) -> float:
        """Return the duration of a decode iteration; the fullest ranks have so many requests and cached tokens.

        They are taken together although they may stand on different ranks.
        """
        base, kv, sequence = self.line(running)
        seconds = base + sequences * sequence + kv_tokens * kv
        if not 0 < seconds < math.inf:
            raise _bad_step(seconds)
        return seconds

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
