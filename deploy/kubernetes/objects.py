"""Core objects beside the workloads: files, priorities, the router and its service."""

from collections.abc import Iterator

from deploy.commands.launch import Launch, Target
from deploy.header import Provenance, owned
from deploy.images import image, published
from deploy.kubernetes.pods import LOCKED, Object, files_map, metadata, plain_pod, small
from deploy.routers import ETCD_PORT, Router, etcd_command, router_script
from deploy.scripts import script
from ground.errors import BadInput
from ground.units import MEBI

# Decode holds requests that have begun, so after a failure it comes back first and prefill may yield to it.
PRIORITIES = {"decode": 200_000, "mixed": 200_000, "prefill": 100_000}
ETCD_IMAGE = "quay.io/coreos/etcd:v3.5.21"


def priority_classes(target: Target, origin: Provenance) -> Iterator[Object]:
    """Yield a class per role; decode goes before prefill at restarts."""
    if target.site.priority_class:
        return
    for role in dict.fromkeys(role.role for role in target.roles):
        held = metadata(target, f"{target.name}-{role}", origin)
        held.pop("namespace")  # the class is of the cluster
        yield {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": held,
            "value": PRIORITIES[role],
            "globalDefault": False,
            "description": f"podplan: {role} instances of {target.name}",
        }


def config_map(target: Target, launch: Launch, origin: Provenance) -> Object:
    """Return the ConfigMap with a role's script and files. BadInput where it would pass Kubernetes' limit of 1 MiB."""
    data = {f"{launch.role.name}.sh": script(target, launch, origin), **launch.files}
    size = sum(len(text.encode()) for text in data.values())
    if size > MEBI:
        raise BadInput(
            f"--platform: the files of {launch.role.name} are {size} bytes, a ConfigMap holds {MEBI}; "
            "use --platform bare and a shared folder"
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(target, files_map(target, launch), origin),
        "data": data,
    }


def etcd_objects(target: Target, origin: Provenance) -> Iterator[Object]:
    """Yield one etcd member and its service, where xLLM's instances register."""
    name = f"{target.name}-etcd"
    member = {
        "name": "etcd",
        "image": ETCD_IMAGE,
        "command": etcd_command(f"{name}:{ETCD_PORT}"),
        "ports": [{"name": "client", "containerPort": ETCD_PORT}],
        "readinessProbe": {"tcpSocket": {"port": "client"}, "periodSeconds": 5},
        "resources": small("1", "2Gi"),
        "securityContext": LOCKED,
        "workingDir": "/data",
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    # What instances register is theirs again within seconds of a restart, so nothing must outlive the pod.
    pod = {"containers": [member], "volumes": [{"name": "data", "emptyDir": {}}]}
    yield from _one_behind_a_service(target, "etcd", pod, origin)


def router_objects(target: Target, router: Router, origin: Provenance) -> Iterator[Object]:
    """Yield the router's files, deployment and service."""
    name = f"{target.name}-router"
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(target, f"{name}-files", origin),
        "data": {"router.sh": router_script(router, origin), **owned(origin, dict(router.files))},
    }
    proxy = target.profile.engine == "vllm-ascend" and router.table is None
    known = image(target, target.roles[0]) if proxy else published(target.profile, "router")
    path = target.site.files_path
    container = {
        "name": "router",
        "image": target.site.router_image or known,
        "command": ["bash", f"{path}/router.sh"],
        "ports": [{"name": "http", "containerPort": target.site.router_port}],
        "readinessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 10},
        "livenessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 30, "failureThreshold": 5},
        "resources": small("4", "8Gi"),
        "securityContext": LOCKED,
        "volumeMounts": [{"name": "files", "mountPath": path}],
    }
    files = {"name": "files", "configMap": {"name": f"{name}-files", "defaultMode": 0o555}}
    yield from _one_behind_a_service(target, "router", {"containers": [container], "volumes": [files]}, origin)


def front(target: Target, launch: Launch, origin: Provenance) -> Object:
    """Return a Service over the pods of aggregated instances, where the engine has no router of its own."""
    chosen = {"app.kubernetes.io/part-of": target.name, "podplan/pool": launch.role.name}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(target, f"{target.name}-router", origin),
        "spec": {
            "selector": chosen,
            "ports": [{"name": "http", "port": target.site.router_port, "targetPort": "http"}],
        },
    }


def _one_behind_a_service(target: Target, pool: str, pod: Object, origin: Provenance) -> Iterator[Object]:
    """Yield a deployment of one pod and the service of its first container's one port."""
    name = f"{target.name}-{pool}"
    chosen = {"podplan/pool": pool, "app.kubernetes.io/part-of": target.name}
    (port,) = pod["containers"][0]["ports"]
    yield {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(target, name, origin),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": chosen},
            "template": {"metadata": {"labels": chosen}, "spec": plain_pod(target) | pod},
        },
    }
    served = {"name": port["name"], "port": port["containerPort"], "targetPort": port["name"]}
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(target, name, origin),
        "spec": {"selector": chosen, "ports": [served]},
    }
