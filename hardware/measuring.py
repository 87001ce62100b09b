"""Time kernels on a local accelerator through PyTorch: the rows that ``plan calibrate`` fits.

PyTorch is handed in, never imported here, so the rest of podplan does without it. Every time is the
median of several runs between device synchronisations, after warm-up; a run repeats the kernel
often enough to last past the clock's resolution. On a CPU the figures are worth nothing but show
that the script runs.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import matmul
from typing import Any

Kernel = Callable[[], object]

# Rows, columns and depth of products as inference has them: few rows stream the weights, many fill the device.
GEMMS = [(rows, 8192, 8192) for rows in (1, 16, 64, 256, 1024, 4096)] + [
    (rows, columns, depth) for rows in (64, 512, 4096) for columns, depth in ((2112, 7168), (7168, 2048))
]
GROUPED = [(8, rows, 4096, 7168) for rows in (4, 32, 128, 512, 2048)]
DECODES = [(8, 1024), (32, 4096), (128, 4096)]  # requests, cached tokens of each
PREFILLS = [1024, 4096, 8192]
COPIES = [2**20, 2**26, 2**30]
HEADS, WIDTH = 32, 128


@dataclass(frozen=True, slots=True)
class Timer:
    """PyTorch, a device of it, and how much is measured; ``quick`` divides the shapes for a smoke test."""

    torch: Any
    device: str
    quick: bool = False
    runs: int = 5
    least_seconds: float = 0.02

    def shrunk(self, number: int, least: int = 1) -> int:
        """Return a dimension as it is measured."""
        return max(number // 64, least) if self.quick else number

    def tensor(self, *shape: int) -> Any:
        """Return random numbers on the device, in BF16."""
        return self.torch.randn(*shape, device=self.device).to(self.torch.bfloat16)

    def synchronise(self) -> None:
        """Wait until the device is done."""
        backend = getattr(self.torch, self.device.partition(":")[0], None)
        if backend is not None and hasattr(backend, "synchronize"):
            backend.synchronize()

    def seconds(self, kernel: Kernel) -> float:
        """Return the median seconds of one call."""
        kernel()
        self.synchronise()
        repeats = self._repeats(kernel)
        return statistics.median(self._once(kernel, repeats) for _ in range(self.runs))

    def _repeats(self, kernel: Kernel) -> int:
        alone = max(self._once(kernel, 1), 1e-7)
        return max(1, min(1000, round(self.least_seconds / alone)))

    def _once(self, kernel: Kernel, repeats: int) -> float:
        self.synchronise()
        start = time.perf_counter()
        for _ in range(repeats):
            kernel()
        self.synchronise()
        return (time.perf_counter() - start) / repeats


def row(kernel: str, seconds: float, **shape: object) -> dict[str, object]:
    """Return a measured time of a kernel with the columns of its kind."""
    return {"kernel": kernel, **shape, "seconds": seconds}


def measure_all(timer: Timer) -> Iterator[dict[str, object]]:
    """Yield a row per measured kernel, with the columns that ``hardware.measurements`` reads."""
    for measured in (gemms, grouped_gemms, decode_attention, prefill_attention, copies, launches):
        for own in measured(timer):
            yield {**own, "version": f"PyTorch {timer.torch.__version__}", "source": f"plan measure on {timer.device}"}


def gemms(timer: Timer) -> Iterator[dict[str, object]]:
    """BF16 products of rows x depth by depth x columns."""
    for shape in GEMMS:
        rows, columns, depth = (timer.shrunk(number) for number in shape)
        left, right = timer.tensor(rows, depth), timer.tensor(depth, columns)
        seconds = timer.seconds(partial(matmul, left, right))
        yield row("gemm", seconds, dtype="bf16", groups=1, rows=rows, columns=columns, depth=depth)


def grouped_gemms(timer: Timer) -> Iterator[dict[str, object]]:
    """BF16 products of several groups, one batched product: the best that a grouped kernel can do."""
    for groups, *shape in GROUPED:
        rows, columns, depth = (timer.shrunk(number) for number in shape)
        left, right = timer.tensor(groups, rows, depth), timer.tensor(groups, depth, columns)
        seconds = timer.seconds(partial(timer.torch.bmm, left, right))
        yield row("grouped_gemm", seconds, dtype="bf16", groups=groups, rows=rows, columns=columns, depth=depth)


def decode_attention(timer: Timer) -> Iterator[dict[str, object]]:
    """One query token per request over its cached keys and values, each head with its own: that is what is moved."""
    for requests, cached in DECODES:
        batch, keys = timer.shrunk(requests), timer.shrunk(cached, 16)
        query = timer.tensor(batch, HEADS, 1, WIDTH)
        key, value = (timer.tensor(batch, HEADS, keys, WIDTH) for _ in range(2))
        seconds = timer.seconds(partial(_attend, timer, query, key, value, causal=False))
        flops, moved = 4.0 * batch * HEADS * WIDTH * keys, 2.0 * 2 * batch * HEADS * WIDTH * (keys + 1)
        yield row("gqa_decode", seconds, flops=flops, mean_keys=keys, bytes=moved)


def prefill_attention(timer: Timer) -> Iterator[dict[str, object]]:
    """A prompt's causal attention over itself."""
    for tokens in PREFILLS:
        length = timer.shrunk(tokens, 16)
        query, key, value = (timer.tensor(1, HEADS, length, WIDTH) for _ in range(3))
        seconds = timer.seconds(partial(_attend, timer, query, key, value, causal=True))
        flops, moved = 4.0 * HEADS * WIDTH * length * (length + 1) / 2, 4.0 * 2 * HEADS * WIDTH * length
        yield row("prefill_attention", seconds, flops=flops, mean_keys=(length + 1) / 2, bytes=moved)


def _attend(timer: Timer, query: Any, key: Any, value: Any, *, causal: bool) -> object:
    return timer.torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)


def copies(timer: Timer) -> Iterator[dict[str, object]]:
    """Bytes read and written by a copy inside the device's memory."""
    for size in COPIES:
        elements = timer.shrunk(size, 64) // 2
        source = timer.tensor(elements)
        target = timer.torch.empty_like(source)
        seconds = timer.seconds(partial(target.copy_, source))
        yield row("memory_copy", seconds, bytes=2.0 * 2 * elements)


def launches(timer: Timer) -> Iterator[dict[str, object]]:
    """Host seconds to launch one tiny kernel, launched one by one."""
    small = timer.tensor(16)
    count = 10 if timer.quick else 1000

    def many() -> None:
        for _ in range(count):
            small.add_(1)

    yield row("eager_launch", timer.seconds(many) / count)
