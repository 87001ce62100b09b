"""An imported deployment as the planner sees it: candidates, the plan at any rate, and what is wrong with it."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from deploy.memory import holding, memory_of
from deploy.reading.engines import Counted
from deploy.reading.foreign import Found
from deploy.roles import RolePlan, read_roles
from ground.errors import Infeasible
from planner.changeover.capacity import largest
from planner.costs.deployment import Deployment
from planner.engines.memory import dispatch_tokens, hccl_mebibytes
from planner.engines.spec import EngineProfile
from planner.instances.aggregated import AggregatedServer
from planner.instances.candidates import (
    AggregatedCandidate,
    DecodeCandidate,
    PrefillCandidate,
    aggregated_room,
    largest_room,
)
from planner.instances.operating import DecodeServer, PrefillServer
from planner.instances.space import Group, Row, groups, row_deployment
from planner.manifest.schema import Manifest
from planner.plans.aggregated import make_aggregated
from planner.plans.plan import Plan, make_plan
from planner.plans.pools import decode_prediction, prefill_prediction
from planner.question import Question
from planner.strategy import Strategy
from planner.workload import reserved_kv_tokens

CLOSE = 1e-5
LEAST_SHARE = 1e-4  # of what the instances carry at most, where looking for a rate ends
MOST_REQUESTS = 4096.0
NEWS = 0.005  # of a rate, below which a change is none


@dataclass(frozen=True, slots=True)
class ImportedSide:
    """One role as the planner sees it: its row, and the requests or tokens that its limits let in."""

    found: Found
    counted: Counted
    row: Row
    batch: int

    @property
    def tokens(self) -> int | None:
        """Tokens of a step on one DP rank, of all parts that pipeline stages hold: an engine is told those of one."""
        return None if self.counted.tokens is None else self.counted.tokens * self.row.strategy.pp


def side_of(question: Question, found: Found, counted: Counted) -> ImportedSide:
    """Return a role's row of the planner's space, with what its memory and its limits let in.

    Raises BadInput where its degrees are none of the planner's.
    """
    stage = counted.attention_tp * counted.attention_dp
    ep = counted.moe_ep or 1
    strategy = Strategy(
        attention_tp=counted.attention_tp,
        attention_dp=counted.attention_dp,
        moe_tp=stage // ep,
        moe_ep=ep,
        pp=counted.pp,
    )
    row = Row(strategy, counted.redundant or 0, 0, counted.microbatches)
    side = ImportedSide(found, counted, row, counted.sequences)
    return replace(side, batch=min(counted.sequences, max(_room(question, side), 1)))


def _group(question: Question, side: ImportedSide) -> Group:
    drafts = side.counted.drafts if side.found.role != "prefill" else 0
    (group,) = groups(question, side.found.role, [side.row], drafts)
    return group


def _deployment(question: Question, side: ImportedSide) -> Deployment:
    return row_deployment(_group(question, side).deployment, side.row)


def _room(question: Question, side: ImportedSide) -> int:
    """Return the requests of a DP rank that memory holds, by the plan's own reservation; 0 where it holds none."""
    kv, tokens = reserved_kv_tokens(question.workload), np.array([float(side.tokens or 1)])
    if side.found.role == "mixed":
        return int(aggregated_room(_deployment(question, side), tokens, kv, np.array([MOST_REQUESTS]))[0])
    if side.found.role == "decode":
        return int(largest_room(_group(question, side), side.row.microbatches, kv)[0])
    return side.counted.sequences


def most_rate(question: Question, sides: Sequence[ImportedSide]) -> tuple[float | None, Plan | None]:
    """Return the largest rate that keeps the limits, and the plan of the smallest rate that was tried."""

    def keeps(rate: float) -> bool:
        plan, level = plan_at(question, sides, rate), question.percentile
        return (
            plan is not None
            and plan.ttft.at(level) <= question.ttft_seconds
            and plan.tpot.at(level) <= question.tpot_seconds
        )

    ceiling = min(_carried(question, side) * side.found.instances for side in sides)
    low = ceiling * LEAST_SHARE
    return largest(keeps, ceiling / 2, CLOSE) if keeps(low) else None, plan_at(question, sides, low)


def _carried(question: Question, side: ImportedSide) -> float:
    """Return the requests per second that no stream of steps of one instance exceeds."""
    candidate = prefill_candidate if side.found.role == "prefill" else decode_candidate
    return candidate(question, side).requests_per_second


