"""`--cache`: the pool that prefixes are kept in, and what a trace finds there."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ground.errors import BadInput
from ground.prefix_cache import PrefixCache
from ground.units import parse_size
from hardware.formats import KvDtype
from models.spec import ModelSpec
from planner.costs.deployment import Deployment
from planner.costs.memory import kv_bytes_per_token_of_model
from planner.costs.prefixes import find_plane
from planner.question import Machines, PrefixPool
from planner.strategy import Strategy

if TYPE_CHECKING:
    from ground.traces import Trace


def read_prefix_pool(text: str | None, machines: Machines) -> PrefixPool | None:
    """Return the pool of ``ub=8TB`` or ``ub=8TB,ssd=100TB``; BadInput naming the flag."""
    if text is None:
        return None
    first, *others = (part.strip() for part in text.split(","))
    name, given, size = first.partition("=")
    if not given or len(others) > 1 or any(not each.startswith("ssd=") for each in others):
        raise BadInput(f"--cache: {text[:40]!r} is not PLANE=SIZE, such as ub=8TB or ub=8TB,ssd=100TB")
    return PrefixPool(
        plane=find_plane(machines.hardware, name, "--cache").name,
        capacity_bytes=parse_size(size, "--cache"),
        ssd_bytes=parse_size(others[0].removeprefix("ssd="), "--cache") if others else 0.0,
    )


@dataclass(slots=True)
class AskedPool:
    """The pool that was asked for of a model's prefill, and the cache of its size that the trace went through."""

    model: ModelSpec
    machines: Machines
    kv_dtype: KvDtype
    pool: PrefixPool | None
    cache: PrefixCache | None = None

    @property
    def token_bytes(self) -> float:
        """Bytes of a token in the pool: every layer once."""
        return kv_bytes_per_token_of_model(
            Deployment(
                model=self.model,
                hardware=self.machines.hardware,
                strategy=Strategy(),
                phase="prefill",
                weights=self.machines.weights,
                kv_dtype=self.kv_dtype,
            )
        )

    def with_hits(self, trace: "Trace") -> "Trace":
        """Return the trace with what each prompt finds in the pool."""
        if self.pool is None or trace.hash_ids is None:
            return trace
        size, ssd = self.pool.capacity_bytes, self.pool.ssd_bytes
        self.cache = PrefixCache.of_bytes(trace.block_tokens, self.token_bytes, size, ssd)
        return with_hits(trace, self.cache)

    @property
    def measured(self) -> PrefixPool | None:
        """The pool with the share of hits that comes from SSD."""
        if self.pool is None or self.cache is None:
            return self.pool
        return replace(self.pool, ssd_share=self.cache.ssd_hit_tokens / max(self.cache.hit_tokens, 1))


def with_hits(trace: "Trace", cache: PrefixCache) -> "Trace":
    """Return the trace with what each prompt finds in a cache that all of them go through in turn."""
    from ground.traces import reused_tokens  # readers of many formats, for a trace alone

    return replace(trace, reused_tokens=reused_tokens(trace, cache)) if trace.hash_ids else trace
