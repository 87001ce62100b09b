"""Instances whose role is a property of the request: prompts go to decode with time to spare, instances flip.

xLLM section 3.2. A prompt goes where its first token is due first among prefill instances; where all would miss the
limit, to a decode instance, whose steps leave prompts what the TPOT limit does not need (``DecodeInstance.spare``). An
instance flips only where those that keep its old role can carry what there is, within the limits of both, and one of
prefill only where it runs more than it could keep waiting (``Roles._pays``): a flip moves it between pools at once, and
what it has of the old kind is finished step by step beside the new.

Routers choose the prefill or mixed instance that takes a request.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from operator import itemgetter

from planner.manifest.schema import Routing
from runtime.simulate.decode import DecodeInstance
from runtime.simulate.device import Shared
from runtime.simulate.encode import EncodeInstance
from runtime.simulate.mixed import MixedInstance
from runtime.simulate.prefill import PrefillInstance
from runtime.simulate.request import Request

MONITOR_SECONDS = 0.5
_GUARD = 0.8  # share of a limit, or of what instances can do, at which a rule acts: what is under way still adds to it
_MEMORY_SECONDS = 10.0  # over which the work of prompts is averaged
_WAITING_GUARD = 0.25  # share of the TTFT limit that prompts may wait for where an instance is spared


@dataclass(slots=True)
class Unit:
    """An instance with both parts that it can play; requests of either kind may be on it while it changes."""

    name: str
    prefill: PrefillInstance
    decode: DecodeInstance
    role: str
    home: str  # the role that it was planned with

    @property
    def takes_prefill(self) -> bool:
        """Whether new prompts may go here."""
        return self.prefill.accepts and self.prefill.up

    @property
    def up(self) -> bool:
        """Whether both parts are."""
        return self.prefill.up and self.decode.up


class Roles:
    """Chooses the instance of each prompt and flips instances where the limits ask for it and allow it."""

    def __init__(self, shared: Shared, units: list[Unit], route: Callable[[Request], None]) -> None:
        self._shared, self._route, self._units = shared, route, units
        levels = shared.manifest.service_levels
        self._ttft = math.inf if levels.ttft_seconds is None else levels.ttft_seconds
        self._unlimited = levels.tpot_seconds is None
        prompt = max(shared.manifest.workload.input_tokens, 1.0)
        self._token_seconds = {unit.name: unit.prefill.token_seconds(prompt) for unit in self._units}
        self._work, self._since = 0.0, 0.0
        self._completed: int | None = None  # requests at the time from which on decode lacks room
        self.flips = 0

    def _delays(self, request: Request, takes_prefill: bool) -> list[tuple[float, int, str, Unit]]:
        """Return the predicted TTFT, what waits, and the name of each unit that takes prompts, or of others, if up."""
        able = [unit for unit in self._units if unit.takes_prefill == takes_prefill and (takes_prefill or unit.up)]
        return [(self._delay(unit, request), unit.prefill.queued_tokens, unit.name, unit) for unit in able]

    def _delay(self, unit: Unit, request: Request) -> float:
        """Return the predicted TTFT at a unit: the pass that runs, what waits, and the prompt itself.

        Beside running requests prompts have only what these spare, of time and of KV.
        """
        part, idle = unit.prefill, unit.decode.idle
        # Adding up what ranks hold is slow, and those without a request hold nothing.
        free = part.most_held - part.held_tokens if idle else part.free_tokens()
        if part.queued_tokens + request.prompt > free:
            return math.inf
        rest = part.busy_until_seconds - self._shared.engine.now_seconds
        rest = rest if rest > 0.0 else 0.0
        work = part.queued_tokens * self._token_seconds[unit.name] + part.prompt_seconds(request.prompt)
        if idle:
            return rest + work
        share = part.share_beside()
        full = not part.accepts and (bool(self._shared.placement.waiting) or not unit.decode.could_take(1, _GUARD))
        return math.inf if share <= 0 or full else rest + work / share

    def choose(self, request: Request) -> PrefillInstance | None:
        """Return where the first token is due first: of prefill if that keeps the limit, else of all instances.

        A prompt that is late everywhere waits where most wait already, so that those after it are in time elsewhere.
        """
        self._note(request)
        due = self._delays(request, takes_prefill=True)
        if not due or min(due)[0] > _GUARD * self._ttft:
            due += self._delays(request, takes_prefill=False)
            if due and min(due)[0] > _GUARD * self._ttft and (flipped := self.to_prefill()) is not None:
                due = [(self._delay(each[-1], request), *each[1:]) if each[-1] is flipped else each for each in due]
        if not due or min(due)[0] <= self._ttft:
            return min(due)[-1].prefill if due else None
        # A decode instance would be late for both.
        late = [each for each in due if each[-1].takes_prefill] or due
        return max(late, key=itemgetter(1))[-1].prefill

    def _note(self, request: Request | None) -> None:
        """Forget old work of prompts, and add that of a new one, in tokens."""
        now = self._shared.engine.now_seconds
        self._work *= math.exp((self._since - now) / _MEMORY_SECONDS)
        self._work += 0 if request is None else request.prompt - request.reused
        self._since = now

    def _carries(self, units: list[Unit]) -> bool:
        """Whether units can prefill what came lately, and what waits in time."""
        rate = sum(1 / self._token_seconds[unit.name] for unit in units)
        known = -math.expm1(-max(self._since, MONITOR_SECONDS) / _MEMORY_SECONDS)
        lately = self._work / (_MEMORY_SECONDS * known)
        waiting = sum(unit.prefill.queued_tokens for unit in self._units)
        return lately <= _GUARD * rate and waiting <= _WAITING_GUARD * self._ttft * rate

    def _decodes(self, units: list[Unit], leaving: Unit) -> bool:
        """Whether units could take what one of them runs, in slots and within the TPOT limit."""
        if not units or self._shared.placement.waiting:
            return False
        more = leaving.decode.total / len(units)
        return all(unit.decode.could_take(more, _GUARD) for unit in units)

    def to_prefill(self) -> Unit | None:
        """Flip the decode instance that was planned for prefill, or runs least, if the others can take what it runs."""
        able = [unit for unit in self._units if unit.role == "decode" and unit.up]
        for unit in sorted(able, key=lambda unit: (unit.home != "prefill", unit.decode.total, unit.name)):
            if unit.home == "prefill" or self._decodes([other for other in able if other is not unit], unit):
                self._turn(unit, to_prefill=True)
                return unit
        return None

    def to_decode(self, forced: bool = False) -> Unit | None:
        """Flip an idle prefill instance, one that was planned for decode first, if it pays and others carry prefill.

        ``forced``: one that is busy and that they miss, too, as long as there is another one.
        """
        able = [unit for unit in self._units if unit.takes_prefill]
        # A pass under way would keep new requests waiting.
        ready = [unit for unit in able if forced or (unit.prefill.idle and self._pays(unit))]
        for unit in sorted(ready, key=lambda unit: (unit.home != "decode", unit.prefill.waiting_tokens, unit.name)):
            if len(able) > 1 and (forced or self._carries([other for other in able if other is not unit])):
                self._turn(unit, to_prefill=False)
                return unit
        return None

    def _turn(self, unit: Unit, to_prefill: bool) -> None:
        prefill, decode = unit.prefill, unit.decode
        prefill.accepts = to_prefill
        self._shared.placement.set_open(decode.first_rank, decode.ranks, not to_prefill)
        unit.role = "prefill" if to_prefill else "decode"
        self.flips += 1
        if to_prefill:
            prefill.wake()
            return
        for request in prefill.give_back():
            self._route(request)
        self._shared.placement.admit()

    def watch(self) -> None:
        """Begin to look at TPOT and at requests that wait for decode, every half second."""
        self._shared.engine.every(lambda: MONITOR_SECONDS, self._look)

    def _look(self) -> bool:
        """Turn an instance to decode where that is needed, or back where nothing speaks against it; whether one did."""
        self._note(None)
        self._completed = (self._completed or self._shared.ledger.completed) if self._late() else None
        return self.to_decode() is not None

    def _pays(self, unit: Unit) -> bool:
        """Whether an instance is one of decode, or serves more requests there than will find no KV without it.

        What decode lacks is expected to last as long as it has: what waits doubles, places serve as many as they did.

            places · (1 + completed / running) > min(KV here, 2 · KV that waits - KV of the others) / a prompt
        """
        if unit.home == "decode" or self._completed is None:
            return unit.home == "decode"
        own, able = unit.decode, [each.prefill for each in self._units if each.takes_prefill]
        short = 2 * sum(part.held_tokens for part in able) - sum(part.most_held for part in able)
        lost, waiting = min(short, 0) + unit.prefill.most_held, self._shared.placement.waiting
        turns = (self._shared.ledger.completed - self._completed) / max(sum(u.decode.total for u in self._units), 1)
        places = own.ranks * own.pool.limits.requests_per_dp_rank * (1 + turns)
        return lost <= 0 or places * sum(request.prompt for request in waiting) > lost * len(waiting)

    def _late(self) -> bool:
        """Whether decode needs another instance: for the TPOT limit, the wait for a place included, or for room.

        Who comes to w that wait and n that run waits for w/n of an answer's time. A short wait costs a long answer
        hardly anything, while a prefill instance that leaves costs many prompts theirs; but KV that waits for decode
        leaves prompts no room.
        """
        waiting, decoding = len(self._shared.placement.waiting), [each for each in self._units if each.role == "decode"]
        if waiting and (self._unlimited or any(unit.prefill.nearly_full for unit in self._units)):
            return True
        running = max(sum(unit.decode.total for unit in self._units), 1)
        return any(unit.decode.over_limit(_GUARD / (1 + waiting / running)) for unit in decoding)


Head = PrefillInstance | MixedInstance | EncodeInstance
"""An instance in front of which prompts wait; ``waiting_tokens`` wait or run."""
Choose = Callable[[Request], Head | None]


def chooser(routing: Routing, heads: Sequence[Head]) -> Choose:
    """Return the policy as a function that gives the next request's instance, None where all are down.

    ``least_load``: fewest prompt tokens that wait or run; ``round_robin``: in turn; ``prefix_aware``: fewest, and less
    those of the prompt that stand there (xLLM section 3.4). ``collaborative`` instances share one queue, so the choice
    only spreads the counting.
    """
    turns, aware = cycle(heads), routing.prefill == "prefix_aware"

    def least(request: Request) -> Head | None:
        def load(head: Head) -> int:
            return head.waiting_tokens - (head.found_here(request) if aware else 0)

        return min((head for head in heads if head.accepts and head.up), key=load, default=None)

    def in_turn(_: Request) -> Head | None:
        return next((head for head in islice(turns, len(heads)) if head.accepts and head.up), None)

    return least if aware or routing.prefill == "least_load" else in_turn
