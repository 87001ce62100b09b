"""Attention as terms: MLA absorbed and unabsorbed, staged SP-TP-SP, GQA with windows, and what hybrids add.

Shapes: n heads per device, d dimensions of a head; terms are per device of a DP group of
``attention_tp`` devices. KV is read once per request and iteration ("kv") however many tokens MTP
verifies; later chunks and reused prefixes are read again ("context").
"""

import numpy as np

from hardware.formats import ELEMENT_BYTES
from hardware.spec import AttentionFit, Dtype
from models.parameters import compressor_parameters
from models.spec import GQA, MLA, GatedDeltaNet, Indexer
from planner.costs.cache import gqa_cached_elements
from planner.costs.deployment import Deployment, several
from planner.costs.roofline import TOKENS, Roofline, combine, grouped, in_some_layers, scale, unfilled
from planner.costs.sparse_attention import (
    dense_when_short,
    indexer_terms,
    linear_attention_terms,
    sparse_decode,
    sparse_prefill,
)
from planner.engines.behaviour import behaviour
from planner.manifest.terms import ComputeTerm, Form, Number, Term

WIDEST_WINDOW = 1024
"""Keys of the widest window with kernels fitted for windows; wider ones take as long as all keys within them."""
TWO_TILES = 16, 32
"""Heads of a device up to which one tile of them, and up to which two, read latents: beyond, tiles have 64. 64 requests
of 16,384 tokens take TensorRT-LLM 236, 333 and 236 us on B200 with 16, 32 and 64 heads (aiconfigurator-core 0.12.0)."""
LIKE_HEADS = 1.5
"""Ratio of the sizes of two heads up to which the kernel measured for one stands for the other: MiMo's 160 and 128."""


def attention_terms(deployment: Deployment) -> list[Term]:
    """Norm, projections, attention proper, output projection and its all-reduce."""
    attention, linear = deployment.model.attention, deployment.model.linear_attention
    if isinstance(attention, GQA):
        terms = gqa_terms(deployment, attention)
    else:
        terms = compressed_terms(deployment, attention) if attention.compression else mla_terms(deployment, attention)
    if deployment.model.hyper_connections > 1:
        terms += hyper_connection_terms(deployment)
    if linear is not None:
        full = deployment.model.kv_layers / deployment.model.layers
        compute = [term for term in terms if isinstance(term, ComputeTerm)]
        terms = [*in_some_layers(compute, full), *(term for term in terms if not isinstance(term, ComputeTerm))]
        terms += linear_attention_terms(deployment, linear)
    strategy, hidden = deployment.strategy, deployment.model.hidden_size
    if several(strategy.attention_tp) and not strategy.staged:
        tp, message = strategy.attention_tp, scale(TOKENS, hidden * 2.0)
        terms.append(grouped(deployment, "all_reduce", tp, message, "attention_all_reduce", "attention"))
    return terms


