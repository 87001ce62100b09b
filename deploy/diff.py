"""Changes between two deployments, in an operator's words, from the text of their files alone."""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.reading.check import PROBLEMS, read_back
from deploy.reading.engines import Counted
from deploy.reading.flags import Flags, read_flags
from deploy.reading.nodes import read_nodes
from ground.errors import BadInput
from ground.files import files_below, read_text

ORIGIN = re.compile(r"# (?P<model>\S+) with (?P<title>.+) (?P<version>[0-9][0-9.]*), (?P<kind>[a-z-]+)\Z")
WORDS = {
    "devices": "devices per instance",
    "attention_tp": "attention TP",
    "attention_dp": "attention DP",
    "pp": "pipeline stages",
    "moe_ep": "EP",
    "redundant": "redundant experts",
    "drafts": "drafted tokens",
    "microbatches": "microbatches",
    "sequences": "requests per DP rank",
    "tokens": "tokens a step per DP rank",
    "longest": "longest request in tokens",
    "memory_frac": "share of device memory",
}
# Flags whose change is told in the words above already.
TOLD = re.compile(
    r"parallel.size|tp.size|dp.size|ep.size|pp.size|max.num|max.seqs|max.tokens|max.running|chunked.prefill|model.len"
    r"|context.length|memory|mem.fraction|eplb|redundant|speculative|micro|start.rank|node.rank|nnodes|max.concurrent"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A deployment as it was read from a folder or rendered: files, origin and what they add up to."""

    engine: str
    version: str
    kind: str
    files: Mapping[str, str]
    roles: Mapping[str, list[Counted]]
    flags: Mapping[str, Flags]


def read_folder(folder: Path, titles: Mapping[str, str]) -> Read:
    """Return the deployment in a folder; ``titles`` maps an engine's title to its name. BadInput where it is none."""
    if not os.path.isdir(folder):
        raise BadInput(f"--diff: {folder} is not a folder; give one that plan deploy wrote")
    readme = folder / "README.md"
    found = ORIGIN.match(read_text(readme).partition("\n")[0]) if os.path.isfile(readme) else None
    if found is None or found["title"] not in titles:
        raise BadInput(f"--diff: {folder} has no README.md of plan deploy; give a folder that plan deploy wrote")
    if os.path.isfile(folder / "Chart.yaml"):
        raise BadInput(f"--diff: {folder} is a Helm chart, whose values stand apart; give a plain or Kustomize folder")
    paths = [path for path in files_below(folder) if path.is_file() and path.name != "kustomization.yaml"]
    files = {path.name: read_text(path) for path in paths}
    return read_files(str(folder), titles[found["title"]], found["version"], found["kind"], files)


def read_files(where: str, engine: str, version: str, kind: str, files: Mapping[str, str]) -> Read:
    """Return what files add up to. BadInput where they cannot be read back."""
    try:
        any_may: dict[str, int] = defaultdict(lambda: 1)  # have experts: the manifest is not at hand
        roles = read_back(engine, kind, files, any_may)
        flags: dict[str, Flags] = {}
        for node in [] if kind == "motor" else read_nodes(kind, files):
            flags.setdefault(node.role, read_flags(node.processes[0].words))
    except PROBLEMS as error:
        raise BadInput(f"--diff: {where} cannot be read back: {type(error).__name__}: {error}") from None
    return Read(engine=engine, version=version, kind=kind, files=files, roles=roles, flags=flags)


def differences(old: Read, new: Read) -> list[str]:
    """Return what changes from ``old`` to ``new``, the weightiest first; empty where nothing does."""
    wholes = [(f"{each.engine} {each.version}", each.kind, f"{_devices(each)}") for each in (old, new)]
    named = zip(("engine", "kind", "devices in all"), *wholes, strict=True)
    lines = [f"{what}: {a} -> {b}" for what, a, b in named if a != b]
    for role in sorted({*old.roles, *new.roles}):
        lines += _role(role, old, new)
    return [*lines, *_files(old, new)]


def _devices(read: Read) -> int:
    return sum(counted.devices for held in read.roles.values() for counted in held)


def _role(role: str, old: Read, new: Read) -> Iterator[str]:
    """Yield the changes of one role."""
    before, after = old.roles.get(role, []), new.roles.get(role, [])
    if not before or not after:
        known = before or after
        total = sum(counted.devices for counted in known)
        yield f"{role}: {'goes' if before else 'comes'}, {len(known)} instances on {total} devices"
        return
    if len(before) != len(after):
        yield f"{role}: instances {len(before)} -> {len(after)}"
    changed = [
        f"{role}: {word} {ours} -> {theirs}"
        for name, word in WORDS.items()
        if (ours := getattr(before[0], name)) != (theirs := getattr(after[0], name))
    ]
    if old.engine == new.engine:
        changed += [f"{role}: {line}" for line in _flags(old.flags.get(role, {}), new.flags.get(role, {}))]
    yield from changed
    if changed or old.engine != new.engine:
        yield f"{role}: every instance restarts"


def _flags(before: Flags, after: Flags) -> Iterator[str]:
    """Yield flags that come, go or change, unless their change was told already."""
    for name in sorted({*before, *after}):
        if TOLD.search(name):
            continue
        if name not in after:
            yield f"{name} goes"
        elif name not in before:
            yield f"{name} comes" + ("" if after[name] is None else f": {after[name]}")
        elif before[name] != after[name]:
            yield f"{name} {before[name]} -> {after[name]}"


def _files(old: Read, new: Read) -> Iterator[str]:
    """Yield files that come, go or differ beyond the lines that say where they come from."""
    for name in sorted({*old.files, *new.files} - {"README.md"}):
        if name not in new.files:
            yield f"file {name} goes"
        elif name not in old.files:
            yield f"file {name} comes"
        elif _body(old.files[name]) != _body(new.files[name]):
            yield f"file {name} changes"


def _body(text: str) -> str:
    """Return a file without its origin."""
    return re.sub(r"Generated by podplan .*|podplan/(version|manifest-sha256): .*", "", text)
