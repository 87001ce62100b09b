"""The script that starts one node of a role, the same for every node; only its first lines know the platform."""

from collections.abc import Iterator

from deploy.commands.launch import Launch, Target, talks_over_nodes
from deploy.words import Shell, command, flag_words, quoted

ASCEND_RANK_TABLE = "/user/serverid/devindex/config/hccl.json"  # where the Ascend operator mounts what it collects

SETTINGS = "/usr/local/Ascend/{ascend-toolkit,nnal/atb}/set_env.sh"  # that images and hosts read in interactive shells
MINDIE_SETTINGS = " /usr/local/lib/python3*/site-packages/mindie_llm/set_env.sh"
VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES", "ascend": "ASCEND_RT_VISIBLE_DEVICES"}


PLACES: dict[str, tuple[dict[str, str], str]] = {
    "statefulset": (
        {"SET": '"${HOSTNAME%-*}"', "NODE_RANK": '"${HOSTNAME##*-}"', "HEAD": '"$SET-0.$SET"'},
        "{0}-0-0.{0}-0",
    ),
    "volcano": ({"NODE_RANK": "$((VC_TASK_INDEX + FIRST_RANK))", "HEAD": '"$JOB-head-0.$JOB"'}, "{0}-0-head-0.{0}-0"),
    "lws": ({"NODE_RANK": '"$LWS_WORKER_INDEX"', "HEAD": '"$LWS_LEADER_ADDRESS"'}, "{0}-0.{0}"),
}
"""By kind, how a pod knows its place, and the name of the first prefill instance's first pod."""


def script(target: Target, launch: Launch) -> str:
    """Return the bash script of a role."""
    lines = [
        "#!/usr/bin/env bash",
        target.head(f"Starts one node of the role {launch.role.name}."),
        "set -euo pipefail",
        "",
        *place(target, launch),
        *(_settings(target) if launch.role.accelerator == "ascend" else _fabric(target, launch)),
        f"MODEL={quoted(target.weights_path(launch.role))}",
        "",
    ]
    if target.bare and launch.role.shares_nodes and not launch.per_device:
        last = f"$((FIRST_DEVICE + {launch.role.devices - 1}))"
        lines.append(f'export {VISIBLE[launch.role.accelerator]}="$(seq -s, "$FIRST_DEVICE" "{last}")"')
    lines += [f"export {name}={quoted(value)}" for name, value in launch.environment.items()]
    return "\n".join([*lines, *_command(launch)]) + "\n"


def _settings(target: Target) -> list[str]:
    """Return the line that reads the variables of CANN and of MindIE, hiding the script's own arguments from them.

    MindIE's script empties /dev/shm by rm, under the other instances of a host (MindIE-LLM at 9446ed4).
    """
    mindie = target.profile.engine == "mindie"
    held, kept = (SETTINGS + MINDIE_SETTINGS, "rm() { :; }; ") if mindie else (SETTINGS, "")
    read = f"set +eu; {kept}source \"$F\" ''; {'unset -f rm; ' * mindie}set -eu;"
    return [f'for F in {held}; do [ ! -f "$F" ] || {{ {read} }}; done']


def _fabric(target: Target, launch: Launch) -> list[str]:
    """Return the check that RDMA is there before weights are loaded: an active port and the adapters' devices."""
    role = launch.role
    if not talks_over_nodes(role) or target.site.rdma_resource is None:
        return []
    seen = "grep -qs ACTIVE /sys/class/infiniband/*/ports/*/state && ls /dev/infiniband/uverbs* > /dev/null 2>&1"
    said = f"no RDMA on this node, which {role.name} needs; WITHOUT_RDMA=1 starts it all the same"
    return [f'{{ {seen}; }} || [ -n "${{WITHOUT_RDMA:-}}" ] || {{ echo {quoted(said)} >&2; exit 1; }}']


def place(target: Target, launch: Launch) -> list[str]:
    """Return the lines that find out which node this is, and the address of the instance's first node."""
    if target.bare:
        return list(_bare_place(target, launch))
    kind = target.kind
    variables, store = PLACES.get(kind, PLACES["lws"])
    found = {name: Shell(text) for name, text in variables.items()}
    found["ADDRESS"] = Shell('"$POD_IP"')
    if "$STORE" in _text(launch):
        found["STORE"] = Shell(quoted(store.format(f"{target.name}-{_first_prefill(target)}")))
    if "$ETCD" in _text(launch):
        found["ETCD"] = Shell(quoted(target.site.etcd_address or f"{target.name}-etcd:2379"))
    if "$RANK_TABLE" in _text(launch):
        found["RANK_TABLE"] = Shell(f'"${{RANK_TABLE_FILE:-{ASCEND_RANK_TABLE}}}"')
    lines = [f"{variable}={value.text}" for variable, value in found.items()]
    if kind == "statefulset":  # whose pods outlive their containers
        lines.append("find /dev/shm -type f -delete")
    if "RANK_TABLE" in found:  # the operator fills it in once every pod of the job has its devices
        lines.append('until grep -q \'"status": *"completed"\' "$RANK_TABLE"; do sleep 2; done')
    return lines


def _first_prefill(target: Target) -> str:
    role = target.role("prefill")
    return role.name if role else "prefill"


def _bare_place(target: Target, launch: Launch) -> Iterator[str]:
    """Yield the lines of a host: the instance and node come as arguments, addresses from site.env."""
    role = launch.role
    variable = shell_name(role.name)
    yield 'source "$(dirname "${BASH_SOURCE[0]}")/site.env"'
    yield f'INSTANCE="${{1:?usage: {role.name}.sh INSTANCE NODE}}"'
    yield f'NODE_RANK="${{2:?usage: {role.name}.sh INSTANCE NODE}}"'
    yield f'HEAD="${{{variable}_HOSTS[$((INSTANCE * {role.nodes}))]}}"'
    yield f'ADDRESS="${{{variable}_HOSTS[$((INSTANCE * {role.nodes} + NODE_RANK))]}}"'
    if role.shares_nodes:
        yield f'FIRST_DEVICE="${{{variable}_FIRST_DEVICES[$INSTANCE]}}"'
    if "$STORE" in _text(launch):
        yield f'STORE="${{{shell_name(_first_prefill(target))}_HOSTS[0]}}"'
    if "$RANK_TABLE" in _text(launch):
        yield f'RANK_TABLE="{target.site.files_path}/ranktable-{role.name}-$INSTANCE.json"'


def shell_name(name: str) -> str:
    """Return a role's name as a shell variable starts with."""
    return name.upper().replace("-", "_")


def _text(launch: Launch) -> str:
    """Return all shell words of a launch."""
    values = [*(value for _, value in launch.flags), *launch.environment.values()]
    return " ".join(value.text for value in values if isinstance(value, Shell))


def _command(launch: Launch) -> Iterator[str]:
    """Yield the lines that run the programme: once, or once for each device of the node."""
    if launch.workers:
        workers = " ".join(flag_words(launch.workers, joined=False))
        yield f'if [ "$NODE_RANK" -eq 0 ]; then EXTRA=(); else EXTRA=({workers}); fi'
    run = command(launch.programme, launch.flags, joined=launch.joined, more='"${EXTRA[@]}"' if launch.workers else "")
    if not launch.per_device:
        yield ""
        yield run
        return
    yield "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"
    yield ""
    yield f"for ((DEVICE = 0; DEVICE < {launch.role.devices_per_node}; DEVICE++)); do"
    yield "  " + run.removeprefix("exec ").replace("\n", "\n  ") + " &"
    yield "done"
    yield "wait -n  # one rank gone is the whole instance gone"
