"""Files for hosts without an orchestrator: a script per role, addresses, who runs what, rank tables, a batch job.

Ascend rank tables (HCCL) are of version 1.0 for A2 servers, 1.2 for super pods of A3 servers. Network identities come
from the site's inventory and are never invented: without them a template is written, marked as such, beside a script
that collects what is missing.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from deploy.commands.launch import Launch, Target
from deploy.inventory import Host, Inventory
from deploy.proof import Load, benchmark, smoke
from deploy.roles import RolePlan
from deploy.routers import ETCD_PORT, etcd_address, etcd_command, router_of, router_script
from deploy.scripts import script, shell_name
from deploy.templates import script_of
from deploy.words import quoted
from ground.errors import BadInput

PLACEHOLDER = "FILL-IN"
COLUMNS = ("host", "cluster", "node", "role", "instance", "rank_of_node", "first_device", "ranks", "command")
SLURM_DEVICES = {"nvidia": "gpus-per-node={}", "amd": "gpus-per-node={}", "ascend": "gres=npu:{}"}


def host_files(
    target: Target, launches: Mapping[str, Launch], inventory: Inventory | None, load: Load
) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of every file."""

    def address(role: RolePlan, number: int, node: int) -> str:
        return _address(role, number, node, inventory)

    yield "site.env", _site_env(target, inventory)
    yield "hosts.tsv", _table(target, inventory)
    for name, launch in launches.items():
        yield f"{name}.sh", script(target, launch)
        yield from launch.files.items()
    yield "smoke.sh", smoke(target, launches, address)
    yield "benchmark.sh", benchmark(target, load, address)
    router = router_of(target, launches, address)
    assert router is not None, "a Service stands in front on Kubernetes alone"
    yield "router.sh", router_script(target, router)
    yield from target.owned(dict(router.files)).items()
    own_etcd = target.profile.engine == "xllm" and target.site.etcd_address is None
    if target.kind == "slurm":
        yield "job.sbatch", _job(target, inventory, etcd=own_etcd)
    if own_etcd:
        here = address(target.roles[-1], 0, 0)
        run = " ".join(quoted(word) for word in etcd_command(f"{here}:{ETCD_PORT}"))
        head = target.head(f"Starts etcd on {here}, before everything else.")
        yield "etcd.sh", f"#!/usr/bin/env bash\n{head}\nset -euo pipefail\n\nexec {run}\n"
    for role in target.roles:
        if target.profile.engine in ("xllm", "mindie") and role.nodes > 1:
            yield from _rank_tables(target, role, inventory)


def _hosts(role: RolePlan, number: int, inventory: Inventory | None) -> list[Host | None]:
    """Return the hosts of an instance in the order of its nodes; None for each without an inventory."""
    nodes = role.instances[number].nodes
    if inventory is None:
        return [None] * len(nodes)
    hosts = inventory.of(role.cluster)
    return [hosts[node] for node in nodes]


def _address(role: RolePlan, number: int, node: int, inventory: Inventory | None) -> str:
    """Return a node's address, or a placeholder that names it."""
    host = _hosts(role, number, inventory)[node]
    return host.address if host else f"{PLACEHOLDER}-{role.cluster}-node-{role.instances[number].nodes[node]}"


def _site_env(target: Target, inventory: Inventory | None) -> str:
    missing = "" if inventory else f" Replace every {PLACEHOLDER}: no inventory was given."
    lines = [target.head(f"Addresses of every role, instance by instance and node by node.{missing}")]
    if target.profile.engine == "xllm":
        lines.append(f"ETCD={quoted(etcd_address(target, lambda role, n, node: _address(role, n, node, inventory)))}")
    for role in target.roles:
        found = [_address(role, n, node, inventory) for n in range(len(role.instances)) for node in range(role.nodes)]
        lines.append(f"{shell_name(role.name)}_HOSTS=({' '.join(quoted(host) for host in found)})")
        if role.shares_nodes:
            first = " ".join(str(instance.first_device) for instance in role.instances)
            lines.append(f"{shell_name(role.name)}_FIRST_DEVICES=({first})")
    return "\n".join(lines) + "\n"


def _decode_first(target: Target) -> list[RolePlan]:
    return sorted(target.roles, key=lambda role: role.role == "prefill")


def _table(target: Target, inventory: Inventory | None) -> str:
    """Return who runs what: one line per node of every instance, with the command and its ranks."""
    lines = [target.head("What to run on which host, decode before prefill."), "\t".join(COLUMNS)]
    for role in _decode_first(target):
        for number, instance in enumerate(role.instances):
            for node, host in enumerate(_hosts(role, number, inventory)):
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
                lines.append("\t".join(map(str, cells)))
    return "\n".join(lines) + "\n"