def prefill_candidate(question: Question, side: ImportedSide) -> PrefillCandidate:
    """Return a prefill instance: whole prompts in a pass, or parts of one where its tokens hold less."""
    workload, strategy = question.workload, side.row.strategy
    prompt = workload.input_tokens.mean * (1 - workload.prefix_reuse)
    tokens = float(side.tokens or prompt)
    prompts, chunks = max(int(min(tokens // prompt, side.counted.sequences)), 1), max(-(-prompt // tokens), 1)
    candidate = PrefillCandidate(
        row=side.row,
        deployment=_deployment(question, side),
        microbatches=side.row.microbatches,
        prompts=prompts,
        chunks=int(chunks),
        tokens_per_device=max(int(prompts * prompt / chunks / (strategy.attention_tp * strategy.pp)), 1),
        pass_seconds=1.0,
        requests_per_second=1.0,
    )
    seconds = prefill_prediction(question, candidate).iteration_seconds * chunks
    return replace(candidate, pass_seconds=seconds, requests_per_second=prompts * strategy.attention_dp / seconds)


def decode_candidate(question: Question, side: ImportedSide) -> DecodeCandidate:
    """Return a decode instance with its batch; of an aggregated one, what it would carry if it did nothing else."""
    candidate = DecodeCandidate(
        row=side.row,
        deployment=_deployment(question, side),
        drafts=side.counted.drafts,
        microbatches=side.row.microbatches,
        batch=side.batch,
        iteration_seconds=1.0,
        requests_per_second=1.0,
        limited_by="its own limit",
    )
    found = decode_prediction(question, candidate)
    rate = found.tokens_per_second / question.workload.output_tokens.mean
    return replace(candidate, iteration_seconds=found.iteration_seconds, requests_per_second=rate)


def plan_at(question: Question, sides: Sequence[ImportedSide], rate: float) -> Plan | None:
    """Return the plan of the deployment at a rate; None where it cannot keep up."""
    if len(sides) == 1:
        (side,) = sides
        carried = _carried(question, side)
        candidate = AggregatedCandidate(
            row=side.row,
            deployment=_deployment(question, side),
            drafts=side.counted.drafts,
            microbatches=side.row.microbatches,
            batch=side.batch,
            batched_tokens=side.tokens or 1,
        )
        return make_aggregated(question, AggregatedServer(question, candidate), side.found.instances, carried, rate)
    first, second = prefill_candidate(question, sides[0]), decode_candidate(question, sides[1])
    return make_plan(
        question,
        (PrefillServer(question, first), sides[0].found.instances, first.requests_per_second),
        (DecodeServer(question, second, 0.0), sides[1].found.instances, second.requests_per_second),
        rate,
    )


def timely_batch(question: Question, side: ImportedSide) -> int:
    """Return the largest batch of a DP rank whose mean step keeps TPOT; 0 where none does."""

    def late(batch: int) -> bool:
        asked = replace(decode_candidate(question, side), batch=max(batch, side.row.microbatches))
        seconds = decode_prediction(question, asked).tpot_seconds
        return not seconds or seconds > question.tpot_seconds

    return bisect_left(range(1, side.batch + 1), True, key=late)


def mended_rate(question: Question, sides: Sequence[ImportedSide], most: float | None) -> float | None:
    """Return the rate after batches were cut to what TPOT allows; None where that is no better."""
    better = [
        side
        if side.found.role == "prefill"
        else replace(side, batch=min(side.batch, timely_batch(question, side) or side.batch))
        for side in sides
    ]
    if better == list(sides):
        return None
    rate, _ = most_rate(question, better)
    return rate if rate and rate > (most or 0.0) * (1 + NEWS) else None


ALIKE = 0.02  # of a memory share that is no finding
RDMA = ("rdma", "mlnx", "hca", "roce", "infiniband", "efa")


@dataclass(frozen=True, slots=True)
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
    flags, found = role.flags, list[Finding]()

    def tell(what: str, change: str, blocking: bool = True) -> None:
        found.append(Finding(role.name, what, change, blocking))

    for name in role.unknown:
        tell(f"{profile.title} {profile.versions.pinned} does not know {name}", f"drop {name}")
    if counted.devices > counted.ranks:
        idle = counted.devices - counted.ranks
        what = f"{idle} of {counted.devices} devices of an instance have no rank"
        tell(what, "fewer devices, or more TP or DP", False)
    length = "--context-length" if role.engine == "sglang" else "--max-model-len"
    if length in flags and counted.longest is not None and counted.longest < longest:
        what = f"requests of {longest} tokens are refused past {counted.longest}"
        tell(what, f"{length} {counted.longest} -> {longest}")
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
        found.append(Finding(side.found.name, what, change, blocking=False))
    timely = timely_batch(question, side)
    if 0 < timely < side.batch:
        what = f"a full batch of {side.batch} per DP rank passes TPOT; {timely} keep it"
        change = f"{name} {stated * ranks} -> {timely * ranks}"
        found.append(Finding(side.found.name, what, change))
    return found


def told_by_engine(manifest: Manifest, profile: EngineProfile, roles: Sequence[tuple[Found, Counted]]) -> list[Finding]:
    """Return what the engine's own rules say: layouts that it does not run, memory, buffers of exchanges."""
    try:
        planned = {role.role: role for role in read_roles(manifest, profile, None)}
    except Infeasible as refused:
        return [Finding("all", str(refused))]
    found = []
    for role, counted in roles:
        found += [*_memory(profile, planned[role.role], role, counted), *_buffers(planned[role.role], role)]
    return found


def _memory(profile: EngineProfile, planned: RolePlan, role: Found, counted: Counted) -> list[Finding]:
    name = "--mem-fraction-static" if role.engine == "sglang" else "--gpu-memory-utilization"
    try:
        held = memory_of(profile, planned)
    except Infeasible as refused:
        return [Finding(role.name, str(refused))]
    if counted.memory_frac <= held.fraction + ALIKE or name not in role.flags:
        return []
    what = f"{counted.memory_frac:g} of the memory leaves too little for graphs, activations and exchange buffers"
    return [Finding(role.name, what, f"{name} {counted.memory_frac:g} -> {held.fraction:g}")]


def _buffers(planned: RolePlan, role: Found) -> list[Finding]:
    """Return buffers of the exchange of experts that are too small for the batch."""
    held, needs = holding(role.engine, planned), list[tuple[str, int, int]]()  # variable, least value, default
    if role.engine == "sglang" and role.flags.get("--moe-a2a-backend") == "deepep" and role.role != "prefill":
        needs.append(("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", int(dispatch_tokens(held)), 128))
    if planned.accelerator == "ascend":
        needs.append(("HCCL_BUFFSIZE", int(hccl_mebibytes(held)), 200))
    found = []
    for name, needed, default in needs:
        given = role.environment.get(name, str(default))
        if given.isdigit() and int(given) < needed:
            what = f"the exchange of experts needs {name} of {needed} at this batch, and has {given}"
            found.append(Finding(role.name, what, f"{name}={needed}"))
    return found
