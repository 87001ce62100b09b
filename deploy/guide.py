"""The README of a deployment: what is there, in which order to start it, how its devices add up."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from deploy.commands.launch import Target, machine_of, spans_nodes_by_nvlink, talks_over_nodes
from deploy.kubernetes.weights import mismatched, quantised, source_of
from deploy.memory import exchanges, holding
from deploy.templates import documents
from ground.units import GIBI, MEBI, format_bytes
from planner.engines.memory import A2_MOST_TOKENS, GRAPH_TOKENS, exchange_of, hccl_mebibytes, mc2_capacity

OWN_CODE = ("kimi_k2",)  # tokenization_kimi.py
XLLM_BUFFER_MEBIBYTES = 512
MOTOR_REQUEST_MEBIBYTES, MOTOR_GIBIBYTES = 1.2, 12  # of the coordinator, which its deployer checks
# What is applied comes before what is run; autoscaler and monitoring need KEDA and the Prometheus operator.
LAST = ("autoscaler.yaml", "monitoring.yaml")
FIRST = ("priorities.yaml", "weights.yaml", "policies.yaml", "nvlink.yaml")
RUN = ("smoke.yaml", "benchmark.yaml")


@cache
def _texts() -> Any:
    """Return the sentences of the README by name."""
    return documents(Path(__file__).with_name("guide.yaml"))[0]


def _say(sentence: str, /, **values: object) -> str:
    """Return a sentence with its values."""
    return _texts()[sentence].format(**values)


def guide(target: Target, files: Mapping[str, str], layout: str = "plain") -> str:
    """Return the README.md of a deployment, whose objects are laid out in one of three ways."""
    fetched = "kind: Job" in files.get("weights.yaml", "")
    known = _texts()["steps"]
    steps = [_texts()["fetch"]] if fetched and layout != "helm" else []  # which waits for them itself
    steps += known.get(target.kind, known["kubernetes"])
    absent = [each for each in ("etcd.sh", "expert-map") if not any(each in name for name in files)]
    steps = [step for step in steps if not any(each in step for each in absent)]
    roles = sorted(
        (name for name in files if name.endswith(".yaml") and name not in (*FIRST, *LAST, *RUN, "router.yaml")),
        key=lambda name: (not name.endswith("-files.yaml"), name),
    )
    order = [*FIRST, *roles, "router.yaml", *LAST]
    said = {
        "files": target.site.files_path,
        "gateway": target.site.gateway_class,
        "folder": "run-JOB/" if target.kind == "slurm" else "",
        "name": target.name,
        "namespace": target.site.namespace,
        "sheets": ", ".join(name for name in order if name in files and not (fetched and name == "weights.yaml")),
    }
    said |= {name: words.format(**said) for name, words in _texts()["layouts"][layout].items()}
    lines = [
        f"# {target.name_of_model} with {target.profile.title} {target.version}, {target.kind}",
        "",
        f"{target.made}.",
        "The files were read back and add up to the manifest. They were never launched on hardware by podplan.",
        "",
        *_section("Devices", arithmetic(target)),
        *_section("Limits", [*limits(target), *dispatches(target)]),
        *_section("Memory", list(memories(target))),
        *_section("What the site must bring", list(needs(target, files))),
        "## Start",
        "",
        *(f"{number}. {step.format(**said)}" for number, step in enumerate(steps, start=1)),
    ]
    if strict := sorted(name for name in files if name.endswith(".json")):
        lines += ["", "## Files without room for their origin", ""]
        lines += ["Engines read these JSON files strictly, so this list says where they come from (SHA-256).", ""]
        lines += [f"- {name}: {hashlib.sha256(files[name].encode()).hexdigest()}" for name in strict]
    return "\n".join(lines) + "\n"


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"## {title}", "", *(f"- {line}" for line in lines), ""] if lines else []


def arithmetic(target: Target) -> list[str]:
    """Return one line per role: instances x nodes x devices, and what each device rank is."""
    lines, total, chips = [], 0, 0.0
    for role in target.roles:
        s, count, devices = role.strategy, len(role.instances), role.devices * len(role.instances)
        experts = f", experts {s.moe_ep} EP x {s.moe_tp} TP" if role.setup.experts else ""
        known = {"role": role.name, "nodes": role.nodes, "per_node": role.devices_per_node, "ranks": role.devices}
        degrees = {"pp": s.pp, "dp": s.attention_dp, "tp": s.attention_tp, "experts": experts}
        lines.append(_say("devices", count=count, devices=devices, **known, **degrees))
        total, chips = total + devices, chips + devices / role.hardware.devices_per_chip.value
    return [*lines, f"together: {total} devices on {chips:g} chips"]


def limits(target: Target) -> Iterator[str]:
    """Yield what each role may hold, per attention DP rank as planned, and where an engine takes another order."""
    scheduling, engine = target.profile.scheduling, target.profile.engine
    for role in target.roles:
        drafts = f", {role.drafts} drafted tokens" if role.drafts else ""
        held = {"sequences": role.sequences, "tokens": role.tokens, "longest": role.longest}
        yield _say("limits", role=role.name, drafts=drafts, **held)
        if role.role == "mixed" and scheduling is not None:
            pauses = scheduling.order.value == "prompts_first"
            if role.mixes and pauses and role.drafts:
                yield _say("pauses", role=role.name, engine=engine)
            if not role.mixes and not pauses:
                yield _say("mixes", role=role.name, engine=engine)


def memories(target: Target) -> Iterator[str]:
    """Yield what each role's engine is told of memory, and the planned requests that fit what it leaves."""
    engine = target.profile.engine
    share = "memory that loading leaves" if engine == "trtllm" else "memory"
    for role in target.roles if engine != "mindie" else ():
        held = target.memory(role)
        sizes = {"buffers": held.buffers_bytes, "cache": held.cache_bytes, "planned": held.planned_cache_bytes}
        told = {name: format_bytes(size) for name, size in sizes.items()}
        line = _say("memory", role=role.name, fraction=held.fraction, share=share, **told)
        needed = int(hccl_mebibytes(holding(engine, role)))
        if engine == "xllm" and exchanges(role) and needed > XLLM_BUFFER_MEBIBYTES:
            line += _say("xllm_buffer", most=XLLM_BUFFER_MEBIBYTES, needed=needed)
        fewer = held.requests < role.sequences
        yield line + (_say("fewer", requests=held.requests, sequences=role.sequences) if fewer else "")


