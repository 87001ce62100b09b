"""Aggregated instances: each step decodes what runs and fills the token budget with prompt chunks."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from planner.manifest.schema import Pool
from runtime.simulate.decode import accepted_tokens, mean_tokens_per_iteration
from runtime.simulate.engine import COMPLETION, Engine
from runtime.simulate.ledger import Ledger
from runtime.simulate.steps import RankLoads, StepTimer


@dataclass(slots=True)
class _Rank:
    """A DP rank: prompts in turn as [request, tokens done], running requests, and KV set aside for both."""

    prompts: deque[list[int]] = field(default_factory=deque)
    running: dict[int, list[float]] = field(default_factory=dict)  # request -> [tokens left, cached tokens]
    reserved: int = 0


class MixedInstance:
    """One instance with continuous batching and chunked prefill (Sarathi-Serve, arXiv 2403.02310).

    The budget of a step is per DP rank and holds the running requests' queries first.
    """

    def __init__(self, engine: Engine, ledger: Ledger, pool: Pool, random: np.random.Generator | None) -> None:
        self._engine, self._ledger, self._random = engine, ledger, random
        self._timer = StepTimer(pool.step_costs["mixed"].to_step_cost(), pool.microbatches)
        self._mtp, self._kv = pool.mtp, pool.kv
        self._mean_tokens = mean_tokens_per_iteration(pool.mtp.drafts, pool.mtp.acceptance)
        self._limit = pool.limits.requests_per_dp_rank
        self._budget = pool.limits.tokens_per_device * pool.degrees.attention_tp * pool.degrees.pp
        self._ranks = [_Rank() for _ in range(pool.degrees.attention_dp)]
        self._queue: deque[int] = deque()
        self._stepping = self._starting = False
        self.waiting_tokens = 0
        self.busy_seconds = self.busy_until_seconds = 0.0
        self.steps = 0

    def enqueue(self, request: int) -> None:
        """Let ``request`` wait, or fail it if no rank could ever hold it."""
        if self._need(request) > self._kv.capacity_tokens_per_rank:
            self._ledger.fail(request)
            return
        self._queue.append(request)
        self.waiting_tokens += self._ledger.inputs[request]
        self.wake()

    def wake(self) -> None:
        """Start a step at the end of this instant unless one runs."""
        if not self._stepping and not self._starting:
            self._starting = True
            self._engine.soon(self._start)

    def _need(self, request: int) -> int:
        tokens = self._ledger.inputs[request] + self._ledger.outputs[request]
        return -(-tokens // self._kv.block_tokens) * self._kv.block_tokens

    def _admit(self) -> None:
        """Give waiting requests to the rank with least KV that has a slot and room, in order."""
        while self._queue:
            need = self._need(self._queue[0])
            fitting = [
                rank
                for rank in self._ranks
                if len(rank.prompts) + len(rank.running) < self._limit
                and rank.reserved + need <= self._kv.capacity_tokens_per_rank
            ]
            if not fitting:
                return
            rank = min(fitting, key=lambda candidate: candidate.reserved)
            request = self._queue.popleft()
            rank.reserved += need
            rank.prompts.append([request, self._ledger.reused[request]])

    def _start(self) -> None:
        self._starting = False
        self._admit()
        loads = RankLoads.empty(len(self._ranks))
        ended = [self._fill(index, loads) for index in range(len(self._ranks))]
        if not loads.decode_sequences.any() and not loads.tokens.any():
            return
        seconds = self._timer.step_seconds(loads)
        self._stepping = True
        self.busy_seconds += seconds
        self.busy_until_seconds = self._engine.now_seconds + seconds
        self.steps += 1
        self._engine.at(self._engine.now_seconds + seconds, COMPLETION, lambda: self._end(ended))

    def _fill(self, index: int, loads: RankLoads) -> list[int]:
        """Put a rank's running requests and prompt chunks into the step; return the prompts that it ends."""
        rank, ended = self._ranks[index], []
        loads.decode_sequences[index] = len(rank.running)
        loads.decode_kv_tokens[index] = sum(state[1] for state in rank.running.values())
        # One token of progress at least, or a rank full of drafts would never take a prompt.
        room = max(self._budget - len(rank.running) * (1 + self._mtp.drafts), 1)
        for prompt in rank.prompts:
            request, done = prompt
            computed = min(room, self._ledger.inputs[request] - done)
            finishes = done + computed == self._ledger.inputs[request]
            loads.add_chunk(index, done, computed, finishes)
            prompt[1] += computed
            room -= computed
            if finishes:
                ended.append(request)
            if not room:
                break
        return ended

    def _end(self, ended: list[list[int]]) -> None:
        self._stepping = False
        for rank, prompts in zip(self._ranks, ended, strict=True):
            self._decode(rank)
            for request in prompts:
                self._first_token(rank, request)
        self.wake()

    def _decode(self, rank: _Rank) -> None:
        """Advance the running requests by the tokens of this step."""
        tokens = self._tokens(len(rank.running))
        for (request, state), count in zip(list(rank.running.items()), tokens, strict=True):
            state[0] -= count
            state[1] += count
            if state[0] <= 1e-9:
                del rank.running[request]
                self._leave(rank, request)

    def _tokens(self, count: int) -> list[float]:
        if self._random is None or not self._mtp.drafts:
            return [self._mean_tokens] * count
        drawn: list[float] = accepted_tokens(self._random, count, self._mtp.drafts, self._mtp.acceptance).tolist()
        return drawn

    def _first_token(self, rank: _Rank, request: int) -> None:
        """A prompt ended: its first token is out and the rest is decoded on the same rank."""
        rank.prompts.popleft()
        self.waiting_tokens -= self._ledger.inputs[request]
        self._ledger.first_token[request] = self._engine.now_seconds
        left = self._ledger.outputs[request] - 1
        if left:
            rank.running[request] = [float(left), float(self._ledger.inputs[request])]
        else:
            self._leave(rank, request)

    def _leave(self, rank: _Rank, request: int) -> None:
        rank.reserved -= self._need(request)
        self._ledger.complete(request, self._engine.now_seconds)
