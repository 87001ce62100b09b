"""Files for hosts without an orchestrator: a script per role, addresses, a table of who runs what."""

from collections.abc import Iterator, Mapping

from deploy.commands.launch import Launch, Target
from deploy.header import Provenance, comment
from deploy.inventory import Host, Inventory
from deploy.roles import RolePlan
from deploy.routers import etcd_address
from deploy.scripts import script, shell_name
from deploy.words import quoted

PLACEHOLDER = "FILL-IN"


def bare_files(
    target: Target, launches: Mapping[str, Launch], inventory: Inventory | None, origin: Provenance
) -> dict[str, str]:
    """Return name -> text of everything but routers and rank tables."""
    files = {"site.env": _site_env(target, inventory, origin), "hosts.tsv": _table(target, inventory, origin)}
    for name, launch in launches.items():
        files[f"{name}.sh"] = script(target, launch, origin)
        files |= launch.files
    return files


def hosts_of(role: RolePlan, number: int, inventory: Inventory | None) -> list[Host | None]:
    """Return the hosts of an instance in the order of its nodes; None for each without an inventory."""
    nodes = role.instances[number].nodes
    if inventory is None:
        return [None] * len(nodes)
    hosts = inventory.of(role.cluster)
    return [hosts[node] for node in nodes]


def address(role: RolePlan, number: int, node: int, inventory: Inventory | None) -> str:
    """Return a node's address, or a placeholder that names it."""
    host = hosts_of(role, number, inventory)[node]
    return host.address if host else f"{PLACEHOLDER}-{role.cluster}-node-{role.instances[number].nodes[node]}"


def _site_env(target: Target, inventory: Inventory | None, origin: Provenance) -> str:
    missing = "" if inventory else f" Replace every {PLACEHOLDER}: no inventory was given."
    lines = comment(origin, f"Addresses of every role, instance by instance and node by node.{missing}")
    if target.profile.engine == "xllm":
        lines.append(f"ETCD={quoted(etcd_address(target, lambda role, n, node: address(role, n, node, inventory)))}")
    for role in target.roles:
        found = [address(role, n, node, inventory) for n in range(len(role.instances)) for node in range(role.nodes)]
        lines.append(f"{shell_name(role.name)}_HOSTS=({' '.join(quoted(host) for host in found)})")
        if role.shares_nodes:
            first = " ".join(str(instance.first_device) for instance in role.instances)
            lines.append(f"{shell_name(role.name)}_FIRST_DEVICES=({first})")
    return "\n".join(lines) + "\n"


def _table(target: Target, inventory: Inventory | None, origin: Provenance) -> str:
    """Return who runs what: one line per node of every instance, with the command and its ranks."""
    lines = [*comment(origin, "What to run on which host, decode before prefill."), "\t".join(COLUMNS)]
    for role in sorted(target.roles, key=lambda role: role.role == "prefill"):
        lines += _rows(role, inventory)
    return "\n".join(lines) + "\n"


COLUMNS = ("host", "cluster", "node", "role", "instance", "rank_of_node", "first_device", "ranks", "command")


def _rows(role: RolePlan, inventory: Inventory | None) -> Iterator[str]:
    for number, instance in enumerate(role.instances):
        for node, host in enumerate(hosts_of(role, number, inventory)):
            first = node * role.devices_per_node
            cells = (
                host.name if host else PLACEHOLDER,
                role.cluster,
                instance.nodes[node],
                role.name,
                number,
                node,
                instance.first_device if node == 0 else 0,
                f"{first}-{first + role.devices_per_node - 1}",
                f"bash {role.name}.sh {number} {node}",
            )
            yield "\t".join(map(str, cells))
