"""From a manifest to all files of a deployment, counted back before anyone sees them."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy import bare, ranktable
from deploy.commands import mindie, sglang, vllm, vllm_ascend, xllm
from deploy.commands.launch import Launch, Target
from deploy.guide import guide
from deploy.header import Provenance, comment, provenance
from deploy.inventory import Inventory, read_inventory
from deploy.kubernetes import dynamo, llmd, lws, objects, statefulset, volcano
from deploy.kubernetes.pods import Object
from deploy.reading.check import check_round_trip
from deploy.roles import RolePlan, read_roles
from deploy.routers import ETCD_PORT, etcd_command, router_of, router_script
from deploy.site import Site
from ground.errors import BadInput
from ground.files import to_yaml
from ground.version import VERSION
from planner.engines.spec import EngineProfile, PlatformKind
from planner.manifest.schema import Manifest

SAFE_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
COMMANDS: dict[str, Callable[[Target, RolePlan], Launch]] = {
    "vllm": vllm.launch,
    "vllm-ascend": vllm_ascend.launch,
    "sglang": sglang.launch,
    "xllm": xllm.launch,
    "mindie": mindie.launch,
}
WORKLOADS = {"lws": lws, "statefulset": statefulset, "volcano": volcano}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Files by name, and what they were made from."""

    target: Target
    origin: Provenance
    files: dict[str, str]


def render(
    manifest: Manifest, profile: EngineProfile, kind: PlatformKind, site: Site, manifest_sha256: str
) -> Deployment:
    """Return the files of a deployment after they were read back and held against the manifest.

    Raises:
        BadInput: the kind is not possible for the engine, or site values do not fit the plan.
        Infeasible: the engine cannot run the plan; the message names the rule and the nearest strategy.
        Fault: what was rendered does not add up to the manifest.
    """
    named = deployment_name(manifest)
    roles = read_roles(manifest, profile, site.longest_request_tokens)
    inventory = read_inventory(Path(site.inventory), manifest) if site.inventory else None
    target = Target(
        profile=profile,
        kind=kind,
        site=site,
        name=site.name or named,
        roles=tuple(roles),
        levels=manifest.service_levels,
    )
    check_kind(target)
    origin = provenance(profile, VERSION, manifest_sha256)
    files = dict(_files(target, inventory, origin))
    check_round_trip(target, files)
    files["README.md"] = guide(target, origin, files)
    return Deployment(target=target, origin=origin, files=files)


def deployment_name(manifest: Manifest) -> str:
    """Return the model's name as Kubernetes takes names. BadInput where a name cannot stand in commands at all."""
    for field, name in [
        ("model.spec.name", manifest.model.spec.name),
        *((f"clusters.{n}", n) for n in manifest.clusters),
    ]:
        if not SAFE_NAME.fullmatch(name):
            raise BadInput(f"{field}: {name[:40]!r} must have ASCII letters, digits and . _ - alone to stand in files")
    return re.sub(r"[^a-z0-9]", "-", manifest.model.spec.name.lower())[:30].strip("-") or "model"


def check_kind(target: Target) -> None:
    """Raise BadInput where the engine's profile does not mark the kind possible for these devices."""
    profile, kind = target.profile, target.kind
    entry = profile.kinds.get(kind)
    possible = [name for name, held in profile.kinds.items() if target.roles[0].accelerator in held.accelerators]
    if entry is None or target.roles[0].accelerator not in entry.accelerators:
        why = entry.reason if entry and entry.reason else f"{profile.title} has no such files"
        instead = f"use {' or '.join(possible)}" if possible else "it runs with plan simulate and plan execute"
        raise BadInput(f"--kind: {kind} is not possible with {profile.title}: {why}; {instead}")
    accelerators = {role.accelerator for role in target.roles}
    if len(accelerators) > 1:
        raise BadInput(f"--engine: {profile.title} cannot span {' and '.join(sorted(accelerators))} devices")
    _check_pools(target)
    if profile.engine == "mindie" and (kind == "motor") != (target.role("decode") is not None):
        raise BadInput(
            "--platform: MindIE takes prefill and decode apart through Motor, on kubernetes, and aggregated instances "
            f"bare; this plan needs --platform {'kubernetes --kind motor' if kind == 'bare' else 'bare'}"
        )


