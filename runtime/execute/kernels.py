"""The arithmetic of a layer on NumPy float64: what a rank computes between two messages.

Shapes: T tokens, h hidden size, n output features. Rounding aside, a product over a part of the output features is a
part of the whole product, and products over parts of the input features add up to it; nothing else is needed to shard.

Latent and grouped-query attention over some of the heads: prompts unabsorbed, running requests absorbed.

An attention object computes for the heads of one rank. What is cached per token stands in a row: for MLA one latent
and one rotary key whatever the heads, for GQA the keys and values of the rank's KV heads.

Shapes: T tokens, h hidden size, R requests of q query tokens, S cached positions. ``down`` makes of normed tokens
[T, h] what queries are made of, [T, ·], and the rows to cache, [T, width]. ``prefill`` returns the heads' outputs
[T, heads · v] of prompts that stand one behind the other; ``decode`` those of running requests, [R·q, heads · v], from
a cache [R, S, width] at positions [R, q].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats, Ints
from models.spec import GQA, MLA, MoE

ROPE_BASE, EPSILON = 10_000.0, 1e-6
INT8_LARGEST = 127.0
Parts = dict[str, Floats]  # a rank's parts of a layer's attention tensors, by the last words of their names


def rms_norm(x: Floats, weight: Floats) -> Floats:
    """x / sqrt(mean(x²) + ``EPSILON``) · weight over the last axis (Zhang and Sennrich, arXiv 1910.07467)."""
    mean_square = np.einsum("...i,...i->...", x, x)[..., None] / x.shape[-1]
    return x / np.sqrt(mean_square + EPSILON) * weight


def silu(x: Floats) -> Floats:
    """x · sigmoid(x)."""
    return x * sigmoid(x)


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def softmax(scores: Floats) -> Floats:
    """Softmax over the last axis; -inf has no share."""
    if not scores.size:
        return scores
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


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
    return np.abs(x).max(axis=-1, keepdims=True)


def quantise(x: Floats, peaks: Floats | None = None) -> tuple[NDArray[np.int8], Floats]:
    """Return (q, scale) with x ≈ q · scale, a scale per row = peak / 127; |x - q·scale| <= scale / 2.

    ``peaks`` are those of the whole row where x is a part of it (xDeepServe section 4.7: activations per token).
    """
    scale = np.maximum(row_peaks(x) if peaks is None else peaks, np.finfo(np.float64).tiny) / INT8_LARGEST
    return np.rint(x / scale).astype(np.int8), scale


def rounded(x: Floats, peaks: Floats | None = None) -> Floats:
    """Return x as INT8 with a scale per row holds it, in float64 again."""
    q, scale = quantise(x, peaks)
    return q * scale


def linear(x: Floats, weight: Floats, int8: bool = False, peaks: Floats | None = None) -> Floats:
    """x [T, d] · weightᵀ [d, n]; with ``int8`` x is quantised per token first (the weight is already)."""
    return (rounded(x, peaks) if int8 else x) @ weight.T


def one_hot_rows(table: Floats, ids: Any, first: int) -> Floats:
    """Rows ``ids`` of a table whose part starts at row ``first``; zeros for the ids that other parts hold."""
    local = np.asarray(ids, dtype=np.int64) - first
    held = (local >= 0) & (local < len(table))
    return np.where(held[:, None], table[np.where(held, local, 0)], 0.0)


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


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """MLA (DeepSeek-V2 section 2.1) over ``heads`` of its heads."""

    spec: MLA
    heads: int
    parts: Parts
    int8: bool = False

    @property
    def width(self) -> int:
        """Cached elements per token."""
        return self.spec.kv_elements_per_token

    def down(self, x: Floats, positions: Ints) -> tuple[Floats, Floats]:
        """Compressed queries, and latent with rotary key; whole on every rank."""
        spec, parts = self.spec, self.parts
        query = x
        if spec.q_lora_rank is not None:
            query = rms_norm(linear(x, parts["q_a_proj.weight"], self.int8), parts["q_a_layernorm.weight"])
        compressed = linear(x, parts["kv_a_proj_with_mqa.weight"], self.int8)
        latent = rms_norm(compressed[:, : spec.kv_lora_rank], parts["kv_a_layernorm.weight"])
        key = rotate(compressed[:, spec.kv_lora_rank :], positions)
        return query, np.concatenate([latent, key], axis=1)

    def _queries(self, query: Floats, positions: Ints) -> tuple[Floats, Floats]:
        """Return the parts of the queries without and with rotation, [T, heads, ·]."""
        name = "q_proj.weight" if self.spec.q_lora_rank is None else "q_b_proj.weight"
        split = self.spec.qk_nope_head_dim
        width = split + self.spec.qk_rope_head_dim
        q = linear(query, self.parts[name], self.int8).reshape(len(query), self.heads, width)
        return q[:, :, :split], rotate(q[:, :, split:], positions[:, None])

    def _up(self) -> tuple[Floats, Floats]:
        """Return W_uk [heads, nope, latent] and W_uv [heads, v, latent]."""
        up = self.parts["kv_b_proj.weight"].reshape(self.heads, -1, self.spec.kv_lora_rank)
        return up[:, : self.spec.qk_nope_head_dim], up[:, self.spec.qk_nope_head_dim :]

    def prefill(self, query: Floats, rows: Floats, positions: Ints, lengths: Sequence[int]) -> Floats:
        """Unabsorbed: keys and values are expanded for every head (CloudMatrix384 section 4.3.1)."""
        plain, rotated = self._queries(query, positions)
        up_key, up_value = self._up()
        latent, key = rows[:, : self.spec.kv_lora_rank], rows[:, self.spec.kv_lora_rank :]
        keys = np.concatenate(
            [
                np.einsum("tc,hdc->thd", latent, up_key),
                np.broadcast_to(key[:, None], (len(key), self.heads, key.shape[1])),
            ],
            axis=2,
        )
        values = np.einsum("tc,hdc->thd", latent, up_value)
        return causal(np.concatenate([plain, rotated], axis=2), keys, values, lengths)

    def decode(self, query: Floats, cache: Floats, positions: Ints) -> Floats:
        """Absorbed: queries go to latent space, so every head attends to the one cached latent (section 4.2.2)."""
        plain, rotated = self._queries(query, positions.ravel())
        up_key, up_value = self._up()
        rank, requests, queries = self.spec.kv_lora_rank, *positions.shape
        absorbed = np.einsum("thd,hdc->thc", plain, up_key)
        joined = np.concatenate([absorbed, rotated], axis=2).reshape(requests, queries * self.heads, self.width)
        scores = joined @ cache.transpose(0, 2, 1) / np.sqrt(plain.shape[2] + rotated.shape[2])
        positions_seen = cache.shape[1]
        shares = _masked(scores.reshape(requests, queries, self.heads, positions_seen), positions)
        mixed = shares.reshape(requests, queries * self.heads, positions_seen) @ cache[:, :, :rank]
        out: Floats = np.einsum("thc,hdc->thd", mixed.reshape(requests * queries, self.heads, rank), up_value)
        return out.reshape(requests * queries, self.heads * self.spec.v_head_dim)


@dataclass(frozen=True, slots=True)
class GroupedAttention:
    """GQA (arXiv 2305.13245) over ``heads`` query heads and the ``kv_heads`` that they read."""

    spec: GQA
    heads: int
    kv_heads: int
    parts: Parts
    int8: bool = False

    @property
    def width(self) -> int:
        """Cached elements per token."""
        return 2 * self.kv_heads * self.spec.head_dim

    def down(self, x: Floats, positions: Ints) -> tuple[Floats, Floats]:
        """Queries of the rank's heads, and the keys and values of its KV heads."""
        query = self._heads(x, "q", self.heads, positions)
        key = self._heads(x, "k", self.kv_heads, positions)
        value = self._project(x, "v")
        rows = np.concatenate([key.reshape(len(x), self.width // 2), value], axis=1)
        return query.reshape(len(x), self.heads * self.spec.head_dim), rows

    def _project(self, x: Floats, name: str) -> Floats:
        out = linear(x, self.parts[f"{name}_proj.weight"], self.int8)
        return out + self.parts[f"{name}_proj.bias"] if self.spec.bias else out

    def _heads(self, x: Floats, name: str, heads: int, positions: Ints) -> Floats:
        out = self._project(x, name).reshape(len(x), heads, self.spec.head_dim)
        if self.spec.qk_norm:
            out = rms_norm(out, self.parts[f"{name}_norm.weight"])
        return rotate(out, positions[:, None])

    def _cached(self, rows: Floats) -> tuple[Floats, Floats]:
        """Return keys and values [..., heads, d] of cached rows, each KV head once per query head."""
        pair = rows.reshape(*rows.shape[:-1], 2, self.kv_heads, self.spec.head_dim)
        repeated = np.repeat(pair, self.heads // self.kv_heads, axis=-2)
        return repeated[..., 0, :, :], repeated[..., 1, :, :]

    def prefill(self, query: Floats, rows: Floats, positions: Ints, lengths: Sequence[int]) -> Floats:
        """Causal attention of prompts."""
        keys, values = self._cached(rows)
        return causal(query.reshape(len(query), self.heads, self.spec.head_dim), keys, values, lengths)

    def decode(self, query: Floats, cache: Floats, positions: Ints) -> Floats:
        """Attention of running requests to their cached rows."""
        requests, queries = positions.shape
        keys, values = self._cached(cache)  # [R, S, heads, d]
        q = query.reshape(requests, queries, self.heads, self.spec.head_dim)
        scores = np.einsum("rqhd,rshd->rqhs", q, keys) / np.sqrt(self.spec.head_dim)
        out: Floats = np.einsum("rqhs,rshd->rqhd", _masked(scores, positions), values)
        return out.reshape(requests * queries, self.heads * self.spec.head_dim)


Attention = LatentAttention | GroupedAttention


def causal(q: Floats, k: Floats, v: Floats, lengths: Sequence[int]) -> Floats:
    """Attention of prompts one behind the other: q, k [T, heads, d], v [T, heads, dv] -> [T, heads · dv]."""
    out = np.zeros((len(q), q.shape[1], v.shape[2]))
    first = 0
    for length in lengths:
        own = slice(first, first + length)
        scores = np.einsum("thd,shd->hts", q[own], k[own]) / np.sqrt(q.shape[2])
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        out[own] = np.einsum("hts,shd->thd", softmax(scores), v[own])
        first += length
    return out.reshape(len(q), q.shape[1] * v.shape[2])


def _masked(scores: Floats, positions: Ints) -> Floats:
    """Softmax of scores [R, q, heads, S] over the positions up to the query's own."""
    seen = np.arange(scores.shape[-1]) <= positions[:, :, None, None]
    return softmax(np.where(seen, scores, -np.inf))
