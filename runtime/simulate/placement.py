"""Decode placement: which DP rank of which instance takes a request, and who waits until there is room."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ground.arrays import Ints
from planner.manifest.schema import KvCache, Pool, Routing
from runtime.simulate.ledger import Ledger
from runtime.simulate.request import Request

if TYPE_CHECKING:
    from runtime.simulate.decode import DecodeInstance

FULL = np.iinfo(np.int64).max
TOO_LONG = "longer than the KV cache of a rank"


def in_blocks(kv: KvCache, tokens: int) -> int:
    """Return the KV tokens of whole blocks that hold a request of so many: what its windows keep, and its state."""
    charged = kv.charged(tokens) if kv.shaped else tokens
    return int(-(-charged // kv.block_tokens)) * kv.block_tokens


class RankSlots:
    """Slots and KV of all DP ranks of all instances that decode, numbered from the ``first_rank`` of each on.

    ``least_kv`` skips full ranks and takes the one with least KV set aside (xDeepServe section 4), ``least_requests``
    the one with fewest requests, ``round_robin`` the one whose turn is longest ago. With the reservation ``whole`` the
    whole answer is set aside at admission, with ``prompt`` only the prompt and ``reserved_output_tokens`` of the
    answer.
    """

    def __init__(self, routing: Routing, ledger: Ledger, now: Callable[[], float]) -> None:
        self._policy, self._routing, self._ledger, self._now = routing.decode, routing, ledger, now
        # Lists where single elements are read and written, which arrays do slowly; the key is searched as a whole.
        self.limit: list[int] = []
        self.capacity: list[int] = []
        self.reserved: list[int] = []
        self.occupied: list[int] = []
        self.open: list[bool] = []
        self._key: Ints = np.zeros(0, dtype=np.int64)
        self._capacities: Ints = np.zeros(0, dtype=np.int64)
        self._kv: KvCache | None = None
        self._turn = self._leaving = 0
        self._even, self._most = True, 0
        self._whole = routing.decode_reservation == "whole"
        self.homes: list[DecodeInstance] = []
        self.waiting: deque[Request] = deque()
        self.offline_waiting: deque[Request] = deque()
        self.offline_running: dict[Request, None] = {}
        self.placed: Callable[[Request], None] = lambda request: None

    def register(self, home: "DecodeInstance", pool: Pool, ranks: int, opened: bool = True) -> int:
        """Add an instance's ranks in order; return the number of its first one."""
        first = len(self.homes)
        self.homes.extend([home] * ranks)
        self.limit += [pool.limits.requests_per_dp_rank] * ranks
        self.capacity += [pool.kv.capacity_tokens_per_rank] * ranks
        self.reserved += [0] * ranks
        self.occupied += [0] * ranks
        self.open += [opened] * ranks
        self._key = np.append(self._key, np.full(ranks, 0 if opened else FULL))
        self._capacities = np.append(self._capacities, np.full(ranks, pool.kv.capacity_tokens_per_rank))
        if self._kv is None or pool.kv.block_tokens > self._kv.block_tokens:
            self._kv = pool.kv
        self._even = len(set(self.capacity)) == 1
        self._most = max(self.capacity)
        return first

    def need(self, request: Request) -> int:
        """Return the tokens of whole blocks that are set aside for a request."""
        answer = request.left if self._whole else min(request.left, self._routing.reserved_output_tokens)
        return self._blocks(request.prompt + 1 + answer)

    def _blocks(self, tokens: int) -> int:
        return tokens if self._kv is None else in_blocks(self._kv, tokens)

    def offer(self, request: Request) -> None:
        """Place ``request``, let it wait, or fail it if no rank could ever hold it."""
        if self._blocks(request.prompt + 1 + request.left) > self._most:
            self._ledger.fail(request, self._now(), TOO_LONG)
            return
        request.need = self.need(request)
        (self.offline_waiting if request.offline else self.waiting).append(request)
        self.admit()

    def admit(self) -> None:
        """Place waiting requests in order until the first that fits nowhere, then offline ones as far as they may."""
        while self.waiting:
            request = self.waiting[0]
            rank = self._choose(request.need)
            if rank is None:
                self._preempt()
                return
            self.waiting.popleft()
            self._take(request, rank)
        while self.offline_waiting:
            request = self.offline_waiting[0]
            rank = self._choose(request.need)
            if rank is None or not self.homes[rank].admits(request):
                return
            self.offline_waiting.popleft()
            self.offline_running[request] = None
            self._take(request, rank)

    def _choose(self, need: int) -> int | None:
        if not self._key.size:
            return None
        rank = int(self._key.argmin())
        if self.reserved[rank] + need <= self.capacity[rank] and self._key[rank] != FULL:
            return rank
        if self._even and self._policy == "least_kv":
            return None
        held = self._key if self._policy == "least_kv" else np.array(self.reserved)
        fits = (self._key != FULL) & (held <= self._capacities - need)
        return int(np.where(fits, self._key, FULL).argmin()) if fits.any() else None

    def stay(self, request: Request, rank: int, room: int) -> bool:
        """Place an offline request that waits on a rank where its KV is, if so many tokens there hold it."""
        full = self.occupied[rank] >= self.limit[rank] or self.reserved[rank] + request.need > room
        if full or not self.homes[rank].admits(request):
            return False
        self.offline_waiting.remove(request)
        self._take(request, rank)
        return True

    def _preempt(self) -> None:
        """Let as many offline requests go as online ones wait; those that joined last go first."""
        while self.offline_running and self._routing.offline != "equal" and self._leaving < len(self.waiting):
            request, _ = self.offline_running.popitem()
            self._leaving += 1
            self.homes[request.place].evict(request)

    def evicted(self, request: Request, gone: bool) -> None:
        """Note that a request that had to go goes, or that it does not decode yet and stays."""
        self._leaving -= 1
        if not gone and request.place >= 0:
            self.offline_running[request] = None

    def _take(self, request: Request, rank: int) -> None:
        request.place = rank
        self.reserved[rank] += request.need
        self.occupied[rank] += 1
        self._turn += 1
        self._rank_key(rank)
        self.placed(request)

    def _rank_key(self, rank: int) -> None:
        if not self.open[rank] or self.occupied[rank] >= self.limit[rank]:
            self._key[rank] = FULL
        elif self._policy == "least_kv":
            self._key[rank] = self.reserved[rank]
        elif self._policy == "least_requests":
            self._key[rank] = self.occupied[rank]
        else:
            self._key[rank] = self._turn

    def release(self, request: Request) -> None:
        """Free the slot and the KV of a request."""
        rank = request.place
        self.reserved[rank] -= request.need
        self.occupied[rank] -= 1
        request.place = -1
        if request.offline:
            self.offline_running.pop(request, None)
        if self._policy != "round_robin" or self._key[rank] == FULL:
            self._rank_key(rank)

    def move(self, request: Request, rank: int) -> bool:
        """Give a request its slot and KV on another rank, if that has room; whether it has."""
        if self._key[rank] == FULL or self.reserved[rank] + request.need > self.capacity[rank]:
            return False
        for place, sign in ((request.place, -1), (rank, 1)):
            self.reserved[place] += sign * request.need
            self.occupied[place] += sign
            self._rank_key(place)
        request.place = rank
        return True

    def occupancy(self) -> list[tuple[float, int, bool, int, int]]:
        """Return KV tokens and requests held, whether more may come, and the limits of both, by rank."""
        return list(zip(self.reserved, self.occupied, self.open, self.capacity, self.limit, strict=True))

    def set_open(self, first: int, count: int, opened: bool) -> None:
        """Open or close ranks for new requests; those on them stay."""
        self.open[first : first + count] = [opened] * count
        for rank in range(first, first + count):
            self._rank_key(rank)
