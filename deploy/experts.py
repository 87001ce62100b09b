"""Expert maps as engines load them, from the manifest's map."""

from collections.abc import Iterator

import numpy as np

from deploy.roles import RolePlan
from planner.manifest.mapformats import MoeMap, ascend_json, sglang_json


def needs_map(role: RolePlan) -> bool:
    """Whether experts stand otherwise than in runs of equal length, the layout that engines start from."""
    if role.expert_map is None or role.strategy.moe_ep == 1:
        return False
    slots = role.setup.experts + role.setup.redundant
    start = [slot % role.setup.experts for slot in range(slots)]
    return any(held != start for _, held in _layers(role))


def _layers(role: RolePlan) -> Iterator[tuple[int, list[int]]]:
    """Yield (layer of the checkpoint, expert of each slot) of the model's own MoE layers in order."""
    assert role.expert_map is not None
    found = {layer: entry.slots for entry in role.expert_map.placements for layer in entry.layers}
    for layer in role.model.moe_layer_numbers:
        yield layer, found[layer]


def ascend_map(role: RolePlan) -> str:
    """Return the map of vLLM-Ascend (``expert_map_path``) and MindIE (``expert_map_file``), without dense layers."""
    return ascend_json(_moe_map(role, [slots for _, slots in _layers(role)]))


def sglang_map(role: RolePlan) -> str:
    """Return the map of SGLang (``--init-expert-location``): a row for every hidden layer, dense ones included."""
    experts, held = role.setup.experts, dict(_layers(role))
    start = [slot % experts for slot in range(experts + role.setup.redundant)]
    return sglang_json(_moe_map(role, [held.get(layer, start) for layer in range(role.model.layers)]))


def _moe_map(role: RolePlan, rows: list[list[int]]) -> MoeMap:
    return MoeMap(slots=np.array(rows, dtype=np.int64), experts=role.setup.experts, ranks=role.strategy.moe_ep)
