"""llm-d: the role's LeaderWorkerSets behind an InferencePool, its endpoint picker, a Gateway and a route.

As in llm-d's guides pd-disaggregation and wide-ep-lws: the picker names a prefill and a decode pod, and a sidecar in
front of each decode pod has the prompt computed there before it hands the request on. Without the picker's header the
sidecar would let decode pods read prompts themselves.
"""

from collections.abc import Iterator
from typing import Any

from deploy.commands.launch import SIDECAR_SERVICE_PORT, SIDECAR_TARGET_PORT, Launch, Target
from deploy.header import Provenance
from deploy.kubernetes import lws
from deploy.kubernetes.pods import LOCKED, Object, metadata, small
from ground.files import to_yaml
from planner.engines.loader import load_orchestrator

CONNECTORS = {"vllm": "nixlv2", "sglang": "sglang"}
SERVING = {"llm-d.ai/inference-serving": "true"}
PICKER_PORT, HEALTH_PORT, METRICS_PORT = 9002, 9003, 9090


def workloads(target: Target, launch: Launch, origin: Provenance) -> Iterator[Object]:
    """Yield a role's set: pods that answer are of the pool, and decode's stand behind the sidecar."""
    role = launch.role.role
    for item in lws.workloads(target, launch, origin):
        group = item["spec"]["leaderWorkerTemplate"]
        answering = group.get("leaderTemplate", group["workerTemplate"])
        answering["metadata"]["labels"] |= SERVING | {"llm-d.ai/role": "prefill" if role == "prefill" else "decode"}
        if role == "decode":
            answering["spec"]["initContainers"] = [_sidecar(target)]
        yield item


def _sidecar(target: Target) -> Object:
    llmd = load_orchestrator("llm-d")
    return {
        "name": "routing-proxy",
        "image": llmd.images["sidecar"].value,
        "args": [
            f"--port={SIDECAR_SERVICE_PORT}",
            f"--vllm-port={SIDECAR_TARGET_PORT}",
            f"--kv-connector={CONNECTORS[target.profile.engine]}",
            "--secure-proxy=false",
        ],
        "ports": [{"name": "sidecar", "containerPort": SIDECAR_SERVICE_PORT}],
        "resources": small("2", "4Gi"),
        "restartPolicy": "Always",
        "securityContext": LOCKED | {"runAsNonRoot": True},
    }


def gateway(target: Target, origin: Provenance) -> Iterator[Object]:
    """Yield the pool, the picker with what it may read, the gateway and the route."""
    name, picker = target.name, f"{target.name}-epp"
    pool = ("inference.networking.k8s.io/v1", "InferencePool")
    yield _object(target, origin, *pool, name) | {
        "spec": {
            "targetPorts": [{"number": SIDECAR_SERVICE_PORT}],
            "selector": {"matchLabels": SERVING | {"app.kubernetes.io/part-of": name}},
            "endpointPickerRef": {"name": picker, "port": {"number": PICKER_PORT}, "failureMode": "FailClose"},
        }
    }
    yield _object(target, origin, "v1", "ConfigMap", picker) | {"data": {"picker.yaml": to_yaml(_picker(target))}}
    yield from _access(target, origin, picker)
    yield from _picker_pods(target, origin, picker)
    listener = {"name": "http", "port": 80, "protocol": "HTTP"}
    yield _object(target, origin, "gateway.networking.k8s.io/v1", "Gateway", name) | {
        "spec": {"gatewayClassName": target.site.gateway_class, "listeners": [listener]}
    }
    behind = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": name}
    yield _object(target, origin, "gateway.networking.k8s.io/v1", "HTTPRoute", name) | {
        "spec": {
            "parentRefs": [{"name": name}],
            "rules": [
                {
                    "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
                    "backendRefs": [behind],
                    "timeouts": {"request": "0s", "backendRequest": "0s"},  # an answer streams as long as it takes
                }
            ],
        }
    }


