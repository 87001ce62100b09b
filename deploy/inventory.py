"""The hosts of a site: which host is which node of the plan, and the network identity of its devices."""

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from ground.errors import BadInput
from ground.files import read_yaml
from ground.strict import Strict
from ground.validation import matching, validate
from planner.manifest.schema import Manifest

HostName = Annotated[
    str, matching(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", "a host name of letters, digits and inner . and -")
]


def _address(value: str) -> str:
    try:
        if "%" in value:  # a zone is of one host alone, and any text
            raise ValueError
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ValueError(f"{value[:40]!r} is not an IP address") from None


class HostDevice(Strict):
    """One device of a host as collectives know it."""

    ip: str = Field(description="hccn_tool -i N -ip -g, on A3 -vnic -g")
    super_device_id: int | None = Field(
        default=None, ge=0, strict=True, description="npu-smi info -t spod-info, A3 only"
    )

    _valid = field_validator("ip")(_address)


class Host(Strict):
    """One node."""

    name: HostName
    address: str
    cluster: str | None = Field(default=None, description="key of the manifest's clusters; needed where it has several")
    super_pod: str | None = Field(default=None, description="A3: super pod id")
    devices: list[HostDevice] = []

    _valid = field_validator("address")(_address)


class Inventory(Strict):
    """Hosts in the order of the plan's nodes: the k-th host of a cluster is its node k."""

    hosts: list[Host] = Field(min_length=1, max_length=65_536)

    def of(self, cluster: str) -> list[Host]:
        """Return the hosts of a cluster in order of its nodes."""
        return [host for host in self.hosts if host.cluster in (cluster, None)]


def read_inventory(path: Path, manifest: Manifest) -> Inventory:
    """Return the inventory in ``path`` after it was held against the plan.

    Raises BadInput naming the host that is wrong or missing.
    """
    inventory = validate(Inventory, read_yaml(path), str(path))
    check_inventory(inventory, manifest, str(path))
    return inventory


def check_inventory(inventory: Inventory, manifest: Manifest, where: str) -> None:
    """Raise BadInput unless every node of the plan has a host of its own with the right devices."""
    _check_unique(inventory.hosts, where)
    for host in inventory.hosts:
        if host.cluster is None and len(manifest.clusters) > 1:
            raise BadInput(f"{where}: host {host.name!r} must name its cluster, one of {sorted(manifest.clusters)}")
        if host.cluster is not None and host.cluster not in manifest.clusters:
            raise BadInput(
                f"{where}: host {host.name!r} is of cluster {host.cluster!r}; the plan has {sorted(manifest.clusters)}"
            )
    for name, cluster in manifest.clusters.items():
        hosts, per_node = inventory.of(name), int(cluster.spec.devices_per_node.value)
        if len(hosts) < cluster.nodes:
            last = f"the last is {hosts[-1].name!r}" if hosts else "there is none"
            raise BadInput(f"{where}: the plan needs {cluster.nodes} hosts of {name}, {len(hosts)} are listed; {last}")
        _check_devices(hosts[: cluster.nodes], per_node, where)


def _check_unique(hosts: Sequence[Host], where: str) -> None:
    """Names, addresses and device identities stand once."""
    seen: dict[tuple[str, str], int] = {}
    for number, host in enumerate(hosts):
        pod = host.super_pod or ""
        keys = [("name", host.name), ("address", host.address)]
        keys += [("device ip", f"{pod}/{device.ip}" if pod else device.ip) for device in host.devices]
        keys += [
            ("super_device_id", f"{pod}/{device.super_device_id}")
            for device in host.devices
            if device.super_device_id is not None
        ]
        for what, value in keys:
            other = seen.setdefault((what, value), number)
            if other != number or keys.count((what, value)) > 1:
                shown, first = value.rpartition("/")[2], hosts[other].name
                raise BadInput(f"{where}: host {host.name!r}: {what} {shown} stands already with host {first!r}")


def _check_devices(hosts: Sequence[Host], per_node: int, where: str) -> None:
    """Either no host lists devices or each lists those of a node, all alike."""
    if not any(host.devices for host in hosts):
        return
    super_pods = any(device.super_device_id is not None for host in hosts for device in host.devices)
    for host in hosts:
        if len(host.devices) != per_node:
            raise BadInput(
                f"{where}: host {host.name!r} lists {len(host.devices)} devices, the plan's nodes have {per_node}"
            )
        missing = [device.ip for device in host.devices if (device.super_device_id is None) == super_pods]
        if missing or (host.super_pod is None) == super_pods:
            raise BadInput(
                f"{where}: host {host.name!r} must have super_pod and a super_device_id for each device, or no host any"
            )
