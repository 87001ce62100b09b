"""Losing a rank between iterations: shrink to the surviving replicas, or roll back one iteration.

xDeepServe section 6: decode goes on with fewer DP groups and EP ranks as long as every expert keeps a replica; after a
network glitch all DP groups roll back one iteration. Either way every request must end with the tokens that it
would have had.
"""

import re
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ground.errors import BadInput, Fault
from planner.manifest.layout import ExpertLayers, ExpertMap, RankTable, group_rules, rank_table
from planner.manifest.schema import Manifest, Pool
from runtime.execute.check import Compared, compare
from runtime.execute.layout import Layout
from runtime.execute.partition import Setup, check_coverage
from runtime.execute.passes import Running
from runtime.execute.run import Heard, Rank, Settings, World, build_world, heard, joined, make_ranks, run_ranks
from runtime.execute.transport import Loop, Stuck

Recovery = Literal["shrink", "rollback"]


@dataclass(frozen=True, slots=True)
class Drop:
    """Rank ``rank`` of the decode instance is lost before iteration ``iteration``."""

    rank: int
    iteration: int
    recovery: Recovery


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was lost, what the other ranks noticed, what was done, and whether the answers are still the model's."""

    compared: Compared
    lost_ranks: list[int]
    moved_requests: list[int]
    noticed: str
    ranks_after: int


def parse_drop(text: str, recovery: str) -> Drop:
    """Return the drop that ``--drop RANK@ITERATION --recover NAME`` asks for."""
    if recovery not in ("shrink", "rollback"):
        raise BadInput(f"--recover: {recovery[:40]!r} must be shrink or rollback")
    match = re.fullmatch(r"([0-9]{1,6})@([0-9]{1,3})", text)
    if not match:
        raise BadInput(f"--drop: {text[:40]!r} must be RANK@ITERATION, such as 5@3")
    return Drop(int(match[1]), int(match[2]), "shrink" if recovery == "shrink" else "rollback")


def execute_with_drop(manifest: Manifest, settings: Settings, drop: Drop) -> Recovered:
    """Run the plan, lose a rank, recover, finish, and compare the answers with the unsharded model's.

    Raises BadInput: no such rank or iteration, or the plan cannot shrink by that rank.
    """
    world, loop = build_world(manifest, settings), Loop()
    count = len(world.decode.layout.places)
    if drop.rank >= count or not 0 < drop.iteration < settings.iterations:
        raise BadInput(
            f"--drop: {drop.rank}@{drop.iteration} must name a decode rank below {count} and an iteration from 1 to "
            f"{settings.iterations - 1}"
        )
    ranks = make_ranks(world, loop)
    run_ranks(loop, ranks, Rank.begin)
    for iteration in range(drop.iteration):
        iterate(loop, ranks, iteration)
    victim = world.decode.layout.base + drop.rank
    # An iteration is tried without the rank, and every group rolled back to where it was. Cache rows past its position
    # are written anew, so they need no copy.
    before = {number: deepcopy(rank.running) for number, rank in ranks.items() if rank.running is not None}
    others = {number: rank for number, rank in ranks.items() if number != victim}
    try:
        iterate(loop, others, drop.iteration)
    except Stuck as error:
        noticed = str(error)
    else:
        noticed = f"nobody waited for rank {victim}"
    for number, saved in before.items():
        ranks[number].running = saved
    lost: list[int] = []
    moved: list[int] = []
    after = world
    if drop.recovery == "shrink":
        after, ranks, lost, moved = shrink_instance(world, loop, ranks, drop.rank)
    for iteration in range(drop.iteration, settings.iterations):
        iterate(loop, ranks, iteration)
    told = heard(ranks)
    return Recovered(compare(world, joined(world, told)), lost, moved, noticed, len(after.decode.layout.places))


def iterate(loop: Loop, ranks: dict[int, Rank], iteration: int) -> None:
    """Run one iteration on all ranks."""
    run_ranks(loop, ranks, lambda rank: rank.iterate(iteration))


def shrink_instance(
    world: World, loop: Loop, ranks: dict[int, Rank], victim: int
) -> tuple[World, dict[int, Rank], list[int], list[int]]:
    """Return the world without the victim's DP group and EP ranks, its ranks, what was lost and which requests moved.

    The group's requests are prefilled again with the tokens that they have, and join surviving groups.
    """
    decode = world.decode
    place = decode.layout.place(decode.layout.base + victim)
    lost = [p.rank for p in decode.layout.places if (p.domain, p.dp) == (place.domain, place.dp)]
    pool = shrunken_pool(decode.layout.pool, place.dp, decode.path)
    smaller = Setup(decode.weights, Layout(pool, decode.layout.base), decode.int8_messages, decode.drafts, decode.path)
    check_coverage(smaller.partition)
    survivors = [p.rank for p in decode.layout.places if p.rank not in lost]
    moved, told = world.requests_of((place.domain, place.dp), world.decode_of), heard(ranks)
    groups = smaller.layout.dp_groups()
    prompts = [_so_far(world, told, request) for request in moved]
    homes = [groups[number % len(groups)] for number in range(len(moved))]
    prefill_of = [world.prefill_of[request] for request in moved]
    again = World(world.prefill, smaller, world.mapping, world.settings, prompts, prefill_of, homes)
    fresh = make_ranks(again, loop)
    run_ranks(loop, fresh, Rank.begin)
    after: dict[int, Rank] = {number: rank for number, rank in ranks.items() if rank.setup is world.prefill}
    logs = heard({number: ranks[number] for number in (decode.layout.base + rank for rank in lost)})
    for number, old in enumerate(survivors):
        rank = fresh[decode.layout.base + number]
        _take_over(rank, ranks[decode.layout.base + old], moved, logs)
        after[decode.layout.base + number] = rank
    return again, after, lost, moved


