"""One instance to be costed: what the operators, the memory and the step cost are built from."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from ground.errors import BadInput
from hardware.formats import (
    KvDtype,
    attention_dtype,
    beside_experts,
    feed_forward_dtype,
    multiplied,
    product_dtype,
    storable,
)
from hardware.spec import Dtype, HardwareSpec
from models.parameters import Seen
from models.spec import ModelSpec, MoE
from planner.engines.loader import accelerator_of, engine_names, generation_of, load_engine, on_pcie
from planner.engines.memory import A2_GATHERING
from planner.engines.spec import EngineProfile
from planner.manifest.terms import Number, larger, smaller
from planner.strategy import Strategy

Phase = Literal["prefill", "decode", "mixed"]
Shared = Literal["auto", "local"] | int


class StrategyArray(NamedTuple):
    """Strategies of one structure side by side: degrees are arrays of one shape.

    One structure means one formula: EP is 1 for all or for none of them, ``staged`` is common, and all have
    ``domains`` or none has.
    Collectives over groups of one device cost nothing. Field names are those of ``Strategy``.
    """

    attention_tp: Number
    attention_dp: Number
    moe_tp: Number
    moe_ep: Number
    staged: bool
    pp: Number
    domains: Number = 0

    @property
    def disaggregated(self) -> bool:
        """Whether attention and experts run on different devices."""
        return (
            bool(self.domains.size and self.domains.min() > 0)
            if isinstance(self.domains, np.ndarray)
            else self.domains > 0
        )

    @property
    def attention_groups(self) -> Number:
        """Attention groups of one stage, over all domains."""
        return self.attention_dp * self.domains if self.disaggregated else self.attention_dp

    @property
    def devices(self) -> Number:
        """Devices of each instance; disaggregated, attention and expert devices add up."""
        experts = self.moe_tp * self.moe_ep if self.disaggregated else 0
        return self.pp * (self.attention_tp * self.attention_groups + experts)


class Host(NamedTuple):
    """How hosts drive the devices: whether decode replays captured graphs, and the mean delay of a host in a step."""

    graphs: bool = True
    jitter_seconds: float = 0.0


DRIVEN = Host()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Model, hardware and strategy of one instance, with the choices that move its cost.

    With a ``StrategyArray`` it stands for many instances, ``redundant``, ``shared_ranks`` and ``drafts`` may be
    arrays of the same shape, and everything built from it broadcasts.

    ``redundant`` counts expert slots beyond one per routed expert, in all; ``shared_ranks`` ranks
    hold only the shared expert (0: every rank has a copy); ``drafts`` is the MTP depth; ``engine`` names the serving
    engine whose kernels run, with or without ``@VERSION``; None the kernels of the hardware entry.
    """

    model: ModelSpec
    hardware: HardwareSpec
    strategy: Strategy | StrategyArray
    phase: Phase
    weights: Dtype
    kv_dtype: KvDtype = "bf16"
    redundant: Number = 0
    shared_ranks: Number = 0
    drafts: Number = 0
    decode_drafts: int = 0
    """Of a prefill instance: the most that decode drafts, whose layers engines load in prefill, too."""
    beams: int = 1  # beams of a request, which read its prompt's KV together
    seen: Seen | None = None  # pictures of the prompts, which every device of a group encodes a part of
    host_seconds: float | None = None
    host: Host = DRIVEN
    engine: str | None = None
    prefix_plane: str | None = None
    """Plane over which prefill reads reused prefixes off a pool; None: they are in device memory."""
    prefix_ssd_share: float = 0.0  # of those, what comes from the SSD behind it

    @property
    def queries(self) -> Number:
        """Tokens of a request in an iteration: of every beam one, and its drafts."""
        return self.beams * (1 + self.drafts)

    @property
    def encodes_alone(self) -> bool:
        """Whether it is an encode instance: its cache holds embeddings of pictures, and no layer of the model."""
        return self.seen is not None and self.seen.encoding == "alone"

    @property
    def draft_layers(self) -> Number:
        """Layers that draft: those that the model ships, of which the last drafts whatever lies beyond."""
        return smaller(self.drafts, max(self.model.mtp_layers, 1))

    @property
    def loaded_drafts(self) -> int:
        """Drafts that the engine starts this prefill instance with because decode drafts; 0 without an engine."""
        profile = self.profile if self.decode_drafts else None
        return profile.drafting.in_prefill(self.decode_drafts) if profile else 0

    @property
    def recurrent_states(self) -> Number:
        """Recurrent states that the engine keeps of a request: its own, and those that drafts may be rejected to."""
        kept = self.profile.drafting.states if self.profile else None
        if kept is None:
            return 1
        drafted = (
            self.drafts + np.greater(self.drafts, 0)
            if kept.value == "window"
            else larger(self.drafts, self.loaded_drafts)
        )
        return 1 + drafted

    @property
    def held_draft_layers(self) -> Number:
        """Draft layers whose weights and cache are in memory: those that draft, and those that prefill only loads."""
        return smaller(larger(self.drafts, self.loaded_drafts), max(self.model.mtp_layers, 1))

    @property
    def attention_weights(self) -> Dtype:
        """Type of attention's weights; ``weights`` is that of the routed experts, or of all without experts."""
        return attention_dtype(self.weights, self.model.moe is not None, self.beside)

    @property
    def feed_forward_weights(self) -> Dtype:
        """Type of the weights of dense feed-forwards and shared experts."""
        return feed_forward_dtype(self.weights, self.model.moe is not None, self.beside)

    @property
    def beside(self) -> Dtype:
        """What stands beside four-bit experts."""
        model = self.model
        return beside_experts(self.hardware, self.weights, model.native_dtype, model.beside_experts)

    @property
    def expert_activations(self) -> Dtype:
        """Type in which tokens enter routed experts, and travel to them where the library sends it."""
        return product_dtype(self.hardware, self.weights, grouped=True)

    @property
    def expert_ranks(self) -> Number:
        """EP ranks that hold routed experts."""
        return self.strategy.moe_ep - self.shared_ranks

    @property
    def slots_per_rank(self) -> Number:
        """Routed expert slots per EP rank."""
        return (self.moe.experts + self.redundant) / self.expert_ranks if self.model.moe else 0.0

    @property
    def moe(self) -> MoE:
        """The experts of a MoE model."""
        assert self.model.moe is not None, "asked for the experts of a dense model"
        return self.model.moe

    @property
    def dedicated(self) -> bool:
        """Whether the shared expert has ranks of its own."""
        ranks = self.shared_ranks
        return bool((ranks > 0).any()) if isinstance(ranks, np.ndarray) else ranks > 0

    @property
    def expert_parallel(self) -> bool:
        """Whether experts are spread by EP."""
        degree = self.strategy.moe_ep
        return bool((degree > 1).all()) if isinstance(degree, np.ndarray) else degree > 1

    @property
    def replicated_tokens(self) -> bool:
        """Whether every device already holds all tokens: one DP group that is not staged."""
        return not (self.strategy.staged or self.strategy.disaggregated or several(self.strategy.attention_dp))

    @property
    def profile(self) -> EngineProfile | None:
        """The engine's rules, None for the reference runtime and unknown engines."""
        name = (self.engine or "reference").partition("@")[0]
        return load_engine(name) if name != "reference" and name in engine_names() else None

    @property
    def gathers(self) -> bool:
        """Whether devices receive the tokens of all DP ranks, where the engine exchanges none for these degrees."""
        profile, cut = self.profile, several(self.strategy.moe_tp)
        if profile is None or self.model.moe is None or not self.expert_parallel or self.replicated_tokens:
            return False
        asked = self.phase, self.model.architecture, accelerator_of(self.hardware), on_pcie(self.hardware)
        held = (mode for mode in profile.parallelism.experts if mode.serves(*asked))
        first = next((mode for mode in held if mode.ep == "divisor" or (mode.ep == "stage" and not cut)), None)
        return first is not None and first.exchange == "all_gather"

    @property
    def gathers_many(self) -> bool:
        """Whether devices receive the tokens of all DP ranks where these are many: ``engines.memory``, on A2."""
        gathering = self.profile is not None and self.profile.engine in A2_GATHERING
        return gathering and generation_of(self.hardware) == "a2"

    @property
    def trampolines(self) -> Number:
        """Expert devices that stand between a domain and the others: as many as it has attention devices.

        xDeepServe section 3: they receive first and forward, instead of a fan-out of attention x expert devices.
        """
        domain = self.strategy.attention_tp * self.strategy.attention_dp
        return smaller(domain, self.strategy.moe_tp * self.strategy.moe_ep)

    @property
    def in_graph(self) -> bool:
        """Whether steps replay a captured graph: decode does unless told otherwise, prefill has dynamic shapes."""
        return self.phase != "prefill" and self.host.graphs

    @property
    def jitter_seconds(self) -> Number:
        """What a step waits for the slowest host: the mean of the largest of n exponential delays, mean x H(n).

        Ranks that share experts wait for each other in every step; without experts ranks are on their own.
        """
        if not self.host.jitter_seconds:
            return 0.0
        ranks = np.asarray(self.strategy.attention_groups if self.model.moe else 1, dtype=np.intp)
        delay = self.host.jitter_seconds * np.cumsum(1 / np.arange(1, ranks.max(initial=1) + 1))[ranks - 1]
        return delay if ranks.ndim else float(delay)


