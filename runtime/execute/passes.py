"""A prefill pass and a decode iteration as one rank runs them, stage after stage and microbatch beside microbatch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ground.arrays import Floats, Ints
from runtime.execute.collectives import parts_of
from runtime.execute.kernels import rms_norm
from runtime.execute.layout import Batch, decode_batch, prompts_batch
from runtime.execute.moe import moe, serve
from runtime.execute.worker import Worker


@dataclass(slots=True)
class Said:
    """What came out for one request: tokens, logits [V] of each, first drafts' logits by the position they tell."""

    tokens: list[int] = field(default_factory=list)
    logits: list[Floats] = field(default_factory=list)
    drafts: dict[int, Floats] = field(default_factory=dict)


@dataclass(slots=True)
class Running:
    """The requests of an attention group: numbers, next input ids [R, 1 + K], the position of the first of them, and
    what each has said in decode.
    """

    requests: list[int]
    ids: Ints
    starts: Ints
    said: dict[int, Said] = field(default_factory=dict)


async def block(worker: Worker, layer: int, x: Floats, batch: Batch) -> Floats:
    """One decoder layer over the residual states."""
    label = f"{batch.label}, layer {layer}"
    await worker.works("attention", label)
    x = x + await worker.attend(layer, x, batch)
    normed = rms_norm(x, worker.part(f"model.layers.{layer}.post_attention_layernorm.weight"))
    if worker.setup.small.is_dense(layer):
        await worker.works("dense", label)
        return x + await worker.dense(layer, normed, batch)
    await worker.works("gate", label)
    return x + await moe(worker, layer, normed, batch)


async def through_stage(worker: Worker, batch: Batch) -> Floats:
    """Return the states after this rank's stage: from the embedding or from the stage before, to the stage behind."""
    stages, stage = worker.setup.stages, worker.place.pp
    label = f"{batch.label}, hop"
    group = worker.comm("pp", batch.microbatch, label)
    x: Floats
    if stage == 0:
        x = worker.mine(await worker.embed("model.embed_tokens.weight", batch.ids, batch), batch)
    else:
        x = np.asarray(await group.receive(stage - 1))
    for layer in stages[stage]:
        x = await block(worker, layer, x, batch)
    if stage < len(stages) - 1:
        group.label = label
        group.send(stage + 1, x)
    return x


def is_last(worker: Worker) -> bool:
    """Whether the rank is in the last pipeline stage, which has head and drafts."""
    return worker.place.pp == len(worker.setup.stages) - 1


async def drafts_after(worker: Worker, states: Floats, following: Ints, chosen: Ints, batch: Batch) -> list[Floats]:
    """Return the draft logits [R, V] of every draft, first to last (DeepSeek-V3 section 2.2).

    ``states`` are the main model's of this rank's tokens, ``following`` [T] the tokens that come after each,
    ``chosen`` [R] the rows after which drafting goes on. Later drafts reuse the layer on its own output.
    """
    layer = worker.setup.small.draft_layer
    if not worker.setup.drafts or layer is None:
        return []
    at, logits = f"model.layers.{layer}", []
    x = await block(worker, layer, await worker.draft_states(states, following, batch), batch)
    state = (await worker.gathered(x, batch, "drafts"))[chosen]
    position = batch.positions[chosen]
    while True:
        norm, table = f"{at}.shared_head.norm.weight", f"{at}.shared_head.head.weight"
        logits.append(await worker.head(norm, table, state, batch))
        if len(logits) == worker.setup.drafts:
            return logits
        position = position + 1
        ids = logits[-1].argmax(axis=1)[:, None]
        step = decode_batch(ids, position, batch.rows.tolist(), batch.microbatch, f"{batch.label}, draft {len(logits)}")
        own = worker.mine(state, step)
        x = await block(worker, layer, await worker.draft_states(own, step.ids, step), step)
        state = await worker.gathered(x, step, "drafts")


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What a prefill pass says of each prompt: logits [V] of the first token, draft tokens, first draft's logits."""

    logits: Floats
    token: int
    drafts: list[int]
    draft_logits: Floats | None


