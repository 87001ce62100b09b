"""Bytes per device by kind, what fits, and the largest batch that fits.

Beyond MixServe Eq. (8), which counts elements and multi-head KV: dtypes, the latent cache of MLA
(replicated over TP), GQA's KV heads (split over TP), windows and recurrent state, vocabulary and MTP
weights, activations, exchange buffers and the runtime's reserve.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ground.identity import Kept, Same
from hardware.formats import ELEMENT_BYTES
from models.spec import MLA
from planner.costs.attention_operators import attention_weight_bytes
from planner.costs.cache import device_cache
from planner.costs.deployment import Deployment, shared_split
from planner.costs.roofline import exchange_fit, message_bytes
from planner.engines.loader import accelerator_of, on_pcie
from planner.engines.memory import Holding, kept_bytes, most_carried, prefill_prompts
from planner.engines.spec import EngineProfile
from planner.manifest.terms import Number

BLOCK_TOKENS = 128  # KV is paged in blocks of so many tokens (CloudMatrix384 section 4.4.2)

# Normal exchange kernels move a pass in chunks through buffers of this size, dispatch and combine
# together: the size that DeepEP's get_dispatch_config/get_combine_config hints give for 8-64 ranks
# at hidden 7168 is 1-2 GB. Assumed, not measured per machine.
NORMAL_EXCHANGE_BUFFER_BYTES = 2_000_000_000.0
_WEIGHTS = Kept[Number](most=4)


class Memory(NamedTuple):
    """Bytes per device; fields are numbers or arrays of one broadcast shape."""

    weights: Number
    kv_cache: Number
    activations: Number
    buffers: Number
    reserve: float
    capacity: float

    @property
    def used(self) -> Number:
        """Sum over kinds."""
        return self.weights + self.kv_cache + self.activations + self.buffers + self.reserve

    @property
    def fits(self) -> bool | np.ndarray:
        """Whether the sum stays within the capacity."""
        return self.used <= self.capacity


def memory(deployment: Deployment, *, kv_tokens: Number, sequences: Number, tokens: Number) -> Memory:
    """Return bytes per device of an instance.

    Args: ``kv_tokens`` cached tokens of one DP group and the ``sequences`` that hold them; ``tokens`` tokens of one
    DP group that are in flight, all microbatches together. Numbers or arrays; so are the results.
    """
    device = deployment.hardware.device
    weights, activations = weight_bytes(deployment), activation_bytes(deployment, tokens)
    reserve, capacity = device.reserve_bytes.value, device.memory_bytes.value
    if (profile := deployment.profile) is None:
        buffers = buffer_bytes(deployment, tokens)
    else:
        held = _holding(deployment, profile, sequences, tokens)
        buffers = kept_bytes(
            profile, held, weights=weights, activations=activations, reserve=reserve, capacity=capacity
        )
    return Memory(
        weights=weights,
        kv_cache=device_cache(deployment).bytes(kv_tokens, sequences),
        activations=activations,
        buffers=buffers,
        reserve=reserve,
        capacity=capacity,
    )


def _holding(deployment: Deployment, profile: EngineProfile, sequences: Number, tokens: Number) -> Holding:
    """Return an instance as the engines' rules of memory read it: those of deployment files."""
    strategy, moe, model = deployment.strategy, deployment.model.moe, deployment.model
    accelerator, pcie = accelerator_of(deployment.hardware), on_pcie(deployment.hardware)
    spread = moe is not None and any(
        mode.exchange == "all_to_all" and mode.serves(deployment.phase, model.architecture, accelerator, pcie)
        for mode in profile.parallelism.experts
    )
    whole = np.equal(strategy.moe_tp, 1) & np.greater(strategy.moe_ep, 1)
    apart = accelerator == "ascend" or np.greater(strategy.attention_dp, 1)
    prompts = profile.engine == "vllm-ascend" and deployment.phase == "prefill"
    return Holding(
        engine=profile.engine,
        role=deployment.phase,
        accelerator=accelerator,
        exchanges=spread and whole & apart,
        hidden=model.hidden_size,
        experts_per_token=moe.experts_per_token if moe else 0,
        latent=isinstance(model.attention, MLA),
        slots=moe.experts + deployment.redundant if moe else 0,
        attention_tp=strategy.attention_tp,
        attention_dp=strategy.attention_dp,
        moe_ep=strategy.moe_ep,
        devices=strategy.devices,
        nodes=np.greater(strategy.devices, deployment.hardware.devices_per_node.value),
        sequences=prefill_prompts(sequences / 2) if prompts else sequences,
        window=deployment.queries,
        tokens=tokens * strategy.pp,
    )


def carried_requests(deployment: Deployment) -> Number:
    """Return the most requests of a DP rank that the engine's exchange of experts carries, infinite without a bound."""
    profile = deployment.profile
    return np.inf if profile is None else most_carried(_holding(deployment, profile, 1.0, 1.0))


