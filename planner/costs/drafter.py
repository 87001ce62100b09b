"""A draft model beside a model that ships no draft layers: an EAGLE-3 head, as SGLang and vLLM-Ascend run it.

Ref: arXiv 2503.01840 section 3 and published heads' configurations (yuhuili/EAGLE3-LLaMA3.1-Instruct-8B,
AngelSlim/Qwen3-8B_eagle3: draft_vocab_size 32,000): one dense decoder layer as wide as the model's, whose queries, keys
and values read [embedding; hidden], before it three layers' hidden states projected to one, and a head over the
commonest tokens, all in BF16.
"""

from dataclasses import replace

from models.spec import GQA, ModelSpec
from planner.costs.deployment import Deployment
from planner.costs.roofline import TOKENS, Roofline, scale
from planner.manifest.terms import CommunicationTerm, CurveTerm, Form, Number, Term

VOCABULARY = 32_000
HEAD_DIM, KV_HEADS = 128, 8
"""Of a head beside latent attention: assumed as Llama's, whose layer it is."""
EVERY_DRAFT = ("decode", "kv", "one")
"""Variables of what a draft after the first carries as well: a token of every running request, whose keys it reads."""


def drafter(model: ModelSpec) -> ModelSpec:
    """Return the head's layer and vocabulary; its feed-forward is as wide as all that a token passes in the model's."""
    moe, own = model.moe, model.attention
    width = moe.experts_per_token * moe.intermediate_size + moe.shared_intermediate_size if moe is not None else 0
    heads = -(-model.hidden_size // HEAD_DIM // KV_HEADS) * KV_HEADS
    attention = GQA(heads=heads, kv_heads=KV_HEADS, head_dim=HEAD_DIM)
    if isinstance(own, GQA):
        attention = GQA(heads=own.heads, kv_heads=own.kv_heads, head_dim=own.head_dim)
    return replace(
        model,
        layers=1,
        dense_layers=1,
        interleaved=False,
        vocab_size=VOCABULARY,
        attention=attention,
        linear_attention=None,
        dense_intermediate_size=max(width, model.dense_intermediate_size or 0),
        moe=None,
        hyper_connections=1,
    )


def headed(deployment: Deployment) -> Deployment:
    """Return the head's own deployment: BF16, over the devices that hold the model, a query of a request at a time."""
    return replace(deployment, model=drafter(deployment.model), weights="bf16", redundant=0, shared_ranks=0, drafts=0)


def input_terms(head: Deployment) -> list[Term]:
    """Three layers' hidden states to one, and what the wider input adds to queries, keys and values."""
    roofline, hidden, gqa = Roofline.of(head), float(head.model.hidden_size), head.model.attention
    assert isinstance(gqa, GQA), "a head's queries are grouped"
    width = (gqa.heads + 2 * gqa.kv_heads) * gqa.head_dim / head.strategy.attention_tp
    return [
        roofline.matmul("draft_fusion", "draft", TOKENS, hidden, 3 * hidden, "bf16"),
        roofline.matmul("draft_embedded", "draft", TOKENS, width, hidden, "bf16"),
    ]


def per_draft(term: Term, drafts: Number) -> Term:
    """Return the term of the mean draft: the first passes all tokens of a step, the others one of every request."""
    assert not isinstance(term, CurveTerm), "a dense layer has no measured experts"
    moved = _mean(term.bytes, drafts)
    if isinstance(term, CommunicationTerm):
        return replace(term, bytes=moved)
    return replace(term, flops=_mean(term.flops, drafts), idle_flops=_mean(term.idle_flops, drafts), bytes=moved)


def _mean(form: Form, drafts: Number) -> Form:
    found = {name: value if name in EVERY_DRAFT else value / drafts for name, value in form.items()}
    later = scale({"decode": form.get("tokens", 0.0)}, (1.0 - 1.0 / drafts) / (1.0 + drafts))
    return found | {name: found.get(name, 0.0) + value for name, value in later.items() if "tokens" in form}
