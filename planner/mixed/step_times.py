"""How long the steps of an aggregated instance take, one by one: for recursions that ask for thousands of them.

A step is read off a table of the step cost beside a number of running requests (``queues.pass_table``), made when that
number is first met; from 8 on eight numbers to an octave are told apart, the nearest within 6 %. What the requests of a
rank have cached counts by its own number of tokens: the step cost is about linear in them.
"""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from planner.mixed.steps import Aggregate, loaded_seconds, part_slopes
from planner.queues.machine import Machine
from planner.queues.pass_table import PassTable
from planner.queues.queueing import Array
from planner.workload import running_kv_tokens

_KNOTS = (5, 16, 8, 8)
_MEANS = 17
_EXACT, _LEVEL_BITS = 8, 3
_LEAST_SECONDS = 1e-9
"""Of a step: what is read off a table of an odd cost may fall below nothing."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Steps beside a number of running requests."""

    table: PassTable
    """Of a rank with prompts, by (tokens, context, pairs, ended prompts) and the mean prompt tokens of all ranks."""
    means: list[float]
    """Prompt tokens of all ranks, on average."""
    alone_seconds: list[float]
    """Of a rank without prompts, for each."""
    kv_tokens: float
    """Cached tokens of a rank that both are for."""
    token_seconds: float
    """Of one more of them."""
    pair_tokens: float
    """Prompt tokens that lengthen a step as much as one query-key pair does."""

    def alone(self, mean_tokens: float, kv_tokens: float) -> float:
        """Seconds of a rank without prompts and with so many cached tokens."""
        means, seconds = self.means, self.alone_seconds
        cell = min(max(bisect_right(means, mean_tokens) - 1, 0), len(means) - 2)
        part = (mean_tokens - means[cell]) / (means[cell + 1] - means[cell])
        found = seconds[cell] * (1 - part) + seconds[cell + 1] * part
        return max(found + self.token_seconds * (kv_tokens - self.kv_tokens), _LEAST_SECONDS)

    def loaded(self, load: list[float], mean_tokens: float, kv_tokens: float) -> float:
        """Seconds of a rank with prompts and so many cached tokens of running requests."""
        found = self.table.seconds(load, mean_tokens) + self.token_seconds * (kv_tokens - self.kv_tokens)
        return max(found, _LEAST_SECONDS)


class StepTimes:
    """Steps beside any number of running requests."""

    def __init__(self, aggregate: Aggregate) -> None:
        """Know nothing yet: tables are made where they are asked for, and kept for the next stream."""
        self._aggregate, self._longest = aggregate, 0.0
        self._known: dict[int, Beside] = {}

    def reach(self, longest: float) -> None:
        """Take prompts of up to ``longest`` tokens."""
        if longest > self._longest:
            self._longest = longest
            self._known.clear()

    def beside(self, running: int) -> Beside:
        """Return the steps beside so many running requests of all ranks."""
        octave = max(running.bit_length() - 1 - _LEVEL_BITS, 0) if running > _EXACT else 0
        level = running + (1 << octave >> 1) >> octave << octave
        found = self._known.get(level)
        if found is None:
            found = self._known[level] = self._made(float(level))
        return found

    def _made(self, running: float) -> Beside:
        aggregate = self._aggregate
        room = float(aggregate.room(np.array(running)))
        kv = running / aggregate.ranks * running_kv_tokens(aggregate.workload).mean_tokens

        def beside(load: tuple[Array, Array, Array, Array], mean_tokens: Array) -> Array:
            return loaded_seconds(aggregate, np.full(mean_tokens.shape, running), load, mean_tokens)

        none = np.zeros(_MEANS + 1)
        means = np.append(none[:2], np.geomspace(1.0, max(room, 2.0), _MEANS - 1))
        cached = np.append([1.5 * kv], np.full(_MEANS, kv))
        alone = loaded_seconds(aggregate, none + running, (none, none, none, none), means, cached)
        table = PassTable(
            Machine(aggregate.cost, aggregate.ranks, room, aggregate.microbatches), self._longest, beside, _KNOTS
        )
        return Beside(
            table=table,
            means=means[1:].tolist(),
            alone_seconds=alone[1:].tolist(),
            kv_tokens=kv,
            token_seconds=float(alone[0] - alone[1]) / (0.5 * kv) if kv else 0.0,
            pair_tokens=_pair_tokens(table, room, self._longest / 2),
        )


def _pair_tokens(table: PassTable, room: float, depth: float) -> float:
    """Tokens that lengthen a part of a prompt as much as one pair does, about where parts are usual."""
    of_token, of_pair = part_slopes(
        lambda tokens, pairs: table.seconds([tokens, depth, pairs, 0.0], 0.8 * room), room, depth
    )
    return of_pair / of_token if of_token > 0 else 0.0
