"""Ascend rank tables (HCCL): version 1.0 for A2 servers, 1.2 for super pods of A3 servers.

Network identities come from the site's inventory and are never invented: without them a template is written,
marked as such, beside a script that collects what is missing.
"""

import json
from typing import Any

from deploy.bare import PLACEHOLDER, hosts_of
from deploy.header import Provenance, comment
from deploy.inventory import Host, Inventory
from deploy.roles import RolePlan
from deploy.templates import script_of


def rank_table_files(role: RolePlan, inventory: Inventory | None, origin: Provenance) -> dict[str, str]:
    """Return the rank table of every instance, or its template and the collector."""
    known = inventory is not None and all(host.devices for host in inventory.of(role.cluster))
    ending = ".json" if known else ".template.json"
    files = {
        f"ranktable-{role.name}-{number}{ending}": _table(role, number, inventory if known else None)
        for number in range(len(role.instances))
    }
    return files if known else files | {"collect-inventory.sh": collector(role, origin)}


def super_pod(role: RolePlan) -> bool:
    """Whether the machine's tables need super device ids: devices of a chip pair, two dies, are an A3 server's."""
    return role.hardware.devices_per_chip.value == 2


def _table(role: RolePlan, number: int, inventory: Inventory | None) -> str:
    """Return one instance's table; every value is text, ranks count node by node."""
    hosts = hosts_of(role, number, inventory)
    servers: list[dict[str, Any]] = []
    pods: dict[str, list[dict[str, str]]] = {}
    for node, host in enumerate(hosts):
        server_id = host.address if host else f"{PLACEHOLDER}-node-{role.instances[number].nodes[node]}"
        devices = [_device(role, number, host, node, local) for local in range(role.devices_per_node)]
        servers.append({"server_id": server_id, "container_ip": server_id, "device": devices})
        pod = (host.super_pod if host else None) or (f"{PLACEHOLDER}-super-pod" if host is None else "0")
        pods.setdefault(pod, []).append({"server_id": server_id})
    table: dict[str, Any] = {
        "version": "1.2" if super_pod(role) else "1.0",
        "status": "completed" if inventory else "initializing",
        "server_count": str(len(servers)),
        "server_list": servers,
    }
    if super_pod(role):
        table["super_pod_list"] = [{"super_pod_id": pod, "server_list": held} for pod, held in pods.items()]
    return json.dumps(table, indent=1) + "\n"


def _device(role: RolePlan, number: int, host: Host | None, node: int, local: int) -> dict[str, str]:
    physical = local + (role.instances[number].first_device if node == 0 else 0)
    entry = {
        "device_id": str(physical),
        "device_ip": host.devices[physical].ip if host else f"{PLACEHOLDER}-ip",
        "rank_id": str(node * role.devices_per_node + local),
    }
    if super_pod(role):
        held = host.devices[physical].super_device_id if host else None
        entry["super_device_id"] = f"{PLACEHOLDER}-id" if held is None else str(held)
    return entry


def collector(role: RolePlan, origin: Provenance) -> str:
    """Return the script that prints one host's entry of the inventory."""
    head = comment(origin, "Prints this host's entry of the inventory; collect them in the order of the plan's nodes.")
    name = "collect-a3.sh" if super_pod(role) else "collect-a2.sh"
    return script_of(name, head="\n".join(head), last=role.node_size - 1)
