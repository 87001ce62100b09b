"""Volcano Jobs: one per instance, started as a gang; the svc and env plugins give names and indices."""

from collections.abc import Iterator

from deploy.commands.launch import Launch, Target
from deploy.header import Provenance
from deploy.kubernetes.pods import Object, labels, metadata, pod, super_pod_block

# Names before pods are ready, for a head is ready once its workers have joined; no policy that shuts the router out.
SERVICE = ["--publish-not-ready-addresses=true", "--disable-network-policy=true"]


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
            yield _rings(target, origin, name)
        extra = RING_LABEL if rings else {}
        found = metadata(target, name, origin, labels(target, launch) | extra)
        found["annotations"] |= super_pod_block(target, launch)
        yield {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "metadata": found,
            "spec": {
                "schedulerName": target.site.scheduler_name or "volcano",
                "queue": target.site.queue,
                "minAvailable": role.nodes,
                "plugins": {"svc": SERVICE, "env": []},
                "policies": [
                    {"event": "PodFailed", "action": "RestartJob"},
                    {"event": "PodEvicted", "action": "RestartJob"},
                ],
                "tasks": tasks,
            },
        }


def needs_rings(launch: Launch) -> bool:
    """Whether an instance reads a rank table, which the Ascend operator collects for a job."""
    return launch.per_device and launch.role.nodes > 1


def _rings(target: Target, origin: Provenance, job: str) -> Object:
    """Return the ConfigMap that the Ascend operator fills in with a job's rank table."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(target, f"rings-config-{job}", origin, RING_LABEL),
        "data": {"hccl.json": '{"status":"initializing"}'},
    }


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
