"""The engine settings of each role, from a manifest's pools, in one unit: per attention DP rank."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ground.errors import BadInput, Infeasible
from hardware.spec import HardwareSpec
from models.spec import MLA, ModelSpec
from planner.engines.loader import (
    accelerator_of,
    broken_accelerator,
    broken_encoder,
    broken_model,
    broken_prefixes,
    generation_of,
    is_blackwell,
    on_pcie,
)
from planner.engines.memory import prefill_prompts
from planner.engines.nearest import describe, nearest_reachable
from planner.engines.rules import Broken, Setup, broken_pair, broken_rule, expert_mode
from planner.engines.spec import Accelerator, EngineProfile, ExpertMode, ShapeName
from planner.manifest.layout import ExpertMap, Instance
from planner.manifest.schema import AnswerKinds, Manifest, MemoryBytes, Pool, PromptKinds, Role
from planner.manifest.terms import smaller
from planner.strategy import Strategy

ROOM_TOKENS = 256  # BOS and the chat template of a prompt, and SGLang's own last tokens
BLOCK_TOKENS = 128
ALIGNED_TOKENS = 4  # deep_ep.cpp of DeepEP asserts that as many of all ranks go into a low-latency buffer
WHOLE = ("accelerator", "model", "encode-pools", "pair-prefixes")  # rules that every layout breaks
SPREAD = 3.0  # standard deviations above the mean that the longest request is taken for, where none is given


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlan:
    """One role as every exporter reads it. Batch limits count one attention DP rank; lengths are tokens.

    ``mixes`` says whether the plan has prompts and running requests in one step, by the rule that it was played by.
    """

    name: str
    role: Role
    cluster: str
    model: ModelSpec
    hardware: HardwareSpec
    accelerator: Accelerator
    setup: Setup
    mode: ExpertMode | None
    instances: tuple[Instance, ...]
    nodes: int
    devices_per_node: int
    drafts: int
    sequences: int
    tokens: int
    longest: int
    longest_prompt: int
    held: float  # requests of an instance on average in the plan
    memory: MemoryBytes
    longest_cache_bytes: float
    prefix_caching: bool
    mixes: bool
    expert_map: ExpertMap | None
    encodes: bool  # whether prompts have pictures, which the devices of a TP group divide among them
    embedded: bool  # whether encode instances send embeddings of pictures
    eager: bool  # whether decode launches every kernel instead of replaying captured graphs
    skew: int  # instances by which nodes may differ, so that the loss of one takes no more than planned; 0: any number

    @property
    def strategy(self) -> Strategy:
        """The degrees of one instance."""
        return self.setup.strategy

    @property
    def devices(self) -> int:
        """Devices of one instance."""
        return self.strategy.devices

    @property
    def ranks_per_node(self) -> int:
        """Attention DP ranks of one node; 0 where a rank spans nodes."""
        return self.strategy.attention_dp // self.nodes if self.strategy.attention_dp % self.nodes == 0 else 0

    @property
    def shares_nodes(self) -> bool:
        """Whether an instance is smaller than a node, so that others may stand beside it."""
        return self.devices < self.setup.devices_per_node

    @property
    def paired(self) -> bool:
        """Whether devices are those of Ascend A3 servers, two of which are a chip."""
        return generation_of(self.hardware) == "a3"

    @property
    def draft_window(self) -> int:
        """Tokens that one request brings into an iteration: itself and its drafts."""
        return 1 + self.drafts

    @property
    def requests(self) -> int:
        """Requests that all instances of the role hold."""
        return self.sequences * self.strategy.attention_dp * len(self.instances)

    @property
    def disaggregated(self) -> bool:
        """Whether KV moves between this role and another."""
        return self.role != "mixed"


def read_roles(
    manifest: Manifest, profile: EngineProfile, longest: int | None, names: Sequence[str] | None = None
) -> list[RolePlan]:
    """Return the roles of a manifest for an engine, prefill first, under ``names`` where its pools have some.

    Raises Infeasible: the engine cannot run a pool; the rule and the nearest strategy that it can run; BadInput:
    ``longest`` does not fit.
    """
    setups = [_setup(manifest, pool) for pool in manifest.pools]
    shape: ShapeName = "disaggregated" if any(pool.role == "prefill" for pool in manifest.pools) else "aggregated"
    for pool, setup in zip(manifest.pools, setups, strict=True):
        broken = (
            (broken_encoder(profile, shape, setup.architecture, setup.accelerator) if pool.role == "encode" else None)
            or broken_accelerator(profile, manifest.clusters[pool.hardware].spec)
            or broken_model(profile, setup.architecture)
            or broken_prefixes(profile, setup.role, manifest.workload.prefix_reuse > 0)
            or broken_rule(profile, setup)
        )
        if broken is not None:
            raise Infeasible(_refusal(profile, pool, setup, broken))
    for prefill in (setup for setup in setups if setup.role == "prefill"):
        for decode in (setup for setup in setups if setup.role == "decode"):
            broken = broken_pair(profile, prefill, decode)
            if broken is not None:
                raise Infeasible(f"{profile.title} cannot pair these pools ({broken.rule}): {broken.sentence}")
    drafts = max((setup.drafts for setup in setups if setup.role != "prefill"), default=0)
    lengths = _longest(manifest, longest)
    counts: dict[str, int] = {}
    roles = []
    for place, (pool, setup) in enumerate(zip(manifest.pools, setups, strict=True)):
        number = counts[pool.role] = counts.get(pool.role, 0) + 1
        name = pool.role if sum(other.role == pool.role for other in manifest.pools) == 1 else f"{pool.role}-{number}"
        name = name if names is None else names[place]
        roles.append(_role(manifest, profile, pool, setup, name, drafts, lengths))
    return sorted(roles, key=lambda role: ("encode", "prefill", "decode", "mixed").index(role.role))


def _setup(manifest: Manifest, pool: Pool) -> Setup:
    """Return a pool in plain values."""
    model = manifest.model.spec
    strategy = Strategy(**dict(pool.degrees))
    mapping, experts = pool.expert_map, model.moe.experts if model.moe and pool.role != "encode" else 0
    slots = {len(entry.slots) for entry in mapping.placements} if mapping else {0}
    if len(slots) > 1:
        raise Infeasible(
            f"pool {pool.role}: layers with {min(slots)} and {max(slots)} expert slots; engines take one number"
        )
    return Setup(
        strategy=strategy,
        role=pool.role,
        devices_per_node=int(manifest.clusters[pool.hardware].spec.devices_per_node.value),
        experts=experts,
        accelerator=accelerator_of(manifest.clusters[pool.hardware].spec),
        device=manifest.clusters[pool.hardware].spec.device.title,
        blackwell=is_blackwell(manifest.clusters[pool.hardware].spec),
        pcie=on_pcie(manifest.clusters[pool.hardware].spec),
        architecture=model.architecture,
        scaled_columns=model.scaled_columns(pool.weights_dtype),
        latent=isinstance(model.attention, MLA),
        redundant=max(slots) - experts if experts else 0,
        dedicated=len(mapping.shared_expert_ranks) if mapping else 0,
        drafts=pool.mtp.drafts,
        microbatches=pool.microbatches,
        kv_dtype=pool.kv_dtype,
        weights=pool.weights_dtype,
        instances=len(pool.instances),
    )


def _refusal(profile: EngineProfile, pool: Pool, setup: Setup, broken: Broken) -> str:
    """Return a sentence with the broken rule and a layout that the engine can run instead."""
    near = nearest_reachable(profile, setup) if broken.rule not in WHOLE else None
    rather = f"; the nearest that it runs on {setup.strategy.devices} devices is {describe(near)}" if near else ""
    return (
        f"{profile.title} cannot run the {pool.role} pool {pool.strategy!r} ({broken.rule}): {broken.sentence}{rather}"
    )


def _longest(manifest: Manifest, given: int | None) -> tuple[int, int]:
    """Return the longest request and prompt in tokens: as given, or the workload's with room for what wraps a prompt.

    The workload's longest is its longest kind, or the mean and three standard deviations where it tells no kinds;
    no more than the model's positions and the cache of a rank.
    """
    traffic, model = manifest.workload, manifest.model.spec
    prompt = _most(traffic.prompt_kinds, traffic.input_tokens, traffic.input_cv2)
    answer = _most(traffic.answer_kinds, traffic.output_tokens, traffic.output_cv2)
    capacity = min(pool.kv.capacity_tokens_per_rank for pool in manifest.pools if pool.role != "encode")
    most = min(capacity, model.max_position)
    needed = math.ceil(traffic.input_tokens) + math.ceil(traffic.output_tokens)
    what = f"the KV cache of a rank ({capacity} tokens)" if most == capacity else f"{model.name} ({most} positions)"
    if given is not None and given > most:
        raise BadInput(f"longest_request_tokens: {given} tokens do not fit {what}; use at most {most}")
    if needed > most:
        raise Infeasible(f"a mean request of {needed} tokens does not fit {what}; plan with shorter lengths")
    rounded = -(-(prompt + answer + ROOM_TOKENS) // BLOCK_TOKENS) * BLOCK_TOKENS
    longest = given or min(rounded, most)
    return longest, min(prompt + ROOM_TOKENS, longest - 1)


def _most(kinds: PromptKinds | AnswerKinds | None, mean: float, cv2: float) -> int:
    """Return the most tokens of a workload's prompts or answers."""
    told = max(kinds.tokens) if kinds else 0.0
    return math.ceil(max(told, mean if kinds else mean * (1 + SPREAD * math.sqrt(cv2))))


