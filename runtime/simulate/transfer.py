"""KV from prefill to decode: first come, first served on the links of the source rank."""

from collections.abc import Callable

from planner.manifest.schema import KvTransfer
from runtime.simulate.engine import ARRIVAL, Engine
from runtime.simulate.ledger import Ledger


class KvLinks:
    """Links of the DP ranks of prefill instances.

    A request owns the links of the devices of its DP rank, at most as many as the receiving rank has:
    seconds = prompt tokens · bytes per token / (links · bandwidth), then the latency.
    """

    def __init__(self, engine: Engine, ledger: Ledger, kv: KvTransfer, receiving_devices: int) -> None:
        self._engine, self._ledger, self._kv = engine, ledger, kv
        self._receiving_devices = receiving_devices
        self._free_seconds: dict[tuple[int, int], float] = {}

    def send(self, source: tuple[int, int], devices: int, request: int, arrive: Callable[[int], None]) -> None:
        """Send the KV of ``request`` from ``source`` (instance, DP rank) with ``devices`` links."""
        links = min(devices, self._receiving_devices)
        size_bytes = self._ledger.inputs[request] * self._kv.bytes_per_token
        start = max(self._engine.now_seconds, self._free_seconds.get(source, 0.0))
        end = start + size_bytes / (links * self._kv.bandwidth_bytes_per_second)
        self._free_seconds[source] = end
        self._engine.at(end + self._kv.latency_seconds, ARRIVAL, lambda: arrive(request))
