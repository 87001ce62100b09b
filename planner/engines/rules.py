"""What an engine cannot run, as named rules: the first that an instance breaks, with one sentence that says so.

Rules read a profile and plain degrees, no model and no cost. Their names are stable: searches count by them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hardware.spec import Dtype
from planner.engines.spec import ACCELERATORS, Accelerator, EngineProfile, ExpertMode, RoleName
from planner.strategy import Strategy


@dataclass(slots=True, kw_only=True)  # frozen ones take three times as long to make, and a search makes thousands
class Setup:
    """One instance as an engine would have to run it, in plain values.

    ``accelerator`` is the kind of its devices, None for any that the engine runs on; ``experts`` the number of routed
    experts per layer, 0 for a dense model; ``redundant`` the slots beyond one per expert, in all; ``dedicated`` the EP
    ranks that hold only the shared expert; ``drafts`` the tokens drafted per iteration; ``device`` the title of its
    devices, empty where pairs are of one kind; ``blackwell`` says whether they are of NVIDIA's Blackwell generation,
    ``pcie`` whether PCIe alone joins them in a node;
    ``scaled_columns`` is the width of an expert whose weights have a scale per block, 0 of others.
    """

    strategy: Strategy
    role: RoleName
    devices_per_node: int
    experts: int
    accelerator: Accelerator | None = None
    device: str = ""
    blackwell: bool = False
    pcie: bool = False
    architecture: str = ""
    scaled_columns: int = 0
    latent: bool = False
    redundant: int = 0
    dedicated: int = 0
    drafts: int = 0
    microbatches: int = 1
    kv_dtype: str = "bf16"
    weights: Dtype = "bf16"
    instances: int = 1


class Broken(NamedTuple):
    """A rule that does not hold: its stable name, one sentence, and where the engine says so."""

    rule: str
    sentence: str
    source: str


Check = Callable[[EngineProfile, Setup], Broken | None]


def broken_rule(profile: EngineProfile, setup: Setup, checks: Sequence[Check] = ()) -> Broken | None:
    """Return the first rule of ``profile``, or of some of them, that ``setup`` breaks, None where there is none."""
    for check in checks or CHECKS:
        broken = check(profile, setup)
        if broken is not None:
            return broken
    return None


def expert_mode(profile: EngineProfile, setup: Setup) -> ExpertMode | None:
    """Return the way in which the engine lays out the instance's experts: the first mode that has its degrees.

    Modes stand in the order of preference. None for a dense model and where no mode has them.
    """
    for mode in _grid_modes(profile, setup):
        if (mode.redundancy or not setup.redundant) and (mode.microbatches or setup.microbatches == 1):
            return mode
    return None


def _grid_modes(profile: EngineProfile, setup: Setup) -> list[ExpertMode]:
    """The modes that have the degrees of the experts, whatever else is asked."""
    if not setup.experts:
        return []
    ep, stage = setup.strategy.moe_ep, setup.strategy.expert_devices
    return [
        mode
        for mode in profile.parallelism.experts
        if (mode.ep == "divisor" or ep == (stage if mode.ep == "stage" else 1))
        and mode.serves(setup.role, setup.architecture, setup.accelerator, setup.pcie)
    ]


def _forms(profile: EngineProfile, setup: Setup) -> Broken | None:
    domains, staged = profile.parallelism.domains, profile.parallelism.staged_attention
    if setup.strategy.domains and not domains.value:
        return Broken("domains", f"{profile.title} runs attention and experts on the same devices", domains.source)
    if setup.strategy.staged and not staged.value:
        return Broken("staged-attention", f"{profile.title} has no staged SP-TP-SP attention; use TP", staged.source)
    return None


def _pipeline(profile: EngineProfile, setup: Setup) -> Broken | None:
    facts = profile.parallelism
    if setup.strategy.pp == 1:
        return None
    if not facts.pipeline.value:
        return Broken("pipeline", f"{profile.title} has no pipeline stages; use PP=1", facts.pipeline.source)
    if setup.drafts and setup.role != "prefill" and not facts.pipeline_drafts.value:
        sentence = f"{profile.title} drafts no tokens with pipeline stages; use PP=1 or no MTP"
        return Broken("pipeline-drafts", sentence, facts.pipeline_drafts.source)
    return None


def _dedicated(profile: EngineProfile, setup: Setup) -> Broken | None:
    fact = profile.parallelism.dedicated_shared_experts
    if setup.dedicated and not fact.value:
        sentence = f"{profile.title} keeps the shared expert on every rank; use shared experts local"
        return Broken("dedicated-shared-experts", sentence, fact.source)
    return None


def _most_nodes(profile: EngineProfile, setup: Setup) -> Broken | None:
    fact = profile.prefill_decode.most_nodes
    nodes, most = -(-setup.strategy.devices // setup.devices_per_node), fact.value.get(setup.role) if fact else None
    if fact is None or most is None or nodes <= most:
        return None
    sentence = f"{profile.title} takes {most} nodes of a {setup.role} instance, not {nodes}; use fewer devices"
    return Broken("most-nodes", sentence, fact.source)


def _tensor_scope(profile: EngineProfile, setup: Setup) -> Broken | None:
    fact, strategy = profile.parallelism.tensor_scope, setup.strategy
    if fact.value == "any":
        return None
    for name, degree in (("attention TP", strategy.attention_tp), ("expert TP", strategy.moe_tp)):
        if degree > setup.devices_per_node and degree != strategy.devices_per_stage:
            sentence = (
                f"{name}={degree} is wider than a node of {setup.devices_per_node} devices and not the whole "
                f"stage of {strategy.devices_per_stage}, the only two that {profile.title} takes"
            )
            return Broken("tensor-scope", sentence, fact.source)
    return None


def _attention(profile: EngineProfile, setup: Setup) -> Broken | None:
    fact, strategy = profile.parallelism.attention, setup.strategy
    if fact is None or min(strategy.attention_tp, strategy.attention_dp) == 1:
        return None
    sentence = (
        f"{profile.title} cuts attention over all {strategy.devices_per_stage} devices of a stage or runs it whole on "
        f"each, not TP={strategy.attention_tp} + DP={strategy.attention_dp}"
    )
    return Broken("attention-grid", sentence, fact.source)


def _nodes(profile: EngineProfile, setup: Setup) -> Broken | None:
    """Instances stand evenly on their nodes, and a DP rank inside one where the engine asks for it."""
    facts, strategy = profile.parallelism, setup.strategy
    devices, size = strategy.devices, setup.devices_per_node
    if devices <= size:
        return None
    if facts.whole_nodes.value and devices % size:
        near = f"{devices // size * size} or {(devices // size + 1) * size}"
        sentence = f"{devices} devices fill nodes of {size} unevenly, and {profile.title} starts as many ranks on each"
        return Broken("whole-nodes", f"{sentence}; use {near}", facts.whole_nodes.source)
    rank = strategy.attention_tp * strategy.pp
    if strategy.attention_dp > 1 and not facts.rank_over_nodes.value and size % rank:
        sentence = (
            f"a DP rank of {rank} devices (TP={strategy.attention_tp}, PP={strategy.pp}) does not lie inside nodes of "
            f"{size}, which {profile.title} needs with DP={strategy.attention_dp}"
        )
        return Broken("rank-in-node", sentence, facts.rank_over_nodes.source)
    return None


def _cache(profile: EngineProfile, setup: Setup) -> Broken | None:
    alone, caches = profile.cache.fp8_alone, profile.cache.kv_of(setup.architecture)
    if setup.kv_dtype not in caches:
        apart = alone is not None and setup.architecture in alone.value
        whose = f" of {setup.architecture}" if apart else ""
        sentence = f"{profile.title} caches keys and values{whose} as {' or '.join(caches)}, not {setup.kv_dtype}"
        return Broken("kv-dtype", sentence, alone.source if alone and apart else profile.cache.kv.source)
    weights, known = profile.cache.weights, profile.cache.weights.of(setup.accelerator)
    if setup.weights not in known:
        other = setup.accelerator if setup.accelerator in (weights.on or {}) else None
        where = f" on {ACCELERATORS[other]} devices" if other else ""
        sentence = f"{profile.title} runs weights in {' or '.join(known)}{where}, not {setup.weights}"
        return Broken("weights", sentence, weights.source)
    return None


def _powers(profile: EngineProfile, setup: Setup) -> Broken | None:
    fact = profile.parallelism.powers_of_two
    for name in fact.value:
        degree = getattr(setup.strategy, name)
        if degree & (degree - 1) and (name != "moe_ep" or setup.experts):
            what = {"attention_dp": "attention DP", "moe_ep": "EP"}[name]
            return Broken("power-of-two", f"{profile.title} takes powers of two, not {what}={degree}", fact.source)
    return None


def _experts(profile: EngineProfile, setup: Setup) -> Broken | None:
    """Some mode has the degrees of the experts."""
    if not setup.experts or _grid_modes(profile, setup):
        return None
    stage, modes = setup.strategy.expert_devices, profile.parallelism.experts
    ours = [m for m in modes if m.architectures is None or setup.architecture in m.architectures]
    if all(mode.ep == "one" for mode in ours):
        what = f"expert parallelism for models of type {setup.architecture!r}; use TP={stage}"
        what = what if ours else f"expert layout for models of type {setup.architecture!r}"
        return Broken("expert-model", f"{profile.title} has no {what}", (ours or modes)[0].source)
    sentence = (
        f"{profile.title} spreads experts over all {stage} devices of a stage (EP={stage}) or cuts each over all "
        f"(TP={stage}), not TP={setup.strategy.moe_tp} + EP={setup.strategy.moe_ep}"
    )
    return Broken("expert-grid", sentence, ours[0].source)


def _blocks(profile: EngineProfile, setup: Setup) -> Broken | None:
    """TP cuts experts between blocks that share a scale."""
    fact, cut = profile.cache.expert_columns, setup.strategy.moe_tp
    if fact is None or setup.scaled_columns % (cut * fact.value) == 0:
        return None
    sentence = (
        f"{profile.title} cuts experts of {setup.scaled_columns} columns in FP8 between blocks of {fact.value}, which "
        f"TP={cut} does not; use more EP"
    )
    return Broken("expert-blocks", sentence, fact.source)


def _kernels(profile: EngineProfile, setup: Setup) -> Broken | None:
    """The library of the exchange has kernels for as many EP ranks, and for nodes as large."""
    fact, ranks = profile.parallelism.exchange_ranks, setup.strategy.moe_ep
    known, node = fact.value.get(setup.role) if fact else None, profile.parallelism.exchange_node
    small = node is not None and setup.devices_per_node < min(node.value, setup.strategy.devices_per_stage)
    if fact is None or known is None or setup.strategy.attention_dp == 1 or ranks in ((1,) if small else (1, *known)):
        return None
    modes = _grid_modes(profile, setup)
    if not modes or modes[0].exchange != "all_to_all":
        return None
    if small and node is not None:
        sentence = (
            f"{profile.title} exchanges prompts by DeepEP, whose kernels take {node.value} devices of every node over "
            f"several nodes, not {setup.devices_per_node}; use EP={setup.devices_per_node} inside a node"
        )
        return Broken("exchange-node", sentence, node.source)
    sentence = (
        f"{profile.title} exchanges prompts by DeepEP, which has kernels for EP={' or '.join(map(str, known))}, "
        f"not for {ranks}"
    )
    return Broken("exchange-ranks", sentence, fact.source)


def _redundancy(profile: EngineProfile, setup: Setup) -> Broken | None:
    """Slots divide over the EP ranks, in the engine's unit, in a mode that has replicas."""
    if not setup.experts or not setup.strategy.moe_ep:
        return None
    ranks, unit = setup.strategy.moe_ep - setup.dedicated, profile.redundancy.unit
    slots = setup.experts + setup.redundant
    if not setup.redundant:
        fact = profile.redundancy.without
        sentence = f"{setup.experts} experts leave some of EP={ranks} ranks without one; add redundant experts"
        if fact.value == "even" and setup.experts % ranks:
            sentence = f"{setup.experts} experts do not divide over EP={ranks}, which {profile.title} needs"
        elif setup.experts >= ranks:
            return None
        return Broken("experts-divide", sentence, fact.source)
    if slots % ranks:
        sentence = (
            f"{setup.experts} + {setup.redundant} expert slots do not divide over EP={ranks}; "
            f"use {-setup.experts % ranks or ranks} redundant experts"
        )
        return Broken("redundancy-divides", sentence, unit.source)
    known = profile.redundancy.architectures
    if known is not None and setup.architecture not in known.value:
        sentence = f"{profile.title} keeps no replicas of experts for models of type {setup.architecture!r}; use none"
        return Broken("redundancy-model", sentence, known.source)
    blocks = profile.redundancy.blackwell_blocks
    if blocks is not None and not blocks.value and setup.blackwell and setup.scaled_columns:
        sentence = f"{profile.title} keeps no replicas of experts in FP8 with scales per block on Blackwell; use none"
        return Broken("redundancy-blocks", sentence, blocks.source)
    if unit.value == "per_device" and (setup.redundant % ranks or setup.experts % ranks):
        sentence = (
            f"{profile.title} counts redundant experts per device beside {setup.experts} / EP: "
            f"{setup.redundant} must be a multiple of EP={ranks}, and EP must divide {setup.experts}"
        )
        return Broken("redundancy-per-device", sentence, unit.source)
    if not any(mode.redundancy for mode in _grid_modes(profile, setup)):
        sentence = f"{profile.title} has no replicas of experts with TP={setup.strategy.moe_tp} + EP={ranks} experts"
        return Broken("redundancy-mode", sentence, unit.source)
    return None