def mla_terms(deployment: Deployment, mla: MLA) -> list[Term]:
    """MLA: absorbed for running requests, unabsorbed for prompts; in staged SP-TP-SP form if asked.

    W_q_a and W_kv_a are replicated over TP and so is the latent cache; W_kv_b stays in BF16 under
    INT8 (xDeepServe section 4.7).
    """
    roofline, strategy, model = Roofline.of(deployment), deployment.strategy, deployment.model
    hidden, dtype = float(model.hidden_size), deployment.attention_weights
    heads = mla.heads / strategy.attention_tp
    rotated, latent = mla.qk_rope_head_dim, mla.kv_elements_per_token
    query = mla.qk_nope_head_dim + rotated
    own = scale(TOKENS, 1.0 / strategy.attention_tp) if strategy.staged else TOKENS
    down = latent + (mla.q_lora_rank or 0)
    cached = scale(TOKENS, latent * ELEMENT_BYTES[deployment.kv_dtype])
    terms: list[Term] = [
        roofline.norm("attention_norm", "attention", own, hidden),
        *roofline.quantise("attention_quantise", "attention", scale(own, hidden), dtype),
        roofline.matmul("q_kv_down", "attention", own, down, hidden, dtype),
        roofline.vector("latent_norm_rope", "attention", combine(TOKENS, (down + heads * rotated) * 4.0, cached, 1.0)),
        *roofline.quantise("latent_quantise", "attention", scale(TOKENS, float(mla.q_lora_rank or hidden)), dtype),
        roofline.matmul("q_up", "attention", TOKENS, heads * query, float(mla.q_lora_rank or hidden), dtype),
    ]
    if strategy.staged:
        terms += staged_exchanges(deployment, mla)
    if mla.indexer is not None or deployment.phase != "prefill":
        terms.append(absorb(deployment, mla, heads, "k_absorb"))
    if deployment.phase == "decode":
        terms = fused_prologue(deployment, terms)
    if mla.indexer is not None:
        terms += [*sparse_terms(deployment, mla, mla.indexer, heads), absorb(deployment, mla, heads, "v_absorb")]
        short = deployment.phase != "decode" and dense_when_short(deployment)
        terms += unabsorbed_terms(deployment, mla, heads, "_short") if short else []
    else:
        terms += [] if deployment.phase == "prefill" else absorbed_terms(deployment, mla, heads)
        terms += [] if deployment.phase == "decode" else unabsorbed_terms(deployment, mla, heads)
    terms += roofline.quantise("output_quantise", "attention", scale(TOKENS, heads * mla.v_head_dim), dtype)
    if strategy.staged:
        output = roofline.matmul("o_proj", "attention", own, hidden, float(mla.heads * mla.v_head_dim), dtype)
    else:
        output = roofline.matmul("o_proj", "attention", TOKENS, hidden, heads * mla.v_head_dim, dtype)
    return [*terms, output]


