"""The arithmetic of a layer on NumPy float64: what a rank computes between two messages.

Shapes: T tokens, h hidden size, n output features. Rounding aside, a product over a part of the output features is a
part of the whole product, and products over parts of the input features add up to it; nothing else is needed to shard.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

ROPE_BASE = 10_000.0
INT8_LARGEST = 127.0


def rms_norm(x: Array, weight: Array, epsilon: float = 1e-6) -> Array:
    """x / sqrt(mean(x²) + epsilon) · weight over the last axis (Zhang and Sennrich, arXiv 1910.07467)."""
    mean_square = np.einsum("...i,...i->...", x, x)[..., None] / x.shape[-1]
    normed: Array = x / np.sqrt(mean_square + epsilon) * weight
    return normed


def silu(x: Array) -> Array:
    """x · sigmoid(x)."""
    activated: Array = x * sigmoid(x)
    return activated


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    value: Array = 0.5 * (1.0 + np.tanh(0.5 * x))
    return value


def softmax(scores: Array) -> Array:
    """Softmax over the last axis; -inf has no share."""
    if not scores.size:
        return scores
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Array = raised / raised.sum(axis=-1, keepdims=True)
    return shares


def rotate(x: Array, positions: Array | Indices) -> Array:
    """Rotary embedding of x [..., d] at positions [...], the halves paired (RoFormer, arXiv 2104.09864)."""
    half = x.shape[-1] // 2
    angle = positions[..., None] * ROPE_BASE ** (-np.arange(half) / half)
    cos, sin = np.cos(angle), np.sin(angle)
    first, second = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([first * cos - second * sin, first * sin + second * cos, x[..., 2 * half :]], axis=-1)


def row_peaks(x: Array) -> Array:
    """Largest magnitude per row, [T, 1] from [T, n]; what a per-token scale is made of."""
    if not x.shape[-1]:
        return np.zeros((*x.shape[:-1], 1))
    peaks: Array = np.abs(x).max(axis=-1, keepdims=True)
    return peaks


def quantise(x: Array, peaks: Array | None = None) -> tuple[NDArray[np.int8], Array]:
    """Return (q, scale) with x ≈ q · scale, a scale per row = peak / 127; |x - q·scale| <= scale / 2.

    ``peaks`` are those of the whole row where x is a part of it (xDeepServe section 4.7: activations per token).
    """
    scale = np.maximum(row_peaks(x) if peaks is None else peaks, np.finfo(np.float64).tiny) / INT8_LARGEST
    return np.rint(x / scale).astype(np.int8), scale


def rounded(x: Array, peaks: Array | None = None) -> Array:
    """Return x as INT8 with a scale per row holds it, in float64 again."""
    q, scale = quantise(x, peaks)
    value: Array = q * scale
    return value


def linear(x: Array, weight: Array, int8: bool = False, peaks: Array | None = None) -> Array:
    """x [T, d] · weightᵀ [d, n]; with ``int8`` x is quantised per token first (the weight is already)."""
    return (rounded(x, peaks) if int8 else x) @ weight.T


def one_hot_rows(table: Array, ids: Any, first: int) -> Array:
    """Rows ``ids`` of a table whose part starts at row ``first``; zeros for the ids that other parts hold."""
    local = np.asarray(ids, dtype=np.int64) - first
    held = (local >= 0) & (local < len(table))
    rows: Array = np.where(held[:, None], table[np.where(held, local, 0)], 0.0)
    return rows
