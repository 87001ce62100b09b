"""Plain StatefulSets: one per instance, for a set is one rendezvous group, with a headless service each."""

from collections.abc import Iterator

from deploy.commands.launch import Launch, Target
from deploy.header import Provenance
from deploy.kubernetes.pods import STARTUP_PERIOD_SECONDS, STARTUP_TRIES, labels, pod, super_pod_block
from deploy.kubernetes.templates import objects
from deploy.templates import Object


def workloads(target: Target, launch: Launch, origin: Provenance) -> Iterator[Object]:
    """Yield the service and the set of every instance of a role."""
    for number in range(len(launch.role.instances)):
        name = f"{target.name}-{launch.role.name}-{number}"
        chosen = labels(target, launch) | {"podplan/instance": str(number)}
        # All pods of a set are alike: where only the first answers, a probe must pass on the others.
        template = pod(target, launch, origin, probed=launch.api == "all" or launch.role.nodes == 1)
        template["metadata"]["labels"] = chosen
        if launch.api == "head" and launch.role.nodes > 1:
            template["spec"]["containers"][0] |= _head_probe(launch)
        yield from objects(
            "statefulset",
            target,
            origin,
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
    own = f'[ "${{HOSTNAME##*-}}" != 0 ] || {ask}'

    def run(check: str, period: int, tries: int) -> Object:
        command = {"command": ["bash", "-c", check]}
        return {"exec": command, "periodSeconds": period, "failureThreshold": tries, "timeoutSeconds": 10}

    return {
        "startupProbe": run(ask, STARTUP_PERIOD_SECONDS, STARTUP_TRIES),
        "readinessProbe": run(own, 10, 3),
        "livenessProbe": run(ask, 30, 10),
    }


def address(target: Target, launch: Launch, number: int, node: int) -> str:
    """Return the DNS name of a node of an instance."""
    name = f"{target.name}-{launch.role.name}-{number}"
    return f"{name}-{node}.{name}"
