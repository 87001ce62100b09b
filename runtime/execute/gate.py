"""Which experts a token goes to: scores, groups and top-k as the model families do it."""

from dataclasses import dataclass

import numpy as np

from models.spec import MoE
from runtime.execute.kernels import Array, Indices, sigmoid, softmax


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

    experts: Indices
    weights: Array
    margin: Array


def route(logits: Array, bias: Array, moe: MoE, architecture: str) -> Routes:
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


def _best(values: Array, count: int) -> tuple[Indices, Array]:
    """Return the indices of the ``count`` largest per row, largest first, and how far the next one is behind."""
    order = np.argsort(-values, axis=1, kind="stable")
    chosen = order[:, :count].astype(np.int64)
    if values.shape[1] == count:
        return chosen, np.full(len(values), np.inf)
    last = np.take_along_axis(values, order[:, count - 1 : count + 1], axis=1)
    return chosen, last[:, 0] - last[:, 1]