def compressed_terms(deployment: Deployment, mla: MLA) -> list[Term]:
    """Attention over blocks of tokens: nothing is absorbed or expanded, one head of keys serves all queries.

    DeepSeek-V4's configuration and inference code (huggingface.co/deepseek-ai/DeepSeek-V4-Pro).
    """
    blocks, indexer = mla.compression, mla.indexer
    assert blocks is not None and indexer is not None, "asked for the blocks of a model without"
    roofline, model, tp = Roofline.of(deployment), deployment.model, deployment.strategy.attention_tp
    hidden, dtype, heads = float(model.hidden_size), deployment.attention_weights, mla.heads / tp
    key, rank = float(mla.kv_elements_per_token), float(mla.q_lora_rank or hidden)
    groups, width = blocks.output_groups / tp, float(mla.heads * mla.v_head_dim // blocks.output_groups)
    terms: list[Term] = [
        roofline.norm("attention_norm", "attention", TOKENS, hidden),
        *roofline.quantise("attention_quantise", "attention", scale(TOKENS, hidden), dtype),
        roofline.matmul("q_kv_down", "attention", TOKENS, key + rank, hidden, dtype),
        roofline.vector("latent_norm_rope", "attention", scale(TOKENS, (key + rank + heads * key) * 4.0)),
        *roofline.quantise("latent_quantise", "attention", scale(TOKENS, rank), dtype),
        roofline.matmul("q_up", "attention", TOKENS, heads * key, rank, dtype),
    ]
    for name, share, made in (
        ("fine_blocks", model.index_share, 4 * key),
        ("coarse_blocks", blocks.coarse_layers / model.layers, 2 * key),
    ):
        product = roofline.matmul(name, "attention", TOKENS, made, hidden, "bf16")
        pooled = roofline.vector(f"{name}_pool", "attention", scale(TOKENS, made * 2 * 4.0))
        terms += in_some_layers([product, pooled], share)
    return [
        *terms,
        *sparse_terms(deployment, mla, indexer, heads),
        batched_matmul(roofline, "o_down", {"tokens": groups}, float(blocks.output_rank), width, groups),
        *roofline.quantise("output_quantise", "attention", scale(TOKENS, groups * blocks.output_rank), dtype),
        roofline.matmul("o_proj", "attention", TOKENS, hidden, groups * blocks.output_rank, dtype),
    ]


def hyper_connection_terms(deployment: Deployment) -> list[Term]:
    """Mixing of n residual streams around attention and around the feed-forward (arXiv 2409.19606, section 3).

    Before: the streams are read twice (weights, then their sum), one comes out; after: streams and the output are
    read, streams written: (2n + 1)·h elements each. SGLang 0.5.14's kernels on an H200 take 333 and 294 us for 8,192
    tokens of 4,096 in both places, this 315 each, and 17.5 and 6.3 us for one token (aiconfigurator-core 0.12.0).
    """
    roofline, streams = Roofline.of(deployment), deployment.model.hyper_connections
    moved = scale(TOKENS, 2 * (2 * streams + 1) * deployment.model.hidden_size * 2.0)
    return [
        roofline.vector("hyper_connection_in", "attention", moved, kernels=6),
        roofline.vector("hyper_connection_out", "attention", moved, kernels=2),
    ]


def sparse_terms(deployment: Deployment, mla: MLA, indexer: Indexer, heads: Number) -> list[Term]:
    """Attention over the keys that an indexer picks, on latents in every phase."""
    terms: list[Term] = [*indexer_terms(deployment, mla, indexer)]
    terms += [] if deployment.phase == "prefill" else [sparse_decode(deployment, mla, heads)]
    return terms if deployment.phase == "decode" else [*terms, sparse_prefill(deployment, mla, heads)]


def absorbed_terms(deployment: Deployment, mla: MLA, heads: Number) -> list[Term]:
    """Running requests attend in latent space: 2·heads·(2·kv_lora + rope) FLOP per pair of query and key."""
    roofline = Roofline.of(deployment)
    queries = 1.0 * deployment.queries
    latent = float(mla.kv_lora_rank)
    per_pair = 2.0 * heads * (mla.kv_elements_per_token + latent)
    fit, multiplied = latent_fit(deployment)
    cached = mla.kv_elements_per_token * ELEMENT_BYTES[deployment.kv_dtype]
    read = {
        "kv": cached * (1.0 + fit.again_fraction * in_two(heads)),
        "decode": heads * (mla.kv_elements_per_token + latent) * 2.0,
    }
    return [
        roofline.attention(
            "attention", fit, {"kv": queries}, per_pair, {"decode": 1.0}, read, latent, dtype=multiplied
        ),
        absorb(deployment, mla, heads, "v_absorb"),
    ]


def latent_fit(deployment: Deployment) -> tuple[AttentionFit, Dtype]:
    """The kernel of decode over dense latents, and the type of its products.

    A cache in FP8 is multiplied as it is where the machine's entry has a measured kernel that does so (FlashMLA pull
    request 82); other kernels widen it to BF16 first, so that it saves traffic alone.
    """
    kernels = deployment.hardware.kernels
    if deployment.kv_dtype == "fp8" and kernels.mla_decode_fp8 is not None:
        return kernels.mla_decode_fp8, "fp8"
    return kernels.mla_decode, "bf16"


def in_two(heads: Number) -> Number:
    """1 where two tiles of heads read the latents (``TWO_TILES``), else 0."""
    least, most = TWO_TILES
    split: Number = np.where(np.greater(heads, least) & np.less_equal(heads, most), 1.0, 0.0)
    return split


def absorbed_rows(deployment: Deployment, mla: MLA, heads: Number) -> Form:
    """Rows of the absorbing products: of running requests, and of prompts too where attention is sparse."""
    if mla.indexer is None or deployment.phase == "decode" or not dense_when_short(deployment):
        return {"tokens" if mla.indexer else "decode": heads}
    return {"decode": heads, "chunk_chosen": heads}


def absorb(deployment: Deployment, mla: MLA, heads: Number, name: str) -> ComputeTerm:
    """A half of W_kv_b, moved to the query side (``k_absorb``: nope -> kv_lora per head) or behind attention."""
    rows, latent = absorbed_rows(deployment, mla, heads), mla.kv_lora_rank
    columns, depth = (latent, mla.qk_nope_head_dim) if name == "k_absorb" else (mla.v_head_dim, latent)
    return batched_matmul(Roofline.of(deployment), name, rows, float(columns), float(depth), heads)


def fused_prologue(deployment: Deployment, terms: list[Term]) -> list[Term]:
    """One start-up for the whole chain where the library fuses it (CloudMatrix384 section 4.2.2, MLAProlog)."""
    floor = deployment.hardware.kernels.mla_prologue_floor_seconds
    if floor is None:
        return terms
    first, *chain = (term for term in terms if isinstance(term, ComputeTerm))
    later = (term._replace(floor_seconds=0.0, launches=0) for term in chain)
    return [first._replace(floor_seconds=floor.value, launches=1), *later]


def batched_matmul(
    roofline: Roofline, name: str, rows: Form, columns: float, depth: float, batch: Number
) -> ComputeTerm:
    """One BF16 product per head: ``rows`` counts all heads, the weight is ``batch`` matrices."""
    return roofline.matmul(name, "attention", rows, columns, depth, "bf16", groups={"one": batch})


def unabsorbed_terms(deployment: Deployment, mla: MLA, heads: Number, prompts: str = "") -> list[Term]:
    """Prompts attend per head: 2·heads·(nope + rope + v) FLOP per pair; keys and values are expanded.

    Later chunks, and a reused prefix, expand and read the cached latents again ("context"). ``prompts``: the ending of
    the variables of those that run so, if not all do.
    """
    roofline = Roofline.of(deployment)
    key, value = mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.v_head_dim
    chunk, context = f"chunk{prompts}", f"context{prompts}"
    all_keys = {chunk: 1.0, context: 1.0}
    expand = heads * (mla.qk_nope_head_dim + value)
    dtype: Dtype = "bf16" if deployment.attention_weights == "int8" else deployment.attention_weights
    latent_read = {context: mla.kv_elements_per_token * ELEMENT_BYTES[deployment.kv_dtype]}
    read = combine(all_keys, heads * (key + value) * 2.0, {chunk: 1.0}, heads * (key + value) * 2.0)
    # The rotary key, one per token, is copied behind every head's expanded key.
    joined = scale(all_keys, heads * (mla.qk_nope_head_dim + key) * 2.0)
    fit = deployment.hardware.kernels.mla_prefill or deployment.hardware.kernels.prefill_attention
    per_pair = 2.0 * heads * (key + value)
    attention = roofline.attention(
        f"prefill{prompts}_attention",
        fit,
        {f"pairs{prompts}": 1.0},
        per_pair,
        {chunk: 1.0},
        combine(read, 1.0, latent_read, 1.0),
        (key + value) / 2,
    )
    return [
        roofline.matmul("kv_up", "attention", all_keys, expand, float(mla.kv_lora_rank), dtype),
        roofline.vector("key_join", "attention", joined),
        attention if prompts else unfilled(attention, fit, per_pair, heads),
    ]


def staged_exchanges(deployment: Deployment, mla: MLA) -> list[Term]:
    """SP-TP-SP: all-gather of the latents after stage 1, all-to-all of the heads after stage 2.

    CloudMatrix384 section 4.3.1.
    """
    degree = deployment.strategy.attention_tp
    latents = (mla.kv_elements_per_token + (mla.q_lora_rank or deployment.model.hidden_size)) * 2.0
    heads = mla.heads * mla.v_head_dim * 2.0 / degree
    return [
        grouped(deployment, "all_gather", degree, scale(TOKENS, latents), "latent_all_gather", "attention"),
        grouped(deployment, "all_to_all", degree, scale(TOKENS, heads), "heads_all_to_all", "attention"),
    ]


def gqa_terms(deployment: Deployment, gqa: GQA) -> list[Term]:
    """Grouped-query attention: KV heads are split over TP and replicated beyond their number.

    With an output gate the query projection is twice as wide, and the gate multiplies what attention returns.
    """
    roofline, model, tp = Roofline.of(deployment), deployment.model, deployment.strategy.attention_tp
    own, hidden, dtype = behaviour(deployment.engine), float(model.hidden_size), deployment.attention_weights
    kernels = 1 + gqa.qk_norm + (own is not None and own.writes_cache_apart)
    heads, value = gqa.heads / tp, gqa.heads / tp * gqa.value_dim
    width = heads * gqa.head_dim + gqa_cached_elements(gqa, tp)
    cached = gqa_cached_elements(gqa, tp) * ELEMENT_BYTES[deployment.kv_dtype]
    terms: list[Term] = [
        roofline.norm("attention_norm", "attention", TOKENS, hidden),
        *roofline.quantise("attention_quantise", "attention", scale(TOKENS, hidden), dtype),
        roofline.matmul("qkv_proj", "attention", TOKENS, width + (value if gqa.output_gate else 0.0), hidden, dtype),
        roofline.vector("rope_cache", "attention", scale(TOKENS, width * 4.0 + cached), kernels),
    ]
    windowed = model.windowed_layers / model.kv_layers
    if windowed < 1:
        terms += gqa_attention(deployment, gqa, within=False, share=1.0 - windowed)
    if windowed:
        terms += gqa_attention(deployment, gqa, within=True, share=windowed)
    if gqa.output_gate:
        terms.append(roofline.vector("output_gate", "attention", scale(TOKENS, value * (3 * 2.0))))
    terms += roofline.quantise("output_quantise", "attention", scale(TOKENS, value), dtype)
    return [*terms, roofline.matmul("o_proj", "attention", TOKENS, hidden, value, dtype)]


def gqa_attention(deployment: Deployment, gqa: GQA, *, within: bool, share: float) -> list[ComputeTerm]:
    """Attention proper, in the part of the layers that sees all keys or in the part that sees those ``within`` reach.

    2·heads·(d + d_v) FLOP per pair of query and key; keys that are parameters are seen by every query and read once.
    """
    roofline, tp = Roofline.of(deployment), deployment.strategy.attention_tp
    narrow, head = within and deployment.model.reach_tokens <= WIDEST_WINDOW, (gqa.head_dim + gqa.value_dim) / 2
    decoding, _ = gqa_fit(deployment, "gqa_decode", head, narrow)
    prompting, multiplied = gqa_fit(deployment, "prefill_attention", head, narrow)
    heads = gqa.heads / tp
    cached = gqa_cached_elements(gqa, tp) * ELEMENT_BYTES[deployment.kv_dtype]
    per_pair = 4.0 * heads * head
    moved, sinks = heads * (gqa.head_dim + gqa.value_dim) * 2.0, float(gqa.sink_tokens)
    prefix = "window_" if within else ""

    def reached(keys: str, fit: AttentionFit) -> Form:
        if not within:
            return {keys: 1.0}
        beyond: Form = {keys: fit.beyond_fraction} if fit.beyond_fraction else {}
        return {f"{keys}_within": 1.0 - fit.beyond_fraction, **beyond}

    parameters = {"one": sinks * cached} if sinks else {}
    terms: list[ComputeTerm] = []
    if deployment.phase != "prefill":
        kv = reached("kv", decoding)
        pairs: Form = scale(kv, 1.0 * deployment.queries) | ({"decode": sinks} if sinks else {})
        read = scale(kv, cached) | {"decode": moved} | parameters
        terms.append(roofline.attention(f"{prefix}attention", decoding, pairs, per_pair, {"decode": 1.0}, read, head))
    if deployment.phase != "decode":
        pairs = {**reached("pairs", prompting), **({"chunk": sinks} if sinks else {})}
        read = scale(reached("context", prompting), cached) | {"chunk": cached + moved} | parameters
        name = f"prefill_{prefix}attention"
        term = roofline.attention(name, prompting, pairs, per_pair, {"chunk": 1.0}, read, head, multiplied)
        terms.append(term if within else unfilled(term, prompting, per_pair, heads))
    return terms if share == 1.0 else in_some_layers(terms, share)


def gqa_fit(deployment: Deployment, name: str, head: float, narrow: bool) -> tuple[AttentionFit, Dtype]:
    """The kernel of that name for the type of the cache, narrow windows and a head's size, as far as measured.

    Returns the type of its products as well.
    """
    kernels, fp8 = deployment.hardware.kernels, deployment.kv_dtype == "fp8"
    sizes = sorted({float(key.split()[1]) for key in kernels.attention_by_head}, key=lambda size: abs(size - head))
    for suffix in ("_fp8", "") if fp8 else ("",):
        dtype: Dtype = "fp8" if suffix else "bf16"
        prefix = "window_" if narrow else ""
        for size in sizes:
            own = kernels.attention_by_head.get(f"{prefix}{name}{suffix} {size:.0f}")
            if own is not None and max(size, head) <= LIKE_HEADS * min(size, head):
                return own, dtype
        fit: AttentionFit | None = getattr(kernels, name + suffix)
        if fit is not None:
            return fit, dtype
    raise AssertionError(f"every machine has {name}")


def attention_weight_bytes(deployment: Deployment) -> Number:
    """Bytes of the attention weights of the mean layer on one device."""
    model = deployment.model
    attention, linear = model.attention, model.linear_attention
    full = mla_weight_bytes(deployment, attention) if isinstance(attention, MLA) else gqa_bytes(deployment, attention)
    if linear is None:
        return full
    return (model.kv_layers * full + linear.layers * linear_bytes(deployment, linear)) / model.layers


def mla_weight_bytes(deployment: Deployment, mla: MLA) -> Number:
    """Latent attention: down projections, latents and the indexer are whole on every TP device."""
    tp, element = deployment.strategy.attention_tp, ELEMENT_BYTES[deployment.attention_weights]
    hidden = deployment.model.hidden_size
    if (blocks := mla.compression) is not None and mla.indexer is not None:
        key, rank = mla.kv_elements_per_token, mla.q_lora_rank or 0
        whole = hidden * (key + rank) + deployment.model.index_share * rank * mla.indexer.heads * mla.indexer.head_dim
        split = rank * mla.heads * key + blocks.output_rank * (
            mla.heads * mla.v_head_dim + blocks.output_groups * hidden
        )
        scored = deployment.model.index_share * hidden * (4 * mla.indexer.head_dim + mla.indexer.heads)
        made = compressor_parameters(deployment.model) / deployment.model.layers
        return (whole + split / tp) * element + (made + scored) * 2.0
    query = mla.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    replicated = hidden * (mla.kv_elements_per_token + (mla.q_lora_rank or 0))
    up = (mla.q_lora_rank or hidden) * query / tp
    output = mla.heads * mla.v_head_dim * hidden / (1 if deployment.strategy.staged else tp)
    latent_up = mla.kv_lora_rank * mla.heads * (mla.qk_nope_head_dim + mla.v_head_dim) / tp
    index = 0.0
    if mla.indexer:
        queries = mla.indexer.heads * mla.indexer.head_dim
        index = (mla.q_lora_rank or hidden) * queries * element
        index += hidden * (mla.indexer.head_dim + mla.indexer.heads) * 2.0
        index *= deployment.model.index_share
    return (replicated + up + output) * element + latent_up * latent_element_bytes(deployment, mla) + index


def latent_element_bytes(deployment: Deployment, mla: MLA) -> float:
    """Bytes of an element of W_kv_b.

    It stays in BF16 under INT8 (xDeepServe section 4.7). Absorbed decode keeps it as two BF16 factors, and so does
    sparse attention in every phase; an instance that runs both phases of an FP8 model with dense attention keeps the
    factors beside the FP8 matrix.
    """
    weights = deployment.attention_weights
    if weights == "int8" or deployment.phase == "decode" or mla.indexer:
        return 2.0
    element = ELEMENT_BYTES[weights]
    if deployment.phase == "prefill":
        return element
    return 2.0 + element if weights == "fp8" else 2.0


def gqa_bytes(deployment: Deployment, gqa: GQA) -> Number:
    """Grouped-query attention: KV heads are repeated beyond their number."""
    tp = deployment.strategy.attention_tp
    queries = gqa.heads / tp * (gqa.head_dim + (gqa.value_dim if gqa.output_gate else 0))
    cached = np.maximum(gqa.kv_heads / tp, 1.0) * (gqa.head_dim + gqa.value_dim)
    width: Number = queries + cached + gqa.heads / tp * gqa.value_dim
    return deployment.model.hidden_size * width * ELEMENT_BYTES[deployment.attention_weights]


def linear_bytes(deployment: Deployment, linear: GatedDeltaNet) -> Number:
    """Gated delta-net: input projections to q, k, v, gate and two numbers per head; output; convolution. Over TP."""
    columns = 2 * linear.key_width + 2 * linear.value_width + 2 * linear.value_heads
    products = (
        deployment.model.hidden_size * (columns + linear.value_width) * ELEMENT_BYTES[deployment.attention_weights]
    )
    convolution = (2 * linear.key_width + linear.value_width) * linear.conv_kernel * 2.0
    return (products + convolution) / deployment.strategy.attention_tp
