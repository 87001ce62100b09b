"""Embedding, output head, sampling and MTP's own products as terms."""

from typing import Literal

from hardware.spec import CollectiveOp
from planner.costs.collectives import grouped
from planner.costs.deployment import Deployment, several
from planner.costs.roofline import TOKENS, Roofline, scale
from planner.manifest.terms import Form, Term


def head_terms(deployment: Deployment, stage: Literal["head", "draft"]) -> list[Term]:
    """Embedding, final norm, LM head (vocabulary split over TP, BF16) and sampling from the gathered logits.

    A draft takes the largest logit, which needs no gathering.
    """
    roofline, model, tp = Roofline.of(deployment), deployment.model, deployment.strategy.attention_tp
    hidden, vocabulary = float(model.hidden_size), model.vocab_size / tp
    if stage == "draft":
        rows: Form = {"decode": 1.0 / deployment.queries}
        return [
            roofline.matmul("draft_head", "draft", rows, vocabulary, hidden, "bf16"),
            roofline.vector("draft_sampling", "draft", scale(rows, vocabulary * 4.0 * 3), kernels=3),
        ]
    rows = {"rows": 1.0}
    return [
        roofline.vector("embedding", "head", scale(TOKENS, hidden * 4.0)),
        roofline.vector("final_norm", "head", scale(rows, hidden * 4.0)),
        roofline.matmul("lm_head", "head", rows, vocabulary, hidden, "bf16"),
        *vocabulary_exchanges(deployment),
        roofline.vector("sampling", "head", scale(rows, model.vocab_size * 4.0 * 3), kernels=3),
        *_beam_terms(deployment, roofline, rows),
    ]


def _beam_terms(deployment: Deployment, roofline: Roofline, rows: Form) -> list[Term]:
    """Beam search of items: the mask of valid ones over the logits, then the best beams of all beams' best candidates.

    xLLM section 4.5: a mask of the vocabulary for each beam (a byte and the logit, read and written), and a heap as
    wide as the beams, over as many candidates of each, a token and a sum of logarithms; the host works beside it.
    """
    if deployment.beams == 1 or deployment.phase == "prefill":
        return []
    return [
        roofline.vector("item_mask", "head", scale(rows, deployment.model.vocab_size * (2 * 4.0 + 1.0))),
        roofline.vector("beam_select", "head", scale(rows, deployment.beams * 8.0 * 2), kernels=2),
    ]


def vocabulary_exchanges(deployment: Deployment) -> list[Term]:
    """A vocabulary split over TP sums the embeddings (Megatron-LM section 3) and gathers the logits, as vLLM does."""
    strategy, model = deployment.strategy, deployment.model
    degree = strategy.attention_tp
    if not several(degree):
        return []
    embeddings, logits = scale(TOKENS, model.hidden_size * 2.0), {"rows": model.vocab_size * 2.0}
    summed: CollectiveOp = "reduce_scatter" if strategy.staged else "all_reduce"
    return [
        grouped(deployment, summed, degree, embeddings, "embedding_sum", "head"),
        grouped(deployment, "all_gather", degree, logits, "logits_all_gather", "head"),
    ]


def draft_terms(deployment: Deployment) -> list[Term]:
    """Beyond its layer a draft projects [hidden; embedding] to hidden and runs the head (DeepSeek-V3 section 2.2)."""
    roofline, hidden = Roofline.of(deployment), float(deployment.model.hidden_size)
    projection = roofline.matmul("draft_projection", "draft", TOKENS, hidden, 2 * hidden, deployment.attention_weights)
    return [projection, *head_terms(deployment, "draft")]
