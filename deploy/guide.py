"""The README of a deployment: what is there, in which order to start it, how its devices add up."""

import hashlib
import math
from collections.abc import Iterator, Mapping

from deploy.commands.launch import Target, machine_of, spans_nodes_by_nvlink, talks_over_nodes
from deploy.kubernetes.weights import mismatched, quantised, source_of
from deploy.memory import exchanges, holding
from deploy.roles import RolePlan
from ground.units import GIBI, MEBI, format_bytes
from planner.engines.memory import A2_MOST_TOKENS, GRAPH_TOKENS, exchange_of, hccl_mebibytes, mc2_capacity

OWN_CODE = ("kimi_k2",)  # tokenization_kimi.py
XLLM_BUFFER_MEBIBYTES = 512
MOTOR_REQUEST_MEBIBYTES, MOTOR_GIBIBYTES = 1.2, 12  # of the coordinator, which its deployer checks
FETCH = (
    "kubectl apply -f weights.yaml, and kubectl wait --for=condition=complete --timeout=-1s job/{name}-weights: "
    "engines that start before it is done find half a model."
)
PROVE = [
    "kubectl apply -f smoke.yaml: its job {name}-smoke sends one request, which must go through every role.",
    "kubectl apply -f benchmark.yaml, and once its job is complete kubectl logs job/{name}-benchmark | tail -n 1 > "
    "benchmark.json, which plan verify reads.",
]
RUN_PROOF = [
    "Run {folder}smoke.sh: one request must go through every role.",
    "Run {folder}benchmark.sh; plan verify reads its result.",
]
APPLY = "kubectl apply -f each file in this order: {sheets}."
STEPS = {
    "bare": [
        "Copy this folder to every host as {files}.",
        "Run etcd.sh on the host that it names.",
        "Run the command of each line of hosts.tsv on its host, decode first.",
        "Run router.sh once all of them answer.",
        *RUN_PROOF,
    ],
    "slurm": [
        "sbatch job.sbatch in this folder, on storage that all nodes share: its files are those of run-JOB.",
        *RUN_PROOF,
    ],
    "dynamo": [APPLY + " The operator of NVIDIA Dynamo starts the rest.", *PROVE],
    "llm-d": [
        "Install the CRDs of the Gateway API and its Inference Extension, and a gateway of class {gateway}.",
        APPLY,
        *PROVE,
    ],
    "motor": [
        "Copy the maps to {files} on every host, and give all JSON files mode 640: Motor reads none that others may.",
        "kubectl create namespace {name}, which is job_id.",
        "Put user_config.json beside MindIE Motor's deployer (mindie_motor/src/example/deploy_scripts at 5dfb024) and "
        "mindie_env.json into its conf folder.",
        "Run its deploy_ac_job.py.",
        *RUN_PROOF,
    ],
}
# What is applied comes before what is run; autoscaler and monitoring need KEDA and the Prometheus operator.
LAST = ("autoscaler.yaml", "monitoring.yaml")
FIRST = ("priorities.yaml", "weights.yaml", "policies.yaml", "nvlink.yaml")
RUN = ("smoke.yaml", "benchmark.yaml")


def arithmetic(target: Target) -> list[str]:
    """Return one line per role: instances x nodes x devices, and what each device rank is."""
    lines, total, chips = [], 0, 0.0
    for role in target.roles:
        s, count, devices = role.strategy, len(role.instances), role.devices * len(role.instances)
        experts = f", experts {s.moe_ep} EP x {s.moe_tp} TP" if role.setup.experts else ""
        lines.append(
            f"{role.name}: {count} instances x {role.nodes} nodes x {role.devices_per_node} devices = "
            f"{devices} devices; an instance has {s.pp} PP x {s.attention_dp} DP x {s.attention_tp} TP = "
            f"{role.devices} ranks{experts}"
        )
        total, chips = total + devices, chips + devices / role.hardware.devices_per_chip.value
    return [*lines, f"together: {total} devices on {chips:g} chips"]


def limits(target: Target) -> Iterator[str]:
    """Yield what each role may hold, per attention DP rank as planned."""
    for role in target.roles:
        drafts = f", {role.drafts} drafted tokens" if role.drafts else ""
        yield (
            f"{role.name}: {role.sequences} requests and {role.tokens} tokens a step per DP rank, requests of up to "
            f"{role.longest} tokens{drafts}"
        )
        if role.role == "mixed":
            yield from other_order(target, role)