def _rank_tables(target: Target, role: RolePlan, inventory: Inventory | None) -> Iterator[tuple[str, str]]:
    """Yield the rank table of every instance, or its template and the script that prints a host's entry."""
    known = inventory if inventory is not None and all(host.devices for host in inventory.of(role.cluster)) else None
    for number in range(len(role.instances)):
        yield f"ranktable-{role.name}-{number}{'' if known else '.template'}.json", _rank_table(role, number, known)
    if known is None:
        head = "Prints this host's entry of the inventory; collect them in the order of the plan's nodes."
        name = "collect-a3.sh" if role.paired else "collect-a2.sh"
        yield "collect-inventory.sh", script_of(name, head=target.head(head), last=role.setup.devices_per_node - 1)


def _rank_table(role: RolePlan, number: int, inventory: Inventory | None) -> str:
    """Return one instance's table; every value is text, ranks count node by node."""
    servers: list[dict[str, Any]] = []
    pods: dict[str, list[dict[str, str]]] = {}
    for node, host in enumerate(_hosts(role, number, inventory)):
        server_id = host.address if host else f"{PLACEHOLDER}-node-{role.instances[number].nodes[node]}"
        devices = [_device(role, number, host, node, local) for local in range(role.devices_per_node)]
        servers.append({"server_id": server_id, "container_ip": server_id, "device": devices})
        pod = (host.super_pod or "0") if host else f"{PLACEHOLDER}-super-pod"
        pods.setdefault(pod, []).append({"server_id": server_id})
    table: dict[str, Any] = {
        "version": "1.2" if role.paired else "1.0",
        "status": "completed" if inventory else "initializing",
        "server_count": str(len(servers)),
        "server_list": servers,
    }
    if role.paired:  # whose devices have ids of their super pod
        table["super_pod_list"] = [{"super_pod_id": pod, "server_list": held} for pod, held in pods.items()]
    return json.dumps(table, indent=1) + "\n"


def _device(role: RolePlan, number: int, host: Host | None, node: int, local: int) -> dict[str, str]:
    physical = local + (role.instances[number].first_device if node == 0 else 0)
    entry = {
        "device_id": str(physical),
        "device_ip": host.devices[physical].ip if host else f"{PLACEHOLDER}-ip",
        "rank_id": str(node * role.devices_per_node + local),
    }
    if role.paired:
        held = host.devices[physical].super_device_id if host else None
        entry["super_device_id"] = f"{PLACEHOLDER}-id" if held is None else str(held)
    return entry


def _job(target: Target, inventory: Inventory | None, *, etcd: bool) -> str:
    """Return the batch script: addresses filled in, each node's script started, decode before prefill."""
    clusters = {role.cluster for role in target.roles}
    if len(clusters) > 1:
        raise BadInput(
            f"--platform: one Slurm job has nodes of one kind, the plan {len(clusters)}; use --platform bare"
        )
    first, head = target.roles[0], target.roles[-1].instances[0].nodes[0]
    nodes = 1 + max(node for role in target.roles for instance in role.instances for node in instance.nodes)
    options = {"job-name": target.name, "nodes": str(nodes), "ntasks-per-node": "1", "exclusive": "", "mem": "0"}
    mpi = target.profile.engine == "trtllm"
    if mpi:  # an instance is one step, with a process for each of its ranks
        options["ntasks-per-node"] = str(max(role.devices_per_node for role in target.roles))
    options |= {name.replace("_", "-"): value for name, value in target.site.slurm.items()}
    if inventory:
        options["nodelist"] = ",".join(host.name for host in inventory.of(first.cluster)[:nodes])
    told = [SLURM_DEVICES[first.accelerator].format(first.setup.devices_per_node)]
    told += [f"{name}={value}" if value else name for name, value in options.items()]
    addresses = script_of("addresses.sh", pattern=f"{PLACEHOLDER}-{first.cluster}-node-").rstrip()
    runs = [f"run {head} 1 etcd.sh"] if etcd else []
    for role in _decode_first(target):
        for number, instance in enumerate(role.instances):
            steps = [",".join(map(str, instance.nodes))] if mpi else instance.nodes
            each = role.devices_per_node if mpi else 1
            runs += [f"run {on} {each} {quoted(role.name + '.sh')} {number} {rank}" for rank, on in enumerate(steps)]
    runs.append(f"run {head} 1 router.sh")
    return script_of(
        "job.sbatch",
        options="\n".join(f"#SBATCH --{option}" for option in told),
        head=target.head("sbatch job.sbatch, in this folder on storage that all nodes share."),
        files_path=target.site.files_path,
        addresses="" if inventory else addresses,
        mpi=" --mpi=pmix" if mpi else "",
        runs="\n".join(runs),
    )
