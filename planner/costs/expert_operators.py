"""Gate, experts and their exchange as terms.

Expert weights are read only for experts that are hit ("hit"); a device sends its share of its DP
group's tokens, and the busiest rank's copies ("routed") decide the transfer.
"""

import math
from typing import Literal

import numpy as np

from ground.arrays import Floats
from hardware.engines import ExpertCurves, Shape as ExpertShape, expert_curves, held_out, measured_as
from hardware.formats import ACTIVATION_BYTES, ELEMENT_BYTES
from hardware.spec import Dtype
from planner.costs.deployment import Deployment, several, shared_split
from planner.costs.roofline import (
    SIBLING_RESIDUAL,
    Roofline,
    collective,
    combine,
    distinct,
    exchange_fit,
    exchanged,
    grouped,
    message_bytes,
    residual,
    scale,
)
from planner.engines.behaviour import behaviour
from planner.engines.memory import most_exchanged
from planner.manifest.stepcost import either
from planner.manifest.terms import (
    CommunicationTerm,
    ComputeTerm,
    CurveTerm,
    Form,
    Number,
    Shape,
    Stage,
    Term,
    larger,
    protocol_seconds,
    smaller,
    timing,
)

FUSED_POINTS = 24  # points of a fused exchange, at 1, 2, 4, ... copies on a rank


def sharded_tokens(deployment: Deployment) -> Form:
    """Tokens whose gate and shared expert one device computes: its share of its DP group's.

    All of them where every device holds all tokens or where experts are split by TP alone.
    """
    strategy = deployment.strategy
    whole = deployment.replicated_tokens or not deployment.expert_parallel
    return {"mean": 1.0 * strategy.attention_dp if whole else 1.0 / strategy.attention_tp}


def gate_terms(deployment: Deployment) -> list[Term]:
    """Norm, router in BF16, top-k; the shared expert where every rank has a copy."""
    roofline, model, moe = Roofline.of(deployment), deployment.model, deployment.moe
    hidden, rows, measured = float(model.hidden_size), sharded_tokens(deployment), measured_experts(deployment)
    terms: list[Term] = [
        roofline.norm("moe_norm", "gate", rows, hidden),
        roofline.matmul("gate", "gate", rows, float(moe.experts), hidden, "bf16"),
    ]
    if measured is None or not measured.routes:
        terms.append(roofline.vector("gate_topk", "gate", scale(rows, moe.experts * 4.0 * 2.0)))
    if measured is None:
        terms += roofline.quantise("expert_quantise", "gate", scale(rows, hidden), deployment.weights)
    return terms


def shape_of(deployment: Deployment) -> ExpertShape:
    """Return the sizes that a kernel of experts was measured for."""
    moe = deployment.moe
    return deployment.model.hidden_size, moe.intermediate_size, moe.experts_per_token, moe.experts


def measured_experts(deployment: Deployment) -> ExpertCurves | None:
    """Return the curves of the engine's kernel for the model's experts or those most like them, None without any.

    They were measured with all tokens on every rank. Behind an exchange other kernels run, on what a rank received.
    """
    if deployment.expert_parallel and not (deployment.replicated_tokens or deployment.gathers):
        return None
    return expert_curves(deployment.hardware, deployment.engine, deployment.weights, shape_of(deployment))


def prompt_start_up(deployment: Deployment) -> list[Term]:
    """What the engine's experts take beyond their kernels in a step with prompts, which no captured graph replays."""
    own, roofline = behaviour(deployment.engine), Roofline.of(deployment)
    stated = own.prompt_moe_layer_seconds.get(measured_as(deployment.hardware)) if own is not None else None
    if stated is None or deployment.phase == "decode":
        return []
    return [roofline.vector("prompt_start_up", "experts", {"chunk": 1.0})._replace(floor_seconds=stated.value)]