def expert_device_memory(deployment: Deployment, tokens: Number) -> Memory | None:
    """Return bytes per expert device of a disaggregated instance, None for others; ``tokens`` as for ``memory``.

    Expert slots of all MoE layers (and the draft's), rows of the mean rank, and buffers for the
    exchange with all domains; no KV, no tables.
    """
    strategy = deployment.strategy
    if not strategy.disaggregated:
        return None
    device, model = deployment.hardware.device, deployment.model
    layers = model.moe_layers + deployment.draft_layers
    return Memory(
        weights=layers * slot_weight_bytes(deployment),
        kv_cache=0.0,
        activations=expert_row_bytes(deployment, tokens),
        buffers=pushed_bytes(deployment, tokens * strategy.attention_dp / deployment.trampolines),
        reserve=device.reserve_bytes.value,
        capacity=device.memory_bytes.value,
    )


def weight_bytes(deployment: Deployment) -> Number:
    """Bytes of weights on the fullest device; searches for the largest batch ask for the same ones again and again."""
    return _WEIGHTS.of(Same(deployment), lambda: _weight_bytes(deployment))


def _weight_bytes(deployment: Deployment) -> Number:
    """Bytes of weights on the fullest device.

    Per layer attention (TP), dense feed-forward (TP) or gate, shared expert and the rank's slots
    (MoE TP); embedding and head split over TP, replicated over DP.
    """
    if deployment.encodes_alone:
        return tower_weight_bytes(deployment)
    model, strategy = deployment.model, deployment.strategy
    attention = attention_weight_bytes(deployment)
    dense_layer = attention + dense_weight_bytes(deployment)
    moe_layer = attention + moe_weight_bytes(deployment)
    # The first stages take the layers that do not divide, and the dense layers lead.
    stage = np.ceil(model.layers / strategy.pp)
    dense, moe = np.minimum(model.dense_layers, stage), np.minimum(model.moe_layers, stage)
    first = dense * dense_layer + (stage - dense) * moe_layer
    layers = np.maximum(first, moe * moe_layer + (stage - moe) * dense_layer)
    if model.interleaved:
        spread = np.ceil(model.moe_layers / strategy.pp)
        layers = spread * moe_layer + (stage - spread) * dense_layer
    table = model.vocab_size * model.hidden_size * 2.0 / strategy.attention_tp
    tables = table * np.where(np.asarray(strategy.pp) > 1, 1, 1 if model.tied_embeddings else 2)
    tables += table * (model.beside_vocabulary / model.hidden_size)
    draft_layer = moe_layer if model.moe_layers and not model.dense_drafts else dense_layer
    projection = 2.0 * model.hidden_size**2 * ELEMENT_BYTES[deployment.attention_weights]
    return layers + tables + deployment.held_draft_layers * (draft_layer + projection) + tower_weight_bytes(deployment)


def tower_weight_bytes(deployment: Deployment) -> float:
    """Bytes of an encoder of pictures and its projector on every device of either role: engines load all weights."""
    if deployment.seen is None:
        return 0.0
    tower = deployment.seen.pictures.tower
    merged = tower.merge**2 * tower.hidden_size
    return 2.0 * (tower.parameters + merged * (merged + deployment.model.hidden_size))


def encoding_bytes(deployment: Deployment, tokens: Number) -> Number:
    """Live activations of the encoder for prompts of ``tokens`` tokens: residual stream, attention, feed-forward."""
    if deployment.seen is None or deployment.phase == "decode" or deployment.seen.encoding == "apart":
        return 0.0
    tower = deployment.seen.pictures.tower
    patches = tokens * deployment.seen.patches_per_token / deployment.strategy.attention_tp
    return patches * 2.0 * (6 * tower.hidden_size + 2 * tower.intermediate_size)


def dense_weight_bytes(deployment: Deployment) -> Number:
    """Bytes of one dense feed-forward on one device."""
    split = 1 if deployment.strategy.staged else deployment.strategy.attention_tp
    width = (deployment.model.dense_intermediate_size or 0) / split
    return 3.0 * deployment.model.hidden_size * width * ELEMENT_BYTES[deployment.feed_forward_weights]


def moe_weight_bytes(deployment: Deployment) -> Number:
    """Bytes of one layer's gate and experts on the fullest device; disaggregated, on an attention device."""
    if deployment.model.moe is None:
        return 0.0
    gate = deployment.model.hidden_size * deployment.moe.experts * 2.0
    shared = shared_weight_bytes(deployment)
    if deployment.strategy.disaggregated:
        return gate + (0.0 if deployment.dedicated else shared)
    slots = slot_weight_bytes(deployment)
    return gate + (slots if deployment.dedicated else slots + shared)


def slot_weight_bytes(deployment: Deployment) -> Number:
    """Bytes of one layer's expert slots on the fullest expert device; a dedicated rank holds the shared expert."""
    moe, hidden, element = deployment.moe, deployment.model.hidden_size, ELEMENT_BYTES[deployment.weights]
    slots = deployment.slots_per_rank * 3.0 * hidden * moe.intermediate_size / deployment.strategy.moe_tp * element
    return np.maximum(slots, shared_weight_bytes(deployment)) if deployment.dedicated else slots


