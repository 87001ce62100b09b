"""A batch job that runs the scripts for hosts on the nodes that Slurm grants."""

from deploy.bare import PLACEHOLDER
from deploy.commands.launch import Target
from deploy.header import Provenance, comment
from deploy.inventory import Inventory
from deploy.roles import RolePlan
from deploy.templates import script_of
from deploy.words import quoted
from ground.errors import BadInput

DEVICES = {"nvidia": "gpus-per-node={}", "ascend": "gres=npu:{}"}


def job(target: Target, inventory: Inventory | None, origin: Provenance, *, etcd: bool) -> str:
    """Return the batch script: addresses filled in, each node's script started, decode before prefill."""
    clusters = {role.cluster for role in target.roles}
    if len(clusters) > 1:
        raise BadInput(
            f"--platform: one Slurm job has nodes of one kind, the plan {len(clusters)}; use --platform bare"
        )
    first = target.roles[0]
    nodes = 1 + max(node for role in target.roles for instance in role.instances for node in instance.nodes)
    options = {"job-name": target.name, "nodes": str(nodes), "ntasks-per-node": "1", "exclusive": "", "mem": "0"}
    options |= {name.replace("_", "-"): value for name, value in target.site.slurm.items()}
    if inventory:
        options["nodelist"] = ",".join(host.name for host in inventory.of(first.cluster)[:nodes])
    told = [DEVICES[first.accelerator].format(first.node_size)]
    told += [f"{name}={value}" if value else name for name, value in options.items()]
    addresses = script_of("addresses.sh", pattern=f"{PLACEHOLDER}-{first.cluster}-node-").rstrip()
    runs = [f"run {_node(target.roles[-1], 0, 0)} etcd.sh"] if etcd else []
    for role in sorted(target.roles, key=lambda role: role.role == "prefill"):
        for number, instance in enumerate(role.instances):
            for rank, node in enumerate(instance.nodes):
                runs.append(f"run {node} {quoted(role.name + '.sh')} {number} {rank}")
    runs.append(f"run {_node(target.roles[-1], 0, 0)} router.sh")
    return script_of(
        "job.sbatch",
        options="\n".join(f"#SBATCH --{option}" for option in told),
        head="\n".join(comment(origin, "sbatch job.sbatch, in this folder on storage that all nodes share.")),
        files_path=target.site.files_path,
        addresses="" if inventory else addresses,
        runs="\n".join(runs),
    )


def _node(role: RolePlan, number: int, node: int) -> int:
    return role.instances[number].nodes[node]
