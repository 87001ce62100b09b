"""Render a manifest as all files of a deployment, which are read back and compared before they are written."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.commands import mindie, sglang, trtllm, vllm, vllm_ascend, xllm
from deploy.commands.launch import Launch, Target
from deploy.guide import guide
from deploy.hosts import host_files
from deploy.inventory import Inventory, read_inventory
from deploy.kubernetes.files import engines, sheets, written
from deploy.memory import holding
from deploy.proof import Load, benchmark, load_of, smoke
from deploy.reading.check import check_round_trip
from deploy.roles import RolePlan, read_roles
from deploy.site import Site
from ground.errors import BadInput, Fault, Infeasible
from planner.engines.loader import generation_of, load_orchestrator
from planner.engines.memory import MOST_DISPATCHED, most_carried
from planner.engines.spec import EngineProfile, PlatformKind
from planner.manifest.schema import Manifest

SAFE_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
NO_ENCODERS: dict[PlatformKind, str] = {
    "dynamo": "Dynamo's encode worker encodes each request by itself on one device (ai-dynamo 1.6.1: "
    "dynamo/vllm/multimodal_handlers/encode_worker_handler.py), not in the batches of the plan",
    "llm-d": "llm-d's sidecar hands embeddings on over shared storage or NIXL (llm-d-router: "
    "pkg/sidecar/proxy/options.go), not over Mooncake, whose RDMA the plan counts",
}
KNOWN = {"ascend": "Ascend 910 (A2 and A3)", "amd": "AMD MI300X, MI325X and MI355X"}
COMMANDS: dict[str, Callable[[Target, RolePlan], Launch]] = {
    "vllm": vllm.launch,
    "vllm-ascend": vllm_ascend.launch,
    "sglang": sglang.launch,
    "xllm": xllm.launch,
    "trtllm": trtllm.launch,
    "mindie": mindie.launch,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Files by name, and what they were made from."""

    target: Target
    files: dict[str, str]


def render(
    manifest: Manifest,
    profile: EngineProfile,
    kind: PlatformKind,
    site: Site,
    manifest_sha256: str,
    names: Sequence[str] | None = None,
) -> Deployment:
    """Return the files of a deployment after they were read back and held against the manifest.

    Its roles have ``names``, pool by pool, where what runs already has them.

    Raises BadInput: the kind is not possible for the engine, or site values do not fit the plan; Infeasible: the engine
    cannot run the plan; the message names the rule and the nearest strategy; Fault: what was rendered does not add up
    to the manifest.
    """
    named = deployment_name(manifest)
    roles = read_roles(manifest, profile, site.longest_request_tokens, names)
    inventory = read_inventory(Path(site.inventory), manifest) if site.inventory else None
    version = profile.versions.pinned
    if kind == "dynamo":
        version = load_orchestrator("dynamo").engines.value.get(profile.engine, version)
    target = Target(
        profile=profile,
        kind=kind,
        site=site,
        name=site.name or named,
        roles=tuple(roles),
        levels=manifest.service_levels,
        version=version,
        manifest_sha256=manifest_sha256,
    )
    check_kind(target)
    files = _checked(target, lambda held: dict(_files(held, inventory, load_of(manifest, held))))
    files["README.md"] = guide(target, files)
    return Deployment(target=target, files=files)


def _checked(target: Target, files_of: Callable[[Target], dict[str, str]]) -> dict[str, str]:
    """Return the files of a target, which add up to the manifest before the site's patches are over them.

    A patch may well add a container or change a number: what it makes of the files is the site's own.

    Raises Fault where they do not add up, BadInput where the site's own variables are why.
    """
    site = target.site
    plain = replace(target, site=site.model_copy(update={"patches": [], "environment": {}}))
    files = files_of(plain)
    check_round_trip(plain, files)
    if site.environment:
        own = replace(target, site=site.model_copy(update={"patches": []}))
        files = files_of(own)
        try:
            check_round_trip(own, files)
        except Fault as error:
            raise BadInput(f"--values: environment: with it {error}") from None
    return files_of(target) if site.patches else files


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
    near = [role.name for role in target.roles if role.shares_nodes and not target.bare and target.site.host_network]
    if near:
        raise BadInput(
            f"host_network: instances of {' and '.join(near)} share nodes, where they would take one port; leave "
            "it out, or plan instances of whole nodes"
        )
    _check_nodes(target)
    _check_machines(target)
    accelerators = {role.accelerator for role in target.roles}
    if len(accelerators) > 1:
        raise BadInput(f"--engine: {profile.title} cannot span {' and '.join(sorted(accelerators))} devices")
    _check_pools(target)
    if profile.engine == "mindie" and (kind == "motor") != (apart := target.role("decode") is not None):
        raise BadInput(
            "--platform: MindIE takes prefill and decode apart through Motor, on kubernetes, and aggregated instances "
            f"bare; this plan needs --platform {'kubernetes --kind motor' if apart else 'bare'}"
        )


