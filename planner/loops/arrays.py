"""A step table as compiled loops read it, and columns of requests; apart from loops, which take long to import."""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats

Columns = TypeVar("Columns", bound=tuple[Any, ...])


class TableArrays(NamedTuple):
    """A step table as compiled loops take it; axes rise strictly and have at least two knots, but ``shares`` may have
    one.
    """

    levels: Floats  # running requests of all ranks that ``loaded`` stands for; 0 alone in prefill
    shares: Floats  # prompt tokens of the mean rank over those of the rank in question
    tokens: Floats  # prompt tokens of the rank
    lengths: Floats  # query-key pairs per prompt token
    prefixes: Floats
    """Cached tokens that the prompts attend to over ``lengths``: about how many of the prompts have some. A kernel that
    goes over from compute to memory does so along this axis and ``tokens`` alone."""
    loaded: Floats  # seconds of a rank with prompts of which one ends, [levels, shares, tokens, lengths, prefixes]
    running: Floats  # running requests of all ranks that what follows stands for
    means: Floats  # prompt tokens of the mean rank
    alone: Floats  # seconds of a rank without prompts, [running, means]
    first_row_seconds: Floats
    """What a first prompt that ends adds to a step, [running]; a step without is shorter by it than ``loaded``."""
    row_seconds: Floats  # what each further one adds, [running]
    usual_kv: Floats
    """Cached tokens of the running requests of a rank that ``loaded`` and ``alone`` stand for, [running]."""

    kv_seconds: Floats  # what one more of them adds, [running]
    sequence_seconds: Floats
    """What a running request beyond those of the mean rank adds to a rank, its cached tokens apart, [running]."""
    head_seconds: Floats
    """What the output head, drafts and sampling take of a step of so many, [running]: on the last pipeline stage."""
    prompt_seconds: float  # what prompts add to it, however many: the engine takes them in
    layers: Floats  # share of the layers that each pipeline stage has, [stages]
    ranks: float
    loading_seconds: float  # what a cached token takes to come from the pool of prefixes, before the pass

    @property
    def content(self) -> bytes:
        """A digest by which equal tables are told."""
        return blake2b(b"".join(np.asarray(each).tobytes() for each in self)).digest()


def joined(one: Columns, other: Columns) -> Columns:
    """Return the columns of two parts, one behind the other."""
    return type(one)(*(np.concatenate(pair) for pair in zip(one, other, strict=True)))


def kept(columns: Columns, stay: NDArray[np.int64], links: Iterable[NDArray[np.int64]]) -> Columns:
    """Return the requests that stay under new indices, which ``links`` to them are changed to as well.

    Args: ``columns`` with lists of requests linked by ``behind``; a link to nobody is -1.
    """
    index = np.full(columns[0].size + 1, -1)
    index[stay] = np.arange(stay.size)  # the last element stands for nobody
    for each in links:
        each[...] = index[each]
    found: Any = type(columns)(*(column[stay] for column in columns))
    return found._replace(behind=index[found.behind])