def _microbatches(profile: EngineProfile, setup: Setup) -> Broken | None:
    fact = profile.microbatching.roles
    if setup.microbatches == 1:
        return None
    if setup.role not in fact.value:
        where = f"only for {' and '.join(fact.value)}" if fact.value else "not at all"
        sentence = f"{profile.title} overlaps two microbatches {where}; use 1 microbatch"
        return Broken("microbatches", sentence, fact.source)
    known = profile.microbatching.architectures
    if known is not None and setup.architecture not in known.value:
        sentence = f"{profile.title} overlaps no microbatches for models of type {setup.architecture!r}; use 1"
        return Broken("microbatches-model", sentence, known.source)
    if profile.microbatching.attention_dp.value and setup.strategy.attention_dp == 1:
        sentence = f"{profile.title} overlaps microbatches only with several attention DP ranks; use 1 microbatch"
        return Broken("microbatches-dp", sentence, profile.microbatching.attention_dp.source)
    if setup.strategy.moe_ep == 1 or not any(mode.microbatches for mode in _grid_modes(profile, setup)):
        sentence = f"{profile.title} overlaps microbatches with an expert exchange over EP only; use 1 microbatch"
        return Broken("microbatches-mode", sentence, fact.source)
    if expert_mode(profile, setup) is None:
        sentence = f"{profile.title} has no layout with replicas and overlapping microbatches together"
        return Broken("microbatches-redundancy", sentence, fact.source)
    return None


