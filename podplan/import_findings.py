"""What is wrong with a deployment that was imported: flags, lengths, batches, memory, buffers, and what mends each."""

from collections.abc import Sequence
from dataclasses import dataclass

from deploy.memory import holding, memory_of
from deploy.reading.engines import Counted
from deploy.reading.foreign import Found
from deploy.roles import RolePlan, read_roles
from ground.errors import Infeasible
from planner.engines.memory import dispatch_tokens, hccl_mebibytes
from planner.engines.spec import EngineProfile
from planner.manifest.schema import Manifest
from planner.question import Question
from podplan.import_sides import ImportedSide, timely_batch

ALIKE = 0.02  # of a memory share that is no finding
RDMA = ("rdma", "mlnx", "hca", "roce", "infiniband", "efa")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is wrong or wasted: the role, what it is, the change that mends it, and whether it must be."""

    role: str
    what: str
    change: str | None = None
    blocking: bool = True


def told_by_files(
    role: Found, counted: Counted, longest: int, question: Question, profile: EngineProfile
) -> list[Finding]:
    """Return what the files alone tell: unknown flags, idle devices, lengths, graphs, caches, RDMA."""
    flags, found = role.flags, []

    def tell(what: str, change: str | None, blocking: bool = True) -> None:
        found.append(Finding(role=role.name, what=what, change=change, blocking=blocking))

    for name in role.unknown:
        tell(f"{profile.title} {profile.versions.pinned} does not know {name}", f"drop {name}")
    if counted.devices > counted.ranks:
        idle = counted.devices - counted.ranks
        tell(
            f"{idle} of {counted.devices} devices of an instance have no rank", "fewer devices, or more TP or DP", False
        )
    length = "--context-length" if role.engine == "sglang" else "--max-model-len"
    if length in flags and counted.longest is not None and counted.longest < longest:
        tell(
            f"requests of {longest} tokens are refused past {counted.longest}",
            f"{length} {counted.longest} -> {longest}",
        )
    if "--enforce-eager" in flags and role.role != "prefill":
        tell("every step launches its kernels one by one", "drop --enforce-eager", False)
    uncached = {"--no-enable-prefix-caching", "--disable-radix-cache"} & flags.keys()
    if uncached and question.workload.prefix_reuse and role.role != "decode":
        tell("reused prefixes are computed again", f"drop {min(uncached)}", False)
    wide = role.nodes > 1 or counted.kv_role is not None
    if role.kubernetes and wide and role.engine in ("vllm", "sglang") and not role.flags.get("--device"):
        if not any(word in name.lower() for name in role.limits for word in RDMA):
            tell("its pods ask for no RDMA device, so that KV and experts go over TCP", "limits: {rdma/ib: 1}")
        elif "IPC_LOCK" not in role.capabilities:
            tell("RDMA cannot pin memory without IPC_LOCK", "capabilities: {add: [IPC_LOCK]}")
    return found


def told_by_batches(question: Question, side: ImportedSide) -> list[Finding]:
    """Return what the batch is: more requests than memory holds, or than TPOT allows."""
    if side.found.role == "prefill":
        return []
    found, name = [], "--max-running-requests" if side.found.engine == "sglang" else "--max-num-seqs"
    ranks = side.counted.attention_dp if side.found.engine == "sglang" else 1
    stated = side.counted.sequences
    if side.batch < stated:
        what = f"its {stated} requests per DP rank need more KV than there is: {side.batch} of this workload fit"
        change = f"{name} {stated * ranks} -> {side.batch * ranks}"
        found.append(Finding(role=side.found.name, what=what, change=change, blocking=False))
    timely = timely_batch(question, side)
    if 0 < timely < side.batch:
        what = f"a full batch of {side.batch} per DP rank passes TPOT; {timely} keep it"
        change = f"{name} {stated * ranks} -> {timely * ranks}"
        found.append(Finding(role=side.found.name, what=what, change=change))
    return found


def told_by_engine(manifest: Manifest, profile: EngineProfile, roles: Sequence[tuple[Found, Counted]]) -> list[Finding]:
    """Return what the engine's own rules say: layouts that it does not run, memory, buffers of exchanges."""
    try:
        planned = {role.role: role for role in read_roles(manifest, profile, None)}
    except Infeasible as refused:
        return [Finding(role="all", what=str(refused))]
    found = []
    for role, counted in roles:
        found += _memory(profile, planned[role.role], role, counted)
        found += _buffers(planned[role.role], role)
    return found


def _memory(profile: EngineProfile, planned: RolePlan, role: Found, counted: Counted) -> list[Finding]:
    name = "--mem-fraction-static" if role.engine == "sglang" else "--gpu-memory-utilization"
    try:
        held = memory_of(profile, planned)
    except Infeasible as refused:
        return [Finding(role=role.name, what=str(refused))]
    if counted.memory_frac <= held.fraction + ALIKE or name not in role.flags:
        return []
    what = f"{counted.memory_frac:g} of the memory leaves too little for graphs, activations and exchange buffers"
    return [Finding(role=role.name, what=what, change=f"{name} {counted.memory_frac:g} -> {held.fraction:g}")]


def _buffers(planned: RolePlan, role: Found) -> list[Finding]:
    """Return buffers of the exchange of experts that are too small for the batch."""
    found: list[Finding] = []
    for name, needed, default in _needed(planned, role):
        given = role.environment.get(name, str(default))
        if given.isdigit() and int(given) < needed:
            what = f"the exchange of experts needs {name} of {needed} at this batch, and has {given}"
            found.append(Finding(role=role.name, what=what, change=f"{name}={needed}"))
    return found


def _needed(planned: RolePlan, role: Found) -> list[tuple[str, int, int]]:
    """Return (variable, least value, default) of the buffers of a role."""
    found, held = [], holding(role.engine, planned)
    low_latency = role.engine == "sglang" and role.flags.get("--moe-a2a-backend") == "deepep" and role.role != "prefill"
    if low_latency:
        found.append(("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", int(dispatch_tokens(held)), 128))
    if planned.accelerator == "ascend":
        found.append(("HCCL_BUFFSIZE", int(hccl_mebibytes(held)), 200))
    return found
