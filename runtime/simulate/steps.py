"""Step durations: the manifest's step cost, evaluated for the slowest rank."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.manifest.stepcost import evaluate, evaluate_best
from planner.manifest.terms import StepCost, StepLoad
from podplan.errors import BadInput

Floats = NDArray[np.float64]


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


def step_seconds(cost: StepCost, loads: RankLoads, microbatches: int) -> float:
    """Return the duration of a step that all ranks leave together: that of its slowest rank.

    The experts serve all ranks, so their part follows the mean over ranks.
    """
    queries = loads.decode_sequences * cost.queries_per_sequence
    load = StepLoad(
        decode_sequences=loads.decode_sequences,
        decode_kv_tokens=loads.decode_kv_tokens,
        prefill_tokens=loads.tokens,
        prefill_context_tokens=loads.context,
        prefill_pairs=loads.pairs,
        finishing_prompts=loads.finishing,
        mean_tokens=float((queries + loads.tokens).mean()),
    )
    seconds = float(np.max(evaluate(cost, load, 1).seconds))
    splittable = loads.decode_sequences.max() >= 2 or loads.tokens.max() >= 2
    if microbatches > 1 and cost.moe_layers and splittable:
        seconds = min(seconds, float(np.max(evaluate(cost, load, 2).seconds)))
    return checked(seconds)


def decode_seconds(cost: StepCost, sequences: int, kv_tokens: int, total: int, microbatches: int) -> float:
    """Return the duration of a decode iteration from upper envelopes over the ranks.

    Most sequences and most cached tokens of any rank are taken together although they may stand on
    different ranks; ``total`` sequences of all ranks set the load of the experts.
    """
    load = StepLoad(
        decode_sequences=float(sequences),
        decode_kv_tokens=float(kv_tokens),
        mean_tokens=total * cost.queries_per_sequence / cost.attention_ranks,
    )
    return checked(float(evaluate_best(cost, load, microbatches).seconds))


def checked(seconds: float) -> float:
    """Return ``seconds`` if virtual time can advance by it."""
    if not 0 < seconds < float("inf"):
        raise BadInput(f"step_costs: a step takes {seconds:g} seconds; the terms must give a positive, finite duration")
    return seconds