def shared_split(deployment: Deployment) -> Number:
    """Devices over which the shared expert's width is split: the MoE TP group, all devices where each holds all
    tokens (the combining all-reduce adds it up), else 1.
    """
    strategy = deployment.strategy
    if not deployment.expert_parallel:
        return strategy.moe_tp
    return strategy.moe_tp * strategy.moe_ep if deployment.replicated_tokens and not deployment.dedicated else 1


def several(degree: Number) -> bool:
    """Whether a degree, or any of an array of degrees, exceeds 1."""
    return bool((degree > 1).any()) if isinstance(degree, np.ndarray) else degree > 1


def default_weights(hardware: HardwareSpec, model: ModelSpec) -> Dtype:
    """Weights as the model ships them where the device multiplies or dequantises that, else INT8 for FP8, else BF16."""
    if model.native_dtype in storable(hardware):
        return model.native_dtype
    return "int8" if model.native_dtype == "fp8" and "int8" in multiplied(hardware) else "bf16"


def check_slots(deployment: Deployment) -> None:
    """Raise BadInput unless the expert slots divide evenly over the expert ranks."""
    if deployment.model.moe is None:
        if deployment.redundant or deployment.shared_ranks:
            raise BadInput(
                f"--redundant-experts: {deployment.model.name} has no routed experts, so it takes no replicas and no "
                "dedicated ranks"
            )
        return
    ranks, redundant = int(deployment.expert_ranks), int(deployment.redundant)
    if ranks < 1:
        raise BadInput(
            f"--shared-experts: dedicated={deployment.shared_ranks} leaves no rank of EP={deployment.strategy.moe_ep} "
            "for routed experts; use a smaller number"
        )
    if deployment.shared_ranks and not deployment.moe.shared_experts:
        raise BadInput(f"--shared-experts: {deployment.model.name} has no shared expert to dedicate ranks to")
    slots = deployment.moe.experts + redundant
    if slots % ranks:
        lower = slots - slots % ranks - deployment.moe.experts
        choices = f"{lower} or {lower + ranks}" if lower >= 0 else f"{lower + ranks}"
        raise BadInput(
            f"--redundant-experts: {deployment.moe.experts} + {redundant} expert slots do not divide over "
            f"{ranks} expert ranks; use {choices}"
        )
    if slots > deployment.moe.experts * ranks:
        raise BadInput(f"--redundant-experts: {redundant} replicas would put an expert twice on a rank; use fewer")


