"""Decode: admission to the rank with least KV, and continuous batching with the EP barrier."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from planner.manifest.schema import Pool
from runtime.simulate.engine import COMPLETION, Engine
from runtime.simulate.ledger import Ledger
from runtime.simulate.steps import StepTimer

Integers = NDArray[np.int64]

FULL = np.iinfo(np.int64).max


def accepted_tokens(random: np.random.Generator, count: int, drafts: int, acceptance: float) -> Integers:
    """Return tokens per request of one iteration: 1 + drafts accepted before the first that is not."""
    accepted = random.random((count, drafts)) < acceptance
    tokens: Integers = 1 + np.cumprod(accepted, axis=1, dtype=np.int64).sum(axis=1)
    return tokens


def mean_tokens_per_iteration(drafts: int, acceptance: float) -> float:
    """Return 1 + a + a² + … with ``drafts`` powers of the acceptance a."""
    return sum(acceptance**power for power in range(drafts + 1))


class Admission:
    """Slots and KV of all DP ranks of all decode instances; requests that fit nowhere yet wait in order."""

    def __init__(self, ledger: Ledger, pools: list[Pool]) -> None:
        self._ledger = ledger
        ranks = [(pool, instance) for pool in pools for instance in pool.instances for _ in range(_dp(pool))]
        self._limit = np.array([pool.limits.requests_per_dp_rank for pool, _ in ranks])
        self._capacity = np.array([pool.kv.capacity_tokens_per_rank for pool, _ in ranks])
        self._block = max(pool.kv.block_tokens for pool in pools)
        self._sequences = np.zeros(len(ranks), dtype=np.int64)
        self._reserved = np.zeros(len(ranks), dtype=np.int64)
        self._waiting: deque[int] = deque()
        self._homes: list[tuple[DecodeInstance, int]] = []

    def register(self, instance: "DecodeInstance", ranks: int) -> int:
        """Add an instance's ranks in order; return the number of its first one."""
        first = len(self._homes)
        self._homes.extend((instance, rank) for rank in range(ranks))
        return first

    def offer(self, request: int) -> None:
        """Admit ``request``, let it wait, or fail it if no rank could ever hold it."""
        if self._need(request) > self._capacity.max():
            self._ledger.fail(request)
            return
        self._waiting.append(request)
        self.admit()

    def admit(self) -> None:
        """Admit waiting requests in order until the first that fits nowhere."""
        while self._waiting:
            request = self._waiting[0]
            need = self._need(request)
            fits = (self._sequences < self._limit) & (self._reserved + need <= self._capacity)
            if not fits.any():
                return
            self._waiting.popleft()
            rank = int(np.where(fits, self._reserved, FULL).argmin())
            self._sequences[rank] += 1
            self._reserved[rank] += need
            instance, local = self._homes[rank]
            instance.join(request, local)

    def release(self, ranks: Integers, requests: Integers) -> None:
        """Free the slots and the KV of requests that ended on ``ranks``."""
        for rank, request in zip(ranks.tolist(), requests.tolist(), strict=True):
            self._sequences[rank] -= 1
            self._reserved[rank] -= self._need(request)

    def _need(self, request: int) -> int:
        """Return the tokens of whole blocks that the request will fill."""
        tokens = self._ledger.inputs[request] + self._ledger.outputs[request]
        return -(-tokens // self._block) * self._block


def _dp(pool: Pool) -> int:
    return pool.degrees.attention_dp * max(pool.degrees.domains, 1)


class DecodeInstance:
    """One instance: all its ranks step together; requests join and leave between iterations."""

    def __init__(
        self, engine: Engine, ledger: Ledger, pool: Pool, admission: Admission, random: np.random.Generator | None
    ) -> None:
        """``random`` None: every iteration yields the mean number of tokens."""
        self._engine, self._ledger, self._admission, self._random = engine, ledger, admission, random
        self._timer = StepTimer(pool.step_costs["decode"].to_step_cost(), pool.microbatches)
        self._mtp = pool.mtp
        self._mean_tokens = mean_tokens_per_iteration(pool.mtp.drafts, pool.mtp.acceptance)
        self._ranks = _dp(pool)
        self._first_rank = admission.register(self, self._ranks)
        self._request: Integers = np.zeros(0, dtype=np.int64)
        self._rank: Integers = np.zeros(0, dtype=np.int64)
        self._remaining = np.zeros(0)
        self._kv = np.zeros(0)
        self._joining: list[tuple[int, int]] = []
        self._running = self._starting = False
        self.busy_seconds = self.busy_until_seconds = 0.0
        self.steps = 0

    def join(self, request: int, rank: int) -> None:
        """Take ``request`` into the next iteration; its first token came out of prefill."""
        self._joining.append((request, rank))
        if not self._running and not self._starting:
            self._starting = True
            self._engine.soon(self._start)

    def _absorb(self) -> None:
        """Add the requests that joined."""
        requests = [request for request, _ in self._joining]
        inputs = [self._ledger.inputs[request] for request in requests]
        left = [self._ledger.outputs[request] - 1 for request in requests]
        self._request = np.append(self._request, requests).astype(np.int64)
        self._rank = np.append(self._rank, [rank for _, rank in self._joining]).astype(np.int64)
        self._remaining = np.append(self._remaining, left)
        self._kv = np.append(self._kv, inputs)
        self._joining.clear()

    def _start(self) -> None:
        self._starting = False
        if self._joining:
            self._absorb()
        if not len(self._request):
            return
        sequences = int(np.bincount(self._rank).max())
        kv_tokens = float(np.bincount(self._rank, weights=self._kv).max())
        seconds = self._timer.decode_seconds(sequences, kv_tokens, len(self._request))
        self._running = True
        self.busy_seconds += seconds
        self.busy_until_seconds = self._engine.now_seconds + seconds
        self.steps += 1
        self._engine.at(self._engine.now_seconds + seconds, COMPLETION, self._end)

    def _end(self) -> None:
        self._running = False
        tokens = self._tokens()
        self._remaining -= tokens
        self._kv += tokens
        done = self._remaining <= 1e-9
        if done.any():
            self._finish(done)
        if not self._starting and (self._joining or len(self._request)):
            self._starting = True
            self._engine.soon(self._start)

    def _tokens(self) -> NDArray[np.float64] | Integers | float:
        """Return the tokens of each request in the iteration that ends."""
        if self._random is None or not self._mtp.drafts:
            return self._mean_tokens
        return accepted_tokens(self._random, len(self._request), self._mtp.drafts, self._mtp.acceptance)

    def _finish(self, done: NDArray[np.bool_]) -> None:
        """Let the requests go whose tokens are out, and those in that waited for their room."""
        gone, ranks = self._request[done], self._rank[done]
        keep = ~done
        self._request, self._rank = self._request[keep], self._rank[keep]
        self._remaining, self._kv = self._remaining[keep], self._kv[keep]
        self._admission.release(ranks + self._first_rank, gone)
        for request in gone.tolist():
            self._ledger.complete(request, self._engine.now_seconds)
        self._admission.admit()