async def prefill_part(
    worker: Worker, prompts: Sequence[Sequence[int]], rows: list[int], number: int
) -> list[Prefilled]:
    """Run one microbatch of prompts; the last stage returns what it says of each, the others nothing."""
    batch = prompts_batch(prompts, rows, number, f"prefill, microbatch {number}")
    x = await through_stage(worker, batch)
    if not is_last(worker):
        return []
    last = (await worker.gathered(x, batch, "last tokens"))[batch.last]
    logits = await worker.head("model.norm.weight", "lm_head.weight", last, batch)
    tokens = logits.argmax(axis=1)
    following = np.roll(batch.ids, -1)
    following[batch.last] = tokens
    drafts = await drafts_after(worker, x, following, batch.last, batch)
    return [
        Prefilled(
            logits[i], int(tokens[i]), [int(each[i].argmax()) for each in drafts], drafts[0][i] if drafts else None
        )
        for i in range(len(prompts))
    ]


async def prefill_pass(
    worker: Worker, prompts: Sequence[Sequence[int]], rows: list[int], parts: int
) -> list[Prefilled]:
    """Run the prompts of this rank's group in ``parts`` microbatches beside each other."""
    bounds = parts_of(len(prompts), parts)
    results = await worker.endpoint.together(
        *(prefill_part(worker, prompts[a:b], rows[a:b], number) for number, (a, b) in enumerate(bounds))
    )
    return [one for result in results for one in result]


async def decode_part(worker: Worker, running: Running, rows: list[int], number: int, iteration: int) -> None:
    """Run one microbatch of an iteration: verify the drafts, take what holds, draft anew."""
    label = f"decode {iteration}, microbatch {number}"
    batch = decode_batch(running.ids[rows], running.starts[rows], rows, number, label)
    x = await through_stage(worker, batch)
    group = worker.comm("pp", number, f"{label}, next tokens")
    if not is_last(worker):
        ids, starts = await worker.endpoint.receive(group.ranks[-1], ("next", number), f"{label}, next tokens")
    else:
        ids, starts = await _verified(worker, running, x, batch)
        for rank in group.ranks[:-1]:
            worker.endpoint.send(rank, ("next", number), (ids, starts), f"{label}, next tokens")
    running.ids[rows], running.starts[rows] = ids, starts


async def _verified(worker: Worker, running: Running, x: Floats, batch: Batch) -> tuple[Ints, Ints]:
    """Return ids and starts of the next iteration: greedy tokens up to the first draft that was wrong, and one more."""
    requests, queries = len(batch.rows), worker.setup.drafts + 1
    states = await worker.gathered(x, batch, "last tokens")
    await worker.works("head", batch.label)
    logits = await worker.head("model.norm.weight", "lm_head.weight", states, batch)
    said = logits.argmax(axis=1).reshape(requests, queries)
    right = said[:, :-1] == batch.ids.reshape(requests, queries)[:, 1:]
    accepted = np.cumprod(right, axis=1).sum(axis=1).astype(np.int64)
    chosen = np.arange(requests) * queries + accepted
    drafts = await drafts_after(worker, x, said.ravel(), chosen, batch)
    starts = batch.positions[::queries] + accepted + 1
    for i, row in enumerate(batch.rows.tolist()):
        request, count = running.requests[row], int(accepted[i]) + 1
        own = running.said.setdefault(request, Said())
        own.logits.extend(logits[i * queries : i * queries + count])
        own.tokens.extend(said[i, :count].tolist())
        if drafts:
            own.drafts[int(starts[i]) + 1] = drafts[0][i]
    columns = [said[np.arange(requests), accepted], *(each.argmax(axis=1) for each in drafts)]
    return np.stack(columns, axis=1).astype(np.int64), starts


async def decode_iteration(worker: Worker, running: Running, parts: int, iteration: int) -> None:
    """Run one iteration of this rank's requests in ``parts`` microbatches beside each other."""
    bounds = parts_of(len(running.requests), parts)
    await worker.endpoint.together(
        *(decode_part(worker, running, list(range(a, b)), number, iteration) for number, (a, b) in enumerate(bounds))
    )


async def experts_pass(worker: Worker, parts: int, label: str) -> None:
    """What an expert rank of a disaggregated instance does in one pass: serve one domain after the other.

    Layers, microbatches and domains come in a fixed order, so that only one domain talks to the experts at a time
    (xDeepServe section 5.2) while the others are at their attention.
    """
    setup = worker.setup
    layers = [layer for layer in setup.small.layers if not setup.small.is_dense(layer)]
    if setup.drafts and setup.small.draft_layer is not None:
        layers += [setup.small.draft_layer] * setup.drafts
    for layer in layers:
        for number in range(parts):
            for domain in range(setup.layout.domains):
                await serve(worker, layer, domain, number, f"{label}, microbatch {number}, layer {layer}")
