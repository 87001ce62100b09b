"""Which part of every tensor each rank holds, and whether the parts make up the model.

The manifest's rules are taken at their word. A tensor is cut where its rule says, at the sizes of the real model and
of the small one alike; what the ranks of a group hold must be the whole tensor once, or once per stated replica, and
the parts that are multiplied with each other must be cut alike.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cache
from re import Pattern, compile as pattern

from ground.errors import BadInput
from planner.manifest.layout import Place, ShardRule
from runtime.execute.layout import ExpertTable, Lanes, Layout, expert_tables
from runtime.execute.small import SmallModel, Weights, stage_bounds, tensor_shapes

PARTNERS = (
    ("self_attn.{q}.weight", "self_attn.o_proj.weight"),
    ("mlp.gate_proj.weight", "mlp.down_proj.weight"),
    ("mlp.up_proj.weight", "mlp.down_proj.weight"),
    ("mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.down_proj.weight"),
    ("mlp.shared_experts.up_proj.weight", "mlp.shared_experts.down_proj.weight"),
    ("self_attn.{q}.weight", "self_attn.kv_b_proj.weight"),
)
"""Products whose outputs meet: the output features of the first are the input features of the second, or its heads."""


@dataclass(frozen=True, slots=True)
class Part:
    """``start`` to ``stop`` of a tensor along ``axis``; ``whole`` where that is all of it."""

    axis: int
    start: int
    stop: int
    whole: bool


@cache
def _compiled(glob: str) -> Pattern[str]:
    return pattern(translate(glob))


class Partition:
    """The rules of one pool over the tensors of a small model."""

    def __init__(self, small: SmallModel, layout: Layout, path: str = "pools[0]") -> None:
        """``path`` is where the pool stands in its manifest, for errors."""
        self.small, self.layout, self.path = small, layout, path
        self.shapes = tensor_shapes(small)
        self._rules: dict[str, ShardRule] = {}
        self._bounds = stage_bounds(layout.pool)
        self._attention: dict[int, list[str]] = {}
        for name in self.shapes:
            if ".self_attn." in name:
                self._attention.setdefault(layer_of(name) or 0, []).append(name)

    def attention_names(self, layer: int) -> list[str]:
        """Return the attention tensors of a layer."""
        return self._attention[layer]

    def rule(self, name: str) -> ShardRule:
        """Return the first rule that matches a tensor; BadInput where none does."""
        found = self._rules.get(name)
        if found is None:
            found = next((rule for rule in self.layout.pool.weight_shards if _compiled(rule.tensor).match(name)), None)
            if found is None:
                raise BadInput(f"{self.path}.weight_shards: no rule covers tensor {name}, so no rank holds it")
            self._rules[name] = found
        return found

    def wrong(self, name: str, told: str, field: str = "") -> BadInput:
        """Return what is wrong with the rule of a tensor, or with a field of it."""
        index = self.layout.pool.weight_shards.index(self.rule(name))
        return BadInput(f"{self.path}.weight_shards[{index}]{field}: {told}")

    def stage_of(self, layer: int) -> int:
        """Return the pipeline stage of a layer; draft layers belong to the last."""
        return next((s for s, (_, end) in enumerate(self._bounds) if layer < end), len(self._bounds) - 1)

    def part(self, place: Place, name: str) -> Part:
        """Return what a rank holds of a tensor that it holds."""
        rule, shape = self.rule(name), self.shapes[name]
        if rule.axis is None or rule.degree == 1:
            return Part(0, 0, shape[0], True)
        if rule.axis >= len(shape):
            raise self.wrong(name, f"cuts axis {rule.axis} of {name}, which has one axis")
        size = shape[rule.axis]
        if size % rule.degree:
            raise self.wrong(
                name,
                f"{name} has {size} along axis {rule.axis} in the small model, which a degree of {rule.degree} does "
                "not divide",
            )
        degrees = self.layout.pool.degrees
        n = degrees.attention_tp if rule.coordinate == "tp" else degrees.moe_tp
        coordinate = place.tp if rule.coordinate == "tp" else place.moe_tp
        if coordinate < 0:
            raise self.wrong(
                name, f"rank {place.rank} holds {name} but has no {rule.coordinate} coordinate to cut it by"
            )
        each = size // rule.degree
        start = coordinate * rule.degree // n * each
        return Part(rule.axis, start, start + each, False)

    def holds(self, place: Place, name: str) -> bool:
        """Whether the rules give a rank a tensor that is no routed expert's."""
        held_by = self.rule(name).held_by
        last = len(self._bounds) - 1
        if held_by == "first_stage":
            return place.tp >= 0 and place.pp == 0
        if held_by == "last_stage":
            return place.tp >= 0 and place.pp == last
        layer = layer_of(name)
        in_stage = layer is None or place.pp == self.stage_of(layer)
        if held_by == "attention":
            return place.tp >= 0 and in_stage
        mapping = self.layout.pool.expert_map
        dedicated = mapping.shared_expert_ranks if mapping else []
        if held_by == "shared_expert":
            return in_stage and (place.ep in dedicated if dedicated else place.tp >= 0)
        return in_stage and place.ep >= 0


