"""Expert maps as engines read them, written and read back.

SGLang ``--init-expert-location`` (JSON; a row for every hidden layer, dense ones included), vLLM-Ascend and MindIE
``expert_map_path`` (JSON; MoE layers only, counted from 0), TensorRT-LLM ``load_balancer`` (YAML; keyed by model
layer), DeepSeek EPLB's three arrays (JSON), and the expert map of a podplan manifest (YAML). A reader checks all that
the engine relies on and ends in ``check_expert_map``, so what reads back can be loaded.

Ref: sglang python/sglang/srt/eplb/expert_location.py; vllm-ascend vllm_ascend/eplb, ``expert_file_to_tensor``;
TensorRT-LLM examples/wide_ep/ep_load_balancer/README.md; github.com/deepseek-ai/EPLB README.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ground.arrays import Ints
from ground.errors import BadInput
from ground.files import parse_json, parse_yaml
from ground.validation import validate
from planner.manifest.layout import ExpertMap
from planner.manifest.loads import check_expert_map

MOST_SLOTS = 16_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeMap:
    """The MoE layers' slots [layers, slots] on ``ranks`` ranks, after ``dense_layers`` layers without experts."""

    slots: Ints
    experts: int
    ranks: int
    dense_layers: int = 0


def sglang_json(moe: MoeMap) -> str:
    """One key, a row for every hidden layer; dense layers hold the layout that the engine starts from."""
    filler = (np.arange(moe.slots.shape[1]) % moe.experts).tolist()
    return _json_object({"physical_to_logical_map": [filler] * moe.dense_layers + moe.slots.tolist()})


def ascend_json(moe: MoeMap) -> str:
    """MoE layers from 0, every device with equally many experts."""
    layers = [
        {
            "layer_id": layer,
            "device_count": moe.ranks,
            "device_list": [{"device_id": rank, "device_expert": held} for rank, held in enumerate(row)],
        }
        for layer, row in enumerate(moe.slots.reshape(len(moe.slots), moe.ranks, -1).tolist())
    ]
    lines = ",\n".join(json.dumps(layer, separators=(",", ":")) for layer in layers)
    return f'{{"moe_layer_count":{len(layers)},"layer_list":[\n{lines}\n]}}\n'


def tensorrt_yaml(moe: MoeMap) -> str:
    """A static assignment: model layer -> expert of every slot."""
    rows = [f"  {layer}: {json.dumps(row)}" for layer, row in enumerate(moe.slots.tolist(), start=moe.dense_layers)]
    head = "initial_global_assignments:\n" + "\n".join(rows)
    return f"{head}\nnum_slots: {moe.slots.shape[1]}\nlayer_updates_per_iter: 0\n"


def eplb_json(moe: MoeMap) -> str:
    """physical_to_logical_map, logical_to_physical_map padded with -1, expert_count."""
    counts = np.stack([np.bincount(row, minlength=moe.experts) for row in moe.slots])
    places = np.full((*counts.shape, int(counts.max())), -1, dtype=np.int64)
    for layer, row in enumerate(moe.slots.tolist()):
        seen = [0] * moe.experts
        for slot, expert in enumerate(row):
            places[layer, expert, seen[expert]] = slot
            seen[expert] += 1
    return _json_object(
        {
            "physical_to_logical_map": moe.slots.tolist(),
            "logical_to_physical_map": places.tolist(),
            "expert_count": counts.tolist(),
        }
    )


def manifest_yaml(moe: MoeMap) -> str:
    """The ``expert_map`` of a pool whose shared expert has a copy on every rank."""
    rows = [
        f"- layers: [{layer}]\n  slots: {json.dumps(row)}"
        for layer, row in enumerate(moe.slots.tolist(), start=moe.dense_layers)
    ]
    ranks = json.dumps(list(range(moe.ranks)))
    return f"expert_ranks: {ranks}\nshared_expert_ranks: []\nplacements:\n" + "\n".join(rows) + "\n"


WRITERS: Mapping[str, Callable[[MoeMap], str]] = {  # file name -> writer
    "sglang.json": sglang_json,
    "vllm_ascend.json": ascend_json,
    "tensorrt_llm.yaml": tensorrt_yaml,
    "eplb.json": eplb_json,
    "expert_map.yaml": manifest_yaml,
}


def _json_object(data: Mapping[str, list[Any]]) -> str:
    """JSON with a layer on each line."""
    parts = []
    for key, rows in data.items():
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        parts.append(f"{json.dumps(key)}:[\n{lines}\n]")
    return "{" + ",\n".join(parts) + "}\n"


