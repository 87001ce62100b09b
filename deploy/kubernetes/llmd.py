"""llm-d: values of the llm-d-modelservice chart, with the role's script as a custom command."""

from deploy.commands.launch import SIDECAR_SERVICE_PORT, SIDECAR_TARGET_PORT, Launch, Target
from deploy.header import Provenance
from deploy.kubernetes.pods import Object, address_variable, devices, image, probes
from deploy.scripts import script

SIDECAR = "ghcr.io/llm-d/llm-d-routing-sidecar:v0.4.0"
CONNECTORS = {"vllm": "nixlv2", "sglang": "sglang"}


def values(target: Target, launches: dict[str, Launch], origin: Provenance) -> Object:
    """Return the chart's values; ``multinode`` makes LeaderWorkerSets of both roles."""
    folder, _, name = target.model_path.rpartition("/")
    claim = target.site.model_claim or f"{target.name}-weights"
    disaggregated = target.role("decode") is not None
    found: Object = {
        "fullnameOverride": target.name,
        "multinode": any(role.nodes > 1 for role in target.roles),
        "modelArtifacts": {
            "name": target.name_of_model,
            "uri": f"pvc://{claim}/{name}",
            "mountPath": folder or "/",
            "size": "1Gi",
        },
        "accelerator": {"type": "nvidia"},
        "routing": {
            "servicePort": SIDECAR_SERVICE_PORT,
            "proxy": {
                "enabled": disaggregated,
                "image": target.site.router_image or SIDECAR,
                "connector": CONNECTORS[target.profile.engine],
                "targetPort": SIDECAR_TARGET_PORT,
            },
        },
    }
    for launch in launches.values():
        section = "prefill" if launch.role.role == "prefill" else "decode"
        found[section] = _role(target, launch, origin)
    if not disaggregated:
        found["prefill"] = {"create": False}
    return found


def _role(target: Target, launch: Launch, origin: Provenance) -> Object:
    role = launch.role
    wide = role.ranks_per_node == 0  # one rank over several nodes
    parallelism = {
        "tensor": role.devices_per_node if wide else role.strategy.attention_tp * role.strategy.pp,
        "data": role.strategy.attention_dp,
        "dataLocal": role.ranks_per_node or 1,
        "workers": role.nodes,
    }
    container: Object = {
        "name": "engine",
        "image": image(target, role),
        "modelCommand": "custom",
        "command": ["bash", "-c"],
        "args": [script(target, launch, origin)],
        "env": [address_variable()],
        "ports": [{"name": "http", "containerPort": launch.port}],
        "resources": devices(target, launch),
        "mountModelVolume": True,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, *_file_mounts(target, launch)],
    }
    if launch.api == "all" or role.nodes == 1:
        container |= probes(launch)
    shared = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": target.site.shared_memory}}
    files = [{"name": "files", "configMap": {"name": f"{target.name}-{role.name}-files"}}] if launch.files else []
    return {
        "create": True,
        "replicas": len(role.instances),
        "parallelism": parallelism,
        "containers": [container],
        "volumes": [shared, *files],
        "extraConfig": {"priorityClassName": f"{target.name}-{role.role}"}
        | ({"nodeSelector": chosen} if (chosen := target.site.node_selectors.of(role.role)) else {}),
    }


def _file_mounts(target: Target, launch: Launch) -> list[Object]:
    return [{"name": "files", "mountPath": target.site.files_path}] if launch.files else []
