"""From ``vllm`` or ``vllm@0.33.0`` to an engine's profile; which engines run on a machine and have code for a model."""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ground.errors import BadInput, suggest
from ground.files import read_yaml
from ground.records import from_dict
from hardware.spec import HardwareSpec
from planner.engines.memory import Generation
from planner.engines.rules import Broken, broken_drafts
from planner.engines.spec import ACCELERATORS, Accelerator, EngineProfile, Orchestrator, RoleName, ShapeName

CATALOGUE = Path(__file__).parent / "catalog"
ORCHESTRATORS = Path(__file__).parent / "orchestrators"
# The vendor is in the title of every device of the catalogue; "910" is how Ascend parts are named without it.
WORDS: dict[str, Accelerator] = {"nvidia": "nvidia", "amd": "amd", "ascend": "ascend", "910": "ascend"}
GENERATIONS: dict[str, Generation] = {
    "910b": "a2",
    "910c": "a3",
    "ascend 950": "a5",
    "amd mi30": "mi30x",  # gfx942
    "amd mi32": "mi30x",
    "amd mi35": "mi35x",  # gfx950
}


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


def accelerator_of(hardware: HardwareSpec) -> Accelerator | None:
    """Return the kind of a machine's devices by the words of its title, None where no engine here knows them."""
    return next((kind for word, kind in WORDS.items() if word in _titles(hardware)), None)


def is_blackwell(hardware: HardwareSpec) -> bool:
    """Whether a machine's devices are NVIDIA's of the Blackwell generation: the first that multiply NVFP4."""
    return accelerator_of(hardware) == "nvidia" and "nvfp4" in hardware.device.peak_flops_per_second


def on_pcie(hardware: HardwareSpec) -> bool:
    """Whether PCIe alone joins the devices of a node."""
    return hardware.scopes[0].plane == "pcie"


def generation_of(hardware: HardwareSpec) -> Generation | None:
    """Return the generation of a machine's Ascend or AMD devices by the words of its title, None of others.

    A 910 that says no more is of A3 where two of its devices are a chip, else of A2.
    """
    named = next((kind for word, kind in GENERATIONS.items() if word in _titles(hardware)), None)
    if named is not None or "910" not in _titles(hardware):
        return named
    return "a3" if hardware.devices_per_chip.value == 2 else "a2"


def _titles(hardware: HardwareSpec) -> str:
    return f"{hardware.device.title} {hardware.title}".lower()


def runs_on(engine: str, hardware: HardwareSpec) -> bool:
    """Whether ``reference`` or NAME@VERSION runs on a machine's devices."""
    return engine == "reference" or broken_accelerator(load_engine(engine), hardware) is None


def broken_accelerator(profile: EngineProfile, hardware: HardwareSpec) -> Broken | None:
    """Return the rule that a machine breaks: the reference engine runs on all, others on the devices they name."""
    fact = profile.accelerators
    if profile.engine == "reference" or accelerator_of(hardware) in fact.value:
        return None
    sentence = (
        f"{profile.title} runs here on {' and '.join(ACCELERATORS[kind] for kind in fact.value)} devices, "
        f"not on {hardware.device.title}"
    )
    return Broken("accelerator", sentence, fact.source)


def broken_span(profile: EngineProfile, machines: Sequence[HardwareSpec]) -> Broken | None:
    """Return the rule that machines of several kinds break: no engine is known to move KV between such."""
    kinds = sorted({kind for machine in machines if (kind := accelerator_of(machine))})
    if profile.engine == "reference" or len(kinds) < 2:
        return None
    named = " and ".join(ACCELERATORS[kind] for kind in kinds)
    sentence = f"{profile.title} is not known to move keys and values between {named} devices"
    return Broken("accelerator", sentence, profile.prefill_decode.same.source)


def broken_encoder(
    profile: EngineProfile, shape: ShapeName, architecture: str, accelerator: Accelerator | None = None
) -> Broken | None:
    """Return the rule that encode instances before a shape break, None where the engine has them for the model."""
    fact, unread = profile.encode_pools, profile.encode_lacks
    shapes = fact.of(accelerator)
    if shape in shapes and unread is not None and architecture in unread.value:
        sentence = f"{profile.title} refuses encode instances for models of type {architecture!r}; use --encode fused"
        return Broken("encode-pools", sentence, unread.source)
    if shape in shapes:
        return None
    sentence = f"{profile.title} encodes pictures within prefill as it is started here; use --encode fused"
    if shapes:
        able = shapes[0]
        sentence = f"{profile.title} has encode instances before {able} ones alone; use --shape {able}"
    return Broken("encode-pools", sentence, fact.source)


def broken_prefixes(profile: EngineProfile, role: RoleName, reused: bool) -> Broken | None:
    """Return the rule that reused prefixes break in prefill and decode apart, None where the engine caches them."""
    fact = profile.prefill_decode.prefixes
    if not reused or role not in ("prefill", "decode") or fact is None or fact.value:
        return None
    sentence = f"{profile.title} caches no prefixes where prefill and decode are apart; use --shape aggregated"
    return Broken("pair-prefixes", sentence, fact.source)


def broken_model(profile: EngineProfile, architecture: str) -> Broken | None:
    """Return the rule that a ``model_type`` breaks where the engine's pinned release has no code for it."""
    fact = profile.lacks
    if architecture not in fact.value:
        return None
    sentence = f"{profile.title} {profile.versions.pinned} has no code for models of type {architecture!r}"
    return Broken("model", sentence, fact.source)


class Needs(NamedTuple):
    """What an engine must have to be a choice."""

    machines: Sequence[HardwareSpec]
    architecture: str  # ``model_type``
    drafts: bool = False  # whether tokens are to be drafted (MTP)

    def missing(self, profile: EngineProfile) -> Iterator[Broken]:
        """Yield the rules that an engine breaks."""
        rules = [broken_model(profile, self.architecture)]
        rules += [broken_accelerator(profile, machine) for machine in self.machines]
        rules.append(broken_span(profile, self.machines))
        if self.drafts:
            rules.append(broken_drafts(profile, self.architecture))
        yield from (rule for rule in rules if rule is not None)

    def engines(self) -> list[EngineProfile]:
        """Return the engines of the catalogue, but the reference, that have it."""
        return [profile for profile in _others() if next(self.missing(profile), None) is None]

    def lacking(self) -> list[tuple[str, Broken]]:
        """Return the engines, NAME@VERSION, that run on the machines and lack something else, and what."""
        found = [(profile, list(self.missing(profile))) for profile in _others()]
        return [
            (f"{profile.engine}@{profile.versions.pinned}", rules[0])
            for profile, rules in found
            if rules and all(rule.rule != "accelerator" for rule in rules)
        ]


def _others() -> list[EngineProfile]:
    """Return the engines of the catalogue but the reference."""
    return [load_engine(name) for name in engine_names() if name != "reference"]
