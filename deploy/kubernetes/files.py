"""All Kubernetes files of a deployment: which objects stand in which file, in the order in which they are applied."""

from collections.abc import Iterator
from typing import NamedTuple

from deploy.commands.launch import Launch, Target
from deploy.kubernetes import core, operations, weights
from deploy.kubernetes.orchestrators import dynamo_graph, llmd_gateway, llmd_workloads
from deploy.kubernetes.pods import weights_mount, weights_volume
from deploy.kubernetes.templates import objects
from deploy.kubernetes.workloads import WORKLOADS
from deploy.proof import Load, benchmark, result_name, smoke
from deploy.routers import Address, router_of
from deploy.site import patched
from deploy.templates import Object
from ground.files import to_yaml


class Sheet(NamedTuple):
    """One file: its name, what it is for and its objects."""

    name: str
    purpose: str
    items: list[Object]


def sheets(target: Target, launches: dict[str, Launch], load: Load) -> Iterator[Sheet]:
    """Yield the files in the order in which they are applied; the last two are run once all is up."""
    address: Address | None = target.host_name if target.kind in WORKLOADS else None
    found = [
        Sheet("priorities", "Decode comes back first.", list(core.priority_classes(target))),
        Sheet("weights", "The weights.", list(weights.weights(target))),
        Sheet("policies", "Disruptions and who reaches whom.", list(operations.policies(target))),
        Sheet("nvlink", "NVLink between nodes.", list(core.nvlink_domain(target))),
        *_engines(target, launches, address),
        Sheet("autoscaler", "Instances up to the plan's.", list(operations.autoscaler(target, launches))),
        Sheet("monitoring", "Metrics and a dashboard.", list(operations.monitoring(target))),
        _job(target, load, "smoke", smoke(target, launches, address)),
        _job(target, load, "benchmark", benchmark(target, load, address)),
    ]
    yield from (sheet for sheet in found if sheet.items)


def _engines(target: Target, launches: dict[str, Launch], address: Address | None) -> Iterator[Sheet]:
    """Yield what runs: a file per role and the router's, or the orchestrator's graph."""
    if address is None:
        for name, launch in launches.items():
            carried = [core.config_map(target, launch)] if launch.files else []
            yield Sheet(f"{name}-files", f"Files of the role {name}.", carried)
        yield Sheet("graph", "NVIDIA Dynamo's deployment graph.", [dynamo_graph(target, launches)])
        return
    workloads = llmd_workloads if target.kind == "llm-d" else WORKLOADS[target.kind]
    for name, launch in launches.items():
        held = [core.config_map(target, launch), *workloads(target, launch)]
        yield Sheet(name, f"The role {name}.", held)
    if target.kind == "llm-d":
        yield Sheet("gateway", "Pool, picker and route.", list(llmd_gateway(target)))
        return
    router = router_of(target, launches, address)
    if router is not None:
        held = list(core.router_objects(target, router))
        if target.profile.engine == "xllm" and target.site.etcd_address is None:
            held += core.etcd_objects(target)
    else:
        held = [item for launch in launches.values() for item in core.front(target, launch)]
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
    return target.origin.head(sheet.purpose) + "\n" + "---\n".join(texts)
