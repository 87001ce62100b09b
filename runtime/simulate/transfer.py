"""KV from prefill to decode: first come, first served on the links of each end."""

from planner.manifest.schema import KvTransfer


class LinkQueues:
    """Links of prefill devices and of decode ranks.

    A decode rank of n devices pulls over as many links of the prefill group (all of them, if it has fewer):
    seconds = tokens · bytes per token / (links · bandwidth), then the latency. Which links those are follows the
    balanced mapping of CloudMatrix384 section 4.3.3, so that decode ranks spread over the prefill TP ranks, which all
    hold the KV; ``first`` always takes the first ones. A rank with more links than a transfer takes pulls several at
    once. Each end works off its transfers first come, first served, and a transfer is there when both ends have passed
    it on: KV goes in blocks, so an end does not stand still while the other one is busy.
    """

    def __init__(self, kv: KvTransfer) -> None:
        self._token_seconds = kv.bytes_per_token / kv.bandwidth_bytes_per_second
        self._shape = kv if kv.shaped else None
        self._latency_seconds = kv.latency_seconds
        self._balanced, self._group_size = kv.links == "balanced", kv.mapping.group_size
        self._free: dict[tuple[tuple[str, int], int], float] = {}
        self._blocked: dict[str, float] = {}
        self.link_seconds = 0.0
        self.transfers = 0
        self.waited_seconds = 0.0

    def block(self, name: str, until_seconds: float) -> None:
        """Let nothing pass from or to an instance before ``until_seconds``."""
        self._blocked[name] = max(until_seconds, self._blocked.get(name, 0.0))

    def seconds(self, tokens: int, source_devices: int, target_devices: int) -> float:
        """Return how long a transfer takes alone, without its latency."""
        links = min(source_devices, target_devices)
        return (float(self._shape.charged(tokens)) if self._shape else tokens) * self._token_seconds / links

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
        links = source_devices if source_devices < target_devices else target_devices
        slots = source_devices // links
        slot = int(target[1] // self._group_size) % slots if slots > 1 and self._balanced else 0
        free = self._free
        origin, end = (source, slot), (target, -1)
        pulling = target_devices // links
        if pulling > 1:
            end = min(((target, -1 - place) for place in range(pulling)), key=lambda place: free.get(place, 0.0))
        earliest = max(now, self._blocked.get(source[0], 0.0), self._blocked.get(target[0], 0.0))
        begin, other = (max(earliest, free.get(port, 0.0)) for port in (origin, end))
        seconds = self.seconds(tokens, source_devices, target_devices)
        free[origin], free[end] = begin + seconds, other + seconds
        start = begin if begin > other else other
        self.link_seconds += seconds * links
        self.transfers += 1
        self.waited_seconds += start - now
        return start + seconds + self._latency_seconds
