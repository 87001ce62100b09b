"""What a server sees of operators that were timed alone: operands from memory, and random choices of experts.

An operator is repeated on the same operands, which stay in the level 2 cache where they fit; a server's layers find
theirs in memory. An even load hits more experts than a random one, and need not be even over ranks.
"""

import numpy as np
import polars
from numpy.typing import NDArray

from ground.units import MICRO
from hardware.formats import ELEMENT_BYTES
from hardware.spec import Dtype, HardwareSpec

Array = NDArray[np.float64]
BLACKWELL = ("b200", "b300", "gb200", "gb300")
POINTS = 15
"""Points of a curve of experts, at 1, 2, 4, ... tokens."""
SPREAD = 0.9
"""An even load over two ranks takes each less than this share of one's time. Where experts are chosen in groups it does
not: half of all choices fell on the first rank's experts while DeepSeek's were timed."""
CACHE_BYTES = {
    "a100": 40e6,
    "h100": 50e6,
    "h200": 50e6,
    "l40s": 96e6,
    "rtx-pro-6000": 128e6,
    **dict.fromkeys(BLACKWELL, 126e6),
}
"""Level 2 cache (NVIDIA's data sheets). What is repeated on the same operands finds them there if they fit: H200 reads
33 MB of keys and values at 5.5 TB/s, 67 MB at 3.4. A server's layers never do."""
SPILLED = 1.25
"""Times the cache from which on nothing is found there: an RTX PRO 6000 reads 134 MB at 1.5 times its memory's rate."""
COLD = 0.1
"""Share of a time that reading may take where operands were in the cache, and the row still says what a server sees."""


def spreads(group: polars.DataFrame) -> bool:
    """Whether an even load over the fewest ranks leaves each of them less to do than one has."""
    most = group["num_tokens"].max()
    even = group.filter((polars.col("distribution") == "balanced") & (polars.col("num_tokens") == most))
    even = even.filter(polars.col("moe_tp_size") == 1).group_by("moe_ep_size").agg(polars.col("latency").median())
    times = even.sort("moe_ep_size")["latency"].to_list()
    return len(times) < 2 or times[1] < SPREAD * times[0]


def uncached_microseconds(hw: HardwareSpec, dtype: Dtype, shape: list[int], degrees: tuple[int, int]) -> Array:
    """What reading the experts that 1, 2, 4, ... tokens hit takes where all of them stayed in the cache; else 0."""
    hidden, width, chosen, experts = shape
    tp, ep = degrees
    hit = experts / ep * -np.expm1(2.0 ** np.arange(POINTS) * np.log1p(-min(chosen / experts, 1.0 - 1e-9)))
    moved = hit * 3.0 * hidden * width / tp * ELEMENT_BYTES[dtype]
    seconds = moved / hw.device.memory_bandwidth_bytes_per_second.value
    return np.where(moved < SPILLED * CACHE_BYTES[hw.name], seconds / MICRO, 0.0)


def fewer_hit(points: Array, spread: float) -> Array:
    """Share of an even load's time that a random one takes at 1, 2, 4, ... tokens.

    ``spread`` tokens of an even load hit every expert once. N tokens of a random one hit as many experts as
    spread·(1 - (1 - 1/spread)^N) of an even one, so in place of the weights that the even load reads those are read.
    """
    tokens = 2.0 ** np.arange(POINTS)
    hit = spread * -np.expm1(tokens * np.log1p(-1 / max(spread, 1.0 + 1e-9)))
    places = [np.log2(np.maximum(x, 1.0)) for x in (hit, np.minimum(tokens, spread))]
    taken, even = (np.exp(np.interp(place, np.arange(POINTS), np.log(points))) for place in places)
    return np.minimum(taken / even, 1.0)


def as_served(hw: HardwareSpec, repeated_bytes: Array, read_bytes: Array, seconds: Array) -> Array:
    """The longest that a server would see of each time: all reading longer where operands stayed in the cache.

    To leave such rows out unless reading is a small part of their time would keep the slow ones alone.
    """
    reading = read_bytes / hw.device.memory_bandwidth_bytes_per_second.value
    return np.where(repeated_bytes > SPILLED * CACHE_BYTES[hw.name], seconds, seconds + reading)