def read_map(text: str, where: str, *, experts: int, ranks: int) -> MoeMap:
    """Return the map in ``text``, whichever format it has.

    Rows of dense layers in SGLang's format cannot be told from MoE layers: all rows are returned. Layers of the other
    formats must be consecutive.

    Raises BadInput: with the path to what the engine would stumble over.
    """
    data = parse_json(text, where) if text.lstrip().startswith("{") else parse_yaml(text, where)
    if not isinstance(data, dict):
        raise BadInput(f"{where}: is no expert map: a mapping with one of the known keys is expected")
    if "layer_list" in data:
        return _read_ascend(data, where, experts, ranks)
    if "initial_global_assignments" in data:
        return _read_tensorrt(data, where, experts, ranks)
    if "placements" in data:
        return _read_manifest(data, where, experts)
    if "physical_to_logical_map" in data:
        return _read_arrays(data, where, experts, ranks)
    raise BadInput(
        f"{where}: is no expert map: expected is physical_to_logical_map, layer_list, initial_global_assignments or "
        "placements"
    )


def _rows(rows: object, where: str) -> Ints:
    """Rows of equal length of whole numbers, [rows, slots]."""
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) and row for row in rows):
        raise BadInput(f"{where}: must be a list of rows, one per layer")
    if any(len(row) != len(rows[0]) for row in rows):
        raise BadInput(f"{where}: rows must have equal lengths")
    if len(rows) * len(rows[0]) > MOST_SLOTS:
        raise BadInput(f"{where}: has more than {MOST_SLOTS} slots, the most that is read")
    for at, row in enumerate(rows):
        if not all(type(value) is int and 0 <= value < 2**31 for value in row):
            raise BadInput(f"{where}[{at}]: must hold expert numbers")
    return np.array(rows, dtype=np.int64)


def _checked(rows: object, path: str, experts: int, ranks: int) -> MoeMap:
    """Return the map of rows, from layer 0 on or by consecutive model layers, as an engine can load it."""
    first = 0
    if isinstance(rows, dict):
        layers = sorted(rows)
        first = layers[0] if layers else 0
        if layers != list(range(first, first + len(layers))) or first < 0:
            raise BadInput(f"{path}: MoE layers must be consecutive")
        rows = [rows[layer] for layer in layers]
    slots = _rows(rows, path)
    check_expert_map(slots, experts, ranks, path)
    return MoeMap(slots=slots, experts=experts, ranks=ranks, dense_layers=first)


def _read_arrays(data: dict[str, Any], where: str, experts: int, ranks: int) -> MoeMap:
    """SGLang's object with one key, or EPLB's with three that agree."""
    others = sorted(set(data) - {"physical_to_logical_map"})
    if others not in ([], ["expert_count", "logical_to_physical_map"]):
        raise BadInput(f"{where}: {others[0]}: SGLang takes physical_to_logical_map alone; leave this key out")
    found = _checked(data["physical_to_logical_map"], f"{where}: physical_to_logical_map", experts, ranks)
    if others and json.loads(eplb_json(found)) != data:
        raise BadInput(f"{where}: logical_to_physical_map and expert_count do not belong to physical_to_logical_map")
    return found


def _read_ascend(data: dict[str, Any], where: str, experts: int, ranks: int) -> MoeMap:
    """vLLM-Ascend's nested lists: layers and devices in order, equal lengths, no duplicates."""
    layers = data["layer_list"]
    if not isinstance(layers, list) or data.get("moe_layer_count") != len(layers):
        raise BadInput(f"{where}: moe_layer_count must be the number of entries of layer_list")
    rows = []
    for number, layer in enumerate(layers):
        path = f"{where}: layer_list[{number}]"
        devices = layer.get("device_list") if isinstance(layer, dict) else None
        if not isinstance(devices, list) or layer.get("layer_id") != number or layer.get("device_count") != ranks:
            raise BadInput(f"{path}: must have layer_id {number}, device_count {ranks} and a device_list")
        if [device.get("device_id") if isinstance(device, dict) else None for device in devices] != list(range(ranks)):
            raise BadInput(f"{path}.device_list: must have the devices 0 to {ranks - 1} in order")
        held = _rows([device.get("device_expert") for device in devices], f"{path}.device_list")
        rows.append(held.ravel().tolist())
    return _checked(rows, f"{where}: layer_list", experts, ranks)


def _read_tensorrt(data: dict[str, Any], where: str, experts: int, ranks: int) -> MoeMap:
    """TensorRT-LLM: consecutive model layers, num_slots entries each."""
    path = f"{where}: initial_global_assignments"
    assigned = data["initial_global_assignments"]
    if not isinstance(assigned, dict) or not all(type(key) is int for key in assigned):
        raise BadInput(f"{path}: must map model layers to lists of experts")
    found = _checked(assigned, path, experts, ranks)
    if data.get("num_slots") != found.slots.shape[1]:
        raise BadInput(f"{where}: num_slots must be {found.slots.shape[1]}, the length of every list")
    updates = data.get("layer_updates_per_iter")
    if type(updates) is not int or updates < 0:
        raise BadInput(f"{where}: layer_updates_per_iter must be a number from 0, which is a static map")
    return found


def _read_manifest(data: dict[str, Any], where: str, experts: int) -> MoeMap:
    """The expert map of a manifest's pool, alone."""
    found = validate(ExpertMap, data, where)
    rows = {layer: entry.slots for entry in found.placements for layer in entry.layers}
    return _checked(rows, f"{where}: placements", experts, len(found.expert_ranks))
