"""Step durations: the manifest's step cost, evaluated for the slowest rank and remembered per load."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.manifest.stepcost import evaluate, evaluate_best
from planner.manifest.terms import StepCost, StepLoad
from podplan.errors import BadInput

Floats = NDArray[np.float64]
Key = tuple[object, ...]

MOST_REMEMBERED = 200_000


@dataclass(slots=True)
class RankLoads:
    """What a step carries on each DP rank, arrays [ranks]."""

    decode_sequences: Floats
    decode_kv_tokens: Floats
    tokens: Floats
    context: Floats
    pairs: Floats
    finishing: Floats

    @classmethod
    def empty(cls, ranks: int) -> "RankLoads":
        """Return a step that carries nothing."""
        return cls(*(np.zeros(ranks) for _ in range(6)))

    def add_chunk(self, rank: int, cached: int, computed: int, finishes: bool) -> None:
        """Add ``computed`` prompt tokens that attend to ``cached`` ones and causally to each other."""
        self.tokens[rank] += computed
        self.context[rank] += cached
        self.pairs[rank] += computed * cached + computed * (computed + 1) / 2
        self.finishing[rank] += finishes

    def distinct(self) -> list[tuple[float, ...]]:
        """Return the loads that occur, each once, in order."""
        columns = (self.decode_sequences, self.decode_kv_tokens, self.tokens, self.context, self.pairs, self.finishing)
        return sorted(set(zip(*(column.tolist() for column in columns), strict=True)))


class StepTimer:
    """Durations of the steps of one instance; a load that comes again is not evaluated again."""

    __slots__ = ("_cost", "_known", "_microbatches")

    def __init__(self, cost: StepCost, microbatches: int) -> None:
        self._cost, self._microbatches = cost, microbatches
        self._known: dict[Key, float] = {}

    def step_seconds(self, loads: RankLoads) -> float:
        """Return the duration of a step that all ranks leave together: that of its slowest rank.

        The experts serve all ranks, so their part follows the mean over ranks.
        """
        mean = float((loads.decode_sequences * self._cost.queries_per_sequence + loads.tokens).mean())
        ranks = loads.distinct()
        key = (mean, *ranks)
        return self._known.get(key) or self._remember(key, self._slowest(ranks, mean))

    def decode_seconds(self, sequences: int, kv_tokens: float, total: int) -> float:
        """Return the duration of a decode iteration from upper envelopes over the ranks.

        Most sequences and most cached tokens of any rank are taken together although they may stand on
        different ranks; ``total`` sequences of all ranks set the load of the experts.
        """
        key = (sequences, kv_tokens, total)
        known = self._known.get(key)
        if known:
            return known
        load = StepLoad(
            decode_sequences=float(sequences),
            decode_kv_tokens=float(kv_tokens),
            mean_tokens=total * self._cost.queries_per_sequence / self._cost.attention_ranks,
        )
        return self._remember(key, float(evaluate_best(self._cost, load, self._microbatches).seconds))

    def _slowest(self, ranks: list[tuple[float, ...]], mean_tokens: float) -> float:
        """Return the duration of the slowest of ``ranks`` with the better number of microbatches."""
        sequences, kv_tokens, tokens, context, pairs, finishing = np.array(ranks).T
        load = StepLoad(
            decode_sequences=sequences,
            decode_kv_tokens=kv_tokens,
            prefill_tokens=tokens,
            prefill_context_tokens=context,
            prefill_pairs=pairs,
            finishing_prompts=finishing,
            mean_tokens=mean_tokens,
        )
        seconds = float(np.max(evaluate(self._cost, load, 1).seconds))
        splittable = sequences.max() >= 2 or tokens.max() >= 2
        if self._microbatches > 1 and self._cost.moe_layers and splittable:
            seconds = min(seconds, float(np.max(evaluate(self._cost, load, 2).seconds)))
        return seconds

    def _remember(self, key: Key, seconds: float) -> float:
        """Keep and return ``seconds`` if virtual time can advance by it."""
        if not 0 < seconds < float("inf"):
            raise BadInput(f"step_costs: a step takes {seconds:g} seconds; its terms must give a positive, finite time")
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        self._known[key] = seconds
        return seconds
