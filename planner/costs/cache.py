"""What requests keep on a device and what crosses from prefill to decode: KV, windows, index keys, recurrent state.

Reused prefixes come from a pool over a plane before a pass can attend to them. CloudMatrix384 section 4.4: pooled
memory of all hosts over the unified bus, without it the same reads cross the datacentre network (VPC). The paper's
prefill gains up to 1.52 times from the bus.
"""

from typing import NamedTuple

import numpy as np

from ground.errors import BadInput, suggest
from ground.prefix_cache import POOL_BLOCK_TOKENS
from hardware.formats import ELEMENT_BYTES
from hardware.spec import HardwareSpec, Plane
from models.spec import GQA, MLA, Compression
from planner.costs.deployment import Deployment
from planner.engines.loader import accelerator_of, is_blackwell
from planner.manifest.curves import charged_tokens
from planner.manifest.loading import slowest_plane
from planner.manifest.terms import Number

# The indexer's keys are FP8 whatever the KV type, with one FP32 scale per key (DeepSeek-V3.2 report, section 2.1;
# the FlashMLA and DeepGEMM kernels take no other form).
INDEX_SCALE_BYTES = 4.0
POOL_BYTES = 1e12  # the pool that an answer states how many prefixes it holds of: a round figure, not a machine's


class Cache(NamedTuple):
    """Cached bytes as a function of tokens and requests; numbers, or arrays over strategies.

    ``token_bytes`` counts every layer with a KV cache, ``reach_share`` the part of it in layers that keep only the
    last ``reach_tokens`` of a request; ``sequence_bytes`` is recurrent state, the same however long the request is.
    """

    token_bytes: Number
    reach_tokens: int = 0
    reach_share: Number = 0.0
    sequence_bytes: Number = 0.0

    @property
    def sequence_tokens(self) -> Number:
        """Recurrent state of a request in tokens' worth of bytes."""
        return self.sequence_bytes / self.token_bytes

    def bytes(self, tokens: Number, sequences: Number) -> Number:
        """Bytes of ``sequences`` requests that hold ``tokens`` tokens in all."""
        return self.charged(tokens, sequences) * self.token_bytes

    def charged(self, tokens: Number, sequences: Number) -> Number:
        """Tokens' worth of cache, ``planner.manifest.curves.charged_tokens``."""
        return charged_tokens(
            tokens,
            sequences,
            reach=self.reach_tokens,
            reach_share=self.reach_share,
            sequence_tokens=self.sequence_tokens if np.any(self.sequence_bytes) else 0.0,
        )


def device_cache(deployment: Deployment) -> Cache:
    """Cache of one device: layers of its stage, and MTP's draft layers (full attention) where they are loaded.

    Latents and index keys are whole on every TP device; KV heads and recurrent heads are split, and KV heads
    repeated beyond their number.
    """
    strategy = deployment.strategy
    drafts, states = deployment.held_draft_layers, deployment.recurrent_states
    return _cache(deployment, strategy.attention_tp, strategy.pp, drafts, states)


def model_cache(deployment: Deployment) -> Cache:
    """Cache of the whole model, each layer once: what crosses from prefill to decode, or from encode to prefill."""
    return _cache(deployment, 1, 1, 0, 1)


def _cache(deployment: Deployment, tp: Number, stages: Number, drafts: Number, states: Number) -> Cache:
    if deployment.encodes_alone:  # embeddings in BF16
        return Cache(token_bytes=2.0 * deployment.model.hidden_size + np.zeros_like(tp))
    model, linear, attention = deployment.model, deployment.model.linear_attention, deployment.model.attention
    state: Number = 0.0
    if linear is not None:
        state = states * np.ceil(linear.layers / stages) * (linear.recurrent_bytes + linear.convolution_bytes) / tp
    if isinstance(attention, MLA) and attention.compression is not None:
        state = pending_bytes(deployment, attention, attention.compression) / stages
    return Cache(
        token_bytes=(np.ceil(model.kv_layers / stages) + drafts) * layer_token_bytes(deployment, tp),
        reach_tokens=model.reach_tokens if model.windowed_layers else 0,
        reach_share=model.windowed_layers / (model.kv_layers + drafts),
        sequence_bytes=state,
    )


def layer_token_bytes(deployment: Deployment, tp: Number) -> Number:
    """Cached bytes of one token in one layer on one of ``tp`` devices."""
    attention = deployment.model.attention
    if isinstance(attention, MLA):
        index = attention.indexer.head_dim + INDEX_SCALE_BYTES if attention.indexer else 0.0
        index /= attention.compression.fine_tokens if attention.compression else 1
        keys = latent_bytes(deployment, attention) * deployment.model.keys_per_token
        return keys + index * deployment.model.index_share
    return gqa_cached_elements(attention, tp) * ELEMENT_BYTES[deployment.kv_dtype]