def routed_terms(deployment: Deployment) -> list[Term]:
    """The expert block of a rank: from gathering rows by expert to adding what a token's experts return.

    As it was measured where the engine's kernel was, at the tokens that would bring an even load as many copies as the
    busiest rank has; otherwise as two grouped products over the experts that are hit, and what stands between.
    """
    roofline, moe, strategy = Roofline.of(deployment), deployment.moe, deployment.strategy
    hidden, dtype = float(deployment.model.hidden_size), deployment.weights
    width = moe.intermediate_size / strategy.moe_tp
    rows, hit = {"routed": duplicates(deployment)}, {"hit": 1.0}
    curves = measured_experts(deployment)
    if curves is not None:
        ranks = moe.experts / deployment.slots_per_rank
        # What the engine's block of experts takes beyond the kernel that another engine lends it
        engine = behaviour(deployment.engine)
        starts = engine.expert_start_up_seconds if engine is not None and curves.lent else {}
        started = starts.get(f"{measured_as(deployment.hardware)} {deployment.weights}")
        product = deployment.expert_activations
        other_cut = deployment.expert_parallel and curves.tensor is curves.expert
        cut_residual = held_out(str(deployment.engine), "alike") if other_cut else 0.0
        granted = max(curves.median_residual, SIBLING_RESIDUAL if curves.lent else 0.0, cut_residual)
        return [
            CurveTerm(
                "routed_experts",
                "experts",
                {"routed": ranks / moe.experts_per_token},
                tuple(point + (started.value if started else 0.0) for point in curve_of(deployment, curves, ranks)),
                {"routed": 6.0 * hidden * width},
                roofline.peak(product),
                combine(hit, 3.0 * hidden * width * ELEMENT_BYTES[dtype], rows, 4.0 * hidden),
                roofline.bandwidth,
                residual=granted,
            )
        ]
    terms: list[Term] = [*products(roofline, shape_of(deployment), strategy.moe_tp, dtype, rows)]
    if deployment.phase != "decode":
        # Normal exchange kernels deliver tokens in arrival order; they are gathered by expert before and after.
        terms.append(roofline.vector("routed_permute", "experts", scale(rows, hidden * (2 * 1.0 + 2 * 2.0)), kernels=2))
    return terms


def products(roofline: Roofline, shape: ExpertShape, tp: Number, dtype: Dtype, rows: Form) -> list[ComputeTerm]:
    """Gate and up in one grouped product over the experts that are hit, the activation, and down."""
    hidden, width, hit = float(shape[0]), shape[1] / tp, {"hit": 1.0}
    return [
        roofline.matmul("routed_gate_up", "experts", rows, 2 * width, hidden, dtype, groups=hit),
        roofline.vector("routed_activation", "experts", scale(rows, width * (2 * 2.0 + 1.0))),
        roofline.matmul("routed_down", "experts", rows, hidden, width, dtype, groups=hit),
    ]


def curve_of(deployment: Deployment, curves: ExpertCurves, ranks: Number) -> tuple[Number, ...]:
    """Return the seconds of the model's experts on one of ``ranks`` at 1, 2, 4, ... tokens.

    For experts like those that were measured: what the products of a roofline take for these, times what the measured
    ones take over their own products with as many rows for each expert, the geometric mean of the nearest shapes. 7,810
    curves of shapes left out one at a time are met so within 7 % in the median, 13 % in the mean, and without bias (at
    as many tokens within 8 and 14 %); the roofline alone is 27 and 31 % off, and 38 % too quick from 1,024 tokens.
    """
    tp, own = deployment.strategy.moe_tp, shape_of(deployment)
    near = [
        (share, each, (smaller(tp, float(max(each.tensor))), smaller(ranks, float(max(each.expert)))))
        for share, each in curves.alike or ((1.0, curves),)
    ]
    held = near[0][2]
    if curves.shape == own and np.all(held[0] == tp) and np.all(held[1] == ranks):
        return curves.seconds(*held)
    roofline, points = Roofline.of(deployment), np.arange(len(curves.tensor[1]))
    tokens = 2.0 ** points[:, None]  # [points, instances]

    def logarithm(sizes: ExpertShape, tp: Number, ranks: Number) -> Floats:
        chosen, experts = sizes[2:]
        missed = np.log1p(-min(chosen / experts, 1.0 - 1e-12))
        values: dict[str, Number] = {
            "one": 1.0,
            "routed": np.asarray(tokens * (chosen / ranks)),
            "hit": np.asarray(-experts / ranks * np.expm1(tokens * missed)),
        }
        terms = products(roofline, sizes, tp, deployment.weights, {"routed": 1.0})
        return np.asarray(np.log(sum((timing(term, values).seconds() for term in terms), start=np.zeros(1))))

    found = logarithm(own, tp, ranks)
    for share, each, held in near:
        over = np.log(np.asarray(each.seconds(*held)).reshape(len(points), -1)) - logarithm(each.shape, *held)
        alike = np.clip(points + math.log2(own[2] * each.shape[3] / (own[3] * each.shape[2])), 0.0, points[-1])
        left = np.minimum(alike.astype(np.intp), points[-1] - 1)
        found = found + share * (over[left] + (alike - left)[:, None] * (over[left + 1] - over[left]))
    seconds = np.exp(found)
    return tuple(seconds) if np.ndim(tp) or np.ndim(ranks) else tuple(seconds[:, 0].tolist())


