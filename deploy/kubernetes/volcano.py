"""Volcano Jobs: one per instance, started as a gang; the svc and env plugins give names and indices."""

from collections.abc import Iterator

from deploy.commands.launch import Launch, Target
from deploy.header import Provenance
from deploy.kubernetes.pods import labels, pod, super_pod_block
from deploy.kubernetes.templates import objects
from deploy.templates import Object

RING_LABEL = {"ring-controller.atlas": "ascend-910b"}


def workloads(target: Target, launch: Launch, origin: Provenance) -> Iterator[Object]:
    """Yield the job of every instance of a role: a head and the other nodes, all or none."""
    role = launch.role
    for number in range(len(role.instances)):
        name = f"{target.name}-{role.name}-{number}"
        rings = name if needs_rings(launch) else None
        tasks = [_task(target, launch, origin, "head", 1, name, rings)]
        if role.nodes > 1:
            tasks.append(_task(target, launch, origin, "worker", role.nodes - 1, name, rings))
        if rings:
            yield from objects("rings", target, origin, job=name)
        yield from objects(
            "volcano",
            target,
            origin,
            job=name,
            labels=labels(target, launch) | (RING_LABEL if rings else {}),
            annotations=super_pod_block(target, launch),
            scheduler=target.site.scheduler_name or "volcano",
            queue=target.site.queue,
            nodes=role.nodes,
            tasks=tasks,
        )


def needs_rings(launch: Launch) -> bool:
    """Whether an instance reads a rank table, which the Ascend operator collects for a job."""
    return launch.per_device and launch.role.nodes > 1


def _task(
    target: Target, launch: Launch, origin: Provenance, task: str, replicas: int, job: str, rings: str | None
) -> Object:
    probed = launch.api == "all" or task == "head"
    first = "0" if task == "head" else "1"
    template = pod(target, launch, origin, probed=probed, rings=rings, JOB=job, FIRST_RANK=first)
    if rings:
        template["metadata"]["labels"] |= RING_LABEL
    template["spec"]["restartPolicy"] = "Never"  # the job restarts as a whole
    return {"name": task, "replicas": replicas, "minAvailable": replicas, "template": template}


def address(target: Target, launch: Launch, number: int, node: int) -> str:
    """Return the DNS name of a node of an instance."""
    name = f"{target.name}-{launch.role.name}-{number}"
    return f"{name}-head-0.{name}" if node == 0 else f"{name}-worker-{node - 1}.{name}"
