"""What reused prefixes cost: their cache comes from a pool over a plane before a pass can attend to it.

CloudMatrix384 section 4.4: pooled memory of all hosts over the unified bus, without it the same
reads cross the datacentre network (VPC). The paper's prefill gains up to 1.52 times from the bus.
"""

from ground.errors import BadInput
from ground.names import suggest
from hardware.spec import HardwareSpec, Plane
from planner.costs.breakdown import Operator
from planner.costs.deployment import Deployment
from planner.costs.memory import kv_bytes_per_token, kv_bytes_per_token_of_model

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


def loading_seconds(deployment: Deployment, plane: Plane, tokens: float) -> float:
    """Return seconds until ``tokens`` of a DP group's reused prefixes are in every device's memory.

    latency + bytes of one device / (bandwidth · efficiency); each device of a TP group loads what it
    holds, MLA's latents in full. Nothing of it is hidden: the first layer waits for its prefix, and
    a pool that streams layer by layer would be faster.
    """
    moved = tokens * float(kv_bytes_per_token(deployment))
    rate = plane.bandwidth_bytes_per_second.value * plane.efficiency.value
    return plane.latency_seconds.value + moved / rate if tokens else 0.0


def loading_operator(deployment: Deployment, plane: Plane, tokens: float, passes: int) -> Operator:
    """Return the load as an operator of the mean of ``passes`` passes, the first of which waits for it."""
    seconds = loading_seconds(deployment, plane, tokens) / passes
    moved = tokens * float(kv_bytes_per_token(deployment)) / passes
    return Operator("prefix_load", plane.name, 1, seconds, seconds, 0.0, 0.0, moved, "network", 0.0)


def prefixes_held(deployment: Deployment, prefix_tokens: float) -> float:
    """Return how many prefixes of ``prefix_tokens`` a pool of ``POOL_BYTES`` holds, each layer once."""
    return POOL_BYTES / (prefix_tokens * kv_bytes_per_token_of_model(deployment))