def _object(target: Target, origin: Provenance, api: str, kind: str, name: str) -> Object:
    return {"apiVersion": api, "kind": kind, "metadata": metadata(target, name, origin)}


def _picker(target: Target) -> Object:
    """Return the picker's plugins: the least loaded decode pod, and before it the prefill pod that waits least."""
    kinds = ["queue-scorer", "active-request-scorer", "max-score-picker"]
    found: dict[str, Any] = {"apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "EndpointPickerConfig"}
    chosen: list[Object] = [
        {"pluginRef": "queue-scorer", "weight": 1},
        {"pluginRef": "active-request-scorer", "weight": 2},
    ]
    chosen.append({"pluginRef": "max-score-picker"})
    if target.role("decode") is None:
        plugins: list[Object] = [{"type": kind} for kind in (*kinds, "single-profile-handler")]
        return found | {"plugins": plugins, "schedulingProfiles": [{"name": "default", "plugins": chosen}]}
    decider = "always-disagg-pd-decider"
    plugins = [
        *({"type": kind} for kind in ("disagg-headers-handler", decider, "prefill-filter", "decode-filter", *kinds)),
        {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": decider}}},
    ]
    profiles = [{"name": role, "plugins": [{"pluginRef": f"{role}-filter"}, *chosen]} for role in ("prefill", "decode")]
    return found | {"plugins": plugins, "schedulingProfiles": profiles}


def _access(target: Target, origin: Provenance, picker: str) -> Iterator[Object]:
    """Yield the picker's account and what it may read: pods and pools of its namespace."""
    watched = ["get", "list", "watch"]
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": watched},
        {"apiGroups": ["inference.networking.k8s.io"], "resources": ["inferencepools"], "verbs": watched},
        {
            "apiGroups": ["inference.networking.x-k8s.io", "llm-d.ai"],
            "resources": ["inferenceobjectives", "inferencemodelrewrites", "inferencepools"],
            "verbs": watched,
        },
    ]
    yield _object(target, origin, "v1", "ServiceAccount", picker)
    group = "rbac.authorization.k8s.io"
    yield _object(target, origin, f"{group}/v1", "Role", picker) | {"rules": rules}
    yield _object(target, origin, f"{group}/v1", "RoleBinding", picker) | {
        "subjects": [{"kind": "ServiceAccount", "name": picker, "namespace": target.site.namespace}],
        "roleRef": {"apiGroup": group, "kind": "Role", "name": picker},
    }


def _picker_pods(target: Target, origin: Provenance, picker: str) -> Iterator[Object]:
    chosen = {"podplan/pool": "epp", "app.kubernetes.io/part-of": target.name}
    probe = {"grpc": {"port": HEALTH_PORT, "service": "inference-extension"}, "periodSeconds": 10}
    container = {
        "name": "epp",
        "image": target.site.router_image or load_orchestrator("llm-d").images["picker"].value,
        "args": [
            f"--pool-name={target.name}",
            f"--pool-namespace={target.site.namespace}",
            f"--grpc-port={PICKER_PORT}",
            f"--grpc-health-port={HEALTH_PORT}",
            "--config-file=/config/picker.yaml",
        ],
        "ports": [
            {"name": "grpc", "containerPort": PICKER_PORT},
            {"name": "health", "containerPort": HEALTH_PORT},
            {"name": "metrics", "containerPort": METRICS_PORT},
        ],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "resources": small("4", "8Gi"),
        "securityContext": LOCKED,
        "volumeMounts": [{"name": "config", "mountPath": "/config"}],
    }
    pod = {
        "serviceAccountName": picker,
        "terminationGracePeriodSeconds": 130,
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": picker}}],
    }
    yield _object(target, origin, "apps/v1", "Deployment", picker) | {
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": chosen},
            "template": {"metadata": {"labels": chosen}, "spec": pod},
        }
    }
    served = {"name": "grpc", "port": PICKER_PORT, "targetPort": "grpc", "appProtocol": "http2"}
    yield _object(target, origin, "v1", "Service", picker) | {"spec": {"selector": chosen, "ports": [served]}}
