"""Gated delta-net layers as terms: projections, a short convolution, and a recurrent state instead of a KV cache.

Yang et al., Gated Delta Networks (arXiv 2412.06464): S_t = α_t S_(t-1) (I - β_t k_t k_tᵀ) + β_t v_t k_tᵀ and
o_t = S_t q_t. Running requests step the recurrence; prompts use its chunkwise form. Heads are split over TP.
"""

from models.spec import GatedDeltaNet
from planner.costs.deployment import Deployment
from planner.costs.roofline import TOKENS, UNMEASURED_RESIDUAL, Roofline, combine, in_some_layers, scale
from planner.manifest.terms import ComputeTerm, Number

# Tokens of a chunk of the chunkwise form: flash-linear-attention's kernels, which vLLM and SGLang run
# (github.com/fla-org/flash-linear-attention, fla/ops/gated_delta_rule/chunk.py).
CHUNK_TOKENS = 64

RECURRENCE_PACE = 0.55
"""Rate of the recurrence beside that of element-wise kernels: 1.07 GB of states in 613 us on an H20, 0.44 of its
bandwidth where those reach 0.8 (SGLang's kernel at 256 requests; InferSim, bench_data/gdn/decode/h20)."""

CONVOLUTION_PACE = 0.21
"""The same of the short convolution: 134 MB of a prompt of 4,096 tokens in 203 us, 34 MB of 256 requests in 48 us
(InferSim, bench_data/gdn/prefill/h20 and decode/h20)."""


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
    convolved = combine(TOKENS, inner * 4.0, {"decode": 1.0}, 2.0 * linear.convolution_bytes / tp / queries(deployment))
    terms = [
        roofline.vector("linear_norm", "attention", scale(TOKENS, hidden * (3 * 2.0 + 1.0))),
        *roofline.quantise("linear_quantise", "attention", scale(TOKENS, hidden), dtype),
        roofline.matmul("linear_in_proj", "attention", TOKENS, columns, hidden, dtype),
        roofline.vector("short_convolution", "attention", convolved, pace=CONVOLUTION_PACE),
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


def queries(deployment: Deployment) -> Number:
    """Query tokens of a running request in one step."""
    return 1.0 * deployment.queries


def recurrence(deployment: Deployment, linear: GatedDeltaNet, tp: Number) -> ComputeTerm:
    """One step per query token of running requests: the state is read once and written after every token.

    About 7·d_k·d_v FLOP per head and token against 8 bytes per FP32 element: bound by memory on every device, so it
    is costed as element-wise work. Engines that verify drafts keep the state after each of them.
    """
    state = linear.recurrent_bytes / tp
    operands = (2 * linear.key_width + 2 * linear.value_width) * 2.0 / tp
    moved = {"decode": state * (1.0 / queries(deployment) + 1.0) + operands}
    return Roofline.of(deployment).vector("recurrent_state", "attention", moved, pace=RECURRENCE_PACE)


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
    term = Roofline.of(deployment).attention(
        "chunkwise_state",
        deployment.hardware.kernels.prefill_attention,
        {"chunk": float(CHUNK_TOKENS)},
        per_pair,
        {"chunk": 1.0},
        {"chunk": moved},
    )
    return term._replace(residual=UNMEASURED_RESIDUAL)
