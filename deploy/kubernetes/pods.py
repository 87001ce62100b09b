"""The pod of one node of a role, the same in every kind of workload."""

from deploy.commands.launch import STARTUP_SECONDS, Launch, Target, spans_nodes_by_nvlink, talks_over_nodes
from deploy.kubernetes.templates import plain_pod, template
from deploy.memory import exchanges
from deploy.roles import RolePlan
from deploy.routers import found_by
from deploy.scripts import ASCEND_RANK_TABLE, script
from deploy.templates import Object, filled

RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "ascend": "huawei.com/Ascend910"}
CHANNEL = "nvlink"  # name of the IMEX channel, through which pods share memory over the NVLink of several nodes
STARTUP = {"period": 20, "tries": STARTUP_SECONDS // 20}
"""Seconds between two looks whether an engine has started, and how often it is looked."""


def resource_name(target: Target, role: RolePlan) -> str:
    """Return the device resource that pods ask for."""
    return target.site.resource_name or RESOURCES[role.accelerator]


def labels(target: Target, launch: Launch) -> dict[str, str]:
    """Return the labels of a role's pods."""
    return {
        "app.kubernetes.io/part-of": target.name,
        "podplan/role": launch.role.role,
        "podplan/pool": launch.role.name,
    }


def pod(target: Target, launch: Launch, *, probed: bool, rings: str | None = None, **env: str) -> Object:
    """Return the pod template of a role; ``probed`` where it answers requests, ``rings`` the rank table's map."""
    (form,) = template("pod")
    check = {"httpGet": {"path": launch.health, "port": "http"}}
    volumes, mounts = storage(target, launch, rings)
    values = common(target, launch) | {
        "image": target.image(launch.role),
        "files_path": target.site.files_path,
        "env": [address_variable(), *({"name": name, "value": value} for name, value in env.items())],
        "port": launch.port,
        "mounts": mounts,
        "probes": filled(template("probes")[0], STARTUP | {"check": check}) if probed else {},
        "volumes": volumes,
    }
    return filled(form, values)


def common(target: Target, launch: Launch) -> Object:
    """Return what a role's pods have whoever makes them."""
    return {
        "pool": launch.role.name,
        "labels": labels(target, launch),
        "annotations": target.runs(files_of(target, launch)) | found_by(target, launch.role) | target.site.annotations,
        "settings": pod_settings(target, launch.role),
        "resources": resources(target, launch.role),
        "security": security(target, launch.role),
    }


def files_of(target: Target, launch: Launch) -> dict[str, str]:
    """Return what a role's ConfigMap holds: its script, but of Dynamo's workers, and the engine's own files."""
    started = {} if target.kind == "dynamo" else {f"{launch.role.name}.sh": script(target, launch)}
    return {**started, **launch.files}  # Dynamo's workers start by their arguments


def pod_settings(target: Target, role: RolePlan) -> Object:
    """Return what a role's pods ask of the cluster whatever runs in them: where they go, as whom, on which network."""
    site = target.site
    found = plain_pod(target) | {"priorityClassName": site.priority_class or f"{target.name}-{role.role}"}
    if site.service_account:
        found["serviceAccountName"] = site.service_account
    if spans_nodes_by_nvlink(role):
        found["resourceClaims"] = [{"name": CHANNEL, "resourceClaimTemplateName": f"{target.name}-{CHANNEL}"}]
    if site.host_network:
        found |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    marked: dict[str, str] = {}  # by which MindCluster marks servers; a site takes one away by null
    if role.accelerator == "ascend":
        kind = f"module-a3-{role.setup.devices_per_node}-super-pod" if role.paired else "module-910b-8"
        marked = {"accelerator": "huawei-Ascend910", "accelerator-type": kind}
    if selector := site.node_selectors.over(marked, role.role):
        found["nodeSelector"] = selector
    if scheduler := site.scheduler_name or ("volcano" if target.kind == "volcano" else None):
        found["schedulerName"] = scheduler
    rules = [(site.spread_key, 1, "ScheduleAnyway")] if site.spread_key else []
    rules += [("kubernetes.io/hostname", role.skew, "DoNotSchedule")] if role.skew else []
    chosen = {"matchLabels": {"app.kubernetes.io/part-of": target.name, "podplan/pool": role.name}}
    if rules:
        found["topologySpreadConstraints"] = [
            {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": chosen}
            for key, skew, when in rules
        ]
    return found


def super_pod_block(target: Target, launch: Launch) -> dict[str, str]:
    """Return the annotation by which Ascend's Volcano plugin keeps an instance inside one super pod."""
    scheduled = target.kind == "volcano" or target.site.scheduler_name == "volcano"
    return {"sp-block": str(launch.role.devices)} if scheduled and launch.role.paired else {}


def security(target: Target, role: RolePlan) -> Object:
    """Return an engine's security context: RDMA pins memory, and IBGDA's kernels map the adapter's registers.

    ROCm's processes map each other's memory (vLLM: docs, deployment/k8s), which seccomp's default profile may refuse.
    """
    capabilities, amd = target.site.capabilities, role.accelerator == "amd"
    if capabilities is None:
        fabric = role.accelerator != "ascend" and talks_over_nodes(role)
        ibgda = exchanges(role) and role.nodes > 1 and not spans_nodes_by_nvlink(role)
        capabilities = ["IPC_LOCK", *(["SYS_RAWIO"] if ibgda else [])] if fabric else []
        capabilities += ["SYS_PTRACE"] * amd
    profile = {"type": "Unconfined" if amd else "RuntimeDefault"}
    found: Object = {"allowPrivilegeEscalation": False, "seccompProfile": profile}
    return found | ({"capabilities": {"add": capabilities}} if capabilities else {})


def address_variable() -> Object:
    """Return the environment variable with the pod's address."""
    return {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def resources(target: Target, role: RolePlan) -> Object:
    """Return the resources of one node; devices and RDMA need limits equal to requests, processors none."""
    site, count = target.site, role.devices_per_node
    held = {resource_name(target, role): str(count), "memory": times(site.memory_per_device, count), **site.resources}
    if role.accelerator != "ascend" and talks_over_nodes(role) and site.rdma_resource:
        held[site.rdma_resource] = str(site.rdma_count)
    found: Object = {"requests": held | {"cpu": str(site.cpus_per_device * count)}, "limits": dict(held)}
    return found | ({"claims": [{"name": CHANNEL}]} if spans_nodes_by_nvlink(role) else {})


def times(quantity: str, count: int) -> str:
    """Return so many times a size.

    >>> times("32Gi", 8)
    '256Gi'
    """
    digits = quantity.rstrip("KMGTi")
    return f"{int(digits) * count}{quantity[len(digits) :]}"


DRIVER = {  # files of the driver on an Ascend host
    "hccn": "/etc/hccn.conf",
    "driver": "/usr/local/Ascend/driver",
    "dcmi": "/usr/local/dcmi",
    "npu-smi": "/usr/local/bin/npu-smi",
}


def driver(role: RolePlan) -> tuple[list[Object], list[Object]]:
    """Return the volumes with the driver's files of an Ascend host, and where they are mounted."""
    held = DRIVER if role.accelerator == "ascend" else {}
    volumes: list[Object] = [{"name": name, "hostPath": {"path": path}} for name, path in held.items()]
    return volumes, [{"name": name, "mountPath": path, "readOnly": True} for name, path in held.items()]


def storage(target: Target, launch: Launch, rings: str | None) -> tuple[list[Object], list[Object]]:
    """Return the volumes of an engine, and where they are: shared memory, its files, the weights, driver, ranks."""
    files = {"name": f"{target.name}-{launch.role.name}-files", "defaultMode": 0o555}
    volumes: list[Object] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": target.site.shared_memory}},
        {"name": "files", "configMap": files},
        weights_volume(target),
    ]
    mounts: list[Object] = [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "files", "mountPath": target.site.files_path},
        {"name": "model", "mountPath": weights_mount(target), "readOnly": True},
    ]
    own, places = driver(launch.role)
    if rings:
        own.append({"name": "rings", "configMap": {"name": f"rings-config-{rings}"}})
        places.append({"name": "rings", "mountPath": ASCEND_RANK_TABLE.rpartition("/")[0]})
    return volumes + own, mounts + places


def weights_volume(target: Target) -> Object:
    """Return where the weights come from: a folder of the node, or a claim."""
    if target.site.model_host_path:
        return {"name": "model", "hostPath": {"path": target.site.model_host_path, "type": "Directory"}}
    return {"name": "model", "persistentVolumeClaim": {"claimName": claim(target), "readOnly": True}}


def weights_mount(target: Target) -> str:
    """Return where the volume is mounted: a node's folder is the model's, a claim holds the model's folder in it."""
    parent = target.model_path.rpartition("/")[0]
    return target.model_path if target.site.model_host_path or not parent else parent


def claim(target: Target) -> str:
    """Return the claim that holds the weights."""
    return target.site.model_claim or f"{target.name}-weights"
