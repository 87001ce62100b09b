"""All Kubernetes files of a deployment: which objects stand in which file, in the order in which they are applied."""

import json
from collections.abc import Iterator
from typing import NamedTuple

from deploy.commands.launch import Launch, Target, spans_nodes_by_nvlink
from deploy.kubernetes import weights
from deploy.kubernetes.orchestrators import FRONTEND_PORT, dynamo_graph, llmd_gateway, llmd_workloads
from deploy.kubernetes.pods import CHANNEL, files_of, weights_mount, weights_volume
from deploy.kubernetes.templates import objects, plain_pod, template
from deploy.kubernetes.workloads import WORKLOADS
from deploy.proof import Load, benchmark, result_name, smoke
from deploy.routers import ETCD_PORT, Address, etcd_command, router_of, router_script
from deploy.site import patched
from deploy.templates import Object, filled
from ground.errors import BadInput
from ground.files import to_yaml
from ground.units import MEBI
from planner.engines.spec import Metrics

SET = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
SCALERS = {"lws": SET, "llm-d": SET, "dynamo": ("nvidia.com/v1beta1", "DynamoGraphDeploymentScalingAdapter")}
GPU_NODE = {"nvidia.com/gpu.present": "true"}  # by NVIDIA's operator or its feature discovery
# Decode holds requests that have begun, so after a failure it comes back first and prefill may yield to it.
PRIORITIES = {"decode": 200_000, "mixed": 200_000, "prefill": 100_000, "encode": 100_000}


def policies(target: Target) -> Iterator[Object]:
    """Yield a budget per role and who reaches what: pods one another, all the router, Prometheus the engines."""
    for role in target.roles:
        pods = role.nodes * len(role.instances)
        # A budget of what may go needs a controller that scales: Volcano's jobs and Dynamo's graphs say what stays.
        scales = target.kind not in ("volcano", "dynamo")
        most = {"maxUnavailable": 1} if scales else {"minAvailable": max(pods - 1, 1)}
        yield from objects("budget", target, pool=role.name, most=most)
    if target.site.host_network:  # where no policy holds a pod, nor knows it by its labels from others
        return
    # The gateway's proxies reach llm-d's pods themselves, from a namespace of theirs.
    way, pool, ports = "router", {"podplan/pool": "router"}, [target.site.router_port]
    if target.kind == "llm-d":
        way, pool, ports = "gateway", {}, [8000, 9002]
    elif target.kind == "dynamo":
        ports = [FRONTEND_PORT]
    yield from objects(
        "policies",
        target,
        monitoring_namespace=target.site.monitoring_namespace,
        way=way,
        way_in=pool,
        ports=[{"port": port, "protocol": "TCP"} for port in ports],
    )


def monitoring(target: Target) -> Iterator[Object]:
    """Yield the pod monitor and the dashboard of an engine that serves metrics."""
    names = target.metrics
    if names is None:
        return
    dynamo = target.kind == "dynamo"  # whose operator serves the engine's series at a port of its own
    place = {"port": "system", "path": "/metrics"} if dynamo else {"port": "http", "path": names.path}
    for role in (role for role in target.roles if role.role != "encode"):  # whose server tells no metrics
        yield from objects("monitor", target, pool=role.name, **place)
    yield from objects("dashboard", target, dashboard=json.dumps(dashboard(target, names), indent=1) + "\n")


