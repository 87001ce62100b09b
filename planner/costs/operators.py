"""Model x strategy x phase -> the table of operators, as terms of a step's load.

Shapes: h hidden, n heads per device, d dimensions of a head, k experts per token. Attention ranks
are DP groups of ``attention_tp`` devices; terms are per device, forms over the variables of
``planner.manifest.terms``. Weights are read once per microbatch ("one"), expert weights only for
experts that are hit ("hit"), KV once per request and iteration ("kv") however many tokens MTP
verifies.

Drafts are those of MTP, or of an EAGLE-3 head where a model ships no draft layers, as SGLang and vLLM-Ascend run it.
Ref: arXiv 2503.01840 section 3 and published heads' configurations (yuhuili/EAGLE3-LLaMA3.1-Instruct-8B,
AngelSlim/Qwen3-8B_eagle3: draft_vocab_size 32,000): a dense decoder layer as wide as the model's, whose queries, keys
and values read [embedding; hidden], before it three layers' hidden states projected to one, all in BF16.
"""

from dataclasses import replace
from typing import Literal

import numpy as np

from hardware.spec import CollectiveOp
from models.spec import GQA, MLA
from planner.costs.attention_operators import attention_terms
from planner.costs.cache import loading_seconds
from planner.costs.deployment import Deployment, several
from planner.costs.expert_operators import exchange_terms, expert_terms, gate_terms
from planner.costs.roofline import TOKENS, Roofline, grouped, scale
from planner.engines.behaviour import ADMISSION_SECONDS, behaviour
from planner.manifest.stepcost import launches
from planner.manifest.terms import CommunicationTerm, CurveTerm, Form, Number, Rule, StepCost, Term, larger

VOCABULARY = 32_000
HEAD_DIM, KV_HEADS = 128, 8  # beside latent attention: assumed as Llama's, whose layer it is
EVERY_DRAFT = ("decode", "kv", "one")  # what a draft after the first carries too: a token of every request


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
        *_admission(deployment, roofline),
    ]


def _admission(deployment: Deployment, roofline: Roofline) -> list[Term]:
    """The engine's loop taking prompts in, for which requests that run wait (``engines.behaviour``)."""
    if deployment.engine is None or deployment.phase != "mixed":
        return []
    waits = roofline.vector("admission", "head", {"chunk": 1.0}, kernels=0)
    return [waits._replace(floor_seconds=ADMISSION_SECONDS)]


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


