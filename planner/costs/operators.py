"""Model x strategy x phase -> the table of operators, as terms of a step's load.

Shapes: h hidden, n heads per device, d dimensions of a head, k experts per token. Attention ranks
are DP groups of ``attention_tp`` devices; terms are per device, forms over the variables of
``planner.manifest.terms``. Weights are read once per microbatch ("one"), expert weights only for
experts that are hit ("hit"), KV once per request and iteration ("kv") however many tokens MTP
verifies.
"""

from dataclasses import replace

import numpy as np

from planner.costs.attention_operators import attention_terms
from planner.costs.cache import loading_seconds
from planner.costs.deployment import Deployment, several
from planner.costs.expert_operators import exchange_terms, expert_terms, gate_terms
from planner.costs.head_operators import draft_terms, head_terms, headed, input_terms, per_draft
from planner.costs.roofline import TOKENS, Roofline, grouped, scale
from planner.engines.behaviour import behaviour
from planner.manifest.stepcost import launches
from planner.manifest.terms import CommunicationTerm, Number, Rule, StepCost, Term, larger


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
    return launched + (experts.value * model.moe_layers if experts else 0.0)


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
        roofline.vector("ffn_norm", "dense", scale(rows, hidden * (3 * 2.0 + 1.0))),
        *roofline.quantise("dense_quantise", "dense", scale(rows, hidden), dtype),
        roofline.matmul("dense_gate_up", "dense", rows, 2 * width, hidden, dtype),
        roofline.vector("dense_activation", "dense", scale(rows, width * (2 * 2.0 + 1.0))),
        *roofline.quantise("dense_down_quantise", "dense", scale(rows, width), dtype),
        roofline.matmul("dense_down", "dense", rows, hidden, width, dtype),
    ]
    if several(split):
        terms.append(grouped(deployment, "all_reduce", split, scale(rows, hidden * 2.0), "dense_all_reduce", "dense"))
    return terms
