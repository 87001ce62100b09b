"""A batch job that runs the scripts for hosts on the nodes that Slurm grants."""

from collections.abc import Iterator

from deploy.bare import PLACEHOLDER, hosts_of
from deploy.commands.launch import Target
from deploy.header import Provenance, comment
from deploy.inventory import Inventory
from deploy.roles import RolePlan
from deploy.words import quoted
from ground.errors import BadInput

DEVICES = {"nvidia": "gpus-per-node={}", "ascend": "gres=npu:{}"}


def job(target: Target, inventory: Inventory | None, origin: Provenance, *, routed: bool, etcd: bool) -> str:
    """Return the batch script: addresses filled in, each node's script started, decode before prefill."""
    clusters = {role.cluster for role in target.roles}
    if len(clusters) > 1:
        raise BadInput(
            f"--platform: one Slurm job has nodes of one kind, the plan {len(clusters)}; use --platform bare"
        )
    return "\n".join(_lines(target, inventory, origin, routed=routed, etcd=etcd)) + "\n"


def _lines(
    target: Target, inventory: Inventory | None, origin: Provenance, *, routed: bool, etcd: bool
) -> Iterator[str]:
    first = target.roles[0]
    nodes = 1 + max(node for role in target.roles for instance in role.instances for node in instance.nodes)
    options = {"job-name": target.name, "nodes": str(nodes), "ntasks-per-node": "1", "exclusive": ""}
    options |= {name.replace("_", "-"): value for name, value in target.site.slurm.items()}
    if inventory:
        options["nodelist"] = ",".join(host.name for host in inventory.of(first.cluster)[:nodes])
    yield "#!/usr/bin/env bash"
    yield f"#SBATCH --{DEVICES[first.accelerator].format(first.node_size)}"
    for name, value in options.items():
        yield f"#SBATCH --{name}" + (f"={value}" if value else "")
    yield from comment(origin, "sbatch job.sbatch, in this folder on storage that all nodes share.")
    yield "set -euo pipefail"
    yield ""
    yield "# PODPLAN_SRUN holds more options of srun, such as --container-image and --container-mounts of Pyxis."
    yield 'RUN="$PWD/run-$SLURM_JOB_ID"'
    yield 'mkdir "$RUN" && cp ./* "$RUN" 2> /dev/null || true'
    yield 'mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")'
    yield 'mapfile -t FILES < <(find "$RUN" -name "*.sh" -o -name "*.env" -o -name "*.y*ml")'
    yield f'sed -i "s#{target.site.files_path}/#$RUN/#g" "${{FILES[@]}}"'
    if not inventory:
        yield "for K in \"${!NODES[@]}\"; do  # the plan's node K is the job's"
        yield '  ADDRESS="$(getent ahostsv4 "${NODES[K]}" | awk \'NR == 1 {print $1}\')"'
        pattern = f"{PLACEHOLDER}-{first.cluster}-node-"
        yield f'  sed -i "s/{pattern}$K\\b/$ADDRESS/g" "${{FILES[@]}}"'
        yield "done"
    yield "run() { # NODE SCRIPT ARGUMENT..."
    yield "  local node=$1; shift"
    yield '  srun --overlap --nodes=1 --ntasks=1 --nodelist="${NODES[node]}" ${PODPLAN_SRUN:-} bash "$RUN/$@" &'
    yield "}"
    if etcd:
        yield f"run {_node(target.roles[-1], 0, 0)} etcd.sh"
    for role in sorted(target.roles, key=lambda role: role.role == "prefill"):
        for number in range(len(role.instances)):
            for node in range(len(hosts_of(role, number, None))):
                yield f"run {_node(role, number, node)} {quoted(role.name + '.sh')} {number} {node}"
    if routed:
        yield f"run {_node(target.roles[-1], 0, 0)} router.sh"
    yield "wait -n  # one part gone is the whole deployment gone"


def _node(role: RolePlan, number: int, node: int) -> int:
    return role.instances[number].nodes[node]