def headed(deployment: Deployment) -> Deployment:
    """Return the head's own deployment over the devices that hold the model, with one query of a request at a time.

    Its feed-forward is as wide as all that a token passes in a layer of the model.
    """
    model, own, moe = deployment.model, deployment.model.attention, deployment.model.moe
    width = moe.experts_per_token * moe.intermediate_size + moe.shared_intermediate_size if moe is not None else 0
    heads = -(-model.hidden_size // HEAD_DIM // KV_HEADS) * KV_HEADS
    shape = (own.heads, own.kv_heads, own.head_dim) if isinstance(own, GQA) else (heads, KV_HEADS, HEAD_DIM)
    head = replace(
        model,
        layers=1,
        dense_layers=1,
        interleaved=False,
        vocab_size=VOCABULARY,
        attention=GQA(heads=shape[0], kv_heads=shape[1], head_dim=shape[2]),
        linear_attention=None,
        dense_intermediate_size=max(width, model.dense_intermediate_size or 0),
        moe=None,
        hyper_connections=1,
    )
    return replace(deployment, model=head, weights="bf16", redundant=0, shared_ranks=0, drafts=0)


def input_terms(head: Deployment) -> list[Term]:
    """Three layers' hidden states to one, and what the wider input adds to queries, keys and values."""
    roofline, hidden, gqa = Roofline.of(head), float(head.model.hidden_size), head.model.attention
    assert isinstance(gqa, GQA), "a head's queries are grouped"
    width = (gqa.heads + 2 * gqa.kv_heads) * gqa.head_dim / head.strategy.attention_tp
    shapes = {"draft_fusion": (hidden, 3 * hidden), "draft_embedded": (width, hidden)}
    return [roofline.matmul(name, "draft", TOKENS, *shape, "bf16") for name, shape in shapes.items()]


def per_draft(term: Term, drafts: Number) -> Term:
    """Return the term of the mean draft: the first passes all tokens of a step, the others one of every request."""
    assert not isinstance(term, CurveTerm), "a dense layer has no measured experts"
    if isinstance(term, CommunicationTerm):
        return term._replace(bytes=_mean(term.bytes, drafts))
    flops, idle = _mean(term.flops, drafts), _mean(term.idle_flops, drafts)
    return term._replace(flops=flops, idle_flops=idle, bytes=_mean(term.bytes, drafts))


def _mean(form: Form, drafts: Number) -> Form:
    found = {name: value if name in EVERY_DRAFT else value / drafts for name, value in form.items()}
    later = form.get("tokens", 0.0) * (1.0 - 1.0 / drafts) / (1.0 + drafts)
    return found | ({"decode": found.get("decode", 0.0) + later} if "tokens" in form else {})


def build_step_cost(deployment: Deployment) -> StepCost:
    """Return the step cost of an instance; its fields are numbers.

    Source of the operator list: DeepSeek-V3 (arXiv 2412.19437) section 2 and CloudMatrix384
    sections 4.2-4.3 for MLA and the exchange, Hugging Face's modelling code for GQA.
    """
    model, strategy, hardware = deployment.model, deployment.strategy, deployment.hardware
    terms = [*attention_terms(deployment), *dense_terms(deployment)]
    if model.moe is not None:
        terms += [*gate_terms(deployment), *expert_terms(deployment), *exchange_terms(deployment)]
    streams = hardware.streams
    rule: Rule = streams.prefill if deployment.phase == "prefill" else streams.decode
    if strategy.disaggregated:
        rule = "disaggregated"
    share, dilation = streams.communication_core_share_decode, streams.communication_dilation_decode
    if deployment.phase == "prefill":
        share, dilation = streams.communication_core_share_prefill, streams.communication_dilation_prefill
    host: Number = deployment.host_seconds or 0.0
    if deployment.host_seconds is None and deployment.in_graph:
        host = hardware.host.graph_launch_seconds.value
    own = behaviour(deployment.engine)
    if own is not None and own.replay_seconds is not None and deployment.in_graph:
        host += own.replay_seconds.value * model.layers / strategy.pp
    cost = StepCost(
        terms=tuple(terms),
        head_terms=tuple(head_terms(deployment, "head")),
        draft_terms=tuple(drafting_terms(deployment)) if np.any(deployment.draft_layers) else (),
        dense_layers=model.dense_layers,
        moe_layers=model.moe_layers,
        queries_per_sequence=deployment.queries,
        attention_ranks=strategy.attention_dp,
        expert_ranks=deployment.expert_ranks if model.moe else 1,
        shared_ranks=deployment.shared_ranks,
        experts=model.moe.experts if model.moe else 0,
        experts_per_token=model.moe.experts_per_token if model.moe else 0,
        slots_per_rank=deployment.slots_per_rank,
        rule=rule,
        cores=int(streams.partitions.value) if streams.partitions else 0,
        communication_share=share.value,
        communication_dilation=dilation.value if dilation else 1.0,
        domains=strategy.domains,
        pipeline_stages=strategy.pp,
        pipeline_hop=pipeline_hop(deployment) if several(strategy.pp) else None,
        pipeline_bubble=deployment.phase == "prefill",
        pipeline_round=deployment.phase == "decode",
        host_seconds=host + deployment.jitter_seconds,
        prompt_seconds=prompt_seconds(deployment),
        launch_seconds=0.0 if deployment.in_graph else hardware.host.eager_launch_seconds.value,
        runs_ahead=deployment.in_graph or deployment.phase == "prefill",
        reach_tokens=model.reach_tokens,
        loading_seconds=loading_seconds(deployment),
    )
    if deployment.phase != "mixed":
        return cost
    launched = launches(cost, 1) * hardware.host.eager_launch_seconds.value
    return replace(cost, prompt_seconds=max(cost.prompt_seconds, launched))


def drafting_terms(deployment: Deployment) -> list[Term]:
    """What a draft takes beyond one of the model's layers; its own layer too where that is dense or a head's."""
    model, drafts = deployment.model, larger(deployment.drafts, 1.0)
    if model.mtp_layers:
        layer = []
        if model.dense_drafts:
            layer = [*attention_terms(deployment), *dense_terms(deployment)]
        return [*(per_draft(term, drafts) for term in layer), *draft_terms(deployment)]
    head = headed(deployment)
    layer = [*input_terms(head), *attention_terms(head), *dense_terms(head)]
    return [*(per_draft(term, drafts) for term in layer), *head_terms(replace(head, drafts=deployment.drafts), "draft")]


def prompt_seconds(deployment: Deployment) -> float:
    """What the engine's host is known to take to launch a step with prompts, which no captured graph replays."""
    own, model = behaviour(deployment.engine), deployment.model
    if own is None or deployment.phase == "decode":
        return 0.0
    layer, experts = own.prompt_layer_seconds, own.prompt_expert_launch_seconds
    launched = layer.value * model.layers if layer else 0.0
    return launched + (experts.value * model.moe_layers if experts and isinstance(model.attention, MLA) else 0.0)


def pipeline_hop(deployment: Deployment) -> CommunicationTerm:
    """Hidden states of a microbatch from one stage to the next."""
    message = {"tokens": deployment.model.hidden_size * 2.0}
    return grouped(deployment, "point_to_point", deployment.strategy.devices, message, "pipeline_hop", "head")


def dense_terms(deployment: Deployment) -> list[Term]:
    """SwiGLU feed-forward of the dense layers, over the attention TP group."""
    model, strategy = deployment.model, deployment.strategy
    if not model.dense_layers or not model.dense_intermediate_size:
        return []
    roofline, hidden, dtype = Roofline.of(deployment), float(model.hidden_size), deployment.feed_forward_weights
    split = 1 if strategy.staged else strategy.attention_tp
    rows = scale(TOKENS, 1.0 / strategy.attention_tp) if strategy.staged else TOKENS
    width = model.dense_intermediate_size / split
    terms: list[Term] = [
        roofline.norm("ffn_norm", "dense", rows, hidden),
        *roofline.quantise("dense_quantise", "dense", scale(rows, hidden), dtype),
        roofline.matmul("dense_gate_up", "dense", rows, 2 * width, hidden, dtype),
        roofline.vector("dense_activation", "dense", scale(rows, width * (2 * 2.0 + 1.0))),
        *roofline.quantise("dense_down_quantise", "dense", scale(rows, width), dtype),
        roofline.matmul("dense_down", "dense", rows, hidden, width, dtype),
    ]
    if several(split):
        terms.append(grouped(deployment, "all_reduce", split, scale(rows, hidden * 2.0), "dense_all_reduce", "dense"))
    return terms
