"""LeaderWorkerSet v1: one set per role, ``size`` nodes per instance, ``replicas`` instances."""

from collections.abc import Iterator

from deploy.commands.launch import Launch, Target
from deploy.header import Provenance
from deploy.kubernetes.pods import Object, labels, metadata, pod, super_pod_block


def workloads(target: Target, launch: Launch, origin: Provenance) -> Iterator[Object]:
    """Yield the sets of a role: one, or one per instance where each has a rank table of its own."""
    role = launch.role
    if needs_rings(launch):
        for number in range(len(role.instances)):
            yield _set(target, launch, origin, f"{target.name}-{role.name}-{number}", 1)
    else:
        yield _set(target, launch, origin, f"{target.name}-{role.name}", len(role.instances))


def needs_rings(launch: Launch) -> bool:
    """Whether an instance reads a rank table, which the Ascend operator collects per workload."""
    return launch.per_device and launch.role.nodes > 1


def _set(target: Target, launch: Launch, origin: Provenance, name: str, replicas: int) -> Object:
    rings = name if needs_rings(launch) else None
    worker = pod(target, launch, origin, probed=launch.api == "all", rings=rings)
    template: Object = {
        "size": launch.role.nodes,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "workerTemplate": worker,
    }
    if launch.api == "head":
        template["leaderTemplate"] = pod(target, launch, origin, probed=True, rings=rings)
    extra = {"ring-controller.atlas": "ascend-910b"} if rings else {}
    found = metadata(target, name, origin, labels(target, launch) | extra)
    found["annotations"] |= super_pod_block(target, launch)
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": found,
        "spec": {
            "replicas": replicas,
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {"type": "RollingUpdate"},
            "networkConfig": {"subdomainPolicy": "Shared"},
            "leaderWorkerTemplate": template,
        },
    }


def address(target: Target, launch: Launch, number: int, node: int) -> str:
    """Return the DNS name of a node of an instance."""
    name = f"{target.name}-{launch.role.name}"
    if needs_rings(launch):
        name, number = f"{name}-{number}", 0
    return f"{name}-{number}.{name}" if node == 0 else f"{name}-{number}-{node}.{name}"
