"""Offers: candidates of a role with upper bounds on their rates, and servers that compute their capacities.

Thousands of offers are made as arrays; a server is built for the few that a plan could use.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol, Self

import numpy as np

from ground.arrays import Floats, Ints
from planner.instances.least import Least


class Server(Protocol):
    """Computes the capacity of instances of one kind."""

    def pool_capacity(self, instances: int) -> float:
        """Largest rate of a pool of so many instances within the limits; 0 where there is none."""
        ...

    def pool_carries(self, instances: int, rate_per_second: float) -> bool:
        """Whether a pool of so many instances carries a rate within the limits."""
        ...

    def likely_capacity(self, instances: int, least_per_second: float, lower_per_second: float = 0.0) -> float | None:
        """A guess of ``pool_capacity`` from few played requests; None where that would save little.

        Rates below ``least_per_second`` count as equal; without one, those below ``lower_per_second`` may, too.
        """
        ...

    def at(self, instances: int, rate_per_second: float | None = None) -> object:
        """The server with the budget or cap with which so many instances carry most; a plan is made of it.

        With a rate, the server that is quickest at it.
        """
        ...

    @property
    def independent(self) -> bool:
        """Whether the capacity of several instances is a multiple of that of one."""
        ...

    def mean_seconds(self, instances: int, rate_per_second: float) -> float:
        """Mean seconds of a request in a pool of so many instances at its rate; infinite where a limit is missed."""
        ...


class Stretched(NamedTuple):
    """A server on a clock that runs slower by a factor."""

    kind: Server
    times: float

    @property
    def independent(self) -> bool:
        """As for the server."""
        return self.kind.independent

    def pool_capacity(self, instances: int) -> float:
        """Largest rate within the limits."""
        return self.kind.pool_capacity(instances) / self.times

    def pool_carries(self, instances: int, rate_per_second: float) -> bool:
        """Whether a rate is carried within the limits."""
        return self.kind.pool_carries(instances, rate_per_second * self.times)

    def likely_capacity(self, instances: int, least_per_second: float, lower_per_second: float = 0.0) -> float | None:
        """A guess of the largest rate, None where that would save little."""
        likely = self.kind.likely_capacity(instances, least_per_second * self.times, lower_per_second * self.times)
        return None if likely is None else likely / self.times

    def at(self, instances: int, rate_per_second: float | None = None) -> object:
        """The server as planned, on its own clock."""
        return self.kind.at(instances, None if rate_per_second is None else rate_per_second * self.times)

    def mean_seconds(self, instances: int, rate_per_second: float) -> float:
        """Mean seconds of a request."""
        return self.kind.mean_seconds(instances, rate_per_second * self.times) * self.times


def on_own_clock(server: Server) -> Server:
    """Return a server without what slows its clock down."""
    return server.kind if isinstance(server, Stretched) else server


@dataclass(frozen=True, slots=True, eq=False)
class Offers:
    """Candidates as arrays, [offers]; thousands are made at once, and few servers are ever built."""

    devices: Ints
    bound_per_second: Floats  # upper bound on the rate of one instance, whatever their number
    guess_per_second: Floats  # estimate of the capacity of one instance; it only decides what is solved first
    layers: Ints  # [offers, 2]: attention TP and pipeline stages; in some engines both roles must agree on them
    build: Callable[[int], Server]  # makes the server of an offer by its index
    least: Least | None = None  # lower bounds on a request's time; None unless latency is the objective

    def __len__(self) -> int:
        return int(self.devices.size)

    @classmethod
    def none(cls) -> Self:
        """Return no offers."""
        nothing: Ints = np.zeros(0, dtype=np.int64)
        return cls(nothing, np.zeros(0), np.zeros(0), nothing.reshape(0, 2), partial(_of_parts, [0], []))

    @classmethod
    def joined(cls, parts: Sequence["Offers"]) -> Self:
        """Return the offers of several parts, in their order."""
        parts = [part for part in parts if len(part)]  # none of a part are of no objective
        if not parts:
            return cls.none()
        starts = np.cumsum([0, *(len(part) for part in parts)]).tolist()
        known = [part.least for part in parts if part.least is not None]
        return cls(
            devices=np.concatenate([part.devices for part in parts]),
            bound_per_second=np.concatenate([part.bound_per_second for part in parts]),
            guess_per_second=np.concatenate([part.guess_per_second for part in parts]),
            layers=np.concatenate([part.layers for part in parts]),
            build=partial(_of_parts, starts, [part.build for part in parts]),
            least=Least.joined(known) if len(known) == len(parts) else None,
        )

    @property
    def links(self) -> Ints:
        """Links that a prompt's KV may cross at once, [offers]."""
        return np.asarray(self.layers.prod(axis=1))

    @property
    def alone_seconds(self) -> Floats:
        """Least seconds of a request alone, [offers]; empty unless latency is the objective."""
        return np.zeros(0) if self.least is None else self.least.alone + self.least.fixed

    def select(self, index: Ints) -> "Offers":
        """Return some of the offers."""
        return Offers(
            devices=self.devices[index],
            bound_per_second=self.bound_per_second[index],
            guess_per_second=self.guess_per_second[index],
            layers=self.layers[index],
            build=partial(_of_some, index, self.build),
            least=None if self.least is None else self.least.select(index),
        )

    def stretched(self, times: float) -> "Offers":
        """Return the offers on a clock that runs slower by a factor, as where all steps take so many times as long."""
        if times == 1:
            return self
        return replace(
            self,
            bound_per_second=self.bound_per_second / times,
            guess_per_second=self.guess_per_second / times,
            build=lambda number: Stretched(self.build(number), times),
            least=self.least and self.least.stretched(times),
        )

    def with_layers(self, allowed: set[tuple[int, int]]) -> "Offers":
        """Return the offers whose (attention TP, pipeline stages) are in ``allowed``."""
        return self.select(np.flatnonzero([(tp, pp) in allowed for tp, pp in self.layers.tolist()]))

    def leading(self, most: int) -> list[int]:
        """Return the offers with the largest bounds per device, at most so many."""
        return [int(number) for number in np.argsort(-self.bound_per_second / self.devices, kind="stable")[:most]]

    def leading_of_each_size(self, most: int) -> list[int]:
        """Return for each number of devices the offers with the largest bounds, at most so many, the best first.

        The first offer has the largest bound per device.
        """
        order = np.lexsort((-self.bound_per_second, self.devices))
        sizes = self.devices[order]
        within = np.arange(order.size) - np.searchsorted(sizes, sizes)
        kept = order[within < most]
        return [int(n) for n in kept[np.argsort(-(self.bound_per_second / self.devices)[kept], kind="stable")]]


def _of_parts(starts: list[int], builds: list[Callable[[int], Server]], number: int) -> Server:
    """Make the server of an offer, given the first index and the builder of each part."""
    part = bisect_right(starts, number) - 1
    return builds[part](number - starts[part])


def _of_some(index: Ints, build: Callable[[int], Server], number: int) -> Server:
    """Make the server of an offer, given its index in the selection ``index``."""
    return build(int(index[number]))
