"""`plan deploy`: the files that start a manifest with a serving engine."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from cli.options import JSON, takes
from cli.output import Outputs, Screen, print_json
from deploy.diff import differences, read_files, read_folder
from deploy.guide import arithmetic, limits, memories
from deploy.layout import Layout, laid_out
from deploy.render import Deployment, render
from deploy.site import read_site
from deploy.staged import staged_files
from ground.errors import BadInput
from ground.files import first_bytes, write_files
from planner.engines.loader import accelerator_of, all_engines, engine_names, load_engine
from planner.engines.spec import EngineProfile, PlatformKind
from planner.manifest.document import read_manifest
from planner.manifest.migration import read_migration
from planner.manifest.schema import Manifest
from podplan.options import Flags, Text, argument, flag, switch
from podplan.readers import read_choice
from podplan.result import picked

Platform = Literal["bare", "slurm", "kubernetes"]
PLATFORMS: tuple[Platform, ...] = get_args(Platform)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployFlags(Flags):
    """Flags as they were typed; None where one was not given."""

    manifest: Path = argument("MANIFEST", "The manifest, such as out/manifest.yaml.")
    engine: Text = flag("E", "Engine, such as vllm or vllm@0.33.0 [the plan's].")
    platform: str = flag("P", "bare (hosts), slurm or kubernetes.", default="bare")
    kind: Text = flag("K", "lws, statefulset, volcano, dynamo, llm-d or motor [lws].")
    layout: str = flag("L", "plain, kustomize or helm, on Kubernetes.", default="plain")
    out: Path | None = flag("DIR", "Folder to write; it must be empty or absent.")
    values: Path | None = flag("FILE", "Images, names, storage, hosts of the site.")
    migration: Path | None = flag("FILE", "Write every stage of a migration.yaml of plan migrate, and the rollout.")
    diff: Path | None = flag("OLD", "Say what changes from the deployment in OLD.")
    dry_run: bool = switch("Print the tree and the devices, write nothing.")
    force: bool = switch("Write into a folder that has files.")


@takes(DeployFlags)
def command(flags: DeployFlags, json: bool = JSON) -> None:
    """Write the files that start a manifest with a serving engine, counted back against it first.

    \b
    Examples:
      plan deploy out/manifest.yaml --engine vllm-ascend --out deploy/
      plan deploy out/manifest.yaml --engine vllm --platform kubernetes --kind lws --out deploy/
      plan deploy out/manifest.yaml --engine sglang --values site.yaml --out deploy/
      plan deploy out/manifest.yaml --engine sglang --diff deploy/
      plan deploy out/manifest.yaml --engine xllm --dry-run
      plan deploy now.yaml --migration change/migration.yaml --engine vllm --platform kubernetes --out files/

    Nothing here was launched on hardware; docs/deploy.md says what is validated and what is not.
    """
    first_bytes(flags.manifest, 0)  # it is read again for its digest
    read = read_manifest(flags.manifest)
    profile = load_engine(flags.engine or planned_engine(read))
    chosen = _kind(profile, read, flags.platform, flags.kind)
    if flags.out is None and not flags.dry_run and flags.diff is None:
        raise BadInput("--out: give the folder to write, or --dry-run to see what it would hold")
    Outputs(flags.force, {"--out DIR": flags.out}, {"--out": ()})
    digest = hashlib.sha256(flags.manifest.read_bytes()).hexdigest()
    if flags.migration is not None:
        _staged(flags, read, profile, chosen, json)
        return
    made = render(read, profile, chosen, read_site(flags.values), digest)
    changes = None if flags.diff is None else _changes(flags.diff, made)
    layout: Layout = read_choice(flags.layout, "--layout", get_args(Layout))
    if layout != "plain" and (made.target.bare or made.target.kind == "motor"):
        raise BadInput(f"--layout: {layout} is of Kubernetes objects; {made.target.kind} has none, leave it out")
    made = replace(made, files=laid_out(layout, made.target, made.files))
    if flags.out is not None and not flags.dry_run:
        _write(made.files, flags.out, flags.force)
    data = _data(made, changes, None if flags.dry_run else flags.out)
    print_json(data) if json else _show(made, changes, flags.out, flags.dry_run)


def _staged(flags: DeployFlags, read: Manifest, profile: EngineProfile, kind: PlatformKind, json: bool) -> None:
    """Write the files of every stage of a migration, and what rolls it out and back."""
    if flags.diff is not None or flags.layout != "plain" or flags.dry_run:
        raise BadInput("--migration: writes Kustomize folders, one a stage; leave --diff, --layout and --dry-run out")
    assert flags.migration is not None and flags.out is not None, "both are given"
    staged = read_migration(flags.migration, begin=read)
    files = staged_files(staged, profile, kind, read_site(flags.values))
    _write(files, flags.out, flags.force)
    if json:
        sizes = {name: len(text.encode()) for name, text in files.items()}
        print_json({"stages": len(staged.stages), "files_bytes": sizes})
        return
    Screen().lines(
        f"Wrote {len(files)} files of {len(staged.stages)} stages to {flags.out}/: rollout.sh goes through them,",
        "rollback.sh back to the first. Never launched on hardware by podplan: check before use.",
    )


def planned_engine(read: Manifest) -> str:
    """Return the engine that a manifest was planned for. BadInput for the reference runtime, which needs no files."""
    if read.engine.id == "reference":
        known = ", ".join(name for name in engine_names() if name != "reference")
        raise BadInput(f"--engine: the plan was made for no engine of its own; give one of {known}")
    return f"{read.engine.id}@{read.engine.version}"


def _kind(profile: EngineProfile, read: Manifest, platform: str, kind: str | None) -> PlatformKind:
    """Return the kind that platform and flag mean; BadInput where they contradict."""
    where = read_choice(platform, "--platform", PLATFORMS)
    kinds: tuple[PlatformKind, ...] = get_args(PlatformKind)
    if where != "kubernetes":
        if kind not in (None, where):
            raise BadInput(f"--kind: {kind} is a kind of Kubernetes files; add --platform kubernetes or leave it out")
        return where
    known = tuple(name for name in kinds if name not in PLATFORMS)
    if kind is not None:
        return read_choice(kind, "--kind", known)
    accelerator = accelerator_of(read.clusters[read.pools[0].hardware].spec)
    wide = any(len(instance.nodes) > 1 for pool in read.pools for instance in pool.instances)
    barred = profile.one_node.value if wide and profile.one_node else ()
    possible = [name for name, held in profile.kinds.items() if name in known and accelerator in held.accelerators]
    return next((name for name in possible if name not in barred), possible[0] if possible else "lws")


def _changes(old: Path, made: Deployment) -> list[str]:
    """Return what changes from the deployment in ``old``."""
    before = read_folder(old, {profile.title: profile.engine for profile in all_engines()})
    after = read_files(
        "the new deployment", made.target.profile.engine, made.target.version, made.target.kind, made.files
    )
    return differences(before, after)


def _write(files: Mapping[str, str], out: Path, force: bool) -> None:
    """Write all files or none, only into a folder without files unless forced."""
    if out.is_dir() and not force:
        held = sorted(path.name for path in out.iterdir())
        if held:
            raise BadInput(f"--out: {out} has files in it, such as {held[0]}; give an empty folder or --force")
    write_files({out / name: text for name, text in files.items()}, force=force)


def _data(made: Deployment, changes: list[str] | None, out: Path | None) -> dict[str, object]:
    roles = [
        {
            **picked(role, "role=name nodes_per_instance=nodes devices_per_node"),
            "instances": len(role.instances),
            "devices": role.devices * len(role.instances),
            **picked(role, "requests_per_dp_rank=sequences tokens_per_dp_rank=tokens longest_request_tokens=longest"),
        }
        for role in made.target.roles
    ]
    return {
        **picked(made.target, "engine=profile.engine engine_version=version kind manifest_sha256"),
        "roles": roles,
        "devices": sum(role.devices * len(role.instances) for role in made.target.roles),
        "files_bytes": {name: len(text.encode()) for name, text in sorted(made.files.items())},
        "written_to": None if out is None else str(out),
        **({} if changes is None else {"changes": changes}),
    }


def _show(made: Deployment, changes: list[str] | None, out: Path | None, dry_run: bool) -> None:
    """Print the tree, the arithmetic of devices and what changes."""
    if changes is not None:
        Screen().lines(*changes or ["Nothing changes."])
        if out is None:
            return
    target, verb = made.target, "Would write" if dry_run or out is None else "Wrote"
    where = "" if out is None else f" to {out}/"
    count, size = len(made.files), sum(len(text.encode()) for text in made.files.values())
    held = list(memories(made.target))
    Screen().lines(
        f"{verb} {count} files, {size} bytes{where}, for {target.profile.title} {target.version}, {target.kind}:",
        *(f"  {name}" for name in sorted(made.files)),
        "Devices:",
        *(f"  {line}" for line in arithmetic(made.target)),
        "Limits:",
        *(f"  {line}" for line in limits(made.target)),
        *(["Memory of a device:", *(f"  {line}" for line in held)] if held else []),
        "Read back and equal to the manifest. Never launched on hardware by podplan: check before use.",
    )