def fuses_shared(deployment: Deployment) -> bool:
    """Whether the kernel of the routed experts computes the shared one, too, as a further expert of every token."""
    own, measured = behaviour(deployment.engine), measured_experts(deployment)
    models = own.fuses_shared.get(measured.kernel, []) if own is not None and measured is not None else []
    return deployment.model.architecture in models and not deployment.expert_parallel


def expert_terms(deployment: Deployment) -> list[Term]:
    """Routed experts, and the shared expert."""
    roofline, moe, hidden = Roofline.of(deployment), deployment.moe, float(deployment.model.hidden_size)
    terms = [*routed_terms(deployment), *prompt_start_up(deployment)]
    if not moe.shared_experts:
        return terms
    # Without ranks of its own, a disaggregated shared expert stays with the attention devices.
    stage: Stage = "gate" if deployment.strategy.disaggregated and not deployment.dedicated else "shared"
    shared_rows = {"shared": 1.0} if deployment.dedicated else sharded_tokens(deployment)
    shared_width = moe.shared_intermediate_size / shared_split(deployment)
    # A dedicated rank runs the expert kernel with one group.
    group: Form | None = {"one": 1.0} if deployment.dedicated else None
    dtype = deployment.feed_forward_weights
    shared = [
        roofline.matmul("shared_gate_up", stage, shared_rows, 2 * shared_width, hidden, dtype, groups=group),
        roofline.vector("shared_activation", stage, scale(shared_rows, shared_width * (2 * 2.0 + 1.0))),
        *roofline.quantise("shared_quantise", stage, scale(shared_rows, shared_width), dtype),
        roofline.matmul("shared_down", stage, shared_rows, hidden, shared_width, dtype, groups=group),
    ]
    # One kernel computes both: the shared expert is read and multiplied without a start of its own
    return [*terms, *((each._replace(floor_seconds=0.0) for each in shared) if fuses_shared(deployment) else shared)]


def exchange_terms(deployment: Deployment) -> list[Term]:
    """Dispatch and combine between EP ranks; collectives inside a MoE TP group (MixServe Eq. (13)).

    Where every device holds all tokens, each picks its experts' rows without an exchange, and one
    all-reduce adds what all of them computed (MixServe section III-B3, d_DP < d_EP at d_DP = 1).
    """
    if deployment.expert_parallel and deployment.replicated_tokens:
        return replicated_exchange(deployment)
    split = several(deployment.strategy.moe_tp)
    if deployment.strategy.disaggregated:
        return [*trampoline_terms(deployment), *(hybrid_terms(deployment) if split else [])]
    if deployment.expert_parallel and not deployment.gathers:
        terms = [exchange_term(deployment, "dispatch"), exchange_term(deployment, "combine")]
        if not split and deployment.gathers_many:
            pairs = zip(terms, gathered_terms(deployment), strict=True)
            return [switched(deployment, *pair) for pair in pairs]
        inside = hybrid_terms(deployment) if split else ()
        return [fused(deployment, *pair) for pair in zip(terms, inside, strict=True)] if inside else list(terms)
    return [*gathered_terms(deployment)] if split or deployment.gathers else []


def replicated_exchange(deployment: Deployment) -> list[Term]:
    """A dispatch that moves nothing, and an all-reduce of the expert outputs as combine."""
    message = {"mean": deployment.model.hidden_size * 2.0}
    devices = deployment.strategy.moe_ep * deployment.strategy.moe_tp
    return [
        CommunicationTerm("dispatch", "dispatch", {"one": 0.0}, ((0.0, 1.0),), launches=0),
        grouped(deployment, "all_reduce", devices, message, "combine", "combine"),
    ]


def crossing_share(deployment: Deployment) -> Number:
    """Copies of a token that reach EP ranks of several devices, over one per chosen expert.

    A token crosses once to each EP rank that holds some of its experts, and what those return is added there before it
    goes back (MixServe, Algorithms 1 and 2): the expected number of distinct ranks among its experts.
    """
    tp = deployment.strategy.moe_tp
    reached = distinct(deployment.moe, deployment.expert_ranks) / deployment.moe.experts_per_token
    return either(tp > 1, reached, 1.0)


