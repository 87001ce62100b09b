"""Attention that does not read every key, as terms: DeepSeek sparse attention (DSA), and gated delta-net layers.

DSA: a light indexer scores every key, attention proper reads the best ones. DeepSeek-V3.2 report, section 2.1: I(t,
s) = Σ_j w_tj · ReLU(q_tj · k_s) over the indexer's heads, then the top-k keys. The indexer is whole on every TP
device (its cost does not fall with TP), and its keys are read in FP8; scores are written in FP32 and read twice by
the selection (one pass for the histogram, one to gather). Ascend's fused kernel sorts them on its vector cores
while its cube cores make them (``sorted_in_full``). Where layers take over the choice of an earlier one (GLM-5.2),
those have neither indexer nor index keys. Attention proper runs on latents (MQA form) for prompts too, as the
report says and the kernels do; a prompt within top-k tokens would run faster unabsorbed, which is left out: an
upper estimate there.

Gated delta-net: projections, a short convolution, and a recurrent state instead of a KV cache. Yang et al., Gated
Delta Networks (arXiv 2412.06464): S_t = α_t S_(t-1) (I - β_t k_t k_tᵀ) + β_t v_t k_tᵀ and o_t = S_t q_t. Running
requests step the recurrence; prompts use its chunkwise form. Heads are split over TP.
"""

from typing import NamedTuple

from ground.records import Sourced
from hardware.engines import measured_as
from hardware.formats import ELEMENT_BYTES
from hardware.spec import AttentionFit, Dtype, SortFit, SparseFit
from models.spec import MLA, GatedDeltaNet, Indexer
from planner.costs.cache import INDEX_SCALE_BYTES
from planner.costs.deployment import Deployment
from planner.costs.roofline import TOKENS, UNMEASURED_RESIDUAL, Roofline, combine, in_some_layers, residual, scale
from planner.engines.behaviour import behaviour
from planner.engines.loader import accelerator_of
from planner.manifest.terms import ComputeTerm, Form, Number, Term, larger, smaller

SCORE_BYTES = 4.0
SORTED, KEPT = 4.36, 3.32
"""Elements that a full sort handles of each score, and of each key that it keeps: CANN's guide of LightningIndexer
(cann-recipes-infer, docs/models/deepseek_v3_2_exp) counts 4.36 S + 3.32 k for a query."""
# Tokens of a chunk of the chunkwise form: flash-linear-attention's kernels, which vLLM and SGLang run
# (github.com/fla-org/flash-linear-attention, fla/ops/gated_delta_rule/chunk.py).
CHUNK_TOKENS = 64

RECURRENCE_PACE = 0.55
"""Rate of the recurrence beside that of element-wise kernels: 1.07 GB of states in 613 us on an H20, 0.44 of its
bandwidth where those reach 0.8 (SGLang's kernel at 256 requests; InferSim, bench_data/gdn/decode/h20)."""

CONVOLUTION_PACE = 0.21
"""The same of the short convolution: 134 MB of a prompt of 4,096 tokens in 203 us, 34 MB of 256 requests in 48 us
(InferSim, bench_data/gdn/prefill/h20 and decode/h20)."""


