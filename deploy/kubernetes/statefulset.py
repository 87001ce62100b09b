"""Plain StatefulSets: one per instance, for a set is one rendezvous group, with a headless service each."""

from collections.abc import Iterator

from deploy.commands.launch import Launch, Target
from deploy.header import Provenance
from deploy.kubernetes.lws import needs_rings
from deploy.kubernetes.pods import Object, labels, metadata, pod, super_pod_block


def workloads(target: Target, launch: Launch, origin: Provenance) -> Iterator[Object]:
    """Yield the service and the set of every instance of a role."""
    for number in range(len(launch.role.instances)):
        name = f"{target.name}-{launch.role.name}-{number}"
        chosen = labels(target, launch) | {"podplan/instance": str(number)}
        yield {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata(target, name, origin, chosen),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": chosen,
                "ports": [{"name": "http", "port": launch.port, "targetPort": "http"}],
            },
        }
        rings = name if needs_rings(launch) else None
        # All pods of a set are alike: where only the first answers, a probe must pass on the others.
        template = pod(target, launch, origin, probed=launch.api == "all" or launch.role.nodes == 1, rings=rings)
        template["metadata"]["labels"] = chosen
        if launch.api == "head" and launch.role.nodes > 1:
            template["spec"]["containers"][0] |= _head_probe(launch)
        found = metadata(target, name, origin, chosen)
        found["annotations"] |= super_pod_block(target, launch)
        yield {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": found,
            "spec": {
                "serviceName": name,
                "replicas": launch.role.nodes,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": chosen},
                "template": template,
            },
        }


def _head_probe(launch: Launch) -> Object:
    """Return a readiness probe that asks the API on the first pod and nothing on the others."""
    url = f"http://127.0.0.1:{launch.port}{launch.health}"
    check = f'[ "${{HOSTNAME##*-}}" != 0 ] || curl --silent --fail --max-time 5 {url}'
    return {"readinessProbe": {"exec": {"command": ["bash", "-c", check]}, "periodSeconds": 10, "timeoutSeconds": 10}}


def address(target: Target, launch: Launch, number: int, node: int) -> str:
    """Return the DNS name of a node of an instance."""
    name = f"{target.name}-{launch.role.name}-{number}"
    return f"{name}-{node}.{name}"
