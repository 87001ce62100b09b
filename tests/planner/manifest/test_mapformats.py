"""Expert maps in the formats of engines: written, read back, and refused where the engine would stumble."""

import json
from contextlib import nullcontext

import numpy as np
import pytest

from ground.errors import BadInput
from ground.yamldata import parse_yaml, to_yaml
from planner.manifest.mapformats import WRITERS, MoeMap, read_map

SLOTS = np.array([[0, 1, 2, 3, 0, 1], [0, 2, 0, 1, 2, 3]])
MAP = MoeMap(slots=SLOTS, experts=4, ranks=2, dense_layers=3)
NO_DUPLICATES = MoeMap(slots=np.array([[0, 1, 2, 3, 0, 1], [0, 2, 3, 1, 0, 3]]), experts=4, ranks=2, dense_layers=3)


def written(name):
    """The text of a valid map in a format."""
    return WRITERS[name](NO_DUPLICATES)


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_reads_back(name):
    """The same slots, ranks and, where the format has them, layer numbers."""
    found = read_map(written(name), name, experts=4, ranks=2)
    rows = found.slots[3:] if name == "sglang.json" else found.slots
    assert (rows == NO_DUPLICATES.slots).all()
    assert found.ranks == 2
    if name in ("tensorrt_llm.yaml", "expert_map.yaml"):
        assert found.dense_layers == 3


@pytest.mark.parametrize("name", WRITERS)
def test_duplicates_on_a_device_are_refused(name):
    """vLLM-Ascend keeps one of two; no engine gains by them."""
    with pytest.raises(BadInput, match="holds expert 0 twice"):
        read_map(WRITERS[name](MAP), name, experts=4, ranks=2)


def test_the_examples_of_the_engines():
    """Keys and nesting as the engines' documentation and sources have them."""
    assert json.loads(written("sglang.json")) == {
        "physical_to_logical_map": [[0, 1, 2, 3, 0, 1]] * 3 + NO_DUPLICATES.slots.tolist()
    }
    ascend = json.loads(written("vllm_ascend.json"))
    assert ascend["moe_layer_count"] == 2
    assert ascend["layer_list"][1]["device_list"][1] == {"device_id": 1, "device_expert": [1, 0, 3]}
    assert parse_yaml(written("tensorrt_llm.yaml"), "x") == {
        "initial_global_assignments": {3: [0, 1, 2, 3, 0, 1], 4: [0, 2, 3, 1, 0, 3]},
        "num_slots": 6,
        "layer_updates_per_iter": 0,
    }
    arrays = json.loads(written("eplb.json"))
    assert arrays["expert_count"][0] == [2, 2, 1, 1]
    assert arrays["logical_to_physical_map"][0] == [[0, 4], [1, 5], [2, -1], [3, -1]]


def _changed(name, change):
    """A valid file with one thing changed, as text."""
    data = parse_yaml(written(name), name) if name.endswith("yaml") else json.loads(written(name))
    change(data)
    return to_yaml(data) if name.endswith("yaml") else json.dumps(data)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("sglang.json", lambda d: d.update(extra=1), "SGLang takes physical_to_logical_map alone"),
        ("sglang.json", lambda d: d["physical_to_logical_map"][0].pop(), "equal lengths"),
        ("sglang.json", lambda d: d["physical_to_logical_map"][4].__setitem__(1, 7), "must be between 0 and 3"),
        ("sglang.json", lambda d: d["physical_to_logical_map"][4].__setitem__(1, "7"), "must hold expert numbers"),
        ("sglang.json", lambda d: d["physical_to_logical_map"][4].__setitem__(1, 2**31), "must hold expert numbers"),
        ("sglang.json", lambda d: d.update(physical_to_logical_map=[]), "a list of rows"),
        ("sglang.json", lambda d: d["physical_to_logical_map"].append([]), "a list of rows"),
        ("vllm_ascend.json", lambda d: d.update(moe_layer_count=3), "moe_layer_count"),
        ("vllm_ascend.json", lambda d: d["layer_list"].reverse(), r"layer_list\[0\]: must have layer_id 0"),
        (
            "vllm_ascend.json",
            lambda d: d["layer_list"][0]["device_list"][0]["device_expert"].append(3),
            r"layer_list\[0\].device_list: rows must have equal lengths",
        ),
        ("vllm_ascend.json", lambda d: d["layer_list"][0]["device_list"].reverse(), "devices 0 to 1 in order"),
        ("vllm_ascend.json", lambda d: d["layer_list"].__setitem__(0, None), r"layer_list\[0\]"),
        ("tensorrt_llm.yaml", lambda d: d.update(num_slots=5), "num_slots must be 6"),
        ("tensorrt_llm.yaml", lambda d: d["initial_global_assignments"].pop(3) and d.update(num_slots=1), "num_slots"),
        (
            "tensorrt_llm.yaml",
            lambda d: d["initial_global_assignments"].update({9: [0, 1, 2, 3, 0, 1]}),
            "must be consecutive",
        ),
        ("tensorrt_llm.yaml", lambda d: d.update(layer_updates_per_iter=None), "layer_updates_per_iter"),
        ("eplb.json", lambda d: d["expert_count"][0].reverse(), "do not belong"),
        ("expert_map.yaml", lambda d: d["placements"][0].update(layers=[9]), "must be consecutive"),
        ("expert_map.yaml", lambda d: d.update(extra=1), "extra"),
    ],
)
def test_what_an_engine_would_stumble_over_is_named(name, change, message):
    """One sentence with the path."""
    with pytest.raises(BadInput, match=message):
        read_map(_changed(name, change), name, experts=4, ranks=2)


def test_more_slots_than_are_read_are_refused(monkeypatch):
    """Five rows of six are thirty."""
    for most in (30, 29):
        monkeypatch.setattr("planner.manifest.mapformats.MOST_SLOTS", most)
        with nullcontext() if most == 30 else pytest.raises(BadInput, match="has more than 29 slots"):
            read_map(written("sglang.json"), "sglang.json", experts=4, ranks=2)


@pytest.mark.parametrize("text", ["", "[1]", "{", "a: b", "x: [", "{" * 10_000])
def test_what_is_no_map_is_refused(text):
    """Neither crash nor traceback."""
    with pytest.raises(BadInput):
        read_map(text, "file", experts=4, ranks=2)
