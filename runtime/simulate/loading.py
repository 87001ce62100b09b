"""What cached prefixes take to come from their pool, and to be computed anew."""

from ground.prefix_cache import Found
from planner.manifest.schema import Pool
from runtime.simulate.device import Shared
from runtime.simulate.prefixes import Prefixes
from runtime.simulate.request import Request
from runtime.simulate.steps import StepTimer


class Loading:
    """Of one prefill instance; without a pool prefixes take no time."""

    def __init__(self, shared: Shared, pool: Pool, timer: StepTimer, budget: int) -> None:
        caching = shared.manifest.caching
        self.prefixes = Prefixes(shared, pool)
        self._timer, self._budget = timer, budget
        self._dram = self._ssd = 0.0
        if caching is not None:
            dram, size = caching.bandwidth_bytes_per_second, pool.kv.bytes_per_token_per_device
            self._dram, self._ssd = size / dram, size / (caching.ssd_bandwidth_bytes_per_second or dram)
        self._known: dict[int, float] = {}

    def seconds(self, found: Found) -> float:
        """Return how long every device of a DP rank reads what was found, one tier after the other."""
        return found.dram_tokens * self._dram + found.ssd_tokens * self._ssd

    def find(self, request: Request) -> Found | None:
        """Find the head of the prompt in the cache, but what is computed sooner than loaded; stated reuse stands."""
        if request.blocks is not None and not request.retries:
            found = self.prefixes.look_up(request)
        elif request.reused:
            found = Found(dram_tokens=request.reused)
        else:
            return None
        if self.seconds(found) > self._compute_seconds(found.dram_tokens + found.ssd_tokens):
            found = Found(local_tokens=found.local_tokens)
        request.reused = found.tokens
        return found

    def _compute_seconds(self, tokens: int) -> float:
        """Return the seconds of full passes for the first tokens of a prompt; 0 where nothing is loaded."""
        if not self._dram or not tokens:
            return 0.0
        if tokens not in self._known:
            self._known[tokens] = self._timer.computing_seconds(self._budget, tokens)
        return self._known[tokens]
