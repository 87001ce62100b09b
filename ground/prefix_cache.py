"""A cache of prefixes: paged blocks in pooled DRAM, least recently used first out, and SSD behind it."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

POOL_BLOCK_TOKENS = 128  # tokens of a block of the pool, the smallest of CloudMatrix384 section 4.4 (128 to 512)
UNBOUNDED = 1 << 62  # blocks of a cache without limit


@dataclass(slots=True)
class CacheHit:
    """Prompt tokens at the head of a prompt that are cached, by the tier that they were read from."""

    dram_tokens: int = 0
    ssd_tokens: int = 0
    local_tokens: int = 0  # tokens read from the memory of the instance itself

    @property
    def tokens(self) -> int:
        """Cached tokens of all tiers."""
        return self.dram_tokens + self.ssd_tokens + self.local_tokens


class PrefixCache:
    """Blocks by chained identifier: a hit ends at the first block that is in no tier.

    Everything is also written to SSD; DRAM holds what was used last (CloudMatrix384 section 4.4, EMS).
    """

    def __init__(self, block_tokens: int, dram_blocks: int = UNBOUNDED, ssd_blocks: int = 0) -> None:
        self.block_tokens, self._dram_blocks, self._ssd_blocks = block_tokens, max(dram_blocks, 1), ssd_blocks
        self._dram: OrderedDict[int, None] = OrderedDict()
        self._ssd: OrderedDict[int, None] = OrderedDict()
        self.asked_tokens = self.hit_tokens = self.ssd_hit_tokens = 0

    @classmethod
    def of_bytes(cls, block_tokens: int, token_bytes: float, dram_bytes: float, ssd_bytes: float) -> "PrefixCache":
        """Return a cache of so many bytes, ``token_bytes`` a token."""
        block = max(block_tokens * token_bytes, 1e-9)
        return cls(block_tokens, int(dram_bytes / block), int(ssd_bytes / block))

    def __len__(self) -> int:
        return len(self._dram)

    @property
    def ssd_blocks(self) -> int:
        """Blocks that stand on SSD."""
        return len(self._ssd)

    def look_up(self, blocks: Sequence[int], prompt_tokens: int) -> CacheHit:
        """Return the cached tokens of a prompt, at most all but one, and mark their blocks as used."""
        found = CacheHit()
        for block in blocks:
            if block in self._dram:
                self._dram.move_to_end(block)
                found.dram_tokens += self.block_tokens
            elif block in self._ssd:
                self._ssd.move_to_end(block)
                self._keep(block)
                found.ssd_tokens += self.block_tokens
            else:
                break
        beyond = max(found.tokens - (prompt_tokens - 1), 0)
        taken = min(beyond, found.dram_tokens)
        found.dram_tokens -= taken
        found.ssd_tokens -= beyond - taken
        return found

    def held_tokens(self, blocks: Sequence[int]) -> int:
        """Return the tokens of the first blocks that DRAM holds, none of which counts as used."""
        return self.block_tokens * sum(1 for _ in takewhile(self._dram.__contains__, blocks))

    def count(self, found: CacheHit, prompt_tokens: int) -> None:
        """Count a served prompt and its cached tokens."""
        self.asked_tokens += prompt_tokens
        self.hit_tokens += found.tokens
        self.ssd_hit_tokens += found.ssd_tokens

    def insert(self, blocks: Sequence[int]) -> None:
        """Write a prompt's blocks; the last, partly filled one included, as traces count them."""
        for block in blocks:
            self._keep(block)
            if self._ssd_blocks:
                self._ssd[block] = None
                self._ssd.move_to_end(block)
                if len(self._ssd) > self._ssd_blocks:
                    self._ssd.popitem(last=False)

    def _keep(self, block: int) -> None:
        self._dram[block] = None
        self._dram.move_to_end(block)
        if len(self._dram) > self._dram_blocks:
            self._dram.popitem(last=False)
