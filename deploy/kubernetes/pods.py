"""The pod of one node of a role, the same in every kind of workload."""

from typing import Any

from deploy.commands.launch import Launch, Target
from deploy.header import Provenance, annotations
from deploy.roles import RolePlan
from deploy.scripts import ASCEND_RANK_TABLE

Object = dict[str, Any]

IMAGES = {
    ("vllm", "nvidia"): "vllm/vllm-openai:v0.33.0",
    ("vllm-ascend", "ascend"): "quay.io/ascend/vllm-ascend:v0.23.0-a3",
    ("sglang", "nvidia"): "lmsysorg/sglang:v0.5.23",
    ("sglang", "ascend"): "lmsysorg/sglang:v0.5.23-cann-a3",
    ("xllm", "ascend"): "xllm/xllm-ai:0.9.0-a3",
}
RESOURCES = {"nvidia": "nvidia.com/gpu", "ascend": "huawei.com/Ascend910"}
# Weights of hundreds of gigabytes load in tens of minutes: 180 tries, 20 s apart, are an hour.
STARTUP_TRIES = 180
STARTUP_PERIOD_SECONDS = 20


def image(target: Target, role: RolePlan) -> str:
    """Return the engine's image for a role's machine: the site's, or the project's own of the pinned version."""
    found = target.site.image or IMAGES[(target.profile.engine, role.accelerator)]
    a2 = role.accelerator == "ascend" and role.hardware.devices_per_chip.value == 1
    return found.removesuffix("-a3") if a2 and target.site.image is None else found


def resource_name(target: Target, launch: Launch) -> str:
    """Return the device resource that pods ask for."""
    return target.site.resource_name or RESOURCES[launch.role.accelerator]


def labels(target: Target, launch: Launch) -> dict[str, str]:
    """Return the labels of a role's pods."""
    return {
        "app.kubernetes.io/part-of": target.name,
        "podplan/role": launch.role.role,
        "podplan/pool": launch.role.name,
    }


def metadata(target: Target, name: str, origin: Provenance, extra: dict[str, str] | None = None) -> Object:
    """Return the metadata of a top-level object."""
    return {
        "name": name,
        "namespace": target.site.namespace,
        "labels": {"app.kubernetes.io/part-of": target.name, **(extra or {})},
        "annotations": annotations(origin),
    }


def pod(
    target: Target, launch: Launch, origin: Provenance, *, probed: bool, rings: str | None = None, **env: str
) -> Object:
    """Return the pod template of a role; ``probed`` where it answers requests, ``rings`` the rank table's map."""
    role, site = launch.role, target.site
    spec: Object = {"priorityClassName": priority_class(target, role.role), "terminationGracePeriodSeconds": 120}
    selector = default_selector(launch) | site.node_selectors.of(role.role)
    if selector:
        spec["nodeSelector"] = selector
    scheduler = site.scheduler_name or ("volcano" if target.kind == "volcano" else None)
    if scheduler:
        spec["schedulerName"] = scheduler
    spec["containers"] = [container(target, launch, probed=probed, rings=rings, env=env)]
    spec["volumes"] = volumes(target, launch, rings)
    template: Object = {
        "metadata": {"labels": labels(target, launch), "annotations": annotations(origin)},
        "spec": spec,
    }
    return template


def super_pod_block(target: Target, launch: Launch) -> dict[str, str]:
    """Return the annotation by which Ascend's Volcano plugin keeps an instance inside one super pod."""
    scheduled = target.kind == "volcano" or target.site.scheduler_name == "volcano"
    paired = launch.role.accelerator == "ascend" and launch.role.hardware.devices_per_chip.value == 2
    return {"sp-block": str(launch.role.devices)} if scheduled and paired else {}


def container(target: Target, launch: Launch, *, probed: bool, rings: str | None, env: dict[str, str]) -> Object:
    """Return the engine's container, running its role's script."""
    found: Object = {
        "name": "engine",
        "image": image(target, launch.role),
        "command": ["bash", f"{target.site.files_path}/{launch.role.name}.sh"],
        "env": [address_variable(), *({"name": name, "value": value} for name, value in env.items())],
        "ports": [{"name": "http", "containerPort": launch.port}],
        "resources": devices(target, launch),
        "volumeMounts": mounts(target, launch, rings),
    }
    return found | (probes(launch) if probed else {})


def address_variable() -> Object:
    """Return the environment variable with the pod's address."""
    return {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def devices(target: Target, launch: Launch) -> Object:
    """Return the resources of one node; extended resources need limits equal to requests."""
    held = {resource_name(target, launch): str(launch.role.devices_per_node)}
    return {"requests": dict(held), "limits": dict(held)}


def probes(launch: Launch) -> Object:
    """Return probes on the API: started once it answers, out of service when it does not, restarted if that lasts."""
    check = {"httpGet": {"path": launch.health, "port": "http"}}
    startup = {"periodSeconds": STARTUP_PERIOD_SECONDS, "failureThreshold": STARTUP_TRIES, "timeoutSeconds": 5}
    return {
        "startupProbe": check | startup,
        "readinessProbe": check | {"periodSeconds": 10, "failureThreshold": 3, "timeoutSeconds": 5},
        "livenessProbe": check | {"periodSeconds": 30, "failureThreshold": 10, "timeoutSeconds": 10},
    }


def default_selector(launch: Launch) -> dict[str, str]:
    """Return the labels by which Ascend's device plugin marks servers."""
    if launch.role.accelerator != "ascend":
        return {}
    a3 = launch.role.hardware.devices_per_chip.value == 2
    return {"accelerator": "huawei-Ascend910", "accelerator-type": "module-a3-16" if a3 else "module-910b-8"}


HOST_PATHS = {
    "hccn": "/etc/hccn.conf",
    "driver": "/usr/local/Ascend/driver",
    "dcmi": "/usr/local/dcmi",
    "npu-smi": "/usr/local/bin/npu-smi",
}


def volumes(target: Target, launch: Launch, rings: str | None) -> list[Object]:
    """Return shared memory, the generated files, the weights, and Ascend's driver files of the host."""
    site = target.site
    found: list[Object] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": site.shared_memory}},
        {"name": "files", "configMap": {"name": files_map(target, launch), "defaultMode": 0o555}},
    ]
    if site.model_host_path:
        found.append({"name": "model", "hostPath": {"path": site.model_host_path, "type": "Directory"}})
    else:
        claim = site.model_claim or f"{target.name}-weights"
        found.append({"name": "model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
    if launch.role.accelerator == "ascend":
        found += [{"name": name, "hostPath": {"path": path}} for name, path in HOST_PATHS.items()]
    if rings:
        found.append({"name": "rings", "configMap": {"name": f"rings-config-{rings}"}})
    return found


def mounts(target: Target, launch: Launch, rings: str | None) -> list[Object]:
    """Return where the volumes are mounted."""
    found: list[Object] = [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "files", "mountPath": target.site.files_path},
        {"name": "model", "mountPath": target.model_path, "readOnly": True},
    ]
    if launch.role.accelerator == "ascend":
        found += [{"name": name, "mountPath": path, "readOnly": True} for name, path in HOST_PATHS.items()]
    if rings:
        found.append({"name": "rings", "mountPath": ASCEND_RANK_TABLE.rpartition("/")[0]})
    return found


def files_map(target: Target, launch: Launch) -> str:
    """Return the name of the ConfigMap with a role's script and files."""
    return f"{target.name}-{launch.role.name}-files"


def priority_class(target: Target, role: str) -> str:
    """Return the name of a role's priority class."""
    return f"{target.name}-{role}"
