"""A migration at work: its steps one after the other, each when the one before it has ended."""

from dataclasses import dataclass

from planner.manifest.migration import Staged, Start, instance_names
from runtime.simulate.engine import COMPLETION, Engine
from runtime.simulate.standby import Standby

LOOK_SECONDS = 0.25
"""Between two looks at whether instances have nothing left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrating:
    """A migration that begins at a time of the run."""

    staged: Staged
    at_seconds: float = 0.0


class Migration:
    """Plays the steps; ``ended_seconds`` is when the last one ended, None while they run."""

    def __init__(self, migrating: Migrating, standby: Standby, engine: Engine) -> None:
        self._steps, self._stages = migrating.staged.migration.steps, migrating.staged.stages
        self._standby, self._engine, self._at = standby, engine, migrating.at_seconds
        self._left: list[str] = []
        self._loading = 0
        self.steps_ended = 0
        self.ended_seconds: float | None = None
        for name in set(standby.parts) - instance_names(self._stages[0]):
            standby.put_away(name)

    def begin(self) -> None:
        """Schedule the first step."""
        self._engine.at(self._at, COMPLETION, self._drain, 0)

    def _drain(self, number: int) -> None:
        """Let nothing new come to the instances of a step, and wait until they are empty."""
        if number == len(self._steps):
            self.ended_seconds = self._engine.now_seconds
            return
        self._standby.reroute(self._stages[number + 1].routing)
        self._left = list(self._steps[number].drain)
        for name in self._left:
            self._standby.close(name)
        self._look((number, self._engine.now_seconds + self._steps[number].drain_seconds))

    def _look(self, what: tuple[int, float]) -> None:
        number, until = what
        late = self._engine.now_seconds >= until
        gone = [name for name in self._left if late or self._standby.idle(name)]
        for name in gone:
            self._standby.leave(name)
        self._left = [name for name in self._left if name not in gone]
        if self._left:
            self._engine.at(self._engine.now_seconds + LOOK_SECONDS, COMPLETION, self._look, what)
            return
        starting = self._steps[number].start
        self._loading = len(starting)
        for start in starting:
            self._standby.take(start.name)
            self._engine.at(self._engine.now_seconds + start.seconds, COMPLETION, self._open, (number, start))
        if not starting:
            self._end(number)

    def _open(self, what: tuple[int, Start]) -> None:
        """Let an instance serve; one whose devices are lost is loaded again when they are back."""
        number, start = what
        back = self._standby.open(start.name)
        if back is not None:
            self._engine.at(back, COMPLETION, self._open, what)
            return
        self._loading -= 1
        if not self._loading:
            self._end(number)

    def _end(self, number: int) -> None:
        self.steps_ended = number + 1
        self._drain(number + 1)
