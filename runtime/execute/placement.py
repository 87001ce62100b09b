"""Which slot a token's copy goes to: the expert map of a layer, and the rotation over replicas."""

from dataclasses import dataclass, field

import numpy as np

from ground.arrays import Floats, Ints
from planner.manifest.layout import ExpertMap

SHARED = -1
"""The slot number of a dedicated shared expert."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Token copies to send: token (row of the sender's tokens), EP rank, slot and gate weight, all [c]."""

    token: Ints
    ep: Ints
    slot: Ints
    weight: Floats


@dataclass(slots=True)
class ExpertTable:
    """The slots of one layer.

    ``expert_of`` [slots] is the logical expert, ``rank_of`` [slots] its EP rank; ``replicas`` [E, most] lists the
    slots of an expert, ``counts`` [E] says how many there are.
    """

    expert_of: Ints
    rank_of: Ints
    shared_ranks: Ints
    counts: Ints = field(init=False)
    replicas: Ints = field(init=False)

    def __post_init__(self) -> None:
        """Index slots by expert."""
        self.counts = np.bincount(self.expert_of)
        self.replicas = np.zeros((len(self.counts), int(self.counts.max())), dtype=np.int64)
        seen = np.zeros(len(self.counts), dtype=np.int64)
        for slot, expert in enumerate(self.expert_of.tolist()):
            self.replicas[expert, seen[expert]] = slot
            seen[expert] += 1

    def copies(self, experts: Ints, weights: Floats, turn: Ints) -> Copies:
        """Return where k experts per token [T, k] are, and the dedicated shared expert's copy beside them.

        ``turn`` [T] rotates: replica turn mod (number of replicas), so that tokens at different places of a batch
        use different replicas without any exchange (xDeepServe section 4.5).
        """
        tokens, k = experts.shape
        slot = self.replicas[experts, turn[:, None] % self.counts[experts]]
        ep = self.rank_of[slot]
        token = np.repeat(np.arange(tokens), k)
        if not len(self.shared_ranks):
            return Copies(token, ep.ravel(), slot.ravel(), weights.ravel())
        shared = self.shared_ranks[turn % len(self.shared_ranks)]
        return Copies(
            np.concatenate([token, np.arange(tokens)]),
            np.concatenate([ep.ravel(), shared]),
            np.concatenate([slot.ravel(), np.full(tokens, SHARED)]),
            np.concatenate([weights.ravel(), np.ones(tokens)]),
        )


def expert_tables(mapping: ExpertMap, layers: list[int]) -> dict[int, ExpertTable]:
    """Return the table of every layer asked for; a layer that the map leaves out (a draft layer) lies as the last."""
    ranks = np.array(mapping.expert_ranks, dtype=np.int64)
    shared = np.array(mapping.shared_expert_ranks, dtype=np.int64)
    by_layer = {layer: entry for entry in mapping.placements for layer in entry.layers}
    tables = {}
    for layer in layers:
        slots = np.array(by_layer.get(layer, by_layer[max(by_layer)]).slots, dtype=np.int64)
        tables[layer] = ExpertTable(slots, np.repeat(ranks, len(slots) // len(ranks)), shared)
    return tables
