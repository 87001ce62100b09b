"""All Kubernetes files of a deployment: which objects stand in which file, in the order in which they are applied."""

from collections.abc import Iterator
from dataclasses import dataclass

from deploy.commands.launch import Launch, Target
from deploy.header import Provenance, comment
from deploy.images import image
from deploy.kubernetes import core, dynamo, llmd, operations, weights
from deploy.kubernetes.pods import weights_mount, weights_volume
from deploy.kubernetes.templates import objects
from deploy.kubernetes.workloads import WORKLOADS
from deploy.kubernetes.workloads import address as name_of
from deploy.proof import Load, benchmark, result_name, smoke
from deploy.routers import Address, router_of
from deploy.site import patched
from deploy.templates import Object
from ground.files import to_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One file: its name, what it is for and its objects."""

    name: str
    purpose: str
    items: list[Object]


def sheets(target: Target, launches: dict[str, Launch], load: Load, origin: Provenance) -> Iterator[Sheet]:
    """Yield the files in the order in which they are applied; the last two are run once all is up."""
    address: Address | None = None
    if target.kind in WORKLOADS:
        address = lambda role, number, node: name_of(target, launches[role.name], number, node)  # noqa: E731
    found = [
        Sheet(name="priorities", purpose="Decode comes back first.", items=list(core.priority_classes(target, origin))),
        Sheet(name="weights", purpose="The weights.", items=list(weights.weights(target, origin))),
        Sheet(
            name="policies",
            purpose="Disruptions and who reaches whom.",
            items=list(operations.policies(target, origin)),
        ),
        Sheet(name="nvlink", purpose="NVLink between nodes.", items=list(core.nvlink_domain(target, origin))),
        *_engines(target, launches, address, origin),
        Sheet(
            name="autoscaler",
            purpose="Instances up to the plan's.",
            items=list(operations.autoscaler(target, launches, origin)),
        ),
        Sheet(name="monitoring", purpose="Metrics and a dashboard.", items=list(operations.monitoring(target, origin))),
        _job(target, origin, "smoke", smoke(target, launches, address, origin)),
        _job(target, origin, "benchmark", benchmark(target, load, address, origin)),
    ]
    yield from (sheet for sheet in found if sheet.items)


def _engines(
    target: Target, launches: dict[str, Launch], address: Address | None, origin: Provenance
) -> Iterator[Sheet]:
    """Yield what runs: a file per role and the router's, or the orchestrator's graph."""
    if address is None:
        for name, launch in launches.items():
            carried = [core.config_map(target, launch, origin)] if launch.files else []
            yield Sheet(name=f"{name}-files", purpose=f"Files of the role {name}.", items=carried)
        graph = [dynamo.graph(target, launches, origin)]
        yield Sheet(name="graph", purpose="NVIDIA Dynamo's deployment graph.", items=graph)
        return
    workloads = llmd.workloads if target.kind == "llm-d" else WORKLOADS[target.kind]
    for name, launch in launches.items():
        held = [core.config_map(target, launch, origin), *workloads(target, launch, origin)]
        yield Sheet(name=name, purpose=f"The role {name}.", items=held)
    if target.kind == "llm-d":
        yield Sheet(name="gateway", purpose="Pool, picker and route.", items=list(llmd.gateway(target, origin)))
        return
    router = router_of(target, launches, address)
    if router is not None:
        held = list(core.router_objects(target, router, origin))
        if target.profile.engine == "xllm" and target.site.etcd_address is None:
            held += core.etcd_objects(target, origin)
    else:
        held = [item for launch in launches.values() for item in core.front(target, launch, origin)]
    yield Sheet(name="router", purpose="What spreads requests over instances.", items=held)


def _job(target: Target, origin: Provenance, name: str, script: str) -> Sheet:
    """Return a script and the job that runs it in the engine's image, without a device."""
    shown = (
        f" && echo && tr -d '\\n' < /out/{result_name(target)}" if name == "benchmark" else ""
    )  # on a line of its own
    items = objects(
        "job",
        target,
        origin,
        job=name,
        script=script,
        image=image(target, target.roles[0]),
        command=f"bash {target.site.files_path}/{name}.sh{shown}",
        weights_mount=weights_mount(target),
        weights_volume=weights_volume(target),
    )
    return Sheet(name=name, purpose="Run it once all is up; kubectl logs has what it says.", items=list(items))


def written(target: Target, sheet: Sheet, origin: Provenance) -> str:
    """Return a file's YAML documents under their origin, with the site's patches."""
    texts = (to_yaml(patched(target.site, item)) for item in sheet.items)
    return "\n".join(comment(origin, sheet.purpose)) + "\n" + "---\n".join(texts)