def check_disaggregation(strategy: Strategy, phase: Phase) -> None:
    """Raise BadInput where attention and experts on devices of their own are asked to do other than decode."""
    if strategy.disaggregated and phase != "decode":
        raise BadInput(
            f"--strategy: attention and experts on different devices are a way to run decode (xDeepServe section 5.2); "
            f"leave out the domains for {phase}"
        )
    if strategy.disaggregated and strategy.moe_ep < 2:
        raise BadInput("--strategy: experts on devices of their own are spread by EP; use EP=2 or more after the comma")


def shared_choices(moe: MoE | None, strategy: Strategy, shared: Shared, decode: bool) -> list[int]:
    """Return the numbers of dedicated shared-expert ranks to try; 0 is a copy on every rank.

    Auto: besides 0, one of k + 1 or of k + 2 ranks, about the share of tokens that the shared
    expert gets (CloudMatrix384: 32 of 320; xDeepServe: 32 of 288), where enough ranks remain for
    the routed experts. Only decode spreads experts that thin.
    """
    if isinstance(shared, int):
        return [shared]
    ranks = strategy.moe_ep
    if shared == "local" or moe is None or not moe.shared_experts or not decode:
        return [0]
    if strategy.moe_tp > 1 or ranks <= moe.experts:
        return [0]
    parts = (moe.experts_per_token + 1, moe.experts_per_token + 2)
    dedicated = {ranks // part for part in parts if ranks % part == 0 and ranks - ranks // part >= moe.experts}
    return [0, *sorted(dedicated)]


def redundancy_choices(moe: MoE | None, strategy: Strategy, dedicated: int, redundant: int | None) -> list[int]:
    """Return the redundant slots to try: the fewest that divide evenly, and one more per rank."""
    if redundant is not None:
        return [redundant]
    ranks = strategy.moe_ep - dedicated
    if moe is None or ranks < 1:
        return [0]
    least = -moe.experts % ranks
    most = moe.experts * (ranks - 1)
    return [extra for extra in (least, least + ranks) if extra <= min(most, moe.experts)]