def _drafts(profile: EngineProfile, setup: Setup) -> Broken | None:
    fact = profile.drafting.most
    if setup.drafts > fact.value:
        sentence = f"{profile.title} drafts at most {fact.value} tokens per iteration, not {setup.drafts}"
        return Broken("drafts", sentence, fact.source)
    return broken_drafts(profile, setup.architecture) if setup.drafts else None


def broken_drafts(profile: EngineProfile, architecture: str) -> Broken | None:
    """Return the rule that drafts of MTP break for models of some ``model_type``, None where the engine has them."""
    known = profile.drafting.architectures
    if known is None or architecture in known.value:
        return None
    return Broken("drafts-model", f"{profile.title} has no MTP for models of type {architecture!r}", known.source)


CHECKS: tuple[Check, ...] = (
    _forms,
    _pipeline,
    _dedicated,
    _attention,
    _nodes,
    _most_nodes,
    _tensor_scope,
    _powers,
    _experts,
    _blocks,
    _kernels,
    _redundancy,
    _microbatches,
    _drafts,
    _cache,
)
LAYOUT_CHECKS: tuple[Check, ...] = (_dedicated, _redundancy, _microbatches, _drafts, _cache)
STRATEGY_CHECKS = tuple(check for check in CHECKS if check not in LAYOUT_CHECKS)
"""Checks that read the degrees alone, so that they cut a strategy with every expert layout."""
OVERLAP_CHECKS: tuple[Check, ...] = (_microbatches,)
ROLE_CHECKS: tuple[Check, ...] = (_kernels, _most_nodes)
SHARED_CHECKS = tuple(check for check in STRATEGY_CHECKS if check not in ROLE_CHECKS)
"""Strategy checks with the same result for every role, without pipeline stages."""


