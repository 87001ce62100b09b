"""LeaderWorkerSet v1: one set per role, ``size`` nodes per instance, ``replicas`` instances."""

from collections.abc import Iterator

from deploy.commands.launch import Launch, Target
from deploy.header import Provenance
from deploy.kubernetes.pods import labels, pod, super_pod_block
from deploy.kubernetes.templates import objects
from deploy.templates import Object


def workloads(target: Target, launch: Launch, origin: Provenance) -> Iterator[Object]:
    """Yield the set of a role; pods after the first have a template of their own where they answer no requests."""
    topology = target.site.topology_key
    exclusive = {"leaderworkerset.sigs.k8s.io/exclusive-topology": topology} if topology else {}
    return objects(
        "lws",
        target,
        origin,
        pool=launch.role.name,
        labels=labels(target, launch),
        annotations=super_pod_block(target, launch) | exclusive,
        instances=len(launch.role.instances),
        nodes=launch.role.nodes,
        worker=pod(target, launch, origin, probed=launch.api == "all"),
        leader=pod(target, launch, origin, probed=True) if launch.api == "head" else None,
    )


def address(target: Target, launch: Launch, number: int, node: int) -> str:
    """Return the DNS name of a node of an instance."""
    name = f"{target.name}-{launch.role.name}"
    return f"{name}-{number}.{name}" if node == 0 else f"{name}-{number}-{node}.{name}"
