"""Core objects beside the workloads: files, priorities, the router and its service."""

from collections.abc import Iterator

from deploy.commands.fabric import spans_nodes_by_nvlink
from deploy.commands.launch import Launch, Target
from deploy.kubernetes.pods import CHANNEL, weights_mount, weights_volume
from deploy.kubernetes.templates import objects
from deploy.routers import ETCD_PORT, Router, etcd_command, router_script
from deploy.scripts import script
from deploy.templates import Object
from ground.errors import BadInput
from ground.units import MEBI

# Decode holds requests that have begun, so after a failure it comes back first and prefill may yield to it.
PRIORITIES = {"decode": 200_000, "mixed": 200_000, "prefill": 100_000, "encode": 100_000}


def priority_classes(target: Target) -> Iterator[Object]:
    """Yield a class per role; decode goes before prefill at restarts."""
    if target.site.priority_class:
        return
    for role in dict.fromkeys(role.role for role in target.roles):
        for item in objects("priority", target, role=role, priority=PRIORITIES[role]):
            item["metadata"].pop("namespace")  # the class is of the cluster
            yield item


def nvlink_domain(target: Target) -> Iterator[Object]:
    """Yield the ComputeDomain of the pods that NVLink joins over nodes."""
    if any(spans_nodes_by_nvlink(role) for role in target.roles):
        yield from objects("nvlink", target, channel=CHANNEL)


def config_map(target: Target, launch: Launch) -> Object:
    """Return the ConfigMap with a role's script and files. BadInput where it would pass Kubernetes' limit of 1 MiB."""
    started = {} if target.kind == "dynamo" else {f"{launch.role.name}.sh": script(target, launch)}
    data = {**started, **launch.files}  # Dynamo's workers start by their arguments
    size = sum(len(text.encode()) for text in data.values())
    if size > MEBI:
        raise BadInput(
            f"--platform: the files of {launch.role.name} are {size} bytes, a ConfigMap holds {MEBI}; "
            "use --platform bare and a shared folder"
        )
    return next(objects("files", target, pool=launch.role.name, files=data))


def etcd_objects(target: Target) -> Iterator[Object]:
    """Yield one etcd member and its service, where xLLM's instances register."""
    command = etcd_command(f"{target.name}-etcd:{ETCD_PORT}")
    return objects("etcd", target, command=command, port=ETCD_PORT)


def router_objects(target: Target, router: Router) -> Iterator[Object]:
    """Yield the router's files, deployment and service."""
    proxy = router.table is None and router.programme[0] == "python3"  # an example of the engine's own image
    known = target.image(target.roles[0]) if proxy else target.published("router")
    reads = any(name == "--tokenizer_path" for name, _ in router.flags)
    return objects(
        "router",
        target,
        files={"router.sh": router_script(target, router), **target.origin.owned(dict(router.files))},
        image=target.site.router_image or known,
        port=target.site.router_port,
        tokenizer={"name": "model", "mountPath": weights_mount(target), "readOnly": True} if reads else None,
        weights=weights_volume(target) if reads else None,
    )


def front(target: Target, launch: Launch) -> Iterator[Object]:
    """Yield a Service over the pods of aggregated instances, where the engine has no router of its own."""
    return objects("front", target, pool=launch.role.name, port=target.site.router_port)
