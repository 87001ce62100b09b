"""What reused prefixes cost: their cache comes from a pool over a plane before a pass can attend to it.

CloudMatrix384 section 4.4: pooled memory of all hosts over the unified bus, without it the same
reads cross the datacentre network (VPC). The paper's prefill gains up to 1.52 times from the bus.
"""

from ground.errors import BadInput
from ground.names import suggest
from ground.prefix_cache import POOL_BLOCK_TOKENS
from hardware.spec import HardwareSpec, Plane
from planner.costs.deployment import Deployment
from planner.costs.memory import kv_bytes_per_token, kv_bytes_per_token_of_model
from planner.manifest.loading import slowest_plane
from planner.manifest.terms import Number

POOL_BYTES = 1e12
"""The pool that an answer states how many prefixes it holds of: a round figure, not a machine's."""


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
    return kv_bytes_per_token(deployment) * each + reads * plane.latency_seconds.value


def prefixes_held(deployment: Deployment, prefix_tokens: float) -> float:
    """Return how many prefixes of ``prefix_tokens`` a pool of ``POOL_BYTES`` holds, each layer once."""
    return POOL_BYTES / (prefix_tokens * kv_bytes_per_token_of_model(deployment))
