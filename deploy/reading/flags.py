"""Flags of a command line by name, and whether the engine's pinned version knows them."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "flags"
# What a Dynamo worker does not know itself goes to the engine's own parser.
TABLES = {
    "vllm": ("vllm-0.33.0",),
    "vllm-ascend": ("vllm-0.23.0", "vllm-ascend-0.23.0"),
    "sglang": ("sglang-0.5.23",),
    "sglang.ascend": ("sglang-0.5.18",),  # what the newest images for Ascend hold
    "xllm": ("xllm-0.9.1",),
    "trtllm": ("trtllm-1.2.1",),
    "dynamo.trtllm": ("dynamo-trtllm-1.6.1",),
    "dynamo.vllm": ("dynamo-vllm-1.6.1", "vllm-0.31.0"),
    "dynamo.sglang": ("dynamo-sglang-1.6.1", "sglang-0.5.21"),
}

OPTIONS = "trtllm-options-1.2.1"
Flags = dict[str, str | None]


def table_key(engine: str, kind: str, words: Sequence[str]) -> str:
    """Return the key of ``TABLES`` for a command line: releases differ under Dynamo and on Ascend devices."""
    if kind == "dynamo":
        return f"dynamo.{engine}"
    return "sglang.ascend" if engine == "sglang" and "npu" in words else engine


@cache
def table(name: str) -> dict[str, Any]:
    """Return a fact table: flags and the keys of JSON flags."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def read_flags(words: Sequence[str]) -> Flags:
    """Return name -> value of the long flags; ``--a=b`` and ``--a b`` are the same, a flag alone is None."""
    found: Flags = {}
    position = 0
    while position < len(words):
        name, equals, value = words[position].partition("=")
        position += 1
        if not name.startswith("--"):
            continue
        if equals:
            found[name] = value
        elif position < len(words) and not words[position].startswith("--"):
            found[name] = words[position]
        else:
            found[name] = None
    return found


def unknown_flags(engine: str, flags: Mapping[str, str | None]) -> list[str]:
    """Return flags that the pinned version does not have, and keys that its JSON flags do not read."""
    names: set[str] = set()
    keys: dict[str, set[str]] = {}
    for part in TABLES[engine]:
        facts = table(part)
        names |= facts["flags"].keys()
        names |= {f"--no-{name[2:]}" for name, held in facts["flags"].items() if held.get("type") == "switch"}
        names |= {alias for held in facts["flags"].values() for alias in held.get("aliases", [])}
        keys |= {name: set(held) for name, held in facts["json"].items()}
    found = [name for name in flags if name not in names]
    for name, value in flags.items():
        if name in keys and value is not None:
            found += [f"{name}.{key}" for key in _unread(json.loads(value), name, keys)]
    return found


def unknown_options(options: Mapping[str, Any], *, dynamo: bool = False) -> list[str]:
    """Return keys of TensorRT-LLM's YAML options that its LLM arguments refuse, and words that are no choice there.

    Dynamo has a later release, whose choices differ.
    """
    facts = table(OPTIONS)
    found = _unread(options, "options", {name: set(held) for name, held in facts["json"].items()})
    for path, known in (facts["choices"] | (facts["dynamo_choices"] if dynamo else {})).items():
        held: Any = {"options": options}
        for name in path.split("."):
            held = held.get(name) if isinstance(held, Mapping) else None
        if held is not None and held not in known:
            found.append(f"{path.removeprefix('options.')}: {held}")
    return found


def _unread(data: Mapping[str, Any], name: str, keys: Mapping[str, set[str]]) -> list[str]:
    """Return the keys of a JSON flag that the engine passes over, also inside its nested settings."""
    found = [key for key in data if key not in keys[name]]
    for key, held in data.items():
        if f"{name}.{key}" in keys and isinstance(held, dict):
            found += [f"{key}.{inner}" for inner in _unread(held, f"{name}.{key}", keys)]
    return found
