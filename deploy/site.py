"""Values of the site (images, names, storage, selectors, networks), kept apart from the plan."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ground.errors import BadInput
from ground.files import read_yaml
from ground.strict import Strict
from ground.validation import matching, validate

DnsName = Annotated[
    str, matching(r"[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?", "1 to 30 lower-case letters, digits and inner hyphens")
]
Word = Annotated[str, matching(r"[A-Za-z0-9._/@:+-]{1,256}", "1 to 256 letters, digits and . _ / @ : + -")]
Words = Annotated[str, matching(r"[A-Za-z0-9._/@:+,=^-]{1,256}", "1 to 256 letters, digits and . _ / @ : + , = ^ -")]
Absolute = Annotated[
    str, matching(r"/[A-Za-z0-9._/+-]{0,255}", "a path from / on, of up to 256 letters, digits and . _ / + -")
]
Quantity = Annotated[str, matching(r"[1-9][0-9]*(Ki|Mi|Gi|Ti)?", "a number or a size such as 64Gi")]
Port = Annotated[int, Field(strict=True, ge=1024, le=29999)]
Label = Annotated[str, matching(r"[A-Za-z0-9./_-]{1,253}", "a label of 1 to 253 letters, digits and . / _ -")]
Labels = dict[Label, Annotated[str, Field(max_length=63)] | None]
Variable = Annotated[str, matching(r"[A-Za-z_][A-Za-z0-9_]{0,127}", "a name of letters, digits and _")]
Text = Annotated[str, Field(max_length=4096)]
Json = dict[str, Any]


class ByRole(Strict):
    """Values of all roles, and more per role, which go before them."""

    all: Labels = {}
    encode: Labels = {}
    prefill: Labels = {}
    decode: Labels = {}
    mixed: Labels = {}

    def over(self, defaults: dict[str, str], role: str) -> dict[str, str]:
        """Return the defaults with the labels of a role over them; a label that is null is taken away."""
        held: dict[str, str | None] = {**defaults, **self.all, **getattr(self, role)}
        return {name: value for name, value in held.items() if value is not None}


class Match(Strict):
    """Objects that a patch is for; None matches all."""

    kind: Word | None = None
    name: Word | None = None


class Patch(Strict):
    """A JSON merge patch (RFC 7386) over every object that matches: null takes a key away, lists replace."""

    target: Match = Match()
    merge: Json


class Site(Strict):
    """The values of ``--values``; each has a default that works somewhere, or a marked placeholder."""

    name: DnsName | None = Field(default=None, description="prefix of every object [the model's name]")
    namespace: DnsName = "default"
    image: Word | None = Field(default=None, description="engine image [the project's own of the pinned version]")
    router_image: Word | None = None
    tools_image: Word = Field(default="python:3.12-slim", description="fetches the weights, before pip install")
    image_pull_secrets: list[DnsName] = []
    service_account: DnsName | None = None
    model_path: Absolute | None = Field(
        default=None,
        description="weights on every node; where roles differ in format, in its folders fp8, int4 [/models/MODEL]",
    )
    model_source: Word | None = Field(default=None, description="repository that the weights come from [the model's]")
    trust_remote_code: bool = Field(default=False, description="let engines run the code in the model's repository")
    draft_model_path: Absolute | None = Field(default=None, description="xLLM: the exported draft [MODEL_PATH/mtp]")
    model_claim: DnsName | None = Field(default=None, description="a claim that holds the weights [one is written]")
    model_host_path: Absolute | None = Field(default=None, description="folder of every node that holds the weights")
    storage_class: DnsName | None = Field(default=None, description="of the claim that is written")
    token_secret: DnsName | None = Field(default=None, description="secret with HF_TOKEN, for gated weights")
    files_path: Absolute = Field(default="/etc/podplan", description="where the generated files lie on every node")
    shared_memory: Quantity = "64Gi"
    resource_name: Word | None = Field(default=None, description="device resource [by accelerator]")
    rdma_resource: Word | None = Field(default="rdma/ib", description="of roles that talk over nodes; null for none")
    rdma_count: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    cpus_per_device: Annotated[int, Field(strict=True, ge=1, le=64)] = 4
    memory_per_device: Quantity = "32Gi"
    resources: dict[Label, Quantity] = Field(default={}, description="more resources of engine pods, such as hugepages")
    capabilities: list[Word] | None = Field(
        default=None, description="Linux capabilities [IPC_LOCK where RDMA is used, SYS_PTRACE on AMD]"
    )
    host_network: bool = False
    node_selectors: ByRole = ByRole()
    tolerations: list[Json] = Field(default=[], max_length=50)
    annotations: dict[Label, Text] = Field(default={}, description="of engine pods, such as multus networks")
    environment: dict[Variable, Text] = Field(default={}, description="of engines, over what is generated")
    priority_class: DnsName | None = Field(default=None, description="of all pods [one per role is written]")
    topology_key: Label | None = Field(default=None, description="node label; an instance stays inside one value of it")
    spread_key: Label | None = Field(default=None, description="node label; instances are spread over its values")
    network_interface: Word = "eth0"
    infiniband_device: Words | None = Field(default=None, description="such as mlx5_0,mlx5_1 [all that are there]")
    scheduler_name: DnsName | None = None
    queue: DnsName = "default"
    kv_transfer: Literal["nixl", "mooncake"] = Field(default="nixl", description="between GPUs; NPUs have their own")
    etcd_address: Word | None = Field(default=None, description="xLLM: host:port of etcd [one is generated]")
    gateway_class: DnsName = Field(default="agentgateway", description="llm-d: who serves the Gateway")
    monitoring_namespace: DnsName = "monitoring"
    prometheus: Words | None = Field(default=None, description="its URL; with it an autoscaler is written")
    slurm: dict[Variable, Words] = Field(default={}, description="options of sbatch, such as partition and account")
    http_port: Port = 8000
    router_port: Port = 9000
    longest_request_tokens: Annotated[int, Field(strict=True, gt=0)] | None = Field(
        default=None, description="prompt and answer together [from the plan's workload]"
    )
    inventory: str | None = Field(default=None, description="YAML of hosts, relative to this file")
    patches: list[Patch] = Field(default=[], max_length=100)


def read_site(path: Path | None) -> Site:
    """Return the values in ``path``, the defaults for None. Raises BadInput naming the file and the field."""
    if path is None:
        return Site()
    stated = read_yaml(path)
    site = validate(Site, {} if stated is None else stated, str(path))  # a file of comments alone states nothing
    if site.model_claim and site.model_host_path:
        raise BadInput(f"{path}: model_claim and model_host_path are two places for the weights; give one")
    if site.http_port == site.router_port:
        raise BadInput(f"{path}: http_port and router_port are both {site.http_port}; give two ports")
    return site if site.inventory is None else site.model_copy(update={"inventory": str(path.parent / site.inventory)})


def merged(item: Any, patch: Any) -> Any:
    """Return ``item`` with a JSON merge patch over it (RFC 7386).

    >>> merged({"a": 1, "b": {"c": 2}}, {"b": {"c": None, "d": 3}})
    {'a': 1, 'b': {'d': 3}}
    """
    if not isinstance(patch, dict):
        return patch
    found = dict(item) if isinstance(item, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


def taken_apart(whole: Json, item: Json) -> str | None:
    """Return what a patch took from an object that makes it the object that it is; None for nothing."""
    for key in sorted(whole.keys() & {"apiVersion", "kind", "metadata", "spec"}):
        told, kept = whole[key], item.get(key)
        if not (isinstance(kept, dict) if isinstance(told, dict) else kept == told):
            return key
    return None if whole["metadata"]["name"] == item["metadata"].get("name") else "name"


def patched(site: Site, item: Json) -> Json:
    """Return an object with every patch of the site that it matches. BadInput for one that takes an object apart."""
    for number, patch in enumerate(site.patches):
        kind, name = patch.target.kind, patch.target.name
        if kind in (None, item["kind"]) and name in (None, item["metadata"]["name"]):
            whole, item = item, merged(item, patch.merge)
            if lost := taken_apart(whole, item):
                told = f"{whole['kind']} {whole['metadata']['name']}"
                raise BadInput(
                    f"--values: patches[{number}].merge: takes the {lost} of {told} apart; patch what is within"
                )
    return item