def indexer_terms(deployment: Deployment, mla: MLA, indexer: Indexer) -> list[ComputeTerm]:
    """Projections of the indexer, its scores and the selection, for running requests and prompts.

    Weights: q_lora x n·d for its queries (from the compressed query), h x (d + n) for its key and head weights.
    """
    roofline, hidden = Roofline.of(deployment), float(deployment.model.hidden_size)
    queries, key = float(indexer.heads * indexer.head_dim), float(indexer.head_dim)
    depth, dtype = float(mla.q_lora_rank or hidden), deployment.attention_weights
    blocks = mla.compression
    each, made = (1.0 / blocks.fine_tokens, 4.0 * key) if blocks else (1.0, key)
    key_bytes = (key + INDEX_SCALE_BYTES) * each
    # Rotation and quantisation: BF16 in, FP8 and a scale out; the key goes to its cache.
    prepared = queries * (2.0 + 1.0) + key * 2.0 + key_bytes
    terms: list[ComputeTerm] = [
        roofline.matmul("index_query", "attention", TOKENS, queries, depth, dtype),
        roofline.matmul("index_key", "attention", TOKENS, made + indexer.heads, hidden, "bf16"),
        roofline.vector("index_quantise", "attention", scale(TOKENS, prepared), kernels=2),
    ]
    per_pair = 2.0 * queries
    # FP8 scores need FP8 products; elsewhere they are INT8 where the device has that, else BF16.
    peaks = deployment.hardware.device.peak_flops_per_second
    score_dtype: Dtype = "fp8" if "fp8" in peaks else "int8" if "int8" in peaks else "bf16"
    kernels = deployment.hardware.kernels
    scored: list[tuple[str, AttentionFit, Form, Form, Form]] = []
    if deployment.phase != "prefill":
        pairs: Form = {"kv": 1.0 * deployment.queries * each}
        scored.append(("index_scores", kernels.mla_decode, pairs, {"decode": 1.0}, {"kv": key_bytes}))
    if deployment.phase != "decode":
        every, asked = {"chunk": key_bytes, "context": key_bytes}, prompts_with_choice(deployment)
        prompts: Form = {asked.pairs: each}
        scored.append(("prefill_index_scores", kernels.prefill_attention, prompts, {asked.queries: 1.0}, every))
    for name, fit, pairs, rows, read in scored:
        read = combine(read, 1.0, pairs, SCORE_BYTES)
        scores = roofline.attention(name, fit, pairs, per_pair, rows, read, key, dtype=score_dtype)
        selection = roofline.vector(name.replace("scores", "top_k"), "attention", scale(pairs, 2 * SCORE_BYTES))
        chosen, sort = prompt_kernel(deployment), kernels.index_sort
        if sort is not None:
            terms += sorted_in_full(scores, selection, sort, roofline.peak("bf16"))
        elif name.startswith("prefill") and blocks is None and chosen is not None:
            terms += [scores, chosen_by_query(selection, chosen.choice_seconds)]
        else:
            terms += [scores, selection]
    share = deployment.model.index_share
    terms += index_start_up(deployment) if blocks is None else []
    return terms if share == 1.0 else in_some_layers(terms, share)


def index_start_up(deployment: Deployment) -> list[ComputeTerm]:
    """What the engine's indexer takes beyond its kernels in decode, and more where there is something to choose.

    Not beside DeepSeek-V4's blocks, whose modules are met without (aiconfigurator-core 0.12.0).
    """
    own, roofline = behaviour(deployment.engine), Roofline.of(deployment)
    if own is None or deployment.phase == "prefill":
        return []
    stated = own.indexer_start_up_seconds
    always, beyond = stated.get(measured_as(deployment.hardware), stated.get("all")), own.index_choice_seconds
    parts: tuple[tuple[str, Form, Sourced | None], ...] = (
        ("index_start_up", {"decode": 1.0}, always),
        ("index_choice", {"kv_beyond": 1.0}, beyond),
    )
    return [
        roofline.vector(name, "attention", work)._replace(floor_seconds=seconds.value)
        for name, work, seconds in parts
        if seconds is not None
    ]


def prompt_kernel(deployment: Deployment) -> SparseFit | None:
    """The kernel of prompts over chosen keys for the type of the cache."""
    kernels = deployment.hardware.kernels
    return (kernels.sparse_prefill_fp8 if deployment.kv_dtype == "fp8" else None) or kernels.sparse_prefill


def chosen_by_query(selection: ComputeTerm, seconds: float) -> ComputeTerm:
    """Return a selection that takes so long for a query besides reading scores, where there is something to choose."""
    (moved,) = selection.bytes.values()
    return selection._replace(idle_flops={"chunk_chosen": seconds}, bytes={"pairs_chosen": moved}, serial=1.0)


class Prompts(NamedTuple):
    """Variables of prompts that an engine attends to sparsely: pairs in all, those picked, and queries."""

    pairs: str = "pairs"
    picked: str = "pairs_within"
    queries: str = "chunk"


def prompts_with_choice(deployment: Deployment) -> Prompts:
    """All prompts, or those that have more keys than are picked alone, where the engine runs others as dense ones."""
    return Prompts("pairs_chosen", "picked", "chunk_chosen") if dense_when_short(deployment) else Prompts()


def dense_when_short(deployment: Deployment) -> bool:
    """Whether prompts that have no more keys than the indexer picks run as dense attention."""
    own, attention = behaviour(deployment.engine), deployment.model.attention
    sparse = isinstance(attention, MLA) and attention.indexer is not None and attention.compression is None
    known = own is not None and own.short_prompts_dense and accelerator_of(deployment.hardware) == "nvidia"
    return sparse and known


