"""The files of `plan place --out`: one per engine, each read back before it is written."""

import json
from pathlib import Path
from typing import Any

from cli.place_flags import PlaceFlags
from cli.place_render import Answer
from ground.errors import Fault
from planner.manifest.mapformats import WRITERS, MoeMap, read_map

ANSWER = "placement.json"
FILES = (*WRITERS, ANSWER)


def moe_map(answer: Answer, dense_layers: int) -> MoeMap:
    """Return the placement behind the model's dense layers, which SGLang and TensorRT-LLM count."""
    problem, slots = answer.problem, answer.certified.placement.slots
    return MoeMap(slots=slots, experts=problem.experts, ranks=problem.ranks, dense_layers=dense_layers)


def dense_line(flags: PlaceFlags, moe: MoeMap) -> str:
    """Return how many dense layers the files assume, and where that comes from."""
    if flags.model is not None or moe.dense_layers:
        return f"{moe.dense_layers} dense layers come before the MoE layers in sglang.json and tensorrt_llm.yaml"
    return "sglang.json and tensorrt_llm.yaml assume no dense layers; give --model if the model starts with some"


def placement_files(folder: Path, moe: MoeMap, data: dict[str, Any]) -> dict[Path, str]:
    """Return the map in every format and the answer as JSON, as they are to be written."""
    texts = {name: write(moe) for name, write in WRITERS.items()}
    for name, text in texts.items():
        rows = read_map(text, name, experts=moe.experts, ranks=moe.ranks).slots
        if (rows[-len(moe.slots) :] != moe.slots).any():
            raise Fault(f"{name} does not read back as it was written")
    texts[ANSWER] = json.dumps(data, indent=2, allow_nan=False) + "\n"
    return {folder / name: texts[name] for name in FILES}