def layer_of(name: str) -> int | None:
    """Return the layer number in a tensor's name, None for tables and the last norm."""
    words = name.split(".")
    return int(words[2]) if words[1] == "layers" else None


def check_coverage(partition: Partition) -> None:
    """Raise BadInput unless the ranks hold the model.

    The message names the rank, the tensor and the range that is missing, double or cut otherwise than its partner.
    """
    _check_real_sizes(partition)
    for name in partition.shapes:
        if ".experts." not in name:
            _check_tensor(partition, name)
    for layer in (*partition.small.layers, partition.small.draft_layer):
        if layer is not None:
            _check_layer(partition, layer)
            _check_experts(partition, layer)


def _check_real_sizes(partition: Partition) -> None:
    """The real model's tensors divide as the rules say, attention by whole heads; engines pad vocabularies."""
    small = partition.small
    real = tensor_shapes(replace(small, spec=small.source))
    heads = small.source.attention.heads
    for name, shape in real.items():
        rule = partition.rule(name)
        padded = name.endswith(("embed_tokens.weight", "head.weight"))
        if padded or rule.axis is None or rule.degree == 1 or rule.axis >= len(shape):
            continue
        size = shape[rule.axis]
        by_head = name.endswith(("q_b_proj.weight", "q_proj.weight", "kv_b_proj.weight", "o_proj.weight"))
        if size % rule.degree or (by_head and heads % rule.degree):
            what = f"{heads} heads" if by_head else f"range 0 to {size} of axis {rule.axis}"
            told = f"{rule.degree} does not divide the {what} of {name}, so rank {rule.degree - 1} has no equal part"
            raise partition.wrong(name, told, ".degree")


def _check_tensor(partition: Partition, name: str) -> None:
    """Every group that needs a tensor holds it: once in all, or as often as its degree leaves ranks."""
    held_by = partition.rule(name).held_by
    if held_by == "expert_map":
        raise partition.wrong(name, f"{name} is no routed expert, so the expert map cannot say who holds it")
    for group in _groups_that_need(partition, name):
        holders = [place for place in group if partition.holds(place, name)]
        if len(holders) < len(group):
            missing = next(place for place in group if place not in holders)
            size = partition.shapes[name][0]
            raise partition.wrong(
                name,
                f"rank {missing.rank} computes with {name} but holds none of it (range 0 to {size} of axis 0): "
                f"held_by {held_by!r} leaves it out",
            )
        _check_ranges(partition, name, holders)


def _groups_that_need(partition: Partition, name: str) -> Iterator[list[Place]]:
    """Yield the groups of ranks that together compute with a tensor."""
    layout, layer = partition.layout, layer_of(name)
    mapping, degrees = layout.pool.expert_map, layout.pool.degrees
    stage = 0 if "embed" in name else len(partition._bounds) - 1
    if layer is not None:
        stage = partition.stage_of(layer)
    shared = mapping.shared_expert_ranks if ".shared_experts." in name and mapping else []
    if shared or partition.rule(name).coordinate == "moe_tp":
        for ep in shared or range(degrees.moe_ep):
            yield [layout.place(layout.expert_rank(stage, ep, j)) for j in range(degrees.moe_tp)]
        return
    for domain, dp in layout.dp_groups():
        yield [layout.place(layout.attention_rank(stage, domain, dp, c)) for c in range(degrees.attention_tp)]


def _check_ranges(partition: Partition, name: str, holders: list[Place]) -> None:
    """Parts of a group leave no gap; whole copies are fine, for the rule states them."""
    parts = [partition.part(place, name) for place in holders]
    if parts[0].whole:
        return
    axis, size, reached = parts[0].axis, partition.shapes[name][parts[0].axis], 0
    for part in sorted(parts, key=lambda part: part.start):
        if part.start > reached:
            break
        reached = max(reached, part.stop)
    if reached < size:
        where = f"range {reached} to {size} of axis {axis} of {name}"
        raise partition.wrong(name, f"{where} is on no rank of the group of rank {holders[-1].rank}")


