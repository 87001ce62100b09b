"""Instances that flip between prefill and decode: four pools and a rule for each direction (xLLM section 3.2)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from runtime.simulate.decode import DecodeInstance
from runtime.simulate.device import Shared
from runtime.simulate.prefill import PrefillInstance
from runtime.simulate.request import Request
from runtime.simulate.steps import RankLoad

RoleState = Literal["prefill", "decode", "prefill_to_decode", "decode_to_prefill"]
MONITOR_SECONDS = 0.5
_KEPT = 2
_GUARD = 0.8
"""Share of a limit at which the monitor acts: what is under way still adds to it."""


@dataclass(slots=True)
class Unit:
    """An instance with the parts that it can play. With both, requests of either kind may be on it while it changes."""

    name: str
    prefill: PrefillInstance | None
    decode: DecodeInstance | None
    role: RoleState | str

    @property
    def takes_prefill(self) -> bool:
        """Whether new prompts may go here."""
        return self.prefill is not None and self.prefill.accepts and self.prefill.up


class Roles:
    """Chooses the prefill instance of each request and flips instances where the limits ask for it.

    A flip only moves an instance between pools: it takes the other kind of request at once, and what it has of the old
    kind is finished step by step beside it.
    """

    def __init__(self, shared: Shared, units: list[Unit], prompt_seconds: Callable[[int], float]) -> None:
        self._shared, self._units, self._prompt_seconds = shared, units, prompt_seconds
        levels = shared.manifest.service_levels
        self._ttft, self._tpot = levels.ttft_seconds, levels.tpot_seconds
        self._token_seconds = {unit.name: self._seconds_per_token(unit) for unit in units}
        self.flips = 0

    def _seconds_per_token(self, unit: Unit) -> float:
        """Return the seconds of a full pass per prompt token."""
        part = unit.prefill
        if part is None:
            return float("inf")
        prompt = max(self._shared.manifest.workload.input_tokens, 1.0)
        count = max(part.budget / prompt, 1e-9)
        load = RankLoad(0.0, 0.0, float(part.budget), 0.0, part.budget * prompt / 2, float(max(round(count), 1)))
        return part.timer.step_seconds([load] * part.ranks, part.ranks) / (part.budget * part.ranks)

    def _delay(self, unit: Unit, request: Request) -> float:
        """Return the predicted TTFT at a unit: the pass that runs, what waits, and the prompt itself."""
        part = unit.prefill
        assert part is not None, "only units with a prefill part are asked"
        rest = max(part.busy_until_seconds - self._shared.engine.now_seconds, 0.0)
        waiting = sum(waiting.prompt for waiting in part.queue) * self._token_seconds[unit.name]
        return rest + waiting + self._prompt_seconds(request.prompt)

    def choose(self, request: Request) -> PrefillInstance | None:
        """Return the least predicted delay among prefill instances; if it misses the limit, flip one to prefill."""
        able = [unit for unit in self._units if unit.takes_prefill]
        whole = [unit for unit in able if unit.role == "prefill"]
        best = min(whole or able, key=lambda unit: self._delay(unit, request), default=None)
        limit = float("inf") if self._ttft is None else self._ttft * _GUARD
        if best is not None and self._delay(best, request) <= limit:
            return best.prefill
        turning = [unit for unit in able if unit.role != "prefill"]
        other = min(turning, key=lambda unit: self._delay(unit, request), default=None)
        if other is not None and self._delay(other, request) <= limit:
            return other.prefill
        flipped = self.to_prefill()
        if flipped is not None:
            return flipped.prefill
        return best.prefill if best is not None else None

    def to_prefill(self) -> Unit | None:
        """Move the lightest decode instance to prefill, one that comes from there first; None if too few would stay."""
        able = [unit for unit in self._units if unit.decode is not None and unit.decode.up and unit.prefill is not None]
        candidates = [unit for unit in able if unit.role in ("prefill_to_decode", "decode")]
        if len(candidates) <= max(min(_KEPT, len(able) - 1), 1) or self._decode_full(candidates):
            return None
        unit = min(candidates, key=lambda unit: (unit.role == "decode", self._load(unit), unit.name))
        self._turn(unit, to_prefill=True)
        return unit

    def _decode_full(self, candidates: list[Unit]) -> bool:
        """Whether the others could not take what one more instance carries."""
        if self._shared.placement.waiting:
            return True
        running = sum(self._load(unit) for unit in candidates)
        slots = sum(
            unit.decode.ranks * unit.decode.pool.limits.requests_per_dp_rank for unit in candidates if unit.decode
        )
        return running > _GUARD * slots * (len(candidates) - 1) / len(candidates)

    @staticmethod
    def _load(unit: Unit) -> int:
        return unit.decode.batch.total if unit.decode is not None else 0

    @staticmethod
    def _waiting(unit: Unit) -> int:
        return unit.prefill.waiting_tokens if unit.prefill is not None else 0

    def to_decode(self) -> Unit | None:
        """Move a prefill instance to decode, one that comes from there first; None if none would stay."""
        able = [unit for unit in self._units if unit.takes_prefill and unit.decode is not None]
        if len(able) <= 1:
            return None
        unit = min(
            able,
            key=lambda unit: (
                unit.role != "decode_to_prefill",
                unit.prefill.waiting_tokens if unit.prefill else 0,
                unit.name,
            ),
        )
        self._turn(unit, to_prefill=False)
        return unit

    def _turn(self, unit: Unit, to_prefill: bool) -> None:
        prefill, decode = unit.prefill, unit.decode
        assert prefill is not None and decode is not None, "only units with both parts turn"
        prefill.accepts = to_prefill
        self._shared.placement.set_open(decode.first_rank, decode.ranks, not to_prefill)
        unit.role = "decode_to_prefill" if to_prefill else "prefill_to_decode"
        self.flips += 1
        self._settle(unit)
        if to_prefill:
            prefill.wake()
        else:
            self._shared.placement.admit()

    def _settle(self, unit: Unit) -> None:
        """Let a unit that has nothing of its old kind left belong to its new pool."""
        assert unit.prefill is not None and unit.decode is not None, "only units with both parts turn"
        if unit.role == "decode_to_prefill" and unit.decode.idle:
            unit.role = "prefill"
        elif unit.role == "prefill_to_decode" and unit.prefill.idle:
            unit.role = "decode"

    def watch(self) -> None:
        """Begin to look at TPOT and at requests that wait for decode, every half second."""
        self._shared.engine.every(lambda: MONITOR_SECONDS, self._look)

    def _look(self) -> bool:
        """Turn an instance to decode where that is needed; False where nothing turns until something else happens."""
        for unit in self._units:
            if unit.prefill is not None and unit.decode is not None:
                self._settle(unit)
        if self._shared.placement.waiting or self._tpot_missed():
            return self.to_decode() is not None
        return False

    def _tpot_missed(self) -> bool:
        """Whether an instance's next iteration, predicted, takes longer than the limit."""
        if self._tpot is None:
            return False
        return any(
            unit.decode is not None
            and unit.role in ("decode", "prefill_to_decode")
            and unit.decode.batch.total > 0
            and unit.decode.over_limit(1.0)
            for unit in self._units
        )
