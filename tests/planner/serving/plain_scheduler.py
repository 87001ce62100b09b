"""A plain scheduler, request by request and token by token: slow, clear, and independent of the compiled loops.

Durations are linear: a step takes ``step`` seconds, ``token`` more for each prompt token, ``request`` more for each
request in decode of its slowest rank and ``kv`` more for each token that those have cached. With pipeline stages a
batch takes this in all, the seconds of the head included, which are on the last stage.
"""

from dataclasses import dataclass, field
from math import ceil

from planner.serving.rules import SchedulingRule


@dataclass(eq=False)
class Request:
    """One request; ``kv`` tokens of it are in memory, ``out`` tokens of its answer are known."""

    arrival: float
    prompt: int
    answer: int
    out: int = 0
    kv: int = 0
    first: float = -1.0
    left: float = -1.0
    retracted: int = 0

    @property
    def todo(self) -> int:
        """Prompt tokens and what was answered: all that is computed before the next token."""
        return self.prompt + self.out

    @property
    def ended(self) -> bool:
        """Whether it has all tokens."""
        return self.left >= 0


@dataclass(eq=False)
class Rank:
    """One DP rank."""

    free: int
    share: float
    waiting: list[Request] = field(default_factory=list)
    placed: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    batches: list[list[Request]] = field(default_factory=list)
    """Running requests of the other batches in flight, by stage; that of the batch whose turn it is, is empty."""
    fulls: list[bool] = field(default_factory=list)
    part: Request | None = None
    full: bool = False
    dealt: int = 0

    @property
    def elsewhere(self) -> int:
        """Requests that other batches hold."""
        placed = self.placed if self.batches else []
        return sum(not q.ended for batch in [placed, *self.batches] for q in batch)


@dataclass
class Part:
    """What a rank does in a step: (request, new prompt tokens, whether it ends, its retractions so far), and decode."""

    prompts: list[tuple[Request, int, bool, int]]
    decode: list[tuple[Request, int]]


