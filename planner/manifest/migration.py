"""A change from one manifest to another in stages: the contract between who plans it, who plays it and who writes it.

A step first drains instances (nothing new comes to them, what they have is finished), then starts others on the
devices that are free. Each stage is a manifest of its own, complete and valid, of what runs when its step has ended.
"""

import hashlib
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from ground.errors import BadInput
from ground.files import read_yaml
from ground.records import Name
from ground.strict import Strict
from ground.validation import validate
from planner.manifest.costs import Amount, Rate, Share
from planner.manifest.document import read_manifest
from planner.manifest.layout import Instance
from planner.manifest.schema import Manifest, Pool, Sha256

How = Literal["flip", "experts", "load"]
"""What a started instance needs: another role on the same weights, some experts, or all weights."""
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.yaml$")]
MOST_STEPS = 500
MOST_TOUCHED = 4_096


class Start(Strict):
    """An instance of the step's stage that begins to serve."""

    name: Name
    how: How
    seconds: Amount = Field(description="from free devices until it serves")
    bytes: Amount = Field(description="of weights that are brought to its devices")
    source: Name | None = Field(default=None, description="where they come from: host, peers or storage")
    plane: Name | None = Field(default=None, description="that carries them")


class Step(Strict):
    """What one step does; its seconds are the longest of its parts, one after the other."""

    drain: list[Name] = Field(default=[], max_length=MOST_TOUCHED)
    drain_seconds: Amount = Field(description="at most; what still runs then is moved or computed again elsewhere")
    start: list[Start] = Field(default=[], max_length=MOST_TOUCHED)
    carries_per_second: Amount = Field(description="requests per second within the limits while it lasts")
    below_seconds: Amount = Field(description="of it and of working off what waited, in which limits are not promised")
    stage: FileName = Field(description="manifest of what runs when it has ended")

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return (self.drain_seconds if self.drain else 0.0) + max((each.seconds for each in self.start), default=0.0)


class Promise(Strict):
    """What holds while the steps run, at a rate and with a confidence in the predicted step times."""

    requests_per_second: Rate
    confidence: float = Field(ge=0.5, lt=1)
    seconds: Amount = Field(description="of all steps")
    below_seconds: Amount = Field(description="in which limits are not promised")
    attainment_within: Share = Field(description="of requests that arrive in the other seconds, both limits together")

    def attainment(self, window_seconds: float) -> float:
        """Share of the requests of a window that holds the whole change which keep both limits at least."""
        return self.attainment_within * max(1 - self.below_seconds / max(window_seconds, 1e-9), 0.0)


class Migration(Strict):
    """The steps from the manifest ``begin`` to the last step's stage."""

    migration_version: Literal[1]
    begin: FileName
    begin_sha256: Sha256
    steps: list[Step] = Field(max_length=MOST_STEPS)
    promise: Promise
    rollback: list[FileName] = Field(default=[], max_length=MOST_STEPS, description="stages in the order of going back")


class Staged(NamedTuple):
    """A migration with its manifests: the first one, then that of each step."""

    migration: Migration
    stages: tuple[Manifest, ...]


def read_migration(path: Path, begin: Manifest | None = None) -> Staged:
    """Return the migration in a file and the manifests beside it after every check.

    Raises BadInput naming file and field: unreadable, steps that do not lead from stage to stage, or that begin at
    another manifest than ``begin``.
    """
    migration = validate(Migration, read_yaml(path), str(path))
    names = [migration.begin, *(step.stage for step in migration.steps)]
    stages = tuple(read_manifest(path.parent / name) for name in names)
    if manifest_hash(stages[0]) != migration.begin_sha256:
        raise BadInput(
            f"{path}: begin_sha256: {migration.begin} was changed after the steps were planned; plan them anew"
        )
    if begin is not None and stages[0].pools != begin.pools:
        raise BadInput(f"--migration: the steps of {path} begin at another manifest; plan them from this one")
    for number, step in enumerate(migration.steps):
        before, after = instance_names(stages[number]), instance_names(stages[number + 1])
        started = {each.name for each in step.start}
        if not set(step.drain) <= before or (before - set(step.drain)) | started != after or started & before:
            raise BadInput(f"{path}: steps[{number}]: drain and start do not lead from {names[number]} to {step.stage}")
    return Staged(migration, stages)


def manifest_hash(manifest: Manifest) -> str:
    """Return the SHA-256 of what a manifest says, however it is written."""
    return hashlib.sha256(manifest.model_dump_json().encode()).hexdigest()


def instance_names(manifest: Manifest) -> set[str]:
    """Return the names of all instances."""
    return {instance.name for pool in manifest.pools for instance in pool.instances}


def same_content(one: Pool, other: Pool) -> bool:
    """Whether two pools differ at most in which instances they have and what was predicted of them."""
    return one.model_copy(update={"instances": other.instances, "predicted": other.predicted}) == other


def kinds_of(*manifests: Manifest) -> tuple[list[Pool], list[list[int]]]:
    """Return pools of different content, and of each manifest the kind of each of its pools."""
    kinds: list[Pool] = []
    numbers: list[list[int]] = []
    for manifest in manifests:
        own = []
        for pool in manifest.pools:
            found = next((at for at, known in enumerate(kinds) if same_content(known, pool)), len(kinds))
            if found == len(kinds):
                kinds.append(pool)
            own.append(found)
        numbers.append(own)
    return kinds, numbers


def union(stages: tuple[Manifest, ...]) -> Manifest:
    """Return the first manifest with the instances of every stage, each once; devices may stand twice in it."""
    kinds, numbers = kinds_of(*stages)
    held: list[dict[str, Instance]] = [{} for _ in kinds]
    for manifest, own in zip(stages, numbers, strict=True):
        for pool, kind in zip(manifest.pools, own, strict=True):
            for instance in pool.instances:
                held[kind].setdefault(instance.name, instance)
    pools = [pool.model_copy(update={"instances": [*own.values()]}) for pool, own in zip(kinds, held, strict=True)]
    clusters = {name: cluster for manifest in stages for name, cluster in manifest.clusters.items()}
    return stages[0].model_copy(update={"pools": pools, "clusters": clusters})
