"""Expert maps as engines load them, from the manifest's map."""

from collections.abc import Iterator

import numpy as np

from deploy.roles import RolePlan
from deploy.words import compact_json


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
    """Return the map of vLLM-Ascend (``expert_map_path``) and MindIE (``expert_map_file``).

    One entry per MoE layer, dense ones left out, counted from 0; one device per EP rank, all of one length.
    """
    ranks = role.strategy.moe_ep
    layers = []
    for position, (_, slots) in enumerate(_layers(role)):
        rows = np.array(slots).reshape(ranks, -1).tolist()
        devices = [{"device_id": rank, "device_expert": row} for rank, row in enumerate(rows)]
        layers.append({"layer_id": position, "device_count": ranks, "device_list": devices})
    lines = ",\n".join(compact_json(layer) for layer in layers)
    return f'{{"moe_layer_count":{len(layers)},"layer_list":[\n{lines}\n]}}\n'


def sglang_map(role: RolePlan) -> str:
    """Return the map of SGLang (``--init-expert-location``): a row for every hidden layer, dense ones included."""
    experts, held = role.setup.experts, dict(_layers(role))
    start = [slot % experts for slot in range(experts + role.setup.redundant)]
    rows = ",\n".join(compact_list(held.get(layer, start)) for layer in range(role.model.layers))
    return f'{{"physical_to_logical_map":[\n{rows}\n]}}\n'


def compact_list(numbers: list[int]) -> str:
    """Return a list of numbers as JSON without blanks."""
    return f"[{','.join(map(str, numbers))}]"