def _check_nodes(target: Target) -> None:
    """Raise Infeasible over several nodes where nothing makes xLLM's rank tables or starts TensorRT-LLM's ranks."""
    fact = target.profile.one_node
    wide = [role.name for role in target.roles if role.nodes > 1]
    if wide and fact is not None and target.kind in fact.value:
        raise Infeasible(
            f"--kind: {target.profile.title} has {' and '.join(wide)} over several nodes each, not with {target.kind}: "
            f"{fact.note} ({fact.source})"
        )


def _check_machines(target: Target) -> None:
    """Raise Infeasible for devices whose images and labels are not known, and for more tokens than DeepEP carries."""
    for role in target.roles:
        title = role.hardware.device.title
        if role.accelerator != "nvidia" and generation_of(role.hardware) in (None, "a5"):
            raise Infeasible(
                f"--engine: images, resources, labels and rank tables are known here for {KNOWN[role.accelerator]}, "
                f"not for {title} (machine); plan, execute and simulate take it, deploy does not"
            )
        if role.sequences > (most := most_carried(holding(target.profile.engine, role))):
            raise Infeasible(
                f"--engine: the low-latency exchange of the {role.name} pool carries at most {MOST_DISPATCHED} tokens "
                f"of a rank (DeepEP: csrc/kernels/internode_ll.cu), and {role.sequences} requests bring "
                f"{role.sequences * role.draft_window}; plan with --batch {most:g} or fewer"
            )
        target.memory(role)  # which MindIE's files do not tell, but without room for a request no engine serves


def _check_pools(target: Target) -> None:
    """Raise BadInput for pools that one router, one chart or one connector cannot tell apart."""
    held = [role.role for role in target.roles]
    if "encode" in held and target.kind in NO_ENCODERS:
        raise BadInput(f"--kind: {NO_ENCODERS[target.kind]}; use --kind lws or --platform bare")
    held = [role for role in held if role != "encode"]
    if "mixed" in held and len(set(held)) > 1:
        raise BadInput("--engine: aggregated instances beside prefill and decode need a router each; plan one of both")
    if target.profile.engine == "vllm-ascend":  # what both sides state of both; DP sizes are read and never used
        tensor = {(role.role, role.strategy.attention_tp) for role in target.roles}
        if len(tensor) > len(set(held)):
            raise BadInput(
                "--engine: vLLM-Ascend's connector tells one TP degree of each role to the other (vllm_ascend: "
                "mooncake_connector.py); plan its pools of a role with the same"
            )
    if target.kind in ("llm-d", "motor") and len(set(held)) < len(held):
        raise BadInput(f"--engine: {target.profile.title} with {target.kind} takes one pool of each role, not {held}")


def _files(target: Target, inventory: Inventory | None, load: Load) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of every file."""
    if target.kind == "motor":
        yield "user_config.json", json.dumps(mindie.motor(target), indent=2) + "\n"
        yield "mindie_env.json", json.dumps(mindie.motor_environment(target), indent=2) + "\n"
        for role in target.roles:
            yield from mindie.map_files(role).items()
        yield "smoke.sh", smoke(target, {}, None)
        yield "benchmark.sh", benchmark(target, load, None)
        return
    launches = {role.name: _launch(target, role) for role in target.roles}
    if target.bare:
        yield from host_files(target, launches, inventory, load)
    else:
        for sheet in sheets(target, launches, load):
            yield f"{sheet.name}.yaml", written(target, sheet)


def router_file(target: Target) -> str | None:
    """Return the router's file on Kubernetes; None for kinds whose own router finds the pods."""
    launches = {role.name: _launch(target, role) for role in target.roles}
    return next((written(target, sheet) for sheet in engines(target, launches) if sheet.name == "router"), None)


def _launch(target: Target, role: RolePlan) -> Launch:
    """Return what starts a role, with the site's variables over what is generated."""
    launch = COMMANDS[target.profile.engine](target, role)
    environment = {**launch.environment, **target.site.environment}
    return replace(launch, environment=environment, files=target.owned(launch.files), port=target.http_port(role))
