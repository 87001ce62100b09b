"""What every rank of an instance knows before the run: model, partition, experts."""

from dataclasses import dataclass, field

from ground.errors import BadInput
from runtime.execute.layout import Lanes, Layout
from runtime.execute.partition import Partition
from runtime.execute.placement import ExpertTable, expert_tables
from runtime.execute.small import SmallModel, stage_bounds
from runtime.execute.tensors import Weights


@dataclass(slots=True)
class Setup:
    """One instance of a pool, ready to be run by its ranks; ``drafts`` are those of decode, also in prefill.

    With ``int8_messages`` tokens are quantised before they are dispatched.
    """

    weights: Weights
    layout: Layout
    int8_messages: bool
    drafts: int = 0
    path: str = "pools[0]"
    partition: Partition = field(init=False)
    tables: dict[int, ExpertTable] = field(init=False)

    def __post_init__(self) -> None:
        """Look at the rules and the expert map."""
        self.partition = Partition(self.small, self.layout, self.path)
        mapping = self.layout.pool.expert_map
        self.tables = expert_tables(mapping, self.moe_layers) if mapping else {}
        if self.drafts and self.small.draft_layer is None:
            raise BadInput(f"{self.path}.mtp.drafts: {self.small.source.name} has no draft layer; use 0")

    @property
    def small(self) -> SmallModel:
        """The model."""
        return self.weights.small

    @property
    def moe_layers(self) -> list[int]:
        """Layers with experts, the draft layer among them."""
        layers = [layer for layer in self.small.layers if not self.small.is_dense(layer)]
        return [*layers, self.small.draft_layer] if self.small.draft_layer is not None else layers

    @property
    def stages(self) -> list[tuple[int, ...]]:
        """Kept layers of every pipeline stage."""
        return [
            tuple(layer for layer in self.small.layers if first <= layer < end)
            for first, end in stage_bounds(self.layout.pool)
        ]

    @property
    def lanes(self) -> Lanes:
        """Who of a TP group sends which tokens and which part of the hidden axis."""
        degrees = self.layout.pool.degrees
        return Lanes(1 if degrees.staged or degrees.domains else degrees.attention_tp, degrees.moe_tp)