def dispatches(target: Target) -> Iterator[str]:
    """Yield how vLLM-Ascend will reach experts at the planned batch, which it decides at run time."""
    for role in target.roles if target.profile.engine == "vllm-ascend" else ():
        moe = role.model.moe
        if moe is None or role.mode is None or role.strategy.moe_ep == 1:
            continue
        tokens, tensor = role.sequences * role.draft_window, role.strategy.attention_tp
        found = exchange_of(
            "a3" if role.paired else "a2",
            ep=role.strategy.moe_ep,
            experts=moe.experts,
            tokens=role.tokens,
            capacity=mc2_capacity(tokens, tensor, GRAPH_TOKENS if role.paired else A2_MOST_TOKENS),
            world=role.devices,
            experts_per_token=moe.experts_per_token,
        )
        yield _say("dispatches", role=role.name, tokens=role.tokens, exchange=found)


def needs(target: Target, files: Mapping[str, str]) -> Iterator[str]:
    """Yield what the site must bring, and where an engine does otherwise than the plan."""
    yield from _weights(target, files)
    yield from _images(target)
    profile, site, roles, engine = target.profile, target.site, target.roles, target.profile.engine
    if target.bare:
        images = " or ".join(dict.fromkeys(target.image(role) for role in roles))
        how = ", which PODPLAN_SRUN may name" if target.kind == "slurm" else ""
        yield _say("engine", title=profile.title, version=target.version, images=images, how=how)
    if (target.bare or site.host_network) and engine != "mindie":
        yield _say("interface", interface=site.network_interface)
    yield from _motor(target) if target.kind == "motor" else ()
    drafted = dict.fromkeys(target.draft_model_path(role) for role in roles if role.drafts)
    unmapped = profile.redundancy.placement.value == "none" and any(role.setup.redundant for role in roles)
    joined = [role.name for role in roles if spans_nodes_by_nvlink(role)]
    imex = "the service nvidia-imex" if target.bare else "NVIDIA's DRA driver, and nvidia-imex of the hosts off"
    wide = [role.name for role in roles if talks_over_nodes(role) and role.accelerator != "ascend"]
    fabric = wide and not target.bare and site.rdma_resource
    rows: list[tuple[str, object, dict[str, object]]] = [
        ("trust", roles[0].model.architecture in OWN_CODE and not site.trust_remote_code, {}),
        ("draft_model", engine == "xllm" and drafted, {"paths": " and ".join(drafted)}),
        ("no_maps", unmapped, {"title": profile.title}),
        ("patience", engine == "sglang" and any(role.role == "mixed" and role.drafts for role in roles), {}),
        ("ring", engine == "xllm" and target.kind == "volcano", {}),
        ("tls", any(role.accelerator == "ascend" and talks_over_nodes(role) for role in roles), {}),
        ("nginx", "nginx.conf" in files, {}),
        ("driver", engine == "trtllm" and "router.yaml" in files, {}),
        ("imex", joined, {"roles": " and ".join(joined), "service": imex}),
        ("rdma", fabric, {"roles": " and ".join(wide), "resource": site.rdma_resource}),
    ]
    yield from (_say(name, **values) for name, holds, values in rows if holds)