def _check_pools(target: Target) -> None:
    """Raise BadInput for pools that one router, one chart or one connector cannot tell apart."""
    held = [role.role for role in target.roles]
    if "mixed" in held and len(set(held)) > 1:
        raise BadInput("--engine: aggregated instances beside prefill and decode need a router each; plan one of both")
    single = target.kind in ("llm-d", "motor") or target.profile.engine == "vllm-ascend"
    if single and len(set(held)) < len(held):
        raise BadInput(f"--engine: {target.profile.title} with {target.kind} takes one pool of each role, not {held}")


def _files(target: Target, inventory: Inventory | None, origin: Provenance) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of every file."""
    if target.kind == "motor":
        yield "user_config.json", json.dumps(mindie.motor(target), indent=2) + "\n"
        for role in target.roles:
            yield from mindie.map_files(role).items()
        return
    launches = {role.name: COMMANDS[target.profile.engine](target, role) for role in target.roles}
    if target.kind == "bare":
        yield from _bare(target, launches, inventory, origin)
    else:
        yield from _kubernetes(target, launches, origin)


def _bare(
    target: Target, launches: Mapping[str, Launch], inventory: Inventory | None, origin: Provenance
) -> Iterator[tuple[str, str]]:
    yield from bare.bare_files(target, launches, inventory, origin).items()
    router = router_of(target, launches, lambda role, n, node: bare.address(role, n, node, inventory))
    if router:
        yield "router.sh", router_script(router, origin)
    if target.profile.engine == "xllm" and target.site.etcd_address is None:
        here = bare.address(target.roles[-1], 0, 0, inventory)
        run = " ".join(etcd_command(f"{here}:{ETCD_PORT}"))
        lines = ["#!/usr/bin/env bash", *comment(origin, f"Starts etcd on {here}, before everything else.")]
        yield "etcd.sh", "\n".join([*lines, "set -euo pipefail", "", f"exec {run}"]) + "\n"
    for role in target.roles:
        if target.profile.engine in ("xllm", "mindie") and role.nodes > 1:
            yield from ranktable.rank_table_files(role, inventory, origin).items()


def _kubernetes(target: Target, launches: dict[str, Launch], origin: Provenance) -> Iterator[tuple[str, str]]:
    """Yield one YAML per concern: priorities first, then each role, the router last."""
    priorities = list(objects.priority_classes(target, origin))
    yield "priorities.yaml", documents(origin, "Decode comes back before prefill.", priorities)
    if target.kind in ("dynamo", "llm-d"):
        for name, launch in launches.items():
            if launch.files:
                carried = objects.config_map(target, launch, origin)
                yield f"{name}-files.yaml", documents(origin, f"Files of the role {name}.", [carried])
        if target.kind == "dynamo":
            graph = dynamo.graph(target, launches, origin)
            yield "graph.yaml", documents(origin, "NVIDIA Dynamo's deployment graph.", [graph])
        else:
            chart = llmd.values(target, launches, origin)
            yield "values.yaml", documents(origin, "helm install -f values.yaml, chart llm-d-modelservice.", [chart])
        return
    module = WORKLOADS[target.kind]
    for name, launch in launches.items():
        held = [objects.config_map(target, launch, origin), *module.workloads(target, launch, origin)]
        yield f"{name}.yaml", documents(origin, f"The role {name}.", held)
    router = router_of(target, launches, lambda role, n, node: module.address(target, launches[role.name], n, node))
    if router:
        held = list(objects.router_objects(target, router, origin))
        if target.profile.engine == "xllm" and target.site.etcd_address is None:
            held += objects.etcd_objects(target, origin)
        yield "router.yaml", documents(origin, "What spreads requests over instances.", held)


def documents(origin: Provenance, purpose: str, held: list[Object]) -> str:
    """Return YAML documents under their origin."""
    return "\n".join(comment(origin, purpose)) + "\n" + "---\n".join(to_yaml(item) for item in held)