def _role(
    manifest: Manifest,
    profile: EngineProfile,
    pool: Pool,
    setup: Setup,
    name: str,
    drafts: int,
    lengths: tuple[int, int],
) -> RolePlan:
    hardware = manifest.clusters[pool.hardware].spec
    devices = setup.strategy.devices
    nodes = -(-devices // setup.devices_per_node)
    accelerator = accelerator_of(hardware)
    assert accelerator is not None, "broken_accelerator lets no unknown device pass"
    per_rank = setup.strategy.attention_tp * setup.strategy.pp
    decodes = pool.role == "decode"
    own_drafts = setup.drafts if pool.role != "prefill" else profile.drafting.in_prefill(drafts)
    sequences, workload = pool.limits.requests_per_dp_rank, manifest.workload
    if profile.engine == "vllm-ascend" and pool.role == "prefill":
        prompts = math.ceil(pool.limits.tokens_per_device * per_rank / workload.input_tokens)
        sequences = int(smaller(sequences, prefill_prompts(prompts)))
    part = pool.limits.tokens_per_device * setup.strategy.attention_tp  # each pipeline stage has a part of a step
    if pool.role == "prefill":  # plans count whole prompts, engines what they compute of them
        part = math.ceil(part * (1 - workload.prefix_reuse))
    tokens = sequences * (1 + own_drafts) if decodes else part
    tokens = aligned(tokens) if decodes and profile.engine == "vllm" else tokens
    return RolePlan(
        name=name,
        role=pool.role,
        cluster=pool.hardware,
        model=manifest.model.spec,
        hardware=hardware,
        accelerator=accelerator,
        setup=setup,
        mode=expert_mode(profile, setup),
        instances=tuple(pool.instances),
        nodes=nodes,
        devices_per_node=devices // nodes,
        drafts=own_drafts,
        sequences=sequences,
        tokens=tokens,
        longest=lengths[0],
        longest_prompt=lengths[1],
        held=manifest.requests_held(pool),
        memory=_memory(manifest, pool, own_drafts),
        longest_cache_bytes=float(pool.kv.bytes_per_token_per_device * pool.kv.charged(lengths[0])),
        prefix_caching=manifest.workload.prefix_reuse > 0,
        mixes=pool.role == "mixed" and manifest.routing.chunks != "prefill_first",
        expert_map=pool.expert_map,
        encodes=manifest.workload.picture_tokens > 0,
        embedded=manifest.embedding_transfer is not None and pool.role != "decode",
        eager=pool.role in ("decode", "mixed") and all(cost.launch_seconds > 0 for cost in pool.step_costs.values()),
        skew=_skew(manifest, pool) if devices < setup.devices_per_node else 0,
    )


def _skew(manifest: Manifest, pool: Pool) -> int:
    """Return the most instances that a node of the manifest has more than another; 1 where all have about as many."""
    if manifest.made_by.question.get("survive") != "node":
        return 0
    stands = Counter(node for instance in pool.instances for node in instance.nodes)
    return 1 if len(stands) == manifest.clusters[pool.hardware].nodes else max(stands.values())


def aligned(tokens: int) -> int:
    """Return as many tokens or a few more, of which DeepEP's low-latency buffer has whole fours."""
    return -(-tokens // ALIGNED_TOKENS) * ALIGNED_TOKENS


def _memory(manifest: Manifest, pool: Pool, drafts: int) -> MemoryBytes:
    """Return a pool's memory, with the draft layer that engines load in prefill beside decode that drafts.

    Plans for the engine count it (``mtp.loaded``); for others it is taken for as large as the layers are on average.
    """
    memory, model = pool.memory_bytes_per_device, manifest.model.spec
    if drafts <= max(pool.mtp.drafts, pool.mtp.loaded):
        return memory
    return memory.model_copy(update={"weights": memory.weights * (1 + model.mtp_layers / model.layers)})
