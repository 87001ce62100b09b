"""Small manifests to change between, on no more nodes than they need."""

from typing import Any

from planner.manifest.schema import Manifest, PoolPrediction
from tests.manifests import manifest

INSTANCE_PER_SECOND = 10.0
"""What an instance of either role is said to carry."""


def tight(prefill: int, decode: int, nodes: int | None = None, **changes: Any) -> Manifest:
    """Return a manifest of instances of a node each, in a cluster of so many nodes, none spare by default."""
    made = manifest(prefill=prefill, decode=decode, workload={"requests_per_second": 20.0}, **changes)
    stated = PoolPrediction(
        iteration_seconds=0.01,
        tokens_per_second_per_device=1.0,
        tokens_per_second_per_chip=1.0,
        requests_per_second=INSTANCE_PER_SECOND,
    )
    made = made.model_copy(update={"pools": [each.model_copy(update={"predicted": stated}) for each in made.pools]})
    cluster = made.clusters["toy"].model_copy(update={"nodes": nodes or prefill + decode})
    return made.model_copy(update={"clusters": {"toy": cluster}})
