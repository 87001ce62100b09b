"""What Kubernetes objects must look like: core objects by its own schemas, custom ones by small schemas of ours.

The schemas of custom resources hold the fields that are emitted and no other, so that a misspelt one is refused.
Pods inside custom resources are checked as core PodTemplates.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
from jsonschema import Draft202012Validator

KUBERNETES = "1.33"
Object = dict[str, Any]


def _object(required: list[str], optional: dict[str, Any] | None = None, **fields: Any) -> Object:
    return {
        "type": "object",
        "required": required,
        "additionalProperties": False,
        "properties": {**fields, **(optional or {})},
    }


TEXT, COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}
POSITIVE = {"type": "integer", "minimum": 1}
LABELS = {"type": "object", "additionalProperties": TEXT}
META = _object(["name"], name=TEXT, namespace=TEXT, labels=LABELS, annotations=LABELS)
POD: Object = {"type": "object"}  # checked as a PodTemplate

# leaderworkerset.x-k8s.io/v1, CRD at kubernetes-sigs/lws 060ab4d
LWS = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "leaderworkerset.x-k8s.io/v1"},
    kind={"const": "LeaderWorkerSet"},
    metadata=META,
    spec=_object(
        ["leaderWorkerTemplate"],
        replicas=COUNT,
        startupPolicy={"enum": ["LeaderCreated", "LeaderReady"]},
        rolloutStrategy=_object(["type"], type={"const": "RollingUpdate"}),
        networkConfig=_object(["subdomainPolicy"], subdomainPolicy={"enum": ["Shared", "UniquePerReplica"]}),
        leaderWorkerTemplate=_object(
            ["workerTemplate"],
            size=POSITIVE,
            restartPolicy={"enum": ["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]},
            workerTemplate=POD,
            leaderTemplate=POD,
        ),
    ),
)
# batch.volcano.sh/v1alpha1, CRD at volcano-sh/volcano ed72c7c81
VOLCANO = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "batch.volcano.sh/v1alpha1"},
    kind={"const": "Job"},
    metadata=META,
    spec=_object(
        ["tasks"],
        schedulerName=TEXT,
        queue=TEXT,
        minAvailable=POSITIVE,
        plugins={"type": "object", "additionalProperties": {"type": "array", "items": TEXT}},
        policies={
            "type": "array",
            "items": _object(
                ["event", "action"],
                event={"enum": ["PodFailed", "PodEvicted"]},
                action={"enum": ["RestartJob", "AbortJob"]},
            ),
        },
        tasks={
            "type": "array",
            "items": _object(["name", "template"], name=TEXT, replicas=COUNT, minAvailable=COUNT, template=POD),
        },
    ),
)
# nvidia.com/v1beta1, Go types of ai-dynamo/dynamo deploy/operator/api/v1beta1
DYNAMO = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "nvidia.com/v1beta1"},
    kind={"const": "DynamoGraphDeployment"},
    metadata=META,
    spec=_object(
        ["components"],
        backendFramework={"enum": ["sglang", "vllm", "trtllm"]},
        components={
            "type": "array",
            "maxItems": 25,
            "items": _object(
                ["name", "type", "podTemplate"],
                name=TEXT,
                type={"enum": ["frontend", "worker", "prefill", "decode", "planner", "epp"]},
                replicas=COUNT,
                multinode=_object(["nodeCount"], nodeCount={"type": "integer", "minimum": 2}),
                sharedMemorySize=TEXT,
                podTemplate=POD,
            ),
        },
    ),
)
# monitoring.coreos.com/v1 of the Prometheus operator, keda.sh/v1alpha1, gateway.networking.k8s.io/v1 and
# inference.networking.k8s.io/v1 (Gateway API Inference Extension v1): the fields that are emitted
MONITOR = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "PodMonitor"},
    metadata=META,
    spec=_object(
        ["selector", "podMetricsEndpoints"],
        selector=_object(["matchLabels"], matchLabels=LABELS),
        podMetricsEndpoints={
            "type": "array",
            "items": _object(["port", "path", "interval"], port=TEXT, path=TEXT, interval=TEXT),
        },
    ),
)
SCALED = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "keda.sh/v1alpha1"},
    kind={"const": "ScaledObject"},
    metadata=META,
    spec=_object(
        ["scaleTargetRef", "triggers"],
        scaleTargetRef=_object(["apiVersion", "kind", "name"], apiVersion=TEXT, kind=TEXT, name=TEXT),
        minReplicaCount=POSITIVE,
        maxReplicaCount=POSITIVE,
        cooldownPeriod=POSITIVE,
        triggers={"type": "array", "items": _object(["type", "metadata"], type=TEXT, metadata=LABELS)},
    ),
)
PORT = _object(["number"], number=POSITIVE)
POOL = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "inference.networking.k8s.io/v1"},
    kind={"const": "InferencePool"},
    metadata=META,
    spec=_object(
        ["selector", "targetPorts", "endpointPickerRef"],
        selector=_object(["matchLabels"], matchLabels=LABELS),
        targetPorts={"type": "array", "maxItems": 8, "items": PORT},
        endpointPickerRef=_object(["name"], name=TEXT, port=PORT, failureMode={"enum": ["FailOpen", "FailClose"]}),
    ),
)
GATEWAY = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "gateway.networking.k8s.io/v1"},
    kind={"const": "Gateway"},
    metadata=META,
    spec=_object(
        ["gatewayClassName", "listeners"],
        gatewayClassName=TEXT,
        listeners={
            "type": "array",
            "items": _object(["name", "port", "protocol"], name=TEXT, port=POSITIVE, protocol=TEXT),
        },
    ),
)
ROUTE = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "gateway.networking.k8s.io/v1"},
    kind={"const": "HTTPRoute"},
    metadata=META,
    spec=_object(
        ["parentRefs", "rules"],
        parentRefs={"type": "array", "items": _object(["name"], name=TEXT)},
        rules={
            "type": "array",
            "items": _object(
                ["matches", "backendRefs", "timeouts"],
                matches={
                    "type": "array",
                    "items": _object(["path"], path=_object(["type", "value"], type=TEXT, value=TEXT)),
                },
                backendRefs={
                    "type": "array",
                    "items": _object(["group", "kind", "name"], group=TEXT, kind=TEXT, name=TEXT),
                },
                timeouts=_object(["request", "backendRequest"], request=TEXT, backendRequest=TEXT),
            ),
        },
    ),
)
CUSTOM = {
    "LeaderWorkerSet": LWS,
    "DynamoGraphDeployment": DYNAMO,
    "PodMonitor": MONITOR,
    "ScaledObject": SCALED,
    "InferencePool": POOL,
    "Gateway": GATEWAY,
    "HTTPRoute": ROUTE,
}


CHECKED: set[str] = set()


def check(item: Object) -> None:
    """Raise where an object is not what Kubernetes or the custom resource takes; one of each shape is looked at.

    Objects that differ only in the number of their instance or in the text of a script have one shape.
    """
    shape = re.sub(r"-[0-9]+\b", "-N", json.dumps(item | ({"data": sorted(item["data"])} if "data" in item else {})))
    if shape not in CHECKED:
        _check(item)
        CHECKED.add(shape)


def _check(item: Object) -> None:
    schema = CUSTOM.get(item.get("kind", ""))
    if item.get("apiVersion") == "batch.volcano.sh/v1alpha1":
        schema = VOLCANO
    if schema is None:
        kubernetes_validate.validate(item, KUBERNETES, strict=True)
        return
    Draft202012Validator(schema).validate(item)
    for template in pods(item):
        wrapped = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "checked"}, "template": template}
        kubernetes_validate.validate(wrapped, KUBERNETES, strict=True)


def pods(item: Object) -> Iterator[Object]:
    """Yield the pod templates inside a custom resource."""
    spec = item["spec"]
    if item["kind"] == "LeaderWorkerSet":
        held = spec["leaderWorkerTemplate"]
        yield from (held[name] for name in ("workerTemplate", "leaderTemplate") if name in held)
    elif item["kind"] == "Job":
        yield from (task["template"] for task in spec["tasks"])
    elif item["kind"] == "DynamoGraphDeployment":
        yield from (component["podTemplate"] for component in spec["components"])
