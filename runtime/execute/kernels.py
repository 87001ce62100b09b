"""The arithmetic of a layer on NumPy float64: what a rank computes between two messages.

Shapes: T tokens, h hidden size, n output features. Rounding aside, a product over a part of the output features is a
part of the whole product, and products over parts of the input features add up to it; nothing else is needed to shard.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats, Ints
from models.spec import MoE

ROPE_BASE, EPSILON = 10_000.0, 1e-6
INT8_LARGEST = 127.0


def rms_norm(x: Floats, weight: Floats) -> Floats:
    """x / sqrt(mean(x²) + ``EPSILON``) · weight over the last axis (Zhang and Sennrich, arXiv 1910.07467)."""
    mean_square = np.einsum("...i,...i->...", x, x)[..., None] / x.shape[-1]
    normed: Floats = x / np.sqrt(mean_square + EPSILON) * weight
    return normed


def silu(x: Floats) -> Floats:
    """x · sigmoid(x)."""
    activated: Floats = x * sigmoid(x)
    return activated


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), without overflow."""
    value: Floats = 0.5 * (1.0 + np.tanh(0.5 * x))
    return value


def softmax(scores: Floats) -> Floats:
    """Softmax over the last axis; -inf has no share."""
    if not scores.size:
        return scores
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Floats = raised / raised.sum(axis=-1, keepdims=True)
    return shares


def rotate(x: Floats, positions: Floats | Ints) -> Floats:
    """Rotary embedding of x [..., d] at positions [...], the halves paired (RoFormer, arXiv 2104.09864)."""
    half = x.shape[-1] // 2
    angle = positions[..., None] * ROPE_BASE ** (-np.arange(half) / half)
    cos, sin = np.cos(angle), np.sin(angle)
    first, second = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([first * cos - second * sin, first * sin + second * cos, x[..., 2 * half :]], axis=-1)


def row_peaks(x: Floats) -> Floats:
    """Largest magnitude per row, [T, 1] from [T, n]; what a per-token scale is made of."""
    if not x.shape[-1]:
        return np.zeros((*x.shape[:-1], 1))
    peaks: Floats = np.abs(x).max(axis=-1, keepdims=True)
    return peaks


def quantise(x: Floats, peaks: Floats | None = None) -> tuple[NDArray[np.int8], Floats]:
    """Return (q, scale) with x ≈ q · scale, a scale per row = peak / 127; |x - q·scale| <= scale / 2.

    ``peaks`` are those of the whole row where x is a part of it (xDeepServe section 4.7: activations per token).
    """
    scale = np.maximum(row_peaks(x) if peaks is None else peaks, np.finfo(np.float64).tiny) / INT8_LARGEST
    return np.rint(x / scale).astype(np.int8), scale


def rounded(x: Floats, peaks: Floats | None = None) -> Floats:
    """Return x as INT8 with a scale per row holds it, in float64 again."""
    q, scale = quantise(x, peaks)
    value: Floats = q * scale
    return value


def linear(x: Floats, weight: Floats, int8: bool = False, peaks: Floats | None = None) -> Floats:
    """x [T, d] · weightᵀ [d, n]; with ``int8`` x is quantised per token first (the weight is already)."""
    return (rounded(x, peaks) if int8 else x) @ weight.T


def one_hot_rows(table: Floats, ids: Any, first: int) -> Floats:
    """Rows ``ids`` of a table whose part starts at row ``first``; zeros for the ids that other parts hold."""
    local = np.asarray(ids, dtype=np.int64) - first
    held = (local >= 0) & (local < len(table))
    rows: Floats = np.where(held[:, None], table[np.where(held, local, 0)], 0.0)
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """How a family scores: sigmoid with a bias that only chooses, or softmax; what a group is worth; the weights."""

    sigmoid: bool = False
    group_top: int = 1
    normalised: bool = True
    factor: float = 1.0


FAMILIES = {
    "deepseek_v3": Scoring(sigmoid=True, group_top=2, factor=2.5),
    "kimi_k2": Scoring(sigmoid=True, group_top=2, factor=2.827),
    "deepseek_v2": Scoring(normalised=False),
}
"""DeepSeek-V3 section 2.1.2 (a group is worth its two best), DeepSeek-V2 section 2.1.3 (its best); others softmax over
the chosen ones, as Mixtral (arXiv 2401.04088 section 2.1) and Qwen3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """Where tokens go: experts and weights [T, k]; ``margin`` [T] is what the closest choice was decided by."""

    experts: Ints
    weights: Floats
    margin: Floats


def route(logits: Floats, bias: Floats, moe: MoE, architecture: str) -> Routes:
    """Return the k experts of every token from the gate's logits [T, E] and its bias [E]."""
    if not len(logits):
        none = np.zeros((0, moe.experts_per_token))
        return Routes(experts=none.astype(np.int64), weights=none, margin=np.zeros(0))
    scoring = FAMILIES.get(architecture, Scoring())
    scores = sigmoid(logits) if scoring.sigmoid else softmax(logits)
    choice = scores + bias if scoring.sigmoid else scores
    margin = np.full(len(logits), np.inf)
    if moe.groups > 1:
        grouped = choice.reshape(len(choice), moe.groups, moe.experts // moe.groups)
        worth = np.sort(grouped, axis=2)[:, :, -scoring.group_top :].sum(axis=2)
        groups, margin = _best(worth, moe.groups_per_token)
        allowed = np.zeros(worth.shape, dtype=bool)
        np.put_along_axis(allowed, groups, True, axis=1)
        choice = np.where(np.repeat(allowed, moe.experts // moe.groups, axis=1), choice, -np.inf)
    experts, closest = _best(choice, moe.experts_per_token)
    weights = np.take_along_axis(scores, experts, axis=1)
    if scoring.normalised:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return Routes(experts=experts, weights=weights * scoring.factor, margin=np.minimum(margin, closest))


def _best(values: Floats, count: int) -> tuple[Ints, Floats]:
    """Return the indices of the ``count`` largest per row, largest first, and how far the next one is behind."""
    order = np.argsort(-values, axis=1, kind="stable")
    chosen = order[:, :count].astype(np.int64)
    if values.shape[1] == count:
        return chosen, np.full(len(values), np.inf)
    last = np.take_along_axis(values, order[:, count - 1 : count + 1], axis=1)
    return chosen, last[:, 0] - last[:, 1]