def other_order(target: Target, role: RolePlan) -> Iterator[str]:
    """Yield that the engine takes prompts in another order than the plan was played by, where it does."""
    scheduling = target.profile.scheduling
    if scheduling is None:
        return
    pauses = scheduling.order.value == "prompts_first"
    again = f"plan again with --engine {target.profile.engine}"
    if role.mixes and pauses and role.drafts:
        yield (
            f"{role.name}: planned with prompts beside running requests; this engine, where it drafts, "
            f"lets those wait, so that TPOT is longer: {again}"
        )
    if not role.mixes and not pauses:
        yield (
            f"{role.name}: planned with prompts in steps of their own; this engine has them beside running requests: "
            f"{again}"
        )


def memories(target: Target) -> Iterator[str]:
    """Yield what each role's engine is told of memory, and the planned requests that fit what it leaves."""
    share = "memory that loading leaves" if target.profile.engine == "trtllm" else "memory"
    for role in target.roles if target.profile.engine != "mindie" else ():
        held = target.memory(role)
        line = (
            f"{role.name}: {held.fraction:g} of the {share}, {format_bytes(held.buffers_bytes)} of exchange buffers, "
            f"{format_bytes(held.cache_bytes)} for keys and values (planned {format_bytes(held.planned_cache_bytes)})"
        )
        needed = int(hccl_mebibytes(holding(target.profile.engine, role)))
        if target.profile.engine == "xllm" and exchanges(role) and needed > XLLM_BUFFER_MEBIBYTES:
            line += (
                f"; its exchange has {XLLM_BUFFER_MEBIBYTES} MiB whatever HCCL_BUFFSIZE says (mapping_npu.cpp), and "
                f"CANN's operator needs {needed} for this batch: plan with a smaller one where it fails"
            )
        fewer = f"; about {held.requests} of {role.sequences} requests per DP rank fit, the others wait"
        yield line + (fewer if held.requests < role.sequences else "")


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
        yield f"{role.name}: {role.tokens} tokens a step reach their experts by {found}"