def dashboard(target: Target, names: Metrics) -> Object:
    """Return a Grafana dashboard: what the plan limits and predicts, with its lines drawn where it has them."""
    levels = target.levels
    known = names._asdict() | {
        "label": f'namespace="{target.site.namespace}",pod=~"{target.name}-.*"',
        "share": f"{levels.percentile / 100:g}",
        "percentile": f"p{levels.percentile:g}",
        "ttft_limit": levels.ttft_seconds,
        "tpot_limit": levels.tpot_seconds,
        "most": max(role.requests for role in target.roles),
    }
    (whole, form, held), drawn = template("panels"), []
    for number, panel in enumerate(filled(held, known)["panels"]):
        line = panel.get("line")
        place = {"id": number + 1, "x": number % 2 * 12, "y": number // 2 * 8, "mode": "line" if line else "off"}
        steps = [{"color": "green", "value": None}, *([{"color": "red", "value": line}] if line else [])]
        drawn.append(filled(form, panel | place | {"steps": steps}))
    title = f"{target.name_of_model} ({target.name})"
    return filled(whole, {"title": title, "name": target.name, "panels": drawn})


def autoscaler(target: Target) -> Iterator[Object]:
    """Yield KEDA's object of each role whose instances one set counts: from one to the plan's instances.

    There are as many as the requests are over those that the plan has at an instance, as plan simulate plays it.
    """
    names, scaler = target.metrics, SCALERS.get(target.kind)
    for role in (role for role in target.roles if scaler and target.scaled(role)):
        assert names is not None and scaler is not None
        label = f'namespace="{target.site.namespace}",pod=~"{target.name}-(0-)?{role.name}-.*"'  # 0: of Dynamo's Grove
        yield from objects(
            "scaled",
            target,
            pool=role.name,
            api=scaler[0],
            kind=scaler[1],
            most=len(role.instances),
            prometheus=target.site.prometheus,
            query=f"sum({names.running}{{{label}}}) + sum({names.waiting}{{{label}}})",
            threshold=str(max(round(role.held), 1)),
        )


def priority_classes(target: Target) -> Iterator[Object]:
    """Yield a class per role; decode goes before prefill at restarts."""
    if target.site.priority_class:
        return
    for role in dict.fromkeys(role.role for role in target.roles):
        for item in objects("priority", target, role=role, priority=PRIORITIES[role]):
            item["metadata"].pop("namespace")  # the class is of the cluster
            yield item


def config_map(target: Target, launch: Launch) -> Object:
    """Return the ConfigMap with a role's script and files. BadInput where it would pass Kubernetes' limit of 1 MiB."""
    data = files_of(target, launch)
    size = sum(len(text.encode()) for text in data.values())
    if size > MEBI:
        raise BadInput(
            f"--platform: the files of {launch.role.name} are {size} bytes, a ConfigMap holds {MEBI}; "
            "use --platform bare and a shared folder"
        )
    return next(objects("files", target, pool=launch.role.name, files=data))


class Sheet(NamedTuple):
    """One file: its name, what it is for and its objects."""

    name: str
    purpose: str
    items: list[Object]


def sheets(target: Target, launches: dict[str, Launch], load: Load) -> Iterator[Sheet]:
    """Yield the files in the order in which they are applied; the last two are run once all is up."""
    address = address_of(target)
    joined = any(spans_nodes_by_nvlink(role) for role in target.roles)
    found = [
        Sheet("priorities", "Decode comes back first.", list(priority_classes(target))),
        Sheet("weights", "The weights.", list(weights.weights(target))),
        Sheet("policies", "Disruptions and who reaches whom.", list(policies(target))),
        Sheet("nvlink", "NVLink between nodes.", list(objects("nvlink", target, channel=CHANNEL)) if joined else []),
        *engines(target, launches),
        Sheet("autoscaler", "Instances up to the plan's.", list(autoscaler(target))),
        Sheet("monitoring", "Metrics and a dashboard.", list(monitoring(target))),
        _job(target, load, "smoke", smoke(target, launches, address)),
        _job(target, load, "benchmark", benchmark(target, load, address)),
    ]
    yield from (sheet for sheet in found if sheet.items)


def address_of(target: Target) -> Address | None:
    """Return the names of pods; None where an orchestrator gives them."""
    return target.host_name if target.kind in WORKLOADS else None


def engines(target: Target, launches: dict[str, Launch]) -> Iterator[Sheet]:
    """Yield what runs: a file per role and the router's, or the orchestrator's graph."""
    address = address_of(target)
    if address is None:
        for name, launch in launches.items():
            carried = [config_map(target, launch)] if launch.files else []
            yield Sheet(f"{name}-files", f"Files of the role {name}.", carried)
        yield Sheet("graph", "NVIDIA Dynamo's deployment graph.", [dynamo_graph(target, launches)])
        return
    workloads = llmd_workloads if target.kind == "llm-d" else WORKLOADS[target.kind]
    for name, launch in launches.items():
        held = [config_map(target, launch), *workloads(target, launch)]
        yield Sheet(name, f"The role {name}.", held)
    if target.kind == "llm-d":
        yield Sheet("gateway", "Pool, picker and route.", list(llmd_gateway(target)))
        return
    router = router_of(target, launches, address)
    if router is not None:
        proxy = str(router.programme[-1]).endswith(".py")  # an example of the engine's own image
        known = target.image(target.roles[0]) if proxy else target.published("router")
        placed = plain_pod(target)
        if target.profile.engine == "trtllm":  # which loads libcuda (NVIDIA/TensorRT-LLM#3629)
            placed["nodeSelector"] = target.site.node_selectors.over(GPU_NODE, "all")
        if target.watched:
            placed |= {"automountServiceAccountToken": True, "serviceAccountName": f"{target.name}-router"}
        reads = any(name == "--tokenizer_path" for name, _ in router.flags)
        files = {"router.sh": router_script(target, router), **target.owned(dict(router.files))}
        held = list(objects("access", target) if target.watched else ())
        held += list(
            objects(
                "router",
                target,
                files=files,
                runs=target.runs(files),
                image=target.site.router_image or known,
                plain_pod=placed,
                port=target.site.router_port,
                tokenizer={"name": "model", "mountPath": weights_mount(target), "readOnly": True} if reads else None,
                weights=weights_volume(target) if reads else None,
            )
        )
        if target.profile.engine == "xllm" and target.site.etcd_address is None:
            # One etcd member and its service, where xLLM's instances register
            command = etcd_command(f"{target.name}-etcd:{ETCD_PORT}")
            held += objects("etcd", target, command=command, port=ETCD_PORT)
    else:  # a Service over the pods of aggregated instances, whose engine has no router of its own
        fronts = (objects("front", target, pool=name, port=target.site.router_port) for name in launches)
        held = [item for front in fronts for item in front]
    yield Sheet("router", "What spreads requests over instances.", held)


def _job(target: Target, load: Load, name: str, script: str) -> Sheet:
    """Return a script and the job that runs it in the engine's image, without a device."""
    printed = f" && echo && tr -d '\\n' < /out/{result_name(target, load)}"  # on a line of its own
    items = objects(
        "job",
        target,
        job=name,
        script=script,
        image=target.image(target.roles[0]),
        command=f"bash {target.site.files_path}/{name}.sh{printed if name == 'benchmark' else ''}",
        weights_mount=weights_mount(target),
        weights_volume=weights_volume(target),
    )
    return Sheet(name, "Run it once all is up; kubectl logs has what it says.", list(items))


def written(target: Target, sheet: Sheet) -> str:
    """Return a file's YAML documents under their origin, with the site's patches."""
    texts = (to_yaml(patched(target.site, item)) for item in sheet.items)
    return target.head(sheet.purpose) + "\n" + "---\n".join(texts)
