"""Workloads for the nodes of a role: a LeaderWorkerSet, StatefulSets or Volcano Jobs, all of the same pod.

LeaderWorkerSet v1: one set per role, ``size`` nodes per instance, ``replicas`` instances. StatefulSets: one per
instance, for a set is one rendezvous group, with a headless service each. Volcano: a Job per instance, started as a
gang; its svc and env plugins give names and indices.
"""

from collections.abc import Callable, Iterator

from deploy.commands.launch import Launch, Target
from deploy.kubernetes.pods import STARTUP, labels, pod, super_pod_block
from deploy.kubernetes.templates import objects, template
from deploy.templates import Object, filled
from planner.engines.spec import PlatformKind

RING_LABEL = {"ring-controller.atlas": "ascend-910b"}


def leader_worker_set(target: Target, launch: Launch) -> Iterator[Object]:
    """Yield the set of a role; pods after the first have a template of their own where they answer no requests."""
    topology = target.site.topology_key
    exclusive = {"leaderworkerset.sigs.k8s.io/exclusive-topology": topology} if topology else {}
    return objects(
        "lws",
        target,
        pool=launch.role.name,
        labels=labels(target, launch),
        annotations=super_pod_block(target, launch) | exclusive,
        instances=len(launch.role.instances),
        nodes=launch.role.nodes,
        worker=pod(target, launch, probed=launch.api == "all"),
        leader=pod(target, launch, probed=True) if launch.api == "head" else None,
    )


def stateful_sets(target: Target, launch: Launch) -> Iterator[Object]:
    """Yield the service and the set of every instance of a role."""
    for number in range(len(launch.role.instances)):
        name = f"{target.name}-{launch.role.name}-{number}"
        chosen = labels(target, launch) | {"podplan/instance": str(number)}
        # All pods of a set are alike: where only the first answers, a probe must pass on the others.
        template = pod(target, launch, probed=launch.api == "all" or launch.role.nodes == 1)
        template["metadata"]["labels"] = chosen
        if launch.api == "head" and launch.role.nodes > 1:
            template["spec"]["containers"][0] |= _head_probe(launch)
        yield from objects(
            "statefulset",
            target,
            set=name,
            labels=chosen,
            annotations=super_pod_block(target, launch),
            port=launch.port,
            nodes=launch.role.nodes,
            pod=template,
        )


def _head_probe(launch: Launch) -> Object:
    """Return probes that ask the API on the first pod, and on the others whether the first still answers.

    A set has no restart of the whole group: pods that lost their head are restarted by it, a head whose ranks are
    gone stops answering.
    """
    head = '"${HOSTNAME%-*}-0.${HOSTNAME%-*}"'
    ask = f"curl --silent --fail --max-time 5 http://{head}:{launch.port}{launch.health}"
    return filled(template("probes")[1], STARTUP | {"ask": ask, "own": f'[ "${{HOSTNAME##*-}}" != 0 ] || {ask}'})


def gangs(target: Target, launch: Launch) -> Iterator[Object]:
    """Yield the job of every instance of a role: a head and the other nodes, all or none."""
    role = launch.role
    for number in range(len(role.instances)):
        name = f"{target.name}-{role.name}-{number}"
        # An instance of a process per device over several nodes reads a rank table, which the Ascend operator collects.
        rings = name if launch.per_device and role.nodes > 1 else None
        tasks = [_task(target, launch, "head", 1, name, rings)]
        if role.nodes > 1:
            tasks.append(_task(target, launch, "worker", role.nodes - 1, name, rings))
        if rings:
            yield from objects("rings", target, job=name)
        yield from objects(
            "volcano",
            target,
            job=name,
            labels=labels(target, launch) | (RING_LABEL if rings else {}),
            annotations=super_pod_block(target, launch),
            scheduler=target.site.scheduler_name or "volcano",
            queue=target.site.queue,
            nodes=role.nodes,
            tasks=tasks,
        )


def _task(target: Target, launch: Launch, task: str, replicas: int, job: str, rings: str | None) -> Object:
    probed = launch.api == "all" or task == "head"
    template = pod(target, launch, probed=probed, rings=rings, JOB=job, FIRST_RANK="0" if task == "head" else "1")
    if rings:
        template["metadata"]["labels"] |= RING_LABEL
    template["spec"]["restartPolicy"] = "Never"  # the job restarts as a whole
    return {"name": task, "replicas": replicas, "minAvailable": replicas, "template": template}


Workloads = Callable[[Target, Launch], Iterator[Object]]
WORKLOADS: dict[PlatformKind, Workloads] = {
    "lws": leader_worker_set,
    "llm-d": leader_worker_set,
    "statefulset": stateful_sets,
    "volcano": gangs,
}
