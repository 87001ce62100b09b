"""What only the site knows: images, names, storage, selectors, networks; kept apart from the plan."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ground.errors import BadInput
from ground.files import read_yaml
from ground.strict import Strict
from ground.validation import formed, validate

DnsName = Annotated[
    str, formed(r"[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?", "1 to 30 lower-case letters, digits and inner hyphens")
]
Word = Annotated[str, formed(r"[A-Za-z0-9._/@:+-]{1,256}", "1 to 256 letters, digits and . _ / @ : + -")]
Absolute = Annotated[
    str, formed(r"/[A-Za-z0-9._/+-]{0,255}", "a path from / on, of up to 256 letters, digits and . _ / + -")
]
Quantity = Annotated[str, formed(r"[1-9][0-9]*(Ki|Mi|Gi|Ti)", "a size such as 64Gi")]
Port = Annotated[int, Field(strict=True, ge=1024, le=29999)]
Label = Annotated[str, formed(r"[A-Za-z0-9./_-]{1,253}", "a label of 1 to 253 letters, digits and . / _ -")]
Labels = dict[Label, Annotated[str, Field(max_length=63)]]


class Selectors(Strict):
    """Node labels that pods ask for: those of all roles, and more per role."""

    all: Labels = {}
    prefill: Labels = {}
    decode: Labels = {}
    mixed: Labels = {}

    def of(self, role: str) -> dict[str, str]:
        """Return the labels of a role."""
        return {**self.all, **getattr(self, role)}


class Site(Strict):
    """The values of ``--values``; each has a default that works somewhere, or a marked placeholder."""

    name: DnsName | None = Field(default=None, description="prefix of every object [the model's name]")
    namespace: DnsName = "default"
    image: Word | None = Field(default=None, description="engine image [the project's own of the pinned version]")
    router_image: Word | None = None
    model_path: Absolute | None = Field(
        default=None,
        description="weights on every node; where roles differ in format, in its folders fp8, int4 [/models/MODEL]",
    )
    draft_model_path: Absolute | None = Field(default=None, description="xLLM: the exported draft [MODEL_PATH/mtp]")
    model_claim: DnsName | None = Field(default=None, description="persistent volume claim that holds the weights")
    model_host_path: Absolute | None = Field(default=None, description="folder of every node that holds the weights")
    files_path: Absolute = Field(default="/etc/podplan", description="where the generated files lie on every node")
    shared_memory: Quantity = "64Gi"
    resource_name: Word | None = Field(default=None, description="device resource [by accelerator]")
    node_selectors: Selectors = Selectors()
    network_interface: Word = "eth0"
    infiniband_device: Word | None = None
    scheduler_name: DnsName | None = None
    queue: DnsName = "default"
    kv_transfer: Literal["nixl", "mooncake"] = Field(default="nixl", description="between GPUs; NPUs have their own")
    etcd_address: Word | None = Field(default=None, description="xLLM: host:port of etcd [one is generated]")
    http_port: Port = 8000
    router_port: Port = 9000
    longest_request_tokens: Annotated[int, Field(strict=True, gt=0)] | None = Field(
        default=None, description="prompt and answer together [from the plan's workload]"
    )
    inventory: str | None = Field(default=None, description="YAML of hosts, relative to this file")


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
    if site.inventory is None:
        return site
    return site.model_copy(update={"inventory": str(path.parent / site.inventory)})