def shared_weight_bytes(deployment: Deployment) -> Number:
    """Bytes of one layer's shared expert on one device that holds it."""
    width = deployment.moe.shared_intermediate_size / shared_split(deployment)
    return 3.0 * deployment.model.hidden_size * width * ELEMENT_BYTES[deployment.feed_forward_weights]


def activation_bytes(deployment: Deployment, tokens: Number) -> Number:
    """Largest set of live activations: residual stream, attention inputs and outputs, expert rows, logits."""
    if deployment.encodes_alone:
        return encoding_bytes(deployment, tokens)
    model, strategy = deployment.model, deployment.strategy
    attention, latents = model.attention, 0
    if isinstance(attention, MLA):
        latents = attention.kv_elements_per_token + (attention.q_lora_rank or model.hidden_size)
        query = attention.qk_nope_head_dim + attention.qk_rope_head_dim
        width = attention.heads * (2 * query + attention.v_head_dim)
    else:
        width = (attention.heads + attention.kv_heads) * (attention.head_dim + attention.value_dim)
    if (linear := model.linear_attention) is not None:
        width = max(width, 2 * linear.key_width + 3 * linear.value_width)
    # Staged, a device holds its share of the tokens, and all tokens' latents with its share of the heads.
    own = tokens / strategy.attention_tp if strategy.staged else tokens
    gathered = latents if strategy.staged else 0
    live = (
        encoding_bytes(deployment, tokens)
        + own * 4 * model.hidden_size * 2.0
        + tokens * (gathered + width / strategy.attention_tp) * 2.0
    )
    logits = (tokens if deployment.phase == "decode" else 0.0) * model.vocab_size / strategy.attention_tp * 4.0
    if model.moe is None or strategy.disaggregated:
        widest = tokens * 3.0 * (model.dense_intermediate_size or 0) / strategy.attention_tp * 2.0
        return live + np.maximum(widest, logits)
    return live + np.maximum(expert_row_bytes(deployment, tokens), logits)


def expert_row_bytes(deployment: Deployment, tokens: Number) -> Number:
    """Live activations of the mean rank's experts for ``tokens`` tokens of each DP group."""
    moe, strategy = deployment.moe, deployment.strategy
    copies = tokens * strategy.attention_dp * moe.experts_per_token / strategy.moe_ep
    return copies * (3.0 * deployment.model.hidden_size + 3 * 2.0 * moe.intermediate_size / strategy.moe_tp)


def buffer_bytes(deployment: Deployment, tokens: Number) -> Number:
    """Exchange buffers. Low latency: ranks · max_tokens · message for dispatch and for combine.

    CloudMatrix384 Eq. (1)-(2), max_tokens = local tokens · min(k, experts per device). Normal
    kernels move chunks through fixed buffers.
    """
    strategy = deployment.strategy
    if deployment.model.moe is None or not deployment.expert_parallel or deployment.replicated_tokens:
        return 0.0
    local = tokens / strategy.attention_tp
    if strategy.disaggregated:
        return local * round_trip_bytes(deployment)
    pushed = pushed_bytes(deployment, local)
    return pushed if deployment.phase == "decode" else np.minimum(pushed, NORMAL_EXCHANGE_BUFFER_BYTES)


def round_trip_bytes(deployment: Deployment) -> float:
    """Bytes of one token's dispatch and combine message."""
    fits = [exchange_fit(deployment.hardware, way, "low_latency") for way in ("dispatch", "combine")]
    return sum(message_bytes(fit, deployment.model.hidden_size, deployment.expert_activations) for fit in fits)


def pushed_bytes(deployment: Deployment, local: Number) -> Number:
    """Buffers that peers push into, for ``local`` tokens on each rank."""
    reach = np.minimum(float(deployment.moe.experts_per_token), np.ceil(deployment.slots_per_rank))
    pushed: Number = deployment.strategy.moe_ep * local * reach * round_trip_bytes(deployment)
    return pushed


def kv_capacity_tokens(deployment: Deployment, memory: Memory) -> int:
    """Cached tokens of one DP group, within all windows, that fit beside everything else, in whole blocks."""
    room = memory.capacity - float(memory.used) + float(memory.kv_cache)
    tokens = int(room / float(device_cache(deployment).token_bytes))
    return max(tokens // BLOCK_TOKENS, 1) * BLOCK_TOKENS


def granted_tokens(deployment: Deployment, tokens: Number) -> NDArray[np.float64]:
    """KV tokens that requests of so many tokens take of a DP group, within all windows and in whole blocks."""
    charged = np.asarray(device_cache(deployment).charged(tokens, 1.0))
    return np.asarray(np.ceil(charged / BLOCK_TOKENS) * BLOCK_TOKENS, dtype=np.float64)