def guide(target: Target, files: Mapping[str, str]) -> str:
    """Return the README.md of a deployment."""
    fetched = "kind: Job" in files.get("weights.yaml", "")
    steps = [*([FETCH] if fetched else []), *STEPS.get(target.kind, [APPLY, *PROVE])]
    steps = [step for step in steps if "etcd.sh" in files or "etcd.sh" not in step]
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
        "sheets": ", ".join(name for name in order if name in files and not (fetched and name == "weights.yaml")),
    }
    lines = [
        f"# {target.name_of_model} with {target.origin.title} {target.origin.version}, {target.kind}",
        "",
        f"{target.origin.sentence}.",
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


def needs(target: Target, files: Mapping[str, str]) -> Iterator[str]:
    """Yield what the site must bring, and where an engine does otherwise than the plan."""
    yield from _weights(target, files)
    yield from _images(target)
    yield from _hosts(target)
    yield from _motor(target) if target.kind == "motor" else ()
    if target.roles[0].model.architecture in OWN_CODE and not target.site.trust_remote_code:
        yield "Trust: the tokenizer is code of the model's repository, which engines run with trust_remote_code: true."
    if target.profile.engine == "xllm" and any(role.drafts for role in target.roles):
        drafted = " and ".join(dict.fromkeys(target.draft_model_path(role) for role in target.roles if role.drafts))
        yield f"The draft model, made with xLLM's tools/export_mtp.py, at {drafted}."
    if target.profile.redundancy.placement.value == "none" and any(role.setup.redundant for role in target.roles):
        yield f"Nothing for expert maps: {target.profile.title} takes none, it starts evenly and balances itself."
    if target.profile.engine == "sglang" and any(role.role == "mixed" and role.drafts for role in target.roles):
        yield "Patience with drafts: SGLang drafts nothing in steps that also read prompts; older releases do not mix."
    if target.profile.engine == "xllm" and target.kind == "volcano":
        yield "MindCluster's Ascend operator, which writes each job's rank table into its ConfigMap rings-config-NAME."
    if "nginx.conf" in files:
        yield "nginx on the host that runs router.sh."
    if target.profile.engine == "trtllm" and "router.yaml" in files:
        yield (
            "NVIDIA's container runtime as the default of GPU nodes, or runtimeClassName in a patch of the router: its "
            "image loads the driver's libcuda without asking for a GPU."
        )
    joined = " and ".join(role.name for role in target.roles if spans_nodes_by_nvlink(role))
    if joined:
        imex = "the service nvidia-imex" if target.bare else "NVIDIA's DRA driver, and nvidia-imex of the hosts off"
        yield f"IMEX on the nodes of {joined}: {imex}; every instance inside one NVLink domain (nvidia.com/gpu.clique)."
    wide = [role.name for role in target.roles if talks_over_nodes(role) and role.accelerator != "ascend"]
    if wide and not target.bare and target.site.rdma_resource:
        yield f"RDMA in pods of {' and '.join(wide)}: {target.site.rdma_resource}, or what rdma_resource names."


def _motor(target: Target) -> Iterator[str]:
    """Yield what Motor's deployer asks of the cluster (its deploy_ac_job.py and coordinator_init.yaml at 5dfb024)."""
    if any(role.paired for role in target.roles):
        yield (
            "Nodes with the label accelerator-type: module-a3-16, which Motor's deployer selects for A3; those of a "
            "SuperPoD have module-a3-16-super-pod, which takes a change in its deploy_ac_job.py."
        )
    held = sum(role.requests for role in target.roles if role.role == "decode")
    gibibytes = math.ceil(held * MOTOR_REQUEST_MEBIBYTES * MEBI / GIBI)
    if gibibytes > MOTOR_GIBIBYTES:
        yield f"{gibibytes}Gi as the memory that deployment/coordinator_init.yaml requests, for {held} open requests."


def _hosts(target: Target) -> Iterator[str]:
    """Yield what pods have by themselves and hosts may lack: the engine, and the interface by which ranks meet."""
    if target.bare:
        images = " or ".join(dict.fromkeys(target.image(role) for role in target.roles))
        how = ", which PODPLAN_SRUN may name" if target.kind == "slurm" else ""
        yield f"{target.origin.title} {target.origin.version} on every node, or its image {images}{how}."
    if (target.bare or target.site.host_network) and target.profile.engine != "mindie":
        interface = target.site.network_interface
        yield f"The network interface {interface}, where ranks meet, or what network_interface names."


def _weights(target: Target, files: Mapping[str, str]) -> Iterator[str]:
    """Yield where the weights must lie, and which checkpoint is meant."""
    places = dict.fromkeys((target.weights_path(role), role.weights_dtype) for role in target.roles)
    several = " and ".join(f"{path} (those in {dtype})" for path, dtype in places)
    where = several if len(places) > 1 else target.model_path
    if target.bare or target.kind == "motor" or target.site.model_host_path:
        yield f"The weights, at {where} on every node."
    elif target.site.model_claim:
        yield f"The claim {target.site.model_claim} with the weights, which pods have at {where}."
    else:
        yield f"Storage that many nodes mount at once, for the claim {target.name}-weights: pods have it at {where}."
    repository, other = source_of(target), mismatched(target)
    made = "weights.yaml has a job that makes one, or give model_source of" if "weights.yaml" in files else "bring"
    if quantised(target):
        yield (
            f"A W8A8 checkpoint of ModelSlim: the weights of {repository or 'the model'} in "
            f"{target.roles[0].model.native_dtype} do not load as int8; {made} one that is published."
        )
    if other:
        yield (
            f"A checkpoint in {' and '.join(other)}: {repository or 'the model'} is published in "
            f"{target.roles[0].model.native_dtype}; give model_source and weights.yaml fetches it."
        )


def _images(target: Target) -> Iterator[str]:
    """Yield images that nobody publishes, and what the notes of the others say."""
    deployment = target.profile.deployment
    if deployment is None or target.kind == "dynamo" or target.site.image:
        return
    for part, fact in deployment.images.items():
        routed = part == "router" and target.kind != "llm-d" and not target.site.router_image
        mine = part in {machine_of(role) for role in target.roles}
        if fact.note and (mine or routed):
            yield f"The image {fact.value}: {fact.note}."