def _motor(target: Target) -> Iterator[str]:
    """Yield what Motor's deployer asks of the cluster (its deploy_ac_job.py and coordinator_init.yaml at 5dfb024)."""
    if any(role.paired for role in target.roles):
        yield _say("motor_label")
    held = sum(role.requests for role in target.roles if role.role == "decode")
    gibibytes = math.ceil(held * MOTOR_REQUEST_MEBIBYTES * MEBI / GIBI)
    if gibibytes > MOTOR_GIBIBYTES:
        yield _say("motor_memory", gibibytes=gibibytes, requests=held)


def _weights(target: Target, files: Mapping[str, str]) -> Iterator[str]:
    """Yield where the weights must lie, and which checkpoint is meant."""
    places = dict.fromkeys((target.weights_path(role), role.setup.weights) for role in target.roles)
    several = " and ".join(f"{path} (those in {dtype})" for path, dtype in places)
    where = several if len(places) > 1 else target.model_path
    if target.bare or target.kind == "motor" or target.site.model_host_path:
        yield _say("weights_on_nodes", where=where)
    elif target.site.model_claim:
        yield _say("weights_claim", claim=target.site.model_claim, where=where)
    else:
        yield _say("weights_storage", name=target.name, where=where)
    other = mismatched(target)
    known = {"repository": source_of(target) or "the model", "native": target.roles[0].model.native_dtype}
    made = "weights.yaml has a job that makes one, or give model_source of" if "weights.yaml" in files else "bring"
    if quantised(target):
        yield _say("quantised", made=made, **known)
    if other:
        yield _say("mismatched", other=" and ".join(other), **known)


def _images(target: Target) -> Iterator[str]:
    """Yield images that nobody publishes, and what the notes of the others say."""
    deployment = target.profile.deployment
    if deployment is None or target.kind == "dynamo" or target.site.image:
        return
    for part, fact in deployment.images.items():
        routed = part == "router" and target.kind != "llm-d" and not target.site.router_image
        mine = part in {machine_of(role) for role in target.roles}
        if fact.note and (mine or routed):
            yield _say("image", image=fact.value, note=fact.note)
