"""Where things stand: instances, ranks, groups, weight shards and experts of one pool."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from ground.records import Name
from ground.strict import Strict
from hardware.spec import Dtype
from planner.manifest.costs import Natural, Positive

MOST_RANKS = 65_536
MOST_INSTANCES = 4_096

GroupKind = Literal["tp", "dp", "ep", "moe_tp", "pp"]
Row = Annotated[list[Annotated[int, Field(strict=True, ge=-1, le=2**31)]], Field(min_length=9, max_length=9)]
RankList = Annotated[list[Natural], Field(max_length=MOST_RANKS)]


class Place(NamedTuple):
    """The coordinates of a rank, a row of the rank table; -1 where it has none."""

    rank: int
    node: int
    device: int
    tp: int
    dp: int
    ep: int
    moe_tp: int
    pp: int
    domain: int


RANK_COLUMNS = Place._fields


class Degrees(Strict):
    """Degrees of parallelism, all counting devices; see ``planner.strategy.Strategy``."""

    attention_tp: Positive
    attention_dp: Positive
    staged: bool = False
    moe_tp: Positive = 1
    moe_ep: Positive = 1
    pp: Positive = 1
    domains: Natural = 0

    @property
    def attention_groups(self) -> int:
        """DP groups of an instance, of all its domains."""
        return self.attention_dp * max(self.domains, 1)

    @property
    def devices(self) -> int:
        """Devices of one instance: stages x attention ranks, and expert ranks beside them with domains."""
        attention, experts = self.attention_tp * self.attention_dp, self.moe_tp * self.moe_ep
        return (self.domains * attention + experts if self.domains else attention) * self.pp


class Instance(Strict):
    """One copy of the pool's content.

    Rank r stands on linear device ``first_device + node * devices_per_node + device`` counted
    from the start of ``nodes[0]`` over ``nodes`` in order, with (node, device) of its row.
    """

    name: Name
    nodes: list[Natural] = Field(min_length=1, max_length=MOST_RANKS, description="node numbers in the cluster")
    first_device: Natural = 0

    def where(self, place: Place, devices_per_node: int) -> tuple[int, int]:
        """Return the node of the cluster on which a rank stands, and its device there."""
        linear = self.first_device + place.node * devices_per_node + place.device
        return self.nodes[linear // devices_per_node], linear % devices_per_node


class RankTable(Strict):
    """One row per rank, in the order of ``columns``; a coordinate that a rank has not is -1.

    ``node`` counts within the instance, ``domain`` is the attention domain and -1 on the expert
    ranks of a disaggregated instance.
    """

    columns: tuple[
        Literal["rank"],
        Literal["node"],
        Literal["device"],
        Literal["tp"],
        Literal["dp"],
        Literal["ep"],
        Literal["moe_tp"],
        Literal["pp"],
        Literal["domain"],
    ] = ("rank", "node", "device", "tp", "dp", "ep", "moe_tp", "pp", "domain")
    rows: list[Row] = Field(min_length=1, max_length=MOST_RANKS)

    @property
    def places(self) -> list[Place]:
        """The rows by name."""
        return [Place(*row) for row in self.rows]


class GroupRule(Strict):
    """Communication groups of one kind: a group per start, of ranks start + i * stride, i < size."""

    kind: GroupKind
    size: Annotated[int, Field(strict=True, ge=2, le=MOST_RANKS)]
    stride: Annotated[int, Field(strict=True, ge=1, le=MOST_RANKS)]
    starts: RankList = Field(min_length=1)

    def groups(self) -> list[range]:
        """Return the ranks of every group."""
        return [range(start, start + self.size * self.stride, self.stride) for start in self.starts]


class ShardRule(Strict):
    """Which part of a tensor a rank holds.

    ``tensor`` is a glob over checkpoint names, the first match counts. The tensor is cut into
    ``degree`` equal parts along ``axis`` (0 = output features as stored); a rank with coordinate c of a
    group of n holds part c * degree // n. ``axis`` None: every holder has all of it. ``held_by``: the ranks
    with attention coordinates of the layer's, the first or the last pipeline stage; the EP ranks that the
    expert map names; or those that hold the shared expert.
    """

    tensor: Name
    axis: Literal[0, 1] | None = None
    degree: Positive = 1
    coordinate: Literal["tp", "moe_tp"] | None = None
    held_by: Literal["attention", "first_stage", "last_stage", "expert_map", "shared_expert"] = "attention"
    dtype: Dtype


class ExpertLayers(Strict):
    """The slots of layers that share one map: rank g of ``expert_ranks`` owns the g-th run of slots."""

    layers: list[Natural] = Field(min_length=1, max_length=2048, description="layer numbers as in the checkpoint")
    slots: RankList = Field(min_length=1, description="logical expert per slot")


class ExpertMap(Strict):
    """Experts and replicas on EP ranks; ``shared_expert_ranks`` empty means a local copy on every rank."""

    expert_ranks: RankList = Field(min_length=1, description="EP ranks with routed experts, in slot order")
    shared_expert_ranks: RankList = Field(default=[])
    placements: list[ExpertLayers] = Field(min_length=1, max_length=2048)
