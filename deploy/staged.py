"""A migration as files: a Kustomize folder for every stage, and scripts that go from one to the next and back."""

from collections.abc import Iterator
from dataclasses import replace

from deploy.layout import OPTIONAL, PROOF, laid_out
from deploy.reading.nodes import read_documents
from deploy.render import Deployment, render, router_file
from deploy.site import Site
from ground.errors import BadInput
from planner.engines.spec import EngineProfile, PlatformKind
from planner.manifest.migration import Staged, Step, manifest_hash, same_content
from planner.manifest.schema import Pool

HERE = 'here=$(cd "$(dirname "$0")" && pwd)'
MARGIN_SECONDS = 600  # beyond the planned load, before pods that are not ready stop a rollout
# A stage states replicas anew that an autoscaler may have set; objects over 262 kB take no annotation of the client's.
APPLY = "kubectl apply --server-side --force-conflicts"
READY = {  # what is waited for, by kind
    "leaderworkerset.v1.leaderworkerset.x-k8s.io": "jsonpath='{{.status.readyReplicas}}'={}",
    "job.v1alpha1.batch.volcano.sh": "jsonpath='{{.status.state.phase}}'=Running",
    "dynamographdeployment.v1beta1.nvidia.com": "condition=Ready",
}


def staged_files(staged: Staged, profile: EngineProfile, kind: PlatformKind, site: Site) -> dict[str, str]:
    """Return the files of every stage by their path, with rollout.sh and rollback.sh.

    A pool keeps its name from stage to stage, so that what stays is not started anew.

    Raises BadInput for platforms without Kubernetes objects, Infeasible where the engine cannot run a stage.
    """
    if kind in ("bare", "slurm", "motor"):
        raise BadInput(
            f"--migration: stages are folders of Kubernetes objects, which {kind} has none of; deploy each stage"
        )
    names = _names(staged)
    made = [
        render(stage, profile, kind, site, manifest_hash(stage), own)
        for stage, own in zip(staged.stages, names, strict=True)
    ]
    files = {
        f"stage-{number:02d}/{name}": text
        for number, one in enumerate(made)
        for name, text in laid_out("kustomize", one.target, one.files).items()
    }
    steps = list(enumerate(staged.migration.steps))
    forth = [(n, n + 1, len(step.drain), len(step.start), step) for n, step in steps]
    back = [(n + 1, n, len(step.start), len(step.drain), step) for n, step in reversed(steps)]
    for script, ways, purpose in (
        ("rollout", forth, "Goes from the first stage to the last one."),
        ("rollback", back, "Goes back to the first stage by every stage."),
    ):
        parts, longest = [], max((step.drain_seconds for _, step in steps), default=0.0)
        for before, after, gone, come, step in ways:
            drain = f"{script}-{after:02d}-router.yaml"
            kept = _routed(made[before], made[after]) if gone else None
            files |= {drain: kept} if kept else {}
            lines = [f"echo 'stage-{after:02d}: {gone} instances go, {come} come'"]
            lines += _stage(made[before], made[after], f"stage-{after:02d}", step, (drain, longest) if kept else None)
            parts.append("\n".join(lines))
        head = f"#!/usr/bin/env bash\n{made[0].target.head(purpose)}\nset -euo pipefail\n" + HERE
        files[f"{script}.sh"] = "\n".join([head, "", "\n\n".join(parts), ""])
    return files


def _routed(before: Deployment, after: Deployment) -> str | None:
    """Return the router of what stays between two stages, the first instances of a pool; None where nothing serves."""
    left = {role.name: len(role.instances) for role in after.target.roles}
    roles = [replace(role, instances=role.instances[: left.get(role.name, 0)]) for role in before.target.roles]
    kept = replace(before.target, roles=tuple(role for role in roles if role.instances))
    if {role.role for role in kept.roles} != {role.role for role in roles}:
        return None
    return router_file(kept)


def _names(staged: Staged) -> list[list[str]]:
    """Return of each stage the names of its pools: the role's, with a number where it is not the first of its kind."""
    known: list[tuple[Pool, str]] = []

    def name(pool: Pool) -> str:
        for other, told in known:
            if same_content(other, pool):
                return told
        count = sum(other.role == pool.role for other, _ in known)
        known.append((pool, f"{pool.role}-{count + 1}" if count else pool.role))
        return known[-1][1]

    return [[name(pool) for pool in stage.pools] for stage in staged.stages]


def _stage(
    before: Deployment, after: Deployment, folder: str, step: Step, drain: tuple[str, float] | None
) -> Iterator[str]:
    """Yield the commands from one stage to another: route past what goes, take it away once empty, apply, wait.

    What goes is deleted by name. ``kubectl apply --prune`` finds no custom resources by itself, and takes whatever else
    has the label. Pods that end are waited for, since a wait for ready pods would wait for those as well.
    """
    space = f"--namespace {after.target.site.namespace}"
    wait = round(max((each.seconds for each in step.start), default=0.0) + MARGIN_SECONDS)
    router = f"kubectl rollout status {space} --timeout={wait}s deployment/{after.target.name}-router"
    if drain:
        yield f'{APPLY} -f "$here/{drain[0]}"'
        yield router
        yield f"sleep {max(round(drain[1]), 1)}"
    kept = _objects(after)
    for optional in (False, True):  # whose operators may be missing
        if gone := [f"{kind}/{name}" for kind, name in _objects(before, optional) if (kind, name) not in kept]:
            anyway = " || true" if optional else ""
            yield f"kubectl delete {space} --ignore-not-found --cascade=foreground {' '.join(gone)}{anyway}"
    yield f'{APPLY} -k "$here/{folder}/overlays/site"'
    for (kind, name), replicas in kept.items():
        if kind in READY:
            yield f"kubectl wait {space} --timeout={wait}s --for={READY[kind].format(replicas)} {kind}/{name}"
        elif kind.startswith("statefulset"):
            yield f"kubectl rollout status {space} --timeout={wait}s {kind}/{name}"
        if kind.endswith("volcano.sh"):
            yield f"kubectl wait {space} --timeout={wait}s --for=condition=Ready pod -l volcano.sh/job-name={name}"
    if "router.yaml" in after.files:
        yield router


def _objects(made: Deployment, optional: bool | None = None) -> dict[tuple[str, str], int]:
    """Return the replicas of the objects of a stage's overlay, those of its options or the others, None for all.

    They are named by their kind with its group, and by their name.
    """
    found = {}
    for sheet, text in made.files.items():
        name = sheet.removesuffix(".yaml")
        if name == sheet or name in PROOF or optional not in (None, name in OPTIONAL):
            continue
        for item in read_documents(text, sheet):
            group, _, version = item["apiVersion"].rpartition("/")
            kind = item["kind"].lower() + (f".{version}.{group}" if group else "")
            found[kind, item["metadata"]["name"]] = item.get("spec", {}).get("replicas", 1)
    return found