def _check_layer(partition: Partition, layer: int) -> None:
    """Column-parallel and row-parallel cuts of a layer fit each other on every rank."""
    at = f"model.layers.{layer}"
    query = "q_b_proj" if f"{at}.self_attn.q_b_proj.weight" in partition.shapes else "q_proj"
    for first, second in PARTNERS:
        one, other = f"{at}.{first.format(q=query)}", f"{at}.{second}"
        if one not in partition.shapes or other not in partition.shapes:
            continue
        for place in partition.layout.places:
            if partition.holds(place, one) and partition.holds(place, other):
                _check_partners(partition, place, one, other)
    _check_kv_heads(partition, at)


def _check_partners(partition: Partition, place: Place, one: str, other: str) -> None:
    """Shares of the two tensors are the same share of the whole; a staged group gathers before its second product."""
    left, right = _share(partition, place, one), _share(partition, place, other)
    first, second = partition.part(place, one), partition.part(place, other)
    meets = 0 if other.endswith("kv_b_proj.weight") else 1
    along = (first.whole or first.axis == 0) and (second.whole or second.axis == meets)
    staged = partition.layout.pool.degrees.staged and other.endswith("o_proj.weight")
    if along and ((staged and second.whole) or left == right):
        return
    raise partition.wrong(
        other,
        f"rank {place.rank} holds range {second.start} to {second.stop} of axis {second.axis} of {other}, but "
        f"{left[0]:.0%} to {left[1]:.0%} of axis {first.axis} of {one}, which it is multiplied with",
    )


def _share(partition: Partition, place: Place, name: str) -> tuple[float, float]:
    part = partition.part(place, name)
    if part.whole:
        return 0.0, 1.0
    size = partition.shapes[name][part.axis]
    return part.start / size, part.stop / size


def _check_kv_heads(partition: Partition, at: str) -> None:
    """A rank holds the KV heads that its query heads read."""
    name = f"{at}.self_attn.k_proj.weight"
    if name not in partition.shapes:
        return
    for place in partition.layout.places:
        if partition.holds(place, name):
            low, high = _share(partition, place, f"{at}.self_attn.q_proj.weight")
            for held in (name, f"{at}.self_attn.v_proj.weight"):
                start, stop = _share(partition, place, held)
                if start > low or stop < high:
                    part = partition.part(place, held)
                    told = f"rank {place.rank} holds range {part.start} to {part.stop} of {held}"
                    raise partition.wrong(held, f"{told}, not all that its query heads read")


def _check_experts(partition: Partition, layer: int) -> None:
    """Routed experts are cut along their width alike in all three matrices, and wholly over the MoE TP group."""
    if partition.small.is_dense(layer) or partition.small.spec.moe is None:
        return
    layout = partition.layout
    stage, degrees = partition.stage_of(layer), partition.layout.pool.degrees
    group = [layout.place(layout.expert_rank(stage, 0, j)) for j in range(degrees.moe_tp)]
    for expert in range(partition.small.moe.experts):
        at = f"model.layers.{layer}.mlp.experts.{expert}"
        for name in (f"{at}.gate_proj.weight", f"{at}.up_proj.weight", f"{at}.down_proj.weight"):
            held_by = partition.rule(name).held_by
            if held_by != "expert_map":
                raise partition.wrong(
                    name,
                    f"{name} must be held by the ranks of the expert map, not by {held_by!r}, of which rank "
                    f"{group[0].rank} is one",
                )
            parts = [partition.part(place, name) for place in group]
            held = 1 if parts[0].whole else sum(part.stop - part.start for part in parts)
            size = 1 if parts[0].whole else partition.shapes[name][parts[0].axis]
            if held < size or len({part.start for part in parts}) < len(group):
                last = parts[-1]
                raise partition.wrong(
                    name,
                    f"rank {group[-1].rank} holds range {last.start} to {last.stop} of axis {last.axis} of {name}; "
                    f"{len(group)} ranks must hold as many different parts",
                )
        for place in group:
            _check_partners(partition, place, f"{at}.gate_proj.weight", f"{at}.down_proj.weight")
            _check_partners(partition, place, f"{at}.up_proj.weight", f"{at}.down_proj.weight")


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