def duplicates(deployment: Deployment) -> Number:
    """How often a token is sent and computed: once, or by every device of a DP rank where the engine does not tell.

    vLLM did until its pull requests 24134 and 24982.
    """
    own, strategy = behaviour(deployment.engine), deployment.strategy
    alone = deployment.expert_parallel and not deployment.replicated_tokens
    return strategy.attention_tp if own is not None and own.sends_duplicates and alone else 1.0


def fused(deployment: Deployment, outer: CommunicationTerm, inner: CommunicationTerm) -> Term:
    """An exchange between EP ranks with the collective inside them, round by round at once (MixServe, Algorithms 1, 2).

    Both take what the longer takes and one round of the other, of as many rounds as there are EP ranks.
    """
    rounds, seconds = deployment.expert_ranks, []
    for copies in (2.0**power for power in range(FUSED_POINTS)):
        between = protocol_seconds(outer, outer.bytes["routed"] * copies)
        within = protocol_seconds(inner, inner.bytes["routed"] * copies)
        seconds.append(larger(between, within) + smaller(between, within) / rounds)
    sent = {"routed": outer.bytes["routed"] + inner.bytes["routed"]}
    return curved(outer, inner, sent, seconds)._replace(launches=2)


def switched(deployment: Deployment, few: CommunicationTerm, many: CommunicationTerm) -> Term:
    """An exchange, of an even load, up to some tokens of a DP rank; beyond them a gathering of all ranks' tokens."""
    copies = deployment.strategy.attention_dp * deployment.moe.experts_per_token / deployment.expert_ranks
    strategy, seconds = deployment.strategy, []
    limit = most_exchanged(strategy.moe_ep, deployment.moe.experts, strategy.attention_tp)
    for tokens in (2.0**power for power in range(FUSED_POINTS)):
        exchanged = protocol_seconds(few, few.bytes["routed"] * tokens * copies)
        gathered = protocol_seconds(many, many.bytes["mean"] * tokens)
        seconds.append(either(np.less_equal(tokens, limit), exchanged, gathered))
    return curved(few, many, many.bytes, seconds)


def curved(one: CommunicationTerm, other: CommunicationTerm, sent: Form, seconds: list[Number]) -> CurveTerm:
    """Two transfers as one term: ``seconds`` at 1, 2, 4, ... of the variable that ``sent`` bytes are of."""
    load, most = dict.fromkeys(sent, 1.0), max(one.residual, other.residual)
    return CurveTerm(one.name, one.stage, load, tuple(seconds), {}, 1.0, sent, 1.0, residual=most)


def between_ranks(
    deployment: Deployment, direction: Literal["dispatch", "combine"], whole: tuple[Number, Number]
) -> tuple[tuple[Number, Number], ...]:
    """Return (latency, payload bytes per second) of an exchange, ``whole`` where an EP rank is one device.

    Between EP ranks of several devices, each device exchanges with the one of its place in the others. Over servers
    DeepEP and MC2 have no kernels for that (DeepEP needs eight ranks a node, MC2 on A2 sixteen ranks), so the library's
    all-to-all does it; MixServe sends pair by pair, as that does. Before a dispatch devices tell each other how many
    tokens come. It takes no less to start than beside each other. In decode a kernel arranges the rows, which prefill
    counts among its experts. Payload counts what stays, of which nothing crosses.
    """
    strategy, ranks = deployment.strategy, deployment.expert_ranks
    span, scopes = strategy.moe_ep * strategy.moe_tp, deployment.hardware.scopes
    known = len(scopes) > 1 and any(fit.op == "all_to_all" for fit in deployment.hardware.collectives)
    if not several(strategy.moe_tp) or strategy.disaggregated or not known:
        return (whole,)
    graphed = deployment.in_graph
    ways = [
        collective(
            deployment.hardware, "all_to_all", ranks, {}, name=direction, stage=direction, in_graph=graphed, span=over
        ).protocols
        for over in (ranks, span)
    ]
    cut = np.logical_and(np.greater(strategy.moe_tp, 1), np.greater(span, scopes[-2].devices.value))
    told = 2 if direction == "dispatch" else 1
    least, crossing = ways[0][0][0], ranks / larger(ranks - 1, 1)
    arranged = deployment.hardware.kernels.vector.floor_seconds if deployment.phase == "decode" else 0.0
    return tuple(
        (either(cut, told * larger(latency, least) + arranged, whole[0]), either(cut, rate * crossing, whole[1]))
        for latency, rate in ways[1]
    )