def latent_bytes(deployment: Deployment, mla: MLA) -> float:
    """Cached bytes of one latent with its rotary key.

    In FP8 the rotary key of sparse attention stays BF16, and scales stand beside the latent: FP32 for each 128 elements
    (FlashMLA's README: 656 bytes), of DeepSeek-V4 a byte for each 64, in whole eights (vllm/models/deepseek_v4 of vLLM:
    584). Kernels of Blackwell, and engines that do not say ``fp8_in_parts``, take one scale for all.
    """
    element, rank = ELEMENT_BYTES[deployment.kv_dtype], float(mla.kv_lora_rank)
    if deployment.kv_dtype != "fp8" or mla.indexer is None or not _in_parts(deployment):
        return mla.kv_elements_per_token * element
    scales = np.ceil(rank / 64 / 8) * 8 if mla.compression else rank / 128 * 4
    return rank * element + mla.qk_rope_head_dim * ELEMENT_BYTES["bf16"] + float(scales)


def _in_parts(deployment: Deployment) -> bool:
    profile, hardware = deployment.profile, deployment.hardware
    stated = profile is None or profile.cache.fp8_in_parts is not None
    return stated and accelerator_of(hardware) != "ascend" and not is_blackwell(hardware)


def pending_bytes(deployment: Deployment, mla: MLA, blocks: Compression) -> float:
    """Bytes of a request in all layers, however long it is: its window, and keys and gates of blocks not yet made.

    Those are FP32, of two blocks where blocks overlap (DeepSeek-V4's inference code).
    """
    fine, key = float(mla.indexer.layers or 0) if mla.indexer else 0.0, float(mla.kv_elements_per_token)
    pending = fine * 2 * blocks.fine_tokens + blocks.coarse_layers * blocks.coarse_tokens
    window = deployment.model.layers * blocks.window * latent_bytes(deployment, mla)
    return window + key * pending * 2 * 4.0


def gqa_cached_elements(gqa: GQA, tp: Number) -> Number:
    """Cached elements of one token, layer and device: KV heads are split, and repeated beyond their number."""
    width = gqa.head_dim + gqa.value_dim
    return width * np.maximum(gqa.kv_heads / tp, 1.0)


def find_plane(hardware: HardwareSpec, name: str, flag: str = "--cache-plane") -> Plane:
    """Return the plane of that name; BadInput with those that there are."""
    known = [plane.name for plane in hardware.planes]
    word = name.strip().lower()
    if word not in known:
        raise BadInput(
            f"{flag}: {hardware.name} has no plane {name[:40]!r}; use {' or '.join(known)}{suggest(word, known)}"
        )
    return hardware.plane(word)


def pool_rate(hardware: HardwareSpec, plane: Plane) -> float:
    """Return the bytes per second that each device reads off pooled host memory while all read.

    The plane's own rate, at most a device's share of what its node's processors give (they stand for those of other
    nodes: blocks are spread evenly).
    """
    rate = plane.reached_bytes_per_second
    host = hardware.host.memory_bytes_per_second
    return min(rate, host.value) if host else rate


def ssd_rate(hardware: HardwareSpec, plane: Plane) -> float:
    """Return the same off the SSD behind the pool, which stands on the slowest plane (CloudMatrix384: on VPC)."""
    return min(slowest_plane(hardware)[1], pool_rate(hardware, plane))


def loading_seconds(deployment: Deployment) -> Number:
    """Return seconds per token of a DP group's reused prefixes until it is in every device's memory; 0 without a pool.

    bytes / rate + layers · latency / block: blocks of a layer are read one after the other, each device what it holds,
    MLA's latents in full. Nothing of it is hidden: the first layer waits for its prefix, and a pool that streams
    layer by layer would be faster.
    """
    if deployment.prefix_plane is None or deployment.phase != "prefill":
        return 0.0
    plane, share = deployment.hardware.plane(deployment.prefix_plane), deployment.prefix_ssd_share
    reads = deployment.model.kv_layers / (deployment.strategy.pp * POOL_BLOCK_TOKENS)
    each = (1 - share) / pool_rate(deployment.hardware, plane) + share / ssd_rate(deployment.hardware, plane)
    return device_cache(deployment).token_bytes * each + reads * plane.latency_seconds.value


def prefixes_held(deployment: Deployment, prefix_tokens: float) -> float:
    """Return how many prefixes of ``prefix_tokens`` a pool of ``POOL_BYTES`` holds, each layer once."""
    return POOL_BYTES / (prefix_tokens * float(model_cache(deployment).token_bytes))
