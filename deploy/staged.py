"""A migration as files: a Kustomize folder for every stage, and scripts that go from one to the next and back."""

from deploy.layout import laid_out
from deploy.render import Deployment, render
from deploy.site import Site
from ground.errors import BadInput
from planner.engines.spec import EngineProfile, PlatformKind
from planner.manifest.migration import Staged, Step, manifest_hash, same_content
from planner.manifest.schema import Pool

MARGIN_SECONDS = 600  # beyond the planned load, before pods that are not ready stop a rollout


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
    steps = staged.migration.steps
    forth = [_stage(made, number, step) for number, step in enumerate(steps, start=1)]
    files["rollout.sh"] = _script(made, forth, "Goes from the first stage to the last one.")
    back = [_stage(made, number, step) for number, step in reversed(list(enumerate(steps)))]
    files["rollback.sh"] = _script(made, back, "Goes back to the first stage, one stage at a time.")
    return files


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


def _stage(made: list[Deployment], number: int, step: Step) -> str:
    """Return the commands that bring a stage about: route past what goes, wait until it is empty, apply, wait."""
    folder, target = f"stage-{number:02d}", made[number].target
    label, space = f"app.kubernetes.io/part-of={target.name}", target.site.namespace
    wait = round(max((each.seconds for each in step.start), default=0.0) + MARGIN_SECONDS)
    lines = [f"echo '{folder}: {len(step.drain)} instances go, {len(step.start)} come'"]
    if step.drain and "router.yaml" in made[number].files:
        lines += [f'kubectl apply -f "$here/{folder}/base/router.yaml"', f"sleep {max(round(step.drain_seconds), 1)}"]
    lines += [
        f'kubectl apply -k "$here/{folder}/overlays/site" --prune -l {label}',
        f"kubectl wait --namespace {space} --for=condition=Ready pod -l {label} --timeout={wait}s",
    ]
    return "\n".join(lines)


def _script(made: list[Deployment], parts: list[str], purpose: str) -> str:
    head = [
        "#!/usr/bin/env bash",
        made[0].target.head(purpose),
        "set -euo pipefail",
        'here=$(cd "$(dirname "$0")" && pwd)',
    ]
    return "\n".join([*head, "", "\n\n".join(parts), ""])