def _so_far(world: World, told: Heard, request: int) -> list[int]:
    """Return a request's prompt and all its tokens but the last, which prefill then says again."""
    tokens = [told.first[request].token, *told.after[request].tokens]
    return world.prompts[request] + tokens[:-1]


def shrunken_pool(pool: Pool, dp: int, path: str) -> Pool:
    """Return a pool without one attention group and the EP ranks on its devices; BadInput where that cannot be."""
    degrees, mapping = pool.degrees, pool.expert_map
    if degrees.domains or degrees.moe_tp > 1 or degrees.staged or mapping is None or degrees.attention_dp < 2:
        raise BadInput(
            f"{path}.strategy: {pool.strategy} cannot shrink by a rank: that needs experts whole on a device "
            "beside attention (EP without TP), and another DP group; use --recover rollback"
        )
    tp = degrees.attention_tp
    lost = set(range(dp * tp, dp * tp + tp))
    smaller = degrees.model_copy(update={"attention_dp": degrees.attention_dp - 1, "moe_ep": degrees.moe_ep - tp})
    kept = [row for row in pool.rank_table.rows if row[4] != dp]
    rows = [[new[0], old[1], old[2], *new[3:]] for new, old in zip(rank_table(smaller, 1).rows, kept, strict=True)]
    return pool.model_copy(
        update={
            "degrees": smaller,
            "devices_per_instance": smaller.devices,
            "rank_table": RankTable.model_validate({"rows": rows}),
            "groups": group_rules(smaller),
            "expert_map": shrunken_map(mapping, lost, path),
        }
    )


def shrunken_map(mapping: ExpertMap, lost: set[int], path: str) -> ExpertMap:
    """Return the map without the slots of lost EP ranks, survivors numbered anew; every expert must keep a slot."""
    everyone = sorted([*mapping.expert_ranks, *mapping.shared_expert_ranks])
    number = {rank: new for new, rank in enumerate(rank for rank in everyone if rank not in lost)}
    placements = []
    for entry in mapping.placements:
        slots = np.array(entry.slots).reshape(len(mapping.expert_ranks), -1)
        left = slots[[rank not in lost for rank in mapping.expert_ranks]]
        gone = sorted(set(slots.ravel().tolist()) - set(left.ravel().tolist()))
        if gone:
            raise BadInput(
                f"{path}.expert_map: expert {gone[0]} of layer {entry.layers[0]} has its only replica on the lost "
                "ranks, so EP cannot shrink; plan with more --redundant-experts, or use --recover rollback"
            )
        placements.append(ExpertLayers(layers=entry.layers, slots=left.ravel().tolist()))
    shared = [number[rank] for rank in mapping.shared_expert_ranks if rank not in lost]
    if mapping.shared_expert_ranks and not shared:
        raise BadInput(f"{path}.expert_map: the shared expert has its only copy on the lost ranks")
    return ExpertMap(
        expert_ranks=[number[rank] for rank in mapping.expert_ranks if rank not in lost],
        shared_expert_ranks=shared,
        placements=placements,
    )


def _take_over(rank: Rank, old: Rank, moved: list[int], logs: Heard) -> None:
    """Put a surviving rank's requests before those that just joined it; logs of moved requests come with them."""
    fresh = rank.running
    if fresh is None or old.running is None:
        raise Fault("a decode rank has no requests to go on with")
    for layer, rows in rank.worker.cache.items():
        before = old.worker.cache[layer]
        positions = max(before.shape[1], rows.shape[1])
        rank.worker.cache[layer] = np.concatenate([_padded(before, positions), _padded(rows, positions)])
    joining = [moved[request] for request in fresh.requests]
    rank.running = Running(
        [*old.running.requests, *joining],
        np.concatenate([old.running.ids, fresh.ids]),
        np.concatenate([old.running.starts, fresh.starts]),
        old.running.said | {request: deepcopy(logs.after[request]) for request in joining},
    )
    rank.prefilled = dict(old.prefilled)


def _padded(rows: np.ndarray, positions: int) -> np.ndarray:
    """Return cache rows with room for more positions."""
    return np.pad(rows, ((0, 0), (0, positions - rows.shape[1]), (0, 0)))
