"""DeepSeek sparse attention (DSA) as terms: a light indexer scores every key, attention proper reads the best ones.

DeepSeek-V3.2 report, section 2.1: I(t, s) = Σ_j w_tj · ReLU(q_tj · k_s) over the indexer's heads, then the top-k keys.
The indexer is whole on every TP device (its cost does not fall with TP), and its keys are read in FP8; scores are
written in FP32 and read twice by the selection (one pass for the histogram, one to gather). Ascend's fused kernel sorts
them on its vector cores while its cube cores make them (``sorted_in_full``). Where layers take over the choice of an
earlier one (GLM-5.2), those have neither indexer nor index keys. Attention proper runs on
latents (MQA form) for prompts too, as the report says and the kernels do; a prompt within top-k tokens would run
faster unabsorbed, which is left out: an upper estimate there.
"""

from hardware.formats import ELEMENT_BYTES
from hardware.spec import AttentionFit, Dtype, SortFit
from models.spec import MLA, Indexer
from planner.costs.cache import INDEX_SCALE_BYTES
from planner.costs.deployment import Deployment
from planner.costs.roofline import TOKENS, Roofline, combine, in_some_layers, residual, scale
from planner.manifest.terms import ComputeTerm, Form, Number, Term, smaller

SCORE_BYTES = 4.0
SORTED, KEPT = 4.36, 3.32
"""Elements that a full sort handles of each score, and of each key that it keeps: CANN's guide of LightningIndexer
(cann-recipes-infer, docs/models/deepseek_v3_2_exp) counts 4.36 S + 3.32 k for a query."""


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
        every = {"chunk": key_bytes, "context": key_bytes}
        scored.append(("prefill_index_scores", kernels.prefill_attention, {"pairs": each}, {"chunk": 1.0}, every))
    for name, fit, pairs, rows, read in scored:
        read = combine(read, 1.0, pairs, SCORE_BYTES)
        scores = roofline.attention(name, fit, pairs, per_pair, rows, read, dtype=score_dtype)
        selection = roofline.vector(name.replace("scores", "top_k"), "attention", scale(pairs, 2 * SCORE_BYTES))
        sort = kernels.index_sort
        terms += [scores, selection] if sort is None else sorted_in_full(scores, selection, sort, roofline.peak("bf16"))
    share = deployment.model.index_share
    return terms if share == 1.0 else in_some_layers(terms, share)


def sorted_in_full(scores: ComputeTerm, selection: ComputeTerm, sort: SortFit, peak: float) -> list[ComputeTerm]:
    """Return the terms of one fused kernel: its scores, and what sorting them takes beyond the time of making them."""
    rate, [(keys, flops)] = peak * sort.elements_per_flop, scores.flops.items()
    pairs = selection.bytes[keys] / (2 * SCORE_BYTES)
    hidden = smaller(rate * flops / scores.flops_per_second, SORTED * pairs)
    beyond: Form = {keys: SORTED * pairs - hidden, f"{keys}_within": KEPT * pairs}
    return [
        scores._replace(floor_seconds=sort.floor_seconds, residual=residual(sort)),
        selection._replace(
            flops=beyond,
            flops_per_second=rate,
            bytes={},
            floor_seconds=0.0,
            launches=0,
            residual=residual(sort),
        ),
    ]


def sparse_decode(deployment: Deployment, mla: MLA, heads: Number) -> Term:
    """Attention of running requests over the keys that were picked: each query gathers its own."""
    pairs = scale(seen_keys(deployment, mla, "kv", "decode"), 1.0 * deployment.queries)
    return _sparse(deployment, mla, heads, "attention", pairs, {"decode": 1.0})


def sparse_prefill(deployment: Deployment, mla: MLA, heads: Number) -> Term:
    """Attention of prompts over the keys that were picked: each query gathers its own."""
    return _sparse(
        deployment, mla, heads, "prefill_attention", seen_keys(deployment, mla, "pairs", "chunk"), {"chunk": 1.0}
    )


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
    measured = kernels.sparse_prefill if name.startswith("prefill") else kernels.sparse_decode
    gathered = scale(pairs, latent * ELEMENT_BYTES[deployment.kv_dtype])
    read = combine(gathered, 1.0, rows, heads * (latent + mla.value_width) * 2.0)
    per_pair = 2.0 * heads * (latent + mla.value_width)
    fit = measured or kernels.mla_decode
    return Roofline.of(deployment).attention(name, fit, pairs, per_pair, rows, read)
