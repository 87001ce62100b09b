"""Orchestrators: NVIDIA Dynamo's graph, and llm-d's sets behind an endpoint picker.

Dynamo: a DynamoGraphDeployment (nvidia.com/v1beta1) of a frontend and one component per role. The operator adds the
launch flags of several nodes itself, so they are left out; a prefill worker needs its KV transfer configuration in so
many words (Dynamo 1.6.1, dynamo/vllm/args.py).

llm-d: the role's LeaderWorkerSets behind an InferencePool, its picker, a Gateway and a route, as in its guides
pd-disaggregation and wide-ep-lws. The picker names a prefill and a decode pod, and a sidecar in front of each decode
pod has the prompt computed there before it hands the request on. Without the picker's header the sidecar would let
decode pods read prompts themselves.
"""

from collections.abc import Iterator

from deploy.commands.launch import SIDECAR_SERVICE_PORT, SIDECAR_TARGET_PORT, Launch, Target
from deploy.kubernetes.pods import address_variable, common, weights_mount, weights_volume
from deploy.kubernetes.templates import LOCKED, objects, plain_pod, template
from deploy.kubernetes.workloads import leader_worker_set
from deploy.templates import Object, filled
from deploy.words import Shell, plain
from ground.files import to_yaml
from planner.engines.loader import load_orchestrator

FRONTEND_PORT = 8000  # of the Service that the operator makes
MODES = {"prefill": "prefill", "decode": "decode", "mixed": "agg"}
WORKER_TYPES = {"prefill": "prefill", "decode": "decode", "mixed": "worker"}
# The worker serves Dynamo's own endpoint, not HTTP.
OWN = frozenset({"--host", "--port", "--disaggregation-mode", "--model-path", "--backend", "--extra_llm_api_options"})
CONNECTORS = {"nixl": "nixlv2", "mooncake": "mooncake"}  # of llm-d's sidecar, for vLLM; SGLang's is its own


def dynamo_graph(target: Target, launches: dict[str, Launch]) -> Object:
    """Return the DynamoGraphDeployment."""
    dynamo = load_orchestrator("dynamo")
    image = target.site.image or dynamo.images[target.profile.engine].value
    (form,) = template("dynamo-frontend")
    frontend = filled(
        form,
        {
            "name": target.name,
            "version": dynamo.version,
            "plain_pod": _known(plain_pod(target)),
            "locked": LOCKED,
            "annotations": target.runs({}),
            "image": target.site.router_image or image,
            "weights_mount": weights_mount(target),
            "weights_volume": weights_volume(target),
        },
    )
    workers = [_worker(target, launch, image) for launch in launches.values()]
    made = objects("dynamo", target, api=dynamo.api, engine=target.profile.engine, components=[frontend, *workers])
    return next(made)


def _known(settings: Object) -> Object:
    """Return pod settings with the operator's own account and its token: pods register and are found through the
    Kubernetes API (docs/design-docs/discovery-plane), with the rights that the operator gives that account alone.
    """
    return {key: value for key, value in settings.items() if "erviceAccount" not in key}


def _worker(target: Target, launch: Launch, image: str) -> Object:
    role, dynamo, (form,) = launch.role, load_orchestrator("dynamo"), template("dynamo-worker")
    mounts = [{"name": "model", "mountPath": weights_mount(target), "readOnly": True}]
    volumes = [weights_volume(target)]
    if launch.files:
        mounts.append({"name": "files", "mountPath": target.site.files_path})
        volumes.append({"name": "files", "configMap": {"name": f"{target.name}-{role.name}-files"}})
    values = common(target, launch)
    values |= {
        "worker": WORKER_TYPES[role.role],
        "instances": len(role.instances),
        "scaling": {} if target.scaled(role) else None,
        "shared_memory": target.site.shared_memory,
        "settings": _known(values["settings"]),
        "image": image,
        "engine": target.profile.engine,
        "version": dynamo.version,
        "arguments": arguments(target, launch, frozenset(dynamo.injected_flags.value) | OWN),
        "env": [address_variable(), *_environment(launch)],
        "mounts": mounts,
        "volumes": volumes,
        "multinode": {"nodeCount": role.nodes} if role.nodes > 1 else None,
    }
    return filled(form, values)


def arguments(target: Target, launch: Launch, dropped: frozenset[str]) -> list[str]:
    """Return the worker's arguments, without what the operator adds."""
    model = "--model-path" if target.profile.engine == "sglang" else "--model"
    words = [model, target.weights_path(launch.role), "--disaggregation-mode", MODES[launch.role.role]]
    if target.profile.engine == "sglang" and launch.role.role == "mixed":
        words = words[:2]
    if target.profile.engine == "trtllm":
        words += ["--served-model-name", target.name_of_model]
        words += ["--extra-engine-args", f"{target.site.files_path}/options-{launch.role.name}.yml"]
    if launch.role.encodes and target.profile.engine != "sglang":  # whose own flag has the same name
        words.append("--enable-multimodal")  # without it workers refuse pictures
    for name, value in launch.flags:
        words += [] if name in dropped else [name] if value is None else [name, plain(value)]
    return words


def _environment(launch: Launch) -> list[Object]:
    """Return literal variables; the pod's address comes from the cluster."""
    found: list[Object] = []
    for name, value in launch.environment.items():
        address = isinstance(value, Shell)
        found.append(address_variable() | {"name": name} if address else {"name": name, "value": plain(value)})
    return found


def llmd_workloads(target: Target, launch: Launch) -> Iterator[Object]:
    """Yield a role's set: pods that answer are of the pool, and decode's stand behind the sidecar."""
    role = launch.role.role
    for item in leader_worker_set(target, launch):
        group = item["spec"]["leaderWorkerTemplate"]
        answering = group.get("leaderTemplate", group["workerTemplate"])
        pool = {
            "llm-d.ai/inference-serving": "true",
            "llm-d.ai/role": "prefill" if role == "prefill" else "decode",
            "llm-d.ai/engine-type": target.profile.engine,  # whose metrics the picker reads; vLLM's by default
        }
        answering["metadata"]["labels"] |= pool
        if role == "decode":
            values = {
                "image": load_orchestrator("llm-d").images["sidecar"].value,
                "port": SIDECAR_SERVICE_PORT,
                "engine_port": SIDECAR_TARGET_PORT,
                "connector": "sglang" if target.profile.engine == "sglang" else CONNECTORS[target.site.kv_transfer],
                "locked": LOCKED,
            }
            answering["spec"]["initContainers"] = [filled(template("sidecar")[0], values)]
        yield item


def llmd_gateway(target: Target) -> Iterator[Object]:
    """Yield the pool, the picker with what it may read, the gateway and the route."""
    (picker,) = template("picker-mixed" if target.role("decode") is None else "picker-separate")
    yield from objects(
        "llmd",
        target,
        served_port=SIDECAR_SERVICE_PORT,
        picker=to_yaml(picker),
        image=target.site.router_image or load_orchestrator("llm-d").images["picker"].value,
        gateway_class=target.site.gateway_class,
    )