def sorted_in_full(scores: ComputeTerm, selection: ComputeTerm, sort: SortFit, peak: float) -> list[ComputeTerm]:
    """Return the terms of one fused kernel: its scores, and what sorting them takes beyond the time of making them."""
    rate, [(keys, flops)] = peak * sort.elements_per_flop, scores.flops.items()
    pairs = selection.bytes[keys] / (2 * SCORE_BYTES)
    hidden = smaller(rate * flops / scores.flops_per_second, SORTED * pairs)
    beyond: Form = {keys: SORTED * pairs - hidden, f"{keys}_within": KEPT * pairs}
    return [
        scores._replace(floor_seconds=sort.floor_seconds, residual=residual(sort)),
        selection._replace(
            flops=beyond, flops_per_second=rate, bytes={}, floor_seconds=0.0, launches=0, residual=residual(sort)
        ),
    ]


def sparse_decode(deployment: Deployment, mla: MLA, heads: Number) -> Term:
    """Attention of running requests over the keys that were picked: each query gathers its own."""
    pairs = scale(seen_keys(deployment, mla, "kv", "decode"), 1.0 * deployment.queries)
    return _sparse(deployment, mla, heads, "attention", pairs, {"decode": 1.0})


def sparse_prefill(deployment: Deployment, mla: MLA, heads: Number) -> Term:
    """Attention of prompts over the keys that were picked: each query gathers its own."""
    asked = prompts_with_choice(deployment)
    pairs: Form = {asked.picked: 1.0} if mla.compression is None else seen_keys(deployment, mla, "pairs", "chunk")
    return _sparse(deployment, mla, heads, "prefill_attention", pairs, {asked.queries: 1.0})


def seen_keys(deployment: Deployment, mla: MLA, all_keys: str, queries: str) -> Form:
    """Pairs of query and key in the mean layer: those picked, or blocks picked, all coarse blocks and the window."""
    if (blocks := mla.compression) is None:
        return {f"{all_keys}_within": 1.0}
    coarse = blocks.coarse_layers / deployment.model.layers
    return {
        f"{all_keys}_within": deployment.model.index_share / blocks.fine_tokens,
        all_keys: coarse / blocks.coarse_tokens,
        queries: float(blocks.window),
    }


def _sparse(deployment: Deployment, mla: MLA, heads: Number, name: str, pairs: Form, rows: Form) -> Term:
    """2·heads·(key + value) FLOP per pair; a gathered latent is read once for all heads of a device."""
    kernels, latent = deployment.hardware.kernels, float(mla.kv_elements_per_token)
    measured: AttentionFit | None = kernels.sparse_decode
    if name.startswith("prefill") and (measured := prompt_kernel(deployment)) is not None:
        heads = larger(heads, measured.tile_heads)
        if mla.compression is None and mla.indexer is not None:
            pairs = combine(pairs, 1.0 - measured.padded_fraction, rows, measured.padded_fraction * mla.indexer.top_k)
    gathered = scale(pairs, latent * ELEMENT_BYTES[deployment.kv_dtype])
    read = combine(gathered, 1.0, rows, heads * (latent + mla.value_width) * 2.0)
    per_pair = 2.0 * heads * (latent + mla.value_width)
    fit = measured or kernels.mla_decode
    return Roofline.of(deployment).attention(name, fit, pairs, per_pair, rows, read, latent)


def chunk_flops(key: int, value: int, chunk: int = CHUNK_TOKENS) -> float:
    """FLOP per token and value head of the chunkwise form (arXiv 2412.06464, section 3.3 and equations 8-9).

    K·Kᵀ, Q·Kᵀ and T·K over the chunk 2·C·d_k each, T·V and A·V 2·C·d_v each, the inverse of a triangle C²·2/3, and
    W·S, Q·S and Kᵀ·V 2·d_k·d_v each.

    >>> round(chunk_flops(128, 128))  # 49152 + 32768 + 2731 + 98304
    182955
    """
    return 6.0 * chunk * key + 4.0 * chunk * value + 2.0 / 3.0 * chunk**2 + 6.0 * key * value