def exchange_term(deployment: Deployment, direction: Literal["dispatch", "combine"]) -> CommunicationTerm:
    """Transfer of token copies: payload of the busiest rank, as the catalogue's library moves it."""
    strategy, moe = deployment.strategy, deployment.moe
    span = strategy.moe_ep * strategy.moe_tp
    fit = exchange_fit(deployment.hardware, direction, "low_latency" if deployment.phase == "decode" else "normal")
    copies, protocol = exchanged(deployment.hardware, fit, moe, span, deployment.dedicated)
    if several(strategy.moe_tp):
        copies = either(strategy.moe_tp > 1, moe.experts_per_token * crossing_share(deployment), copies)
    message = message_bytes(fit, deployment.model.hidden_size, deployment.expert_activations)
    sent = message * copies / moe.experts_per_token * deployment.expert_ranks * duplicates(deployment)
    payload: Form = {"routed": sent / span}
    protocols = between_ranks(deployment, direction, protocol)
    if strategy.disaggregated:
        payload = {"routed": sent / span, "fair": sent * (1.0 / deployment.trampolines - 1.0 / span)}
    return CommunicationTerm(
        direction,
        direction,
        payload,
        protocols,
        residual=residual(fit),
        shape=Shape(f"{direction} {fit.mode}", payload, {"one": 1.0}, span),
    )


def trampoline_terms(deployment: Deployment) -> list[Term]:
    """A2E and E2A in two hops each (xDeepServe section 3): attention device - trampoline - expert devices.

    Between a domain and its trampolines one copy of a token crosses, point to point; the trampolines
    exchange with all expert devices as dispatch and combine do, each of them sending what
    1/trampolines of the domain's tokens need. The send of A2E is attention's time; the return hop
    belongs to E2A. Section 7.1 publishes 172 and 193 us for both hops of 160 and 288 devices.
    """
    hidden, strategy, hops = deployment.model.hidden_size, deployment.strategy, list[Term]()
    routes: tuple[tuple[Literal["dispatch", "combine"], Stage, str], ...] = (
        ("dispatch", "gate", "a2e_hop"),
        ("combine", "combine", "e2a_hop"),
    )
    for direction, stage, name in routes:
        fit = exchange_fit(deployment.hardware, direction, "low_latency")
        message = message_bytes(fit, hidden, deployment.expert_activations)
        crossing = {"mean": message * strategy.attention_dp / deployment.trampolines}
        hops += [grouped(deployment, "point_to_point", strategy.devices, crossing, name, stage)]
        hops += [exchange_term(deployment, direction)]
    return hops


def hybrid_terms(deployment: Deployment) -> list[CommunicationTerm]:
    """MoE TP inside an EP rank: all-gather what arrives, reduce-scatter partial sums before combine."""
    tp, hidden = deployment.strategy.moe_tp, deployment.model.hidden_size * crossing_share(deployment)
    arriving, leaving = {"routed": hidden * ACTIVATION_BYTES[deployment.expert_activations]}, {"routed": hidden * 2.0}
    return [
        grouped(deployment, "all_gather", tp, arriving, "experts_all_gather", "dispatch"),
        grouped(deployment, "reduce_scatter", tp, leaving, "experts_reduce_scatter", "combine"),
    ]


def gathered_terms(deployment: Deployment) -> list[CommunicationTerm]:
    """Experts split by TP alone, or an engine without an exchange: an all-reduce, or gather and scatter of all DP
    groups' tokens over the devices of the experts.
    """
    strategy, devices = deployment.strategy, deployment.strategy.moe_tp * deployment.strategy.moe_ep
    message = {"mean": strategy.attention_dp * deployment.model.hidden_size * 2.0}
    if not several(strategy.attention_dp):
        return [grouped(deployment, "all_reduce", devices, message, "experts_all_reduce", "combine")]
    return [
        grouped(deployment, "all_gather", devices, message, "experts_all_gather", "dispatch"),
        grouped(deployment, "reduce_scatter", devices, message, "experts_reduce_scatter", "combine"),
    ]
