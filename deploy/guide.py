"""The README of a deployment: what is there, in which order to start it, how its devices add up."""

import hashlib
from collections.abc import Iterator, Mapping

from deploy.commands.launch import Target
from deploy.header import Provenance
from deploy.roles import RolePlan
from planner.engines.ascend import exchange_of, mc2_capacity

STEPS = {
    "bare": [
        "Copy this folder to every host as {files}.",
        "Run the command of each line of hosts.tsv on its host, decode first.",
        "Run router.sh once all of them answer.",
    ],
    "lws": ["kubectl apply -f priorities.yaml, then decode, then prefill, then router.yaml."],
    "dynamo": ["kubectl apply -f . in this folder; the operator of NVIDIA Dynamo starts the rest."],
    "llm-d": ["kubectl apply -f priorities.yaml (and files where there are any), then helm install -f values.yaml."],
    "motor": ["Copy the maps to {files} on every host, then give user_config.json to MindIE Motor's deployer."],
}


def arithmetic(target: Target) -> list[str]:
    """Return one line per role: instances x nodes x devices, and what each device rank is."""
    lines = [_sum(role) for role in target.roles]
    total = sum(role.devices * len(role.instances) for role in target.roles)
    chips = sum(role.devices * len(role.instances) / role.hardware.devices_per_chip.value for role in target.roles)
    return [*lines, f"together: {total} devices on {chips:g} chips"]


def _sum(role: RolePlan) -> str:
    s, count = role.strategy, len(role.instances)
    attention = f"{s.pp} PP x {s.attention_dp} DP x {s.attention_tp} TP"
    experts = f", experts {s.moe_ep} EP x {s.moe_tp} TP" if role.setup.experts else ""
    return (
        f"{role.name}: {count} instances x {role.nodes} nodes x {role.devices_per_node} devices = "
        f"{count * role.devices} devices; an instance has {attention} = {role.devices} ranks{experts}"
    )


def limits(target: Target) -> Iterator[str]:
    """Yield what each role may hold, per attention DP rank as planned."""
    for role in target.roles:
        drafts = f", {role.drafts} drafted tokens" if role.drafts else ""
        yield (
            f"{role.name}: {role.sequences} requests and {role.tokens} tokens a step per DP rank, requests of up to "
            f"{role.longest} tokens{drafts}"
        )


def exchanges(target: Target) -> Iterator[str]:
    """Yield how vLLM-Ascend will reach experts at the planned batch, which it decides at run time."""
    for role in target.roles if target.profile.engine == "vllm-ascend" else ():
        moe = role.model.moe
        if moe is None or role.mode is None or role.strategy.moe_ep == 1:
            continue
        found = exchange_of(
            "a3" if role.hardware.devices_per_chip.value == 2 else "a2",
            ep=role.strategy.moe_ep,
            experts=moe.experts,
            tokens=role.tokens,
            capacity=mc2_capacity(role.sequences * role.draft_window, role.strategy.attention_tp),
            world=role.devices,
            experts_per_token=moe.experts_per_token,
        )
        yield f"{role.name}: {role.tokens} tokens a step reach their experts by {found}"


def guide(target: Target, origin: Provenance, files: Mapping[str, str]) -> str:
    """Return the README.md of a deployment."""
    steps = STEPS.get(target.kind, STEPS["lws"])
    lines = [
        f"# {target.name_of_model} with {origin.title} {origin.version}, {target.kind}",
        "",
        f"{origin.sentence}.",
        "The files were read back and add up to the manifest. They were never launched on hardware by podplan.",
        "",
        "## Devices",
        "",
        *(f"- {line}" for line in arithmetic(target)),
        "",
        "## Limits",
        "",
        *(f"- {line}" for line in [*limits(target), *exchanges(target)]),
        "",
        "## Start",
        "",
        *(f"{number}. {step.format(files=target.site.files_path)}" for number, step in enumerate(steps, start=1)),
        *_needs(target),
        "",
        "## Files without room for their origin",
        "",
        "Engines read these JSON files strictly, so this list says where they come from (SHA-256).",
        "",
        *(f"- {name}: {digest}" for name, digest in _digests(files)),
    ]
    if not any(name.endswith(".json") for name in files):
        lines = lines[: lines.index("## Files without room for their origin") - 1]
    return "\n".join(lines) + "\n"


def _needs(target: Target) -> Iterator[str]:
    """Yield what the site must bring."""
    yield ""
    places = dict.fromkeys((target.weights_path(role), role.weights_dtype) for role in target.roles)
    several = " and ".join(f"{path} (those in {dtype})" for path, dtype in places)
    yield f"The weights are expected at {several if len(places) > 1 else target.model_path} on every node."
    if target.profile.engine == "xllm" and any(role.drafts for role in target.roles):
        drafted = " and ".join(dict.fromkeys(target.draft_model_path(role) for role in target.roles if role.drafts))
        yield f"The draft model, made with xLLM's tools/export_mtp.py, is expected at {drafted}."
    if target.profile.redundancy.placement.value == "none" and any(role.setup.redundant for role in target.roles):
        yield f"{target.profile.title} takes no static expert map: it starts evenly and balances itself."
    if target.kind not in ("bare", "motor", "dynamo") and target.profile.engine == "xllm":
        yield "Rank tables come from the Ascend operator as ConfigMaps rings-config-NAME, one per workload."


def _digests(files: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, text in sorted(files.items()):
        if name.endswith(".json"):
            yield name, hashlib.sha256(text.encode()).hexdigest()