def linear_attention_terms(deployment: Deployment, linear: GatedDeltaNet) -> list[ComputeTerm]:
    """Norm, projections, convolution, recurrence, gated norm and output of the layers that are linear."""
    roofline, hidden = Roofline.of(deployment), float(deployment.model.hidden_size)
    tp, dtype = deployment.strategy.attention_tp, deployment.attention_weights
    inner, value = (2 * linear.key_width + linear.value_width) / tp, linear.value_width / tp
    # q, k, v, the output gate z, and per value head the decay and the step size.
    columns = inner + value + 2 * linear.value_heads / tp
    convolved = combine(TOKENS, inner * 4.0, {"decode": 1.0}, 2.0 * linear.convolution_bytes / tp / deployment.queries)
    terms = [
        roofline.norm("linear_norm", "attention", TOKENS, hidden),
        *roofline.quantise("linear_quantise", "attention", scale(TOKENS, hidden), dtype),
        roofline.matmul("linear_in_proj", "attention", TOKENS, columns, hidden, dtype),
        roofline.vector(
            "short_convolution",
            "attention",
            convolved,
            pace=CONVOLUTION_PACE,
            own=deployment.hardware.kernels.convolution,
        ),
    ]
    if deployment.phase != "prefill":
        terms.append(recurrence(deployment, linear, tp))
    if deployment.phase != "decode":
        terms.append(chunkwise(deployment, linear, tp))
    terms += [
        roofline.vector("gated_norm", "attention", scale(TOKENS, value * (3 * 2.0))),
        *roofline.quantise("linear_output_quantise", "attention", scale(TOKENS, value), dtype),
        roofline.matmul("linear_out_proj", "attention", TOKENS, hidden, value, dtype),
    ]
    return in_some_layers(terms, linear.layers / deployment.model.layers)


def recurrence(deployment: Deployment, linear: GatedDeltaNet, tp: Number) -> ComputeTerm:
    """One step per query token of running requests: the state is read once and written after every token.

    About 7·d_k·d_v FLOP per head and token against 8 bytes per FP32 element: bound by memory on every device, so it
    is costed as element-wise work. Engines that verify drafts keep the state after each of them.
    """
    state = linear.recurrent_bytes / tp
    operands = (2 * linear.key_width + 2 * linear.value_width) * 2.0 / tp
    moved = {"decode": state * (1.0 / deployment.queries + 1.0) + operands}
    own = deployment.hardware.kernels.recurrence
    return Roofline.of(deployment).vector("recurrent_state", "attention", moved, pace=RECURRENCE_PACE, own=own)


def chunkwise(deployment: Deployment, linear: GatedDeltaNet, tp: Number) -> ComputeTerm:
    """Prompts in chunks. Efficiency: that of prompt attention whose queries see one chunk of keys.

    On an H20 that gives 0.87 ms for a prompt of 4,096 tokens, where the five kernels take 0.89 (InferSim,
    bench_data/gdn/prefill/h20); other machines are unmeasured.

    Bytes per token: q, k, v and output, W and U written and read, and per chunk the state in BF16 written and read.
    """
    key, value, heads = linear.key_head_dim, linear.value_head_dim, linear.value_heads / tp
    state = 2 * 2.0 * key * value / CHUNK_TOKENS
    moved = heads * (2 * 2.0 * (key + value) + state) + (2 * linear.key_width + 2 * linear.value_width) * 2.0 / tp
    per_pair = heads * chunk_flops(key, value) / CHUNK_TOKENS
    roofline, own = Roofline.of(deployment), deployment.hardware.kernels.chunkwise
    if own is not None:
        rate = roofline.sustained * roofline.peak("bf16") * own.peak_fraction
        return ComputeTerm(
            name="chunkwise_state",
            stage="attention",
            flops={"chunk": CHUNK_TOKENS * per_pair},
            idle_flops={"chunk": own.token_seconds * rate},
            flops_per_second=rate,
            bytes={"chunk": moved},
            bytes_per_second=roofline.bandwidth,
            floor_seconds=own.floor_seconds,
            residual=residual(own),
        )
    term = roofline.attention(
        "chunkwise_state",
        deployment.hardware.kernels.prefill_attention,
        {"chunk": float(CHUNK_TOKENS)},
        per_pair,
        {"chunk": 1.0},
        {"chunk": moved},
        float(key),
    )
    return term._replace(residual=UNMEASURED_RESIDUAL)
