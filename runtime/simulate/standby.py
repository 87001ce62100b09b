"""Instances that are not there all the time: they come when they are loaded and go when they have nothing left."""

from planner.manifest.schema import Routing
from runtime.simulate.decode import DecodeInstance
from runtime.simulate.faults import Faults
from runtime.simulate.mixed import MixedInstance
from runtime.simulate.prefill import PrefillInstance
from runtime.simulate.router import Head, chooser
from runtime.simulate.system import Part, System


class Standby:
    """Opens and closes instances of a run by name, and counts the device-seconds for which they are held."""

    def __init__(self, system: System, faults: Faults) -> None:
        self._system, self._faults = system, faults
        self.parts: dict[str, list[Part]] = {}
        for part in system.parts:
            self.parts.setdefault(part.name, []).append(part)
        self._held: dict[str, float] = dict.fromkeys(self.parts, 0.0)
        self._seconds: dict[str, float] = dict.fromkeys(self.parts, 0.0)

    def device_seconds(self, until: float) -> float:
        """Return the seconds for which devices were held, from 0 to a time."""
        held = {name: max(until - begin, 0.0) for name, begin in self._held.items()}
        return sum((self._seconds[name] + held.get(name, 0.0)) * self._devices(name) for name in self.parts)

    def _devices(self, name: str) -> int:
        return self.parts[name][0].pool.devices_per_instance

    def put_away(self, name: str) -> None:
        """Let an instance be absent when the run begins."""
        self.close(name)
        for part in self.parts[name]:
            part.up = False
        self._faults.absent.add(name)
        self._held.pop(name, None)

    def take(self, name: str) -> None:
        """Hold the devices of an instance that is being loaded."""
        self._held.setdefault(name, self._system.shared.engine.now_seconds)

    def close(self, name: str) -> None:
        """Let nothing new come to an instance."""
        self._faults.closed.add(name)
        for part in self.parts[name]:
            if isinstance(part, PrefillInstance | MixedInstance):
                part.accepts = False
            if isinstance(part, DecodeInstance):
                self._system.shared.placement.set_open(part.first_rank, part.ranks, False)

    def idle(self, name: str) -> bool:
        """Whether an instance holds nothing any more, KV that is on its way included."""
        placement = self._system.shared.placement
        for part in self.parts[name]:
            if isinstance(part, PrefillInstance):
                if not part.idle or part.held_tokens:
                    return False
            elif not part.idle:
                return False
            elif isinstance(part, DecodeInstance):
                ranks = slice(part.first_rank, part.first_rank + part.ranks)
                if any(placement.occupied[ranks]):
                    return False
        return True

    def leave(self, name: str) -> None:
        """Take an instance away; what it still holds is moved or computed again elsewhere."""
        self._faults.withdraw(name)
        self._faults.absent.add(name)
        begin = self._held.pop(name, None)
        if begin is not None:
            self._seconds[name] += self._system.shared.engine.now_seconds - begin

    def open(self, name: str) -> float | None:
        """Let an instance serve; return instead when its devices are back where they are lost."""
        until = self._faults.lost_until(name)
        if until > self._system.shared.engine.now_seconds:
            return until
        self.take(name)
        self._faults.absent.discard(name)
        self._faults.closed.discard(name)
        for part in self.parts[name]:
            part.up = True
            if isinstance(part, PrefillInstance | MixedInstance):
                part.accepts = part.pool.role != "decode"
            if isinstance(part, DecodeInstance):
                opened = part.pool.role == "decode"
                self._system.shared.placement.set_open(part.first_rank, part.ranks, opened)
        self._system.revive()
        return None

    def reroute(self, routing: Routing) -> None:
        """Choose instances for prompts by another policy from now on."""
        heads: list[Head] = [*self._system.prefill, *self._system.mixed]
        self._system.choose_by(chooser(routing, heads))
