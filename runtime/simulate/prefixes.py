"""What prompts of one instance find of their heads, what it takes to load that, and what to compute it anew."""

from functools import cached_property

from ground.prefix_cache import CacheHit, PrefixCache
from planner.manifest.schema import Pool
from runtime.simulate.device import Shared
from runtime.simulate.request import Request
from runtime.simulate.steps import StepTimer


class Prefixes:
    """Of one prefill or mixed instance.

    With ``routing.prefixes: instance`` blocks stand in as much of the instance's KV memory as there is, least recently
    used first out; all its DP ranks are taken to reach them. A pool, if the manifest has one, stands behind (xLLM
    section 3.4).
    """

    def __init__(self, shared: Shared, pool: Pool) -> None:
        self._shared = shared
        self._kept = shared.manifest.routing.prefixes == "instance"
        self._common = not self._kept or shared.manifest.caching is not None
        self._tokens = pool.kv.capacity_tokens_per_rank * pool.degrees.attention_groups

    @cached_property
    def _own(self) -> PrefixCache | None:
        """The instance's own blocks, of the size that the trace's have; None where one cache serves all."""
        block = self._shared.cache.block_tokens
        return PrefixCache(block, self._tokens // block) if self._kept else None

    def look_up(self, request: Request) -> CacheHit:
        """Return what is found, the instance's own first; blocks that are found count as used."""
        blocks, prompt = request.blocks or (), request.prompt
        found = self._shared.cache.look_up(blocks, prompt) if self._common else CacheHit()
        if self._own is None:
            return found
        local = self._own.look_up(blocks, prompt).tokens
        rest = max(found.tokens - local, 0)
        ssd = min(found.ssd_tokens, rest)
        return CacheHit(rest - ssd, ssd, local)

    def insert(self, request: Request) -> None:
        """Keep the blocks of a prompt that is computed."""
        if request.blocks is None:
            return
        if self._common:
            self._shared.cache.insert(request.blocks)
        if self._own is not None:
            self._own.insert(request.blocks)

    def here(self, request: Request) -> int:
        """Return the tokens of a prompt's head that stand in the instance's own memory."""
        return 0 if self._own is None or request.blocks is None else self._own.held_tokens(request.blocks)


class Loading(Prefixes):
    """Of one prefill instance, with the time that they take; none without a pool."""

    def __init__(self, shared: Shared, pool: Pool, timer: StepTimer, budget: int) -> None:
        super().__init__(shared, pool)
        caching = shared.manifest.caching
        self._timer, self._budget = timer, budget
        self._dram = self._ssd = 0.0
        if caching is not None:
            dram, size = caching.bandwidth_bytes_per_second, pool.kv.bytes_per_token_per_device
            self._dram, self._ssd = size / dram, size / (caching.ssd_bandwidth_bytes_per_second or dram)
        self._known: dict[int, float] = {}

    def seconds(self, found: CacheHit) -> float:
        """Return how long every device of a DP rank reads what was found, one tier after the other."""
        return found.dram_tokens * self._dram + found.ssd_tokens * self._ssd

    def find(self, request: Request) -> tuple[CacheHit | None, int]:
        """Find the head of the prompt in the cache, but what is computed sooner than loaded; stated reuse stands.

        Returns where passes begin, too: behind the last whole one that is reused.
        """
        if request.blocks is not None and not request.retries:
            found = self.look_up(request)
        elif request.reused:
            found = CacheHit(dram_tokens=request.reused)
        else:
            return None, 0
        if self.seconds(found) > self._compute_seconds(found.dram_tokens + found.ssd_tokens):
            found = CacheHit(local_tokens=found.local_tokens)
        request.reused = found.tokens
        return found, found.tokens // self._budget * self._budget

    def _compute_seconds(self, tokens: int) -> float:
        """Return the seconds of full passes for the first tokens of a prompt; 0 where nothing is loaded."""
        if not self._dram or not tokens:
            return 0.0
        if tokens not in self._known:
            self._known[tokens] = self._timer.computing_seconds(self._budget, tokens)
        return self._known[tokens]
