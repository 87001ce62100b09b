"""The manifest's pool of prefixes as a cache that a run or a trace goes through."""

from ground.prefix_cache import PrefixCache
from planner.manifest.schema import Manifest


def cache_of(manifest: Manifest, block_tokens: int) -> PrefixCache:
    """Return the manifest's cache, empty; without a limit where it has no pool, or requests no blocks."""
    pool = manifest.caching
    if pool is None or not block_tokens:
        return PrefixCache(block_tokens)
    bytes_per_token = kv_bytes_per_token(manifest)
    return PrefixCache.of_bytes(block_tokens, bytes_per_token, pool.capacity_bytes, pool.ssd_capacity_bytes)


def kv_bytes_per_token(manifest: Manifest) -> float:
    """Return the KV of a token over all layers: as it crosses to decode, else that on all devices of a DP rank."""
    if manifest.kv_transfer is not None:
        return manifest.kv_transfer.bytes_per_token
    pool = manifest.pools[0]
    return pool.kv.bytes_per_token_per_device * pool.degrees.attention_tp * pool.degrees.pp
