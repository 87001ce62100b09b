"""NVIDIA Dynamo: a DynamoGraphDeployment (nvidia.com/v1beta1) of a frontend and one component per role.

The operator adds the launch flags of several nodes itself, so they are left out; a prefill worker needs its
KV transfer configuration in so many words (Dynamo 1.6.1, dynamo/vllm/args.py).
"""

from deploy.commands.launch import Launch, Target
from deploy.header import Provenance, annotations
from deploy.kubernetes.pods import (
    GRACE_SECONDS,
    LOCKED,
    Object,
    address_variable,
    labels,
    metadata,
    plain_pod,
    pod_settings,
    resources,
    security,
    small,
    weights_mount,
    weights_volume,
)
from deploy.words import Shell, plain
from planner.engines.loader import load_orchestrator

FRONTEND_PORT = 8000  # of the Service that the operator makes
MODES = {"prefill": "prefill", "decode": "decode", "mixed": "agg"}
WORKER_TYPES = {"prefill": "prefill", "decode": "decode", "mixed": "worker"}
# The worker serves Dynamo's own endpoint, not HTTP.
OWN = frozenset({"--host", "--port", "--disaggregation-mode", "--model-path", "--backend", "--extra_llm_api_options"})


def graph(target: Target, launches: dict[str, Launch], origin: Provenance) -> Object:
    """Return the DynamoGraphDeployment."""
    dynamo = load_orchestrator("dynamo")
    image = target.site.image or dynamo.images[target.profile.engine].value
    dropped = frozenset(dynamo.injected_flags.value) | OWN
    frontend = {
        "name": "main",
        "image": target.site.router_image or image,
        "command": ["python3", "-m", "dynamo.frontend"],
        "args": ["--http-port", str(FRONTEND_PORT)],
        "ports": [{"name": "http", "containerPort": FRONTEND_PORT}],
        "resources": small("4", "8Gi"),
        "securityContext": LOCKED,
    }
    components: list[Object] = [
        {
            "name": "Frontend",
            "type": "frontend",
            "replicas": 1,
            "podTemplate": {
                "metadata": {
                    "labels": {"app.kubernetes.io/part-of": target.name, "podplan/pool": "router"},
                    "annotations": annotations(origin),
                },
                "spec": {**plain_pod(target), "containers": [frontend]},
            },
        }
    ]
    components += [_component(target, launch, image, dropped, origin) for launch in launches.values()]
    return {
        "apiVersion": dynamo.api,
        "kind": "DynamoGraphDeployment",
        "metadata": metadata(target, target.name, origin),
        "spec": {"backendFramework": target.profile.engine, "components": components},
    }


def _component(target: Target, launch: Launch, image: str, dropped: frozenset[str], origin: Provenance) -> Object:
    role = launch.role
    spec: Object = {**pod_settings(target, role), "terminationGracePeriodSeconds": GRACE_SECONDS}
    spec["containers"] = [
        {
            "name": "main",
            "image": image,
            "command": ["python3", "-m", f"dynamo.{target.profile.engine}"],
            "args": arguments(target, launch, dropped),
            "env": [address_variable(), *_environment(launch)],
            "resources": resources(target, role),
            "securityContext": security(target, role),
            "volumeMounts": [
                {"name": "model", "mountPath": weights_mount(target), "readOnly": True},
                *([{"name": "files", "mountPath": target.site.files_path}] if launch.files else []),
            ],
        }
    ]
    files = [{"name": "files", "configMap": {"name": f"{target.name}-{role.name}-files"}}] if launch.files else []
    spec["volumes"] = [weights_volume(target), *files]
    component: Object = {
        "name": role.name,
        "type": WORKER_TYPES[role.role],
        "replicas": len(role.instances),
        "sharedMemorySize": target.site.shared_memory,
        "podTemplate": {
            "metadata": {
                "labels": labels(target, launch),
                "annotations": annotations(origin) | target.site.annotations,
            },
            "spec": spec,
        },
    }
    return component | ({"multinode": {"nodeCount": role.nodes}} if role.nodes > 1 else {})


def arguments(target: Target, launch: Launch, dropped: frozenset[str]) -> list[str]:
    """Return the worker's arguments, without what the operator adds."""
    model = "--model-path" if target.profile.engine == "sglang" else "--model"
    words = [model, target.weights_path(launch.role), "--disaggregation-mode", MODES[launch.role.role]]
    if target.profile.engine == "sglang" and launch.role.role == "mixed":
        words = words[:2]
    if target.profile.engine == "trtllm":
        words += ["--served-model-name", target.name_of_model]
        words += ["--extra-engine-args", f"{target.site.files_path}/options-{launch.role.name}.yml"]
    for name, value in launch.without(dropped).flags:
        words += [name] if value is None else [name, plain(value)]
    return words


def _environment(launch: Launch) -> list[Object]:
    """Return literal variables; the pod's address comes from the cluster."""
    found: list[Object] = []
    for name, value in launch.environment.items():
        address = isinstance(value, Shell)
        found.append(address_variable() | {"name": name} if address else {"name": name, "value": plain(value)})
    return found
