"""Requests in decode beside sampled steps: how many run on each rank, what they hold, and with which step they leave.

Counted in steps a request stays as long as its answer asks for, however long steps are. So who leaves is known when it
begins: what will be gone after each of the next steps stands on a ring. A request holds as much from its first step to
its last: its prompt, and of its answer what requests hold on average.
"""

import numpy as np
from numpy.typing import NDArray

from planner.queues.queueing import Array

Ints = NDArray[np.int64]
_MOST_STEPS = 2048
"""Longer answers stay to the end: a sample seldom lasts that many steps."""


class Decoding:
    """Running requests of each row, a DP rank of an instance."""

    def __init__(self, running: float, held_tokens: float, lives: Ints, rows: int) -> None:
        """Begin every row with as many, at points of their answers as in the long run.

        Args:
            running: of each row.
            held_tokens: of each of them.
            lives: steps of answers, [levels], equally likely.
            rows: how many.

        Ref: the time left of what is found under way, D. R. Cox, Renewal Theory, 1962, section 5.1.
        """
        self._span = int(min(lives.max(), _MOST_STEPS)) + 1
        longer = 1 - np.searchsorted(np.sort(lives), np.arange(1, self._span)) / lives.size
        both = np.array([running, running * held_tokens])
        leaving = np.zeros((2, rows, self._span))
        leaving[:, :, 1:] = both[:, None, None] * longer / max(float(lives.mean()), 1.0)
        self._leaving, self._steps = leaving.reshape(2, -1), np.zeros(rows, dtype=np.int64)
        self.held = np.repeat(both, rows).reshape(2, rows)
        """Requests and the tokens that they hold, [2, rows]."""

    @property
    def most_steps(self) -> int:
        """That may be advanced at once."""
        return self._span - 1

    def advance(self, rows: Ints, steps: Ints) -> None:
        """Let each of ``rows`` make so many steps, and those leave that end with them."""
        if (steps == 1).all():
            self._steps[rows] += 1
            places = rows * self._span + self._steps[rows] % self._span
            self.held[:, rows] -= self._leaving[:, places]
        else:
            each = np.repeat(rows, steps)
            ahead = np.arange(1, each.size + 1) - np.repeat(np.cumsum(steps) - steps, steps)
            places = each * self._span + (self._steps[each] + ahead) % self._span
            for held, gone in zip(self.held, self._leaving, strict=True):
                held -= np.bincount(each, gone[places], minlength=held.size)
            self._steps[rows] += steps
        self._leaving[:, places] = 0.0

    def join(self, rows: Ints, lives: Ints, tokens: Array) -> None:
        """Begin requests that take ``lives`` steps and hold ``tokens``; a row may be named several times."""
        begun = np.concatenate([np.ones(tokens.size), tokens]) * np.tile(lives > 0, 2)
        places = rows * self._span + (self._steps[rows] + lives) % self._span
        both = np.arange(2)[:, None]
        np.add.at(self.held.reshape(-1), (both * self._steps.size + rows).ravel(), begun)
        leaving = begun * np.tile(lives < self._span, 2)
        np.add.at(self._leaving.reshape(-1), (both * self._leaving.shape[1] + places).ravel(), leaving)
