"""llm-d: the role's LeaderWorkerSets behind an InferencePool, its endpoint picker, a Gateway and a route.

As in llm-d's guides pd-disaggregation and wide-ep-lws: the picker names a prefill and a decode pod, and a sidecar in
front of each decode pod has the prompt computed there before it hands the request on. Without the picker's header the
sidecar would let decode pods read prompts themselves.
"""

from collections.abc import Iterator

from deploy.commands.launch import SIDECAR_SERVICE_PORT, SIDECAR_TARGET_PORT, Launch, Target
from deploy.header import Provenance
from deploy.kubernetes.templates import LOCKED, objects, template
from deploy.kubernetes.workloads import leader_worker_set
from deploy.templates import Object, filled
from ground.files import to_yaml
from planner.engines.loader import load_orchestrator

CONNECTORS = {"vllm": "nixlv2", "sglang": "sglang"}


def workloads(target: Target, launch: Launch, origin: Provenance) -> Iterator[Object]:
    """Yield a role's set: pods that answer are of the pool, and decode's stand behind the sidecar."""
    role = launch.role.role
    for item in leader_worker_set(target, launch, origin):
        group = item["spec"]["leaderWorkerTemplate"]
        answering = group.get("leaderTemplate", group["workerTemplate"])
        pool = {
            "llm-d.ai/inference-serving": "true",
            "llm-d.ai/role": "prefill" if role == "prefill" else "decode",
            "llm-d.ai/engine-type": target.profile.engine,  # whose metrics the picker reads; vLLM's by default
        }
        answering["metadata"]["labels"] |= pool
        if role == "decode":
            answering["spec"]["initContainers"] = [_sidecar(target)]
        yield item


def _sidecar(target: Target) -> Object:
    values = {
        "image": load_orchestrator("llm-d").images["sidecar"].value,
        "port": SIDECAR_SERVICE_PORT,
        "engine_port": SIDECAR_TARGET_PORT,
        "connector": CONNECTORS[target.profile.engine],
        "locked": LOCKED,
    }
    found: Object = filled(template("sidecar")[0], values)
    return found


def gateway(target: Target, origin: Provenance) -> Iterator[Object]:
    """Yield the pool, the picker with what it may read, the gateway and the route."""
    (picker,) = template("picker-mixed" if target.role("decode") is None else "picker-separate")
    yield from objects(
        "llmd",
        target,
        origin,
        served_port=SIDECAR_SERVICE_PORT,
        picker=to_yaml(picker),
        image=target.site.router_image or load_orchestrator("llm-d").images["picker"].value,
        gateway_class=target.site.gateway_class,
    )
