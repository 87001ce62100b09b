"""Whether an executed plan computed the same model: tokens, logits, drafts, pairs, messages."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ground.arrays import Ints
from ground.errors import Fault
from planner.manifest.schema import Manifest
from runtime.execute.passes import Said
from runtime.execute.reference import Forward, forward
from runtime.execute.run import Heard, Rank, Settings, World, build_world, heard, joined, make_ranks, run_ranks
from runtime.execute.sweep import Swept, exchanges, merged, sweep
from runtime.execute.transport import Loop

TOLERANCE = 1e-9
"""Largest difference of a logit in float64: sums of a few hundred terms of order one, added in another order, differ by
1e-14; a wrong weight, token or cache row by more than 1e-3."""


class Position(NamedTuple):
    """A token of a request's answer."""

    request: int
    token: int


@dataclass(slots=True)
class Compared:
    """What the run said beside what the unsharded model says of the same tokens.

    By induction over the tokens of an answer, all are the unsharded model's greedy ones if each is its best next
    token after those before it. ``close`` are positions whose best two tokens, or whose experts anywhere before, lie
    closer than the tolerance: there either choice is right, and what follows in that request is not compared.
    """

    tokens: int = 0
    accepted_drafts: int = 0
    drafts: int = 0
    logit_difference: float = 0.0
    draft_difference: float = 0.0
    wrong: list[Position] = field(default_factory=list)
    close: list[Position] = field(default_factory=list)
    closest_token: float = np.inf
    closest_expert: float = np.inf

    @property
    def equal(self) -> bool:
        """Whether nothing was wrong and no logit further off than the tolerance."""
        return not self.wrong and max(self.logit_difference, self.draft_difference) <= TOLERANCE


def compare(world: World, said: dict[int, Said]) -> Compared:
    """Run the unsharded model over prompts and answers and compare token by token.

    Raises Fault: a request has no answer.
    """
    missing = sorted(set(range(len(world.prompts))) - set(said))
    if missing:
        raise Fault(f"request {missing[0]} has no answer")
    sequences = [prompt + said[request].tokens for request, prompt in enumerate(world.prompts)]
    result = Compared()
    for request, whole in enumerate(forward(world.decode.weights, sequences)):
        _compare_request(result, request, len(world.prompts[request]), said[request], whole)
    iterations = world.settings.iterations
    result.drafts = world.decode.drafts * iterations * len(said)
    result.accepted_drafts = result.tokens - len(said) * (iterations + 1) if world.decode.drafts else 0
    return result


def _compare_request(result: Compared, request: int, length: int, said: Said, whole: Forward) -> None:
    """Compare one answer up to the first position that is too close to call."""
    count = len(said.tokens)
    expected = whole.logits[length - 1 : length - 1 + count]
    tops = np.sort(expected, axis=1)
    token_margin = tops[:, -1] - tops[:, -2]
    gate_margin = np.minimum.accumulate(whole.gate_margin)[length - 1 : length - 1 + count]
    result.closest_token = min(result.closest_token, float(token_margin.min()))
    result.closest_expert = min(result.closest_expert, float(gate_margin.min()))
    close = np.flatnonzero((token_margin < TOLERANCE) | (gate_margin < TOLERANCE))
    result.close += [Position(request, int(index)) for index in close]
    end = int(close[0]) if close.size else count
    result.tokens += count
    result.wrong += [
        Position(request, index) for index in range(end) if said.tokens[index] != int(expected[index].argmax())
    ]
    if end:
        result.logit_difference = max(
            result.logit_difference, float(np.abs(expected[:end] - np.stack(said.logits[:end])).max())
        )
    for about, logits in said.drafts.items():
        if whole.drafts is not None and about - 2 < len(whole.drafts) and about - length < end:
            off = float(np.abs(whole.drafts[about - 2] - logits).max())
            result.draft_difference = max(result.draft_difference, off)


@dataclass(frozen=True, slots=True)
class SweptInstance:
    """The sweeps of one instance: with plain and with INT8 messages; ``natural`` pairs were met by the run itself."""

    role: str
    natural: int
    plain: Swept
    quantised: Swept


@dataclass(frozen=True, slots=True)
class Report:
    """What `plan execute` prints."""

    world: World
    compared: Compared
    swept: list[SweptInstance]
    seconds: float

    @property
    def equal(self) -> bool:
        """Whether everything holds: tokens, logits, every pair met, every message error within its bound."""
        sweeps = [one for instance in self.swept for one in (instance.plain, instance.quantised)]
        met = all(one.pairs == one.all_pairs for one in sweeps)
        exact = all(instance.plain.difference <= TOLERANCE for instance in self.swept)
        bounded = all((instance.quantised.bound_used or 0.0) <= 1.0 for instance in self.swept)
        return self.compared.equal and met and exact and bounded


def execute(
    manifest: Manifest, settings: Settings | None = None, make_loop: Callable[[int], Loop] | None = None
) -> Report | None:
    """Run a manifest's plan on the small model and compare it with the unsharded model.

    ``make_loop`` makes the loop for a number of ranks; one that runs a part of them returns the report on one process
    and None on the others.

    Raises BadInput: the manifest's parts do not make up the model; Stuck, RankFailed: a rank waits for nobody or
    failed, with rank and operation.
    """
    started = time.perf_counter()
    world = build_world(manifest, settings or Settings())
    loop = make_loop(len(world.ranks)) if make_loop else Loop()
    ranks = make_ranks(world, loop, loop.local(world.ranks))
    run_ranks(loop, ranks, Rank.whole)
    traffic = {number: rank.worker.traffic for number, rank in ranks.items()}
    parts = loop.gathered((heard(ranks), sweeps(world, loop, traffic)))
    if parts is None:
        return None
    told = Heard({}, {})
    for part, _ in parts:
        told.first.update(part.first)
        told.after.update(part.after)
    swept = [_merged(list(each)) for each in zip(*(each for _, each in parts), strict=True)]
    return Report(world, compare(world, joined(world, told)), swept, time.perf_counter() - started)


def sweeps(world: World, loop: Loop, traffic: dict[int, Ints]) -> list[SweptInstance]:
    """Sweep every instance in which copies travel; ``traffic`` is what the run itself sent, by rank."""
    result = []
    for setup in filter(exchanges, world.instances):
        natural = sum(
            int((sent > 0).sum())
            for rank, sent in traffic.items()
            if rank in setup.layout.ranks and setup.layout.place(rank).tp >= 0
        )
        role = setup.layout.pool.role
        result.append(SweptInstance(role, natural, sweep(setup, loop, int8=False), sweep(setup, loop, int8=True)))
    return result


def _merged(parts: list[SweptInstance]) -> SweptInstance:
    """Return the sweeps of one instance from what each process saw of them."""
    plain, quantised = (merged([getattr(part, name) for part in parts]) for name in ("plain", "quantised"))
    return SweptInstance(parts[0].role, sum(part.natural for part in parts), plain, quantised)


def groups_with_four(world: World) -> int:
    """Decode groups with at least four prompts of different lengths."""
    return sum(
        len({len(world.prompts[request]) for request in world.requests_of(group, world.decode_of)}) >= 4
        for group in world.decode.layout.dp_groups()
    )
