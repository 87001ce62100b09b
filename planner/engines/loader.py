"""From ``vllm`` or ``vllm@0.33.0`` to an engine's profile."""

from functools import cache
from pathlib import Path
from typing import Any

from ground.errors import BadInput
from ground.files import read_yaml
from ground.from_dict import from_dict
from ground.names import suggest
from planner.engines.spec import EngineProfile, Orchestrator

CATALOGUE = Path(__file__).parent / "catalog"
ORCHESTRATORS = Path(__file__).parent / "orchestrators"


@cache
def engine_names() -> tuple[str, ...]:
    """Return the engines that have a profile, sorted, ``reference`` first; reads file names alone."""
    names = {path.stem.rpartition("@")[0] for path in CATALOGUE.glob("*.yaml")}
    return tuple(sorted(names, key=lambda name: (name != "reference", name)))


def load_engine(text: str) -> EngineProfile:
    """Return the profile of ``NAME`` (the newest range) or ``NAME@VERSION``.

    Raises BadInput naming the flag, with the known engines or the known versions.
    """
    name, _, version = text.strip().lower().partition("@")
    known = engine_names()
    if name not in known:
        raise BadInput(f"--engine: {name[:40]!r} is not one of {', '.join(known)}{suggest(name, known)}")
    profiles = _profiles(name)
    if not version:
        return profiles[-1]
    for profile in profiles:
        if _holds(profile, version):
            return profile
    ranges = ", ".join(f"{p.versions.first} up to (not including) {p.versions.before}" for p in profiles)
    raise BadInput(f"--engine: version {version[:20]!r} of {name} is not known; known are {ranges}")


def all_engines() -> list[EngineProfile]:
    """Return every profile, by engine and version."""
    return [profile for name in engine_names() for profile in _profiles(name)]


def load_orchestrator(name: str) -> Orchestrator:
    """Return the profile of ``dynamo`` or ``llm-d``."""
    return from_dict(Orchestrator, _read(ORCHESTRATORS / f"{name}.yaml"))


@cache
def _profiles(name: str) -> tuple[EngineProfile, ...]:
    found = [from_dict(EngineProfile, _read(path)) for path in CATALOGUE.glob(f"{name}@*.yaml")]
    return tuple(sorted(found, key=lambda profile: _number(profile.versions.first)))


def _read(path: Path) -> Any:
    """Return an entry as plain data; tests check it against the schema."""
    return read_yaml(path)


def _holds(profile: EngineProfile, version: str) -> bool:
    try:
        asked = _number(version.removeprefix("v"))
    except ValueError:
        return False
    return _number(profile.versions.first) <= asked < _number(profile.versions.before)


def _number(version: str) -> tuple[int, ...]:
    """Return 0.33.0 as (0, 33, 0), a post-release as its release; ValueError for anything else."""
    return tuple(int(part) for part in version.partition(".post")[0].split("."))
