"""KV from prefill to decode: first come, first served on the links of both ends."""

from planner.manifest.schema import KvTransfer


class KvLinks:
    """Links of prefill devices and of decode ranks.

    A decode rank of n devices pulls over as many links of the prefill group (all of them, if it has fewer):
    seconds = tokens · bytes per token / (links · bandwidth), then the latency. Which links those are follows the
    balanced mapping of CloudMatrix384 section 4.3.3, so that decode ranks spread over the prefill TP ranks, which all
    hold the KV; ``first`` always takes the first ones. A transfer waits until both ends are free.
    """

    def __init__(self, kv: KvTransfer) -> None:
        self._kv = kv
        self._free: dict[tuple[str, int, int], float] = {}
        self._blocked: dict[str, float] = {}
        self.busy_seconds = 0.0
        self.waited_seconds = 0.0

    def block(self, name: str, until_seconds: float) -> None:
        """Let nothing pass from or to an instance before ``until_seconds``."""
        self._blocked[name] = max(until_seconds, self._blocked.get(name, 0.0))

    def seconds(self, tokens: int, source_devices: int, target_devices: int) -> float:
        """Return how long a transfer takes alone, without its latency."""
        links = min(source_devices, target_devices)
        return self._kv.charged(tokens) * self._kv.bytes_per_token / (links * self._kv.bandwidth_bytes_per_second)

    def send(
        self,
        tokens: int,
        source: tuple[str, int],
        source_devices: int,
        target: tuple[str, int],
        target_devices: int,
        now: float,
    ) -> float:
        """Take the links from ``source`` to ``target``, each (instance, DP rank); return when the KV is there."""
        slots = max(source_devices // min(source_devices, target_devices), 1)
        slot = 0 if self._kv.links == "first" else int(target[1] // self._kv.mapping.group_size) % slots
        ends = ((source[0], source[1], slot), (target[0], -1 - target[1], 0))
        start = max(now, *(self._free.get(end, 0.0) for end in ends))
        if self._blocked:
            start = max(start, self._blocked.get(source[0], 0.0), self._blocked.get(target[0], 0.0))
        seconds = self.seconds(tokens, source_devices, target_devices)
        for end in ends:
            self._free[end] = start + seconds
        self.busy_seconds += seconds
        self.waited_seconds += start - now
        return start + seconds + self._kv.latency_seconds