def broken_pair(profile: EngineProfile, prefill: Setup, decode: Setup) -> Broken | None:
    """Return the rule that a prefill and a decode instance break together, None where they can share KV."""
    facts = profile.prefill_decode
    if facts.tensor.value == "prefill_multiple_unless_latent" and not prefill.latent:
        ours, theirs = prefill.strategy.attention_tp, decode.strategy.attention_tp
        if ours % theirs:
            sentence = f"prefill TP={ours} must be a multiple of decode TP={theirs} unless attention is latent (MLA)"
            return Broken("pair-tensor", sentence, facts.tensor.source)
    if not facts.pipeline.value and max(prefill.strategy.pp, decode.strategy.pp) > 1:
        return Broken("pair-pipeline", "prefill and decode instances take no pipeline stages", facts.pipeline.source)
    if "kv_dtype" in facts.same.value and prefill.kv_dtype != decode.kv_dtype:
        sentence = f"prefill caches {prefill.kv_dtype} and decode {decode.kv_dtype}; both must be the same"
        return Broken("pair-kv-dtype", sentence, facts.same.source)
    if "device" in facts.same.value and prefill.device != decode.device:
        sentence = (
            f"{profile.title} moves no keys and values from {prefill.device} to {decode.device}; plan both roles on one"
        )
        return Broken("pair-device", sentence, facts.same.source)
    most = facts.most_instances
    for role, setup in (("prefill", prefill), ("decode", decode)):
        if most is not None and setup.instances > most.value:
            sentence = f"{setup.instances} {role} instances are more than {most.value}, the most of one deployment"
            return Broken("pair-instances", sentence, most.source)
    return None
