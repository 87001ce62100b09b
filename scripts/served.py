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


def skewed(rank: tuple[Array, Array], whole: tuple[Array | None, Array | None], spread: float) -> Array:
    """Seconds of a rank with its share of a power-law load: of an even one, times what skew makes of it.

    ``rank`` and ``whole`` are times under an even load and a power law: of a rank, under the latter the busiest, and of
    one that has all experts. N tokens of an even load hit as many experts as min(N, ``spread``), of a random one as
    spread·(1 - (1 - 1/spread)^N): that part of the ratio is counted along the rank's own curve, as most of its time may
    be start-up. A share of a power law takes no longer than what the busiest rank gets of it; kernels whose tiles are
    chosen for the mean expert are slower under an even load (NVFP4 over EP 8, 16 of 512 tokens for each expert: 173 us,
    107 on the busiest rank).
    """
    tokens = 2.0 ** np.arange(POINTS)
    hit = spread * -np.expm1(tokens * np.log1p(-1 / max(spread, 1.0 + 1e-9)))

    def fewer(points: Array) -> Array:
        places = [np.log2(np.maximum(x, 1.0)) for x in (hit, np.minimum(tokens, spread))]
        taken, full = (np.exp(np.interp(place, np.arange(POINTS), np.log(points))) for place in places)
        return np.minimum(taken / full, 1.0)

    (even, busiest), (all_even, all_skewed) = rank, whole
    skew = 1.0 if all_even is None or all_skewed is None else all_skewed / (all_even * fewer(all_even))
    return np.minimum(even * fewer(even) * skew, busiest)


def as_served(hw: HardwareSpec, repeated_bytes: Array, read_bytes: Array, seconds: Array) -> Array:
    """The longest that a server would see of each time: all reading longer where operands stayed in the cache.

    To leave such rows out unless reading is a small part of their time would keep the slow ones alone.
    """
    reading = read_bytes / hw.device.memory_bandwidth_bytes_per_second.value
    return np.where(repeated_bytes > SPILLED * CACHE_BYTES[hw.name], seconds, seconds + reading)