class PlainScheduler:
    """Ranks that step together."""

    def __init__(
        self, rule: SchedulingRule, ranks: int, budget: int, slots: int, capacity: int, cost, stages=((1.0,), 0)
    ):
        """Begin empty; ``cost`` is (step, token, request, kv) seconds, ``stages`` shares of layers, seconds of heads.

        The budget is of one batch.
        """
        self.rule, self.budget, self.slots, self.cost = rule, budget, slots, cost
        self.shares, self.head = stages
        self.overlapped = rule.overlapped and (len(self.shares) == 1 or rule.overlapped_stages)
        self.batch_slots = ceil(slots / len(self.shares)) if rule.batch_slots else slots
        self.capacity = capacity
        self.block = 1 if rule.admission == "reserve" else rule.block_tokens
        blocks = capacity // self.block - rule.kept_blocks
        self.ranks = [Rank(blocks, rule.estimate.initial_share) for _ in range(ranks)]
        self.inbox: list[Request] = []
        self.turn = 0
        self.since = rule.receive_interval
        self.waited = [0] * ranks
        self.balancing = 0
        self.busy, self.steps = 0.0, 0

    def play(self, requests: list[Request]) -> None:
        """Run until all have left."""
        self.coming = list(requests)
        if len(self.shares) > 1:
            self.play_stages()
            return
        now, launched, ends = 0.0, None, 0.0
        while True:
            self.arrive(now, at_it=True)
            step = self.form(launched)
            takes = self.seconds(step) if step else 0.0  # with the KV of those who end meanwhile
            self.busy += takes
            self.steps += step is not None
            if self.overlapped:
                begin, before = max(now, ends), launched
                if before is not None:
                    now = ends
                    self.end(before, now)
                launched, ends = step, begin + takes if step else now
                if step or before:
                    continue
            elif step:
                now += takes
                self.end(step, now)
                launched = step
                continue
            launched = None
            if self.inbox or any(r.waiting or r.running for r in self.ranks):
                continue
            if not self.coming:
                return
            now = max(now, self.coming[0].arrival)

    def play_stages(self) -> None:
        """Let the batches in flight take turns: the oldest one ends, and its requests form the next one."""
        count = len(self.shares)
        self.flying, self.ends, self.free, turn, now = [None] * count, [0.0] * count, [0.0] * count, 0, 0.0
        for rank in self.ranks:
            rank.batches, rank.fulls = [[] for _ in self.shares], [False] * count
        while True:
            for rank in self.ranks:
                rank.running, rank.batches[turn], rank.full = rank.batches[turn], [], rank.fulls[turn]
            idle = not any(self.flying)
            now = self.take_turn(turn, now)
            for rank in self.ranks:
                rank.batches[turn], rank.running, rank.fulls[turn] = rank.running, [], rank.full
            turn = (turn + 1) % count
            waiting = self.inbox or any(r.waiting or any(r.batches) for r in self.ranks)
            if idle and not any(self.flying) and not waiting:
                if not self.coming:
                    return
                now = max(now, self.coming[0].arrival)

    def take_turn(self, turn: int, now: float) -> float:
        """End a batch's step and form its next one, or the other way round; return when."""
        mine, ends = self.flying[turn], self.ends[turn]
        if mine and not self.overlapped:
            now = max(now, ends)
            self.end(mine, now)
        self.arrive(now, at_it=True)
        self.flying[turn] = step = self.form(mine)
        if step:
            begin = max(now, ends)
            idle_until, self.steps = max(begin, self.free[-1]), self.steps + 1
            for stage, share in enumerate(self.shares):
                begin = max(begin, self.free[stage]) + (self.seconds(step) - self.head) * share
                begin += self.head * (stage == len(self.shares) - 1)
                self.free[stage] = begin
            self.ends[turn] = begin
            self.busy += begin - idle_until
        if mine and self.overlapped:
            now = max(now, ends)
            self.end(mine, now)
            self.arrive(now, at_it=True)
        return now

    def arrive(self, now: float, at_it: bool) -> None:
        """Let everyone arrive up to a moment."""
        while self.coming and (self.coming[0].arrival < now or (at_it and self.coming[0].arrival <= now)):
            self.inbox.append(self.coming.pop(0))
            if self.rule.receive_interval == 1:
                self.deal()

    def seconds(self, step: list[Part]) -> float:
        """The slowest rank's."""
        fixed, token, request, kv = self.cost
        return max(
            fixed
            + token * sum(new for _, new, _, _ in part.prompts)
            + sum(request + kv * (q.kv - 1) for q, _ in part.decode)
            for part in step
        )

    def form(self, last: list[Part] | None) -> list[Part] | None:
        """Form the next step; the prompts of the last one run by now."""
        estimate = self.rule.admission == "estimate"
        for number, rank in enumerate(self.ranks):
            if last:
                part = last[number]
                ends = [q for q, _, final, retracted in part.prompts if final and q.retracted == retracted]
                stay = [q for q in ends if not q.ended]
                rank.placed = [q for q in rank.placed if q not in ends]
                if estimate and part.prompts:
                    if len(stay) < len(part.prompts) or not rank.running or self.rule.order != "prompts_first":
                        rank.full = False
                    if self.rule.order != "prompts_first":
                        rank.running = [q for q in rank.running if not q.ended]
                rank.running += stay
            if not estimate:
                rank.running = [q for q in rank.running if not q.ended]
        idle = last is None and not any(r.running or r.waiting for r in self.ranks)
        if self.rule.receive_interval == 1 or self.since >= self.rule.receive_interval or idle:
            self.since = 0
            self.deal()
        idle_ranks = [not rank.waiting for rank in self.ranks]
        uneven = any(idle_ranks) and not all(idle_ranks) and any(rank.running for rank in self.ranks)
        self.balancing = (self.balancing + 1) % (self.rule.balance_steps + 1) if uneven else 0
        step = [getattr(self, "form_" + self.rule.admission)(rank) for rank in self.ranks]
        if any(part.prompts for part in step):
            self.since = self.rule.receive_interval
        elif any(part.decode for part in step):
            self.since += 1
        else:
            return None
        return step

    def deal(self) -> None:
        """Give arrivals to ranks."""
        while self.inbox:
            q = self.inbox[0]
            need = q.prompt + q.answer
            best = None
            for rank in self.ranks:
                held = self.held(rank)
                reserved = sum(each.prompt + each.answer for each in held)
                if self.rule.admission == "reserve" and (
                    len(held) >= self.slots or (held and reserved + need > self.capacity)
                ):
                    continue
                key = {"round_robin": rank.dealt, "least_requests": len(held), "least_kv": reserved}[self.rule.dealing]
                if best is None or key < best[0]:
                    best = key, rank
            if best is None:
                return
            self.turn += 1
            best[1].dealt = self.turn
            best[1].waiting.append(self.inbox.pop(0))

    def held(self, rank: Rank) -> list[Request]:
        """Requests that a rank has, once each."""
        others = [q for batch in rank.batches for q in batch]
        every = [*rank.waiting, *rank.placed, *rank.running, *others]
        return [q for q in {id(q): q for q in every}.values() if not q.ended]

    def blocks(self, tokens: int) -> int:
        """Blocks of so many tokens."""
        return ceil(tokens / self.block)

    def grow(self, rank: Rank, q: Request, new: int) -> None:
        """Take memory for new tokens."""
        rank.free -= self.blocks(q.kv + new) - self.blocks(q.kv)
        q.kv += new

    def drop(self, rank: Rank, q: Request) -> None:
        """Free all memory."""
        rank.free += self.blocks(q.kv)
        q.kv = 0

    def take(self, rank: Rank, q: Request, room: int, part: Part) -> int:
        """Compute what fits of a prompt."""
        new = min(room, q.todo - q.kv)
        self.grow(rank, q, new)
        final = q.kv == q.todo
        part.prompts.append((q, new, final, q.retracted))
        rank.part = None if final else q
        if final:
            rank.waiting.remove(q)
            rank.placed.append(q)
        return new

    def decode(self, rank: Rank, part: Part) -> None:
        """Let all running requests decode."""
        for q in rank.running:
            self.grow(rank, q, 1)
            part.decode.append((q, q.retracted))

    def form_reserve(self, rank: Rank) -> Part:
        """Prompts in line, beside decode or before it."""
        part = Part([], [])
        together = self.rule.order != "prompts_first"
        room = max(self.budget - len(rank.running) * together, 1)
        if together or not rank.waiting:
            self.decode(rank, part)
        if self.balancing:
            return part
        if rank.running and rank.waiting and self.rule.wait_steps:
            tokens = len(rank.running) + sum(q.todo - q.kv for q in rank.waiting)
            full, number = tokens >= self.rule.wait_share * self.budget, self.ranks.index(rank)
            self.waited[number] = 0 if full else (self.waited[number] + 1) % (self.rule.wait_steps + 1)
            if self.waited[number]:
                return part
        while (
            rank.waiting
            and room > 0
            and len(rank.running) + sum(last for *_, last, _ in part.prompts) < self.batch_slots
        ):
            room -= self.take(rank, rank.waiting[0], room, part)
        return part

    def form_need(self, rank: Rank) -> Part:
        """Running requests first, each with the blocks it needs; then whoever fits."""
        part = Part([], [])
        if self.grow_or_preempt(rank, part):
            return part
        room, count = self.budget - len(rank.running), len(rank.running) + rank.elsewhere
        if rank.part is not None:
            q, count = rank.part, count + 1
            new = min(room, q.todo - q.kv)
            if self.blocks(q.kv + new) - self.blocks(q.kv) > rank.free and count > 1:
                self.drop(rank, q)
                q.retracted += 1
                rank.part = None
                return part
            room -= self.take(rank, q, room, part)
        while rank.waiting and room > 0 and rank.part is None and count < self.slots:
            q = rank.waiting[0]
            if self.blocks(q.todo) > rank.free and count:
                break
            count += 1
            room -= self.take(rank, q, room, part)
        return part

    def grow_or_preempt(self, rank: Rank, part: Part) -> bool:
        """Let running requests decode in turn; the last ones give way. Say if any did."""
        preempted = False
        for q in list(rank.running):
            while q in rank.running and self.blocks(q.kv + 1) - self.blocks(q.kv) > rank.free:
                if len(rank.running) + rank.elsewhere + (rank.part is not None) == 1:
                    break
                victim, preempted = rank.part or rank.running[-1], True
                self.drop(rank, victim)
                victim.retracted += 1
                if rank.part is not None:
                    rank.part = None
                else:
                    rank.running.remove(victim)
                    rank.waiting.insert(0, victim)
            if q not in rank.running:
                return True
            self.grow(rank, q, 1)
            part.decode.append((q, q.retracted))
        return preempted

    def form_estimate(self, rank: Rank) -> Part:
        """Prompts for which there is memory by the estimate, beside decode or before it; else decode."""
        part, together = Part([], []), self.rule.order != "prompts_first"
        self.admit_by_estimate(rank, part, len(rank.running) if together else 0)
        if part.prompts:
            if together:
                rank.running = [q for q in rank.running if not q.ended]
                self.decode(rank, part)
            return part
        before = len(rank.running)
        rank.running = [q for q in rank.running if not q.ended]
        estimate = self.rule.estimate
        if rank.running and self.lacks(rank) and len(rank.running) > 1:
            while len(rank.running) > 1:
                victim = min(reversed(rank.running), key=lambda q: (q.out, -q.prompt))
                rank.running.remove(victim)
                self.drop(rank, victim)
                victim.retracted += 1
                rank.waiting.append(victim)
                if not self.lacks(rank):
                    break
            answered, whole = sum(q.out for q in rank.running), sum(q.answer for q in rank.running)
            rank.share = min((answered + estimate.retract_tokens * len(rank.running)) / (whole + 1), 1.0)
        elif rank.running and not self.lacks(rank):
            fall = (estimate.initial_share - estimate.least_share) / estimate.falling_steps
            rank.share = max(rank.share - fall, estimate.least_share)
        if len(rank.running) < before or not rank.running:
            rank.full = False
        self.decode(rank, part)
        return part

    def lacks(self, rank: Rank) -> bool:
        """Whether decode lacks memory."""
        return sum(self.blocks(q.kv + 1) - self.blocks(q.kv) for q in rank.running) > rank.free

    def admit_by_estimate(self, rank: Rank, part: Part, decode: int) -> None:
        """Take prompts while the estimate leaves memory."""
        batch, clip = len(rank.running), self.rule.estimate.clip_tokens
        if rank.part is None:
            if rank.full or not rank.waiting:
                return
            if batch >= self.batch_slots:
                rank.full = True
                return
        room, there, now = self.budget - decode, rank.free * self.block, decode
        share = 1.0 if self.rule.fixed_lengths else rank.share
        ever = now + share * sum(min(q.answer - q.out, clip) for q in rank.running)
        if rank.part is not None:
            short = int(there - ever)
            q = rank.part
            left = q.todo - q.kv
            new = self.take(rank, q, min(room, short if short > 0 else room), part)
            tokens = self.blocks(new) * self.block + self.block
            now, ever = now + tokens, ever + tokens + (min(q.answer, clip) if new == left else 0)
            room -= self.blocks(new) * self.block
        while rank.waiting and rank.part is None and room > 0:
            q = rank.waiting[0]
            if len(part.prompts) + batch >= self.batch_slots:
                rank.full = True
                return
            if self.rule.fixed_lengths:
                prompt = self.blocks(q.todo) * self.block + self.block
                beside = [*rank.running, *(each for each, *_ in part.prompts), q]
                fits = prompt <= min(there - now, there - ever) and self.lasts(beside, there - now - prompt)
            else:
                fits = q.todo + min(q.answer - q.out, clip) + self.block < there - ever
            if not fits and (batch or part.prompts or rank.elsewhere):
                rank.full = True
                return
            new = self.take(rank, q, room, part)
            tokens = self.blocks(new) * self.block + self.block
            now, ever = now + tokens, ever + tokens + (min(q.answer, clip) if rank.part is None else 0)
            room -= self.blocks(new) * self.block
            if there - ever <= 0 or there - now <= 0:
                rank.full = True
                return

    def lasts(self, requests: list[Request], free: float) -> bool:
        """Whether all answers find memory, where the shortest rest leaves first and each keeps a token more."""
        staying = sorted(requests, key=lambda q: q.answer - q.out)
        for number, q in enumerate(staying):
            beside = len(staying) - number
            if free - (q.answer - q.out) * beside <= beside and q.answer > q.out:
                return False
            free += q.todo
        return True

    def end(self, step: list[Part], now: float) -> None:
        """Hand out tokens; who arrived during the step did so before."""
        self.arrive(now, at_it=False)
        for rank, part in zip(self.ranks, step, strict=True):
            tokens = [(q, retracted) for q, _, final, retracted in part.prompts if final] + part.decode
            for q, retracted in tokens:
                if q.retracted != retracted or q.ended:
                    continue
                q.out += 1
                if q.out == 1:
                    q.first = now
                if q.out == q.answer:
                    if self.rule.admission == "reserve" and len(self.held(rank)) == self.slots:
                        rank.dealt = self.turn  # a full rank takes its turn again when it has room
                    q.left = now
                    self.drop(rank, q)
