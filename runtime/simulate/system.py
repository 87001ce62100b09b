"""The parts of a run, wired: arrivals -> prefill -> placement -> links -> decode, or arrivals -> mixed.

Where there are encode instances arrivals go to these first.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from planner.manifest.schema import KvTransfer, Pool, Routing
from runtime.simulate.decode import DecodeInstance
from runtime.simulate.device import Devices, Shared
from runtime.simulate.encode import EncodeInstance
from runtime.simulate.engine import ARRIVAL
from runtime.simulate.mixed import MixedInstance
from runtime.simulate.prefill import PrefillInstance
from runtime.simulate.request import ARRIVED, TRANSFER, Request
from runtime.simulate.roles import Choose, Roles, Unit, chooser
from runtime.simulate.steps import balanced

Part = EncodeInstance | PrefillInstance | DecodeInstance | MixedInstance


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


class Origin(NamedTuple):
    """Where the KV of a request stands that is to be pulled."""

    name: str
    rank: int
    devices: int
    release: Callable[[Request], None]


class System:
    """Routes requests between the instances of a manifest."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.prefill: list[PrefillInstance] = []
        self.decode: list[DecodeInstance] = []
        self.mixed: list[MixedInstance] = []
        self.encode: list[EncodeInstance] = []
        self.units: list[Unit] = []
        self.offline: deque[Request] = deque()
        self._queue: deque[Request] = deque()
        self._stranded: deque[Request] = deque()
        self._origins: dict[Request, Origin] = {}
        self._relaxed: dict[str, DecodeInstance] = {}
        self.links = LinkQueues(shared.manifest.kv_transfer) if shared.manifest.kv_transfer else None
        shared.placement.placed = self._placed
        routing = shared.manifest.routing
        flips = routing.roles == "dynamic" or shared.manifest.recovery.kill_prefill
        both = flips or (shared.offline and routing.offline == "slo")
        for pool in shared.manifest.pools:
            for instance in pool.instances:
                self._add(pool, instance.name, both, flips)
        self.parts: list[Part] = [*self.encode, *self.prefill, *self.decode, *self.mixed]
        self.named: dict[str, list[Part]] = {}
        for part in self.parts:
            self.named.setdefault(part.name, []).append(part)
        self._choose_encode: Choose
        self._choose: Choose
        self.choose_by(shared.manifest.routing)
        self.roles: Roles | None = None
        if flips and self.units:
            self.roles = Roles(shared, self.units, self.route)
            if shared.manifest.routing.roles == "dynamic":
                self._choose = self.roles.choose

    def _add(self, pool: Pool, name: str, both: bool, flips: bool) -> None:
        shared = self.shared
        if pool.role == "encode":
            self.encode.append(EncodeInstance(shared, name, pool, self.route))
            return
        if pool.role == "mixed":
            self.mixed.append(MixedInstance(shared, name, pool))
            return
        prefill = decode = None
        if pool.role == "prefill" or both:
            queue = self._queue if shared.manifest.routing.prefill == "collaborative" else deque[Request]()
            prefill = PrefillInstance(shared, name, pool, queue, self.offline, self._prefilled)
            prefill.accepts = pool.role == "prefill"
            self.prefill.append(prefill)
        if pool.role == "decode" or both:
            decode = DecodeInstance(shared, name, pool, self.recompute_of, opened=pool.role == "decode")
            self.decode.append(decode)
        if prefill is not None and decode is not None:
            prefill.devices = decode.devices = Devices()
            prefill.beside, decode.freed = decode, prefill.unblock
            if pool.role == "prefill" and not flips:
                self._relaxed[name] = decode
                decode.beside, decode.freed = prefill, partial(self._stay, prefill, decode)
            self.units.append(Unit(name, prefill, decode, pool.role, pool.role))

    def arrive(self, request: Request) -> None:
        """Let a request into the system."""
        self.shared.ledger.arrive(request)
        self.enter(request)

    def enter(self, request: Request) -> None:
        """Queue the pictures of a request where there are encode instances, else its prompt."""
        if not self.encode:
            self.route(request)
        elif (encode := self._choose_encode(request)) is None:
            self._stranded.append(request)
        else:
            encode.enqueue(request)

    def route(self, request: Request) -> None:
        """Queue a prompt at the instance that the policy chooses, offline ones where something is left over."""
        if request.offline and self.prefill and self.shared.manifest.routing.offline != "equal":
            self.offline.append(request)
            for instance in self.prefill:
                instance.wake()
            return
        head = self._choose(request)
        if head is None:
            self._stranded.append(request)
            return
        head.enqueue(request)
        if self.shared.manifest.routing.prefill == "collaborative":
            for instance in self.prefill:
                instance.wake()

    def choose_by(self, routing: Routing) -> None:
        """Choose instances for pictures and prompts by a policy from now on."""
        self._choose_encode = chooser(routing, self.encode)
        self._choose = chooser(routing, [*self.prefill, *self.mixed])

    def rebalance(self, balance: dict[str, float]) -> None:
        """Let the busiest expert rank of roles be otherwise from their next steps on."""
        for part in self.parts:
            if part.pool.role in balance and not isinstance(part, EncodeInstance):
                part.reshape(balanced(part.cost, balance[part.pool.role]))

    def revive(self) -> None:
        """Route what waited while nothing was up."""
        stranded, self._stranded = self._stranded, deque()
        for request in stranded:
            if request.state == ARRIVED:
                self.enter(request)
            else:  # its pictures are encoded
                self.route(request)
        for instance in self.prefill:
            instance.wake()
        self.shared.placement.admit()

    @property
    def waiting(self) -> int:
        """Prompts that wait for a pass, and requests that wait for a place in decode."""
        queues = {id(instance.queue): len(instance.queue) for instance in self.prefill}
        placed = self.shared.placement
        waiting = len(placed.waiting) + len(placed.offline_waiting) + sum(part.waiting for part in self.mixed)
        return sum(queues.values()) + len(self.offline) + len(self._stranded) + waiting

    def check(self) -> None:
        """Assert that the books balance: a request that has not left is in one place, and what is set aside is its own.

        Runs after every simulation; what it asserts is conservation of requests, slots and KV.
        """
        found = [request for part in self.parts for request in part.holding()]
        queues = {id(instance.queue): instance.queue for instance in self.prefill}
        found += [request for queue in queues.values() for request in queue]
        found += [*self.offline, *self._stranded]
        placement = self.shared.placement
        found += [*placement.waiting, *placement.offline_waiting]
        found += [request for request in self._origins if request.place >= 0]
        assert len(found) == len(set(found)) == self.shared.ledger.running, "a request is lost or stands twice"
        if self.mixed:
            return
        placed = [request for request in found if request.place >= 0]
        assert sum(placement.occupied) == len(placed), "slots are lost"
        assert sum(placement.reserved) == sum(r.need for r in placed), "KV is lost in decode"
        held = sum(instance.held_tokens for instance in self.prefill)
        assert held == sum(request.hold for request in found), "KV is lost in prefill"

    def begin_decode(self, request: Request) -> None:
        """Place a request that is in decode when the run begins; its KV is wherever it is placed."""
        self.shared.ledger.arrive(request)
        request.first_token = 0.0
        if self.decode:
            self.shared.placement.offer(request)
        else:
            self.route(request)

    def _prefilled(self, instance: PrefillInstance, rank: int, request: Request) -> None:
        """Offer a finished prompt to decode, or complete a request of one token."""
        now = self.shared.engine.now_seconds
        if not request.left:
            instance.pulled(request)
            self.shared.ledger.complete(request, now)
            return
        self._hand_over(request, Origin(instance.name, rank, instance.rank_devices, instance.pulled))

    def _hand_over(self, request: Request, origin: Origin) -> None:
        request.state = TRANSFER
        self._origins[request] = origin
        self.shared.placement.offer(request)
        decode = self._relaxed.get(origin.name)
        if decode is not None and decode.beside is not None and request.offline and request.place < 0:
            self._stay(decode.beside, decode)
        if request.state != TRANSFER:  # no rank can hold it
            self._origins.pop(request, None)
            origin.release(request)

    def _stay(self, prefill: PrefillInstance, decode: DecodeInstance) -> None:
        """Answer offline prompts that decode has no room for where they are (xLLM section 3.1: the relaxed pool)."""
        prefill.unblock()
        placement = self.shared.placement
        room = prefill.pool.kv.capacity_tokens_per_rank - prefill.kept_tokens
        for request in list(placement.offline_waiting):
            origin = self._origins[request]
            if origin.name == decode.name and not placement.stay(request, decode.first_rank + origin.rank, room):
                return

    def _placed(self, request: Request) -> None:
        """Pull the KV of a request to the rank that has room for it."""
        shared, origin = self.shared, self._origins.get(request)
        home = shared.placement.homes[request.place]
        if origin is None or self.links is None:
            home.join(request)
            return
        if origin.name == home.name:  # it turned from prefill to decode, and has the KV
            self._arrived((request, request.epoch))
            return
        target = (home.name, request.place - home.first_rank)
        source = (origin.name, origin.rank)
        there = self.links.send(
            request.prompt, source, origin.devices, target, home.rank_devices, shared.engine.now_seconds
        )
        shared.engine.at(there, ARRIVAL, self._arrived, (request, request.epoch))

    def _arrived(self, what: tuple[Request, int]) -> None:
        request, epoch = what
        origin = self._origins.get(request)
        if request.epoch != epoch or origin is None:
            return
        del self._origins[request]
        origin.release(request)
        self.shared.placement.homes[request.place].join(request)

    def recompute_of(self, instance: DecodeInstance | MixedInstance, request: Request, generated: int) -> None:
        """Let a request that lost its KV in decode go through prefill again."""
        request.recompute(generated)
        self.enter(request)

    def move_or_recompute(self, instance: DecodeInstance, request: Request, rank: int, alive: bool) -> None:
        """Take a request off an instance; its KV, if it outlives the loss, is moved where that is the policy.

        xLLM section 3.5: the cheaper of computing the KV again and moving it.
        """
        generated = instance.take_out(request)
        policy = self.shared.manifest.recovery.kv
        if alive and policy == "cheaper" and self.links is not None:
            tokens = request.prompt + generated
            moved = self.links.seconds(tokens, instance.rank_devices, instance.rank_devices)
            policy = "migrate" if not self.prefill or moved <= self.prefill[0].prompt_seconds(tokens) else "recompute"
        if not alive or policy == "recompute" or self.links is None:
            self.recompute_of(instance, request, generated)
            return
        request.migrate(generated)
        origin = Origin(instance.name, instance.ranks + rank, instance.rank_devices, lambda request: None)
        self._hand_over(request, origin)

    def drop_transfers_from(self, name: str) -> None:
        """KV that waited at an instance is gone: its requests are prefilled again."""
        for request in [request for request, origin in self._origins.items() if origin.name == name]:
            origin = self._origins.pop(request)
            origin.release(request)
            placement = self.shared.placement
            if request.place >= 0:
                placement.release(request)
            else:
                (placement.offline_waiting if request.offline else placement.waiting).remove(request)
            request.recompute(0)
            self.enter(request)

    def drop_transfers_to(self, instance: DecodeInstance, ranks: set[int]) -> None:
        """Ranks are gone that KV was on its way to: their requests look for other ones."""
        first = instance.first_rank
        for request, origin in list(self._origins.items()):
            if request.place - first in ranks and 0 <= request.place - first < instance.ranks:
                self.shared.placement.release(request)
                request.epoch += 1
                request.retries += 1
                self._hand_over(request, origin)
