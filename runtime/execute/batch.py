"""The tokens of one microbatch of an attention group, as all its ranks know them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ground.arrays import Ints
from runtime.execute.collectives import parts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """``ids`` and ``positions`` [T]; ``rows`` [R] are the requests' rows in the cache.

    ``lengths`` are the prompts' in prefill; in decode every request has ``queries`` tokens.
    ``microbatch`` numbers it, ``label`` names pass and microbatch in errors and on the timeline.
    """

    ids: Ints
    positions: Ints
    rows: Ints
    lengths: tuple[int, ...]
    decoding: bool
    microbatch: int
    label: str

    @property
    def tokens(self) -> int:
        """Tokens in the batch."""
        return len(self.ids)

    @property
    def queries(self) -> int:
        """Tokens of each request in decode."""
        return self.lengths[0] if self.lengths else 1

    @property
    def last(self) -> Ints:
        """Rows of the tokens that stand last in their requests."""
        return np.cumsum(self.lengths, dtype=np.int64) - 1

    def bounds(self, ranks: int) -> list[tuple[int, int]]:
        """Return which tokens each rank of a staged group has: the packed sequence in equal parts."""
        return parts_of(self.tokens, ranks)


def prompts_batch(prompts: Sequence[Sequence[int]], rows: Sequence[int], microbatch: int, label: str) -> Batch:
    """Return prompts one behind the other."""
    lengths = tuple(len(prompt) for prompt in prompts)
    ids = [token for prompt in prompts for token in prompt]
    positions = [position for length in lengths for position in range(length)]
    return Batch(
        ids=np.array(ids, dtype=np.int64),
        positions=np.array(positions, dtype=np.int64),
        rows=np.array(rows, dtype=np.int64),
        lengths=lengths,
        decoding=False,
        microbatch=microbatch,
        label=label,
    )


def decode_batch(ids: Ints, starts: Ints, rows: Sequence[int], microbatch: int, label: str) -> Batch:
    """Return running requests with ids [R, q] from positions ``starts`` [R] on."""
    requests, queries = ids.shape
    return Batch(
        ids=ids.ravel(),
        positions=(starts[:, None] + np.arange(queries)).ravel(),
        rows=np.array(rows, dtype=np.int64),
        lengths=(queries,) * requests,
        decoding=True,
        microbatch=microbatch,
        label=label,
    )
