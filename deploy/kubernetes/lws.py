"""LeaderWorkerSet v1: one set per role, ``size`` nodes per instance, ``replicas`` instances."""

from collections.abc import Iterator

from deploy.commands.launch import Launch, Target
from deploy.header import Provenance
from deploy.kubernetes.pods import Object, labels, metadata, pod, super_pod_block


def workloads(target: Target, launch: Launch, origin: Provenance) -> Iterator[Object]:
    """Yield the set of a role; pods after the first have a template of their own where they answer no requests."""
    worker = pod(target, launch, origin, probed=launch.api == "all")
    template: Object = {
        "size": launch.role.nodes,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "workerTemplate": worker,
    }
    if launch.api == "head":
        template["leaderTemplate"] = pod(target, launch, origin, probed=True)
    found = metadata(target, f"{target.name}-{launch.role.name}", origin, labels(target, launch))
    found["annotations"] |= super_pod_block(target, launch)
    if target.site.topology_key:
        found["annotations"]["leaderworkerset.sigs.k8s.io/exclusive-topology"] = target.site.topology_key
    yield {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": found,
        "spec": {
            "replicas": len(launch.role.instances),
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {"type": "RollingUpdate"},
            "networkConfig": {"subdomainPolicy": "Shared"},
            "leaderWorkerTemplate": template,
        },
    }


def address(target: Target, launch: Launch, number: int, node: int) -> str:
    """Return the DNS name of a node of an instance."""
    name = f"{target.name}-{launch.role.name}"
    return f"{name}-{number}.{name}" if node == 0 else f"{name}-{number}-{node}.{name}"
