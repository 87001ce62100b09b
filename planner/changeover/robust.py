"""One plan for several scenarios, and a policy over windows of time: which layout when, and whether moving pays.

A layout is how many instances of each kind run. An option is a manifest whose kinds go together, with what an instance
of each carries in each scenario; so it is known how many a scenario needs, and layouts are compared by counting.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ground.errors import Infeasible
from ground.units import HOUR_SECONDS
from planner.changeover.capacity import carried
from planner.changeover.lots import kinds_of
from planner.changeover.moving import Terms, drain_seconds, weight_plane
from planner.checks.check import Limits
from planner.instances.alignment import Lot, placed
from planner.manifest.layout import Instance
from planner.manifest.schema import Manifest, Pool, Prediction
from planner.plans.assemble import assemble
from planner.plans.plan import Plan
from planner.question import Question
from planner.survival import lost_instances

Floats = NDArray[np.float64]
MOST_LAYOUTS = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A question with a rate, what it weighs, and for how long it lasts where it is a window of time.

    ``best`` is the plan with the fewest chips for it alone, None where none keeps the limits; ``least_chips`` is the
    bound that the search proved.
    """

    name: str
    question: Question
    weight: float
    hours: float | None
    best: Plan | None
    least_chips: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Kinds that go together, and of each scenario the instances that it needs, None where it cannot be served."""

    manifest: Manifest
    needs: tuple[tuple[int, ...] | None, ...]

    @property
    def pools(self) -> list[Pool]:
        """One pool a kind."""
        return self.manifest.pools


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Instances of each pool of an option."""

    option: Option
    counts: tuple[int, ...]

    @property
    def chips(self) -> float:
        """Chips of all instances."""
        return sum(pool.chips_per_instance * count for pool, count in zip(self.option.pools, self.counts, strict=True))

    def manifest(self, question: Question) -> Manifest:
        """Return it as a manifest on the machines of a question, under what its option was planned for."""
        made, pools = self.option.manifest, list(self.option.pools)
        for cluster, spec in made.clusters.items():
            own = [number for number, pool in enumerate(pools) if pool.hardware == cluster]
            machines = next(each for each in (question.prefill, question.decode) if each.hardware == spec.spec)
            lots = [Lot(str(number), pools[number].devices_per_instance, self.counts[number]) for number in own]
            firsts = placed(lots, machines, machines.devices)
            if firsts is None:
                raise Infeasible(f"{cluster}: {machines.devices} devices do not hold the instances of the layout")
            for number in own:
                update = {"instances": _standing(pools[number], firsts[str(number)], machines.devices_per_node)}
                pools[number] = pools[number].model_copy(update=update)
        nodes = {
            name: 1 + max(n for p in pools if p.hardware == name for i in p.instances for n in i.nodes)
            for name in made.clusters
        }
        clusters = {name: each.model_copy(update={"nodes": nodes[name]}) for name, each in made.clusters.items()}
        return made.model_copy(update={"pools": pools, "clusters": clusters, "predicted": Prediction()})

    def holds(self, scenario: int) -> bool:
        """Whether it serves a scenario within its limits."""
        needs = self.option.needs[scenario]
        return needs is not None and all(have >= need for have, need in zip(self.counts, needs, strict=True))


def _standing(pool: Pool, firsts: Sequence[int], per_node: int) -> list[Instance]:
    """Return instances of a pool that begin at given devices."""
    size = pool.devices_per_instance
    return [
        Instance(
            name=f"{pool.role}-{number}",
            nodes=list(range(first // per_node, (first + size - 1) // per_node + 1)),
            first_device=first % per_node,
        )
        for number, first in enumerate(firsts)
    ]


def options_of(scenarios: Sequence[Scenario]) -> list[Option]:
    """Return the kinds of every scenario's own best plan with what each needs of them, alike ones once."""
    found: list[Option] = []
    seen: list[list[int]] = []
    manifests = [assemble(each.best, {"scenario": each.name}) for each in scenarios if each.best is not None]
    _, numbers = kinds_of(*manifests) if manifests else ([], [])
    owners = [each for each in scenarios if each.best is not None]
    for manifest, kinds, owner in zip(manifests, numbers, owners, strict=True):
        if kinds in seen:
            continue
        seen.append(kinds)
        alike = {own.name: made for own, made, other in zip(owners, manifests, numbers, strict=True) if other == kinds}
        needs = tuple(_needs(manifest, each, alike.get(each.name)) for each in scenarios)
        assert needs[scenarios.index(owner)] is not None, "a plan serves the scenario that it was made for"
        found.append(Option(manifest=manifest, needs=needs))
    return found


def _needs(manifest: Manifest, scenario: Scenario, own: Manifest | None) -> tuple[int, ...] | None:
    """Return the fewest instances of each pool for a scenario; its own plan's where that has these kinds."""
    if own is not None:
        return tuple(len(pool.instances) for pool in own.pools)
    question = scenario.question
    rate = question.rate_per_second or 0.0
    limits = Limits.of(question, rate)
    rates = carried(manifest, question.workload, limits)
    counts = []
    for pool, each in zip(manifest.pools, rates, strict=True):
        if each <= 0:
            return None
        per_node = int(manifest.clusters[pool.hardware].spec.devices_per_node.value)
        spare = lost_instances(question.survive, pool.devices_per_instance, per_node)
        counts.append(max(math.ceil(rate / each * (1 - 1e-9)), 1) + spare)
    devices = sum(pool.devices_per_instance * count for pool, count in zip(manifest.pools, counts, strict=True))
    return tuple(counts) if devices <= at_hand(question) else None


def at_hand(question: Question) -> int:
    """Return the devices that a question may use."""
    return sum({side.budget: side.devices for side in (question.prefill, question.decode)}.values())


def layouts_of(options: Sequence[Option], most_devices: int) -> list[Layout]:
    """Return every layout whose counts some scenario needs, of as many devices as there are."""
    found = []
    for option in options:
        columns = zip(*(need for need in option.needs if need is not None), strict=True)
        for counts in itertools.product(*(sorted(set(column)) for column in columns)):
            devices = sum(pool.devices_per_instance * count for pool, count in zip(option.pools, counts, strict=True))
            if devices <= most_devices:
                found.append(Layout(option=option, counts=counts))
    return sorted(found, key=lambda layout: layout.chips)[:MOST_LAYOUTS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Robust:
    """The layout with fewest chips that holds in a share of the scenarios; no plan for that share has fewer."""

    layout: Layout
    holds: tuple[bool, ...]
    least_chips: float


def one_plan(scenarios: Sequence[Scenario], layouts: Sequence[Layout], share: float) -> Robust | None:
    """Return the one plan for a share of the weight; None where no layout holds in so many.

    The bound: a plan that holds in scenarios of that weight has the chips of the dearest of them, so no fewer than the
    dearest of the cheapest ones that make the share up.
    """
    weight = sum(each.weight for each in scenarios)
    for layout in layouts:
        holds = tuple(layout.holds(number) for number in range(len(scenarios)))
        if sum(each.weight for each, held in zip(scenarios, holds, strict=True) if held) >= share * weight * (1 - 1e-9):
            reached, least = 0.0, 0.0
            for each in sorted(scenarios, key=lambda one: one.least_chips):
                if reached >= share * weight * (1 - 1e-9):
                    break
                reached, least = reached + each.weight, each.least_chips
            return Robust(layout=layout, holds=holds, least_chips=least)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A layout for each window, None where none serves it; chip-hours with what moving holds beside them."""

    layouts: tuple[Layout | None, ...]
    chip_hours: float
    moving_chip_hours: float
    bound_chip_hours: float
    """Each window's own best plan, with free moves."""
    peak: Layout | None
    """The one layout for every window that has one."""
    peak_chip_hours: float

    @property
    def gap(self) -> float:
        """How far the policy is above the bound, as a share of it."""
        return self.chip_hours / self.bound_chip_hours - 1 if self.bound_chip_hours else 0.0


def policy(scenarios: Sequence[Scenario], layouts: Sequence[Layout], terms: Terms | None = None) -> Policy:
    """Return the cheapest layouts over windows in their order, moves counted.

    Dynamic programme over windows and layouts: chips for the window's hours, and between windows what moving holds:
    instances that come are loaded before the window begins, those that go are drained after it. A window that nothing
    serves keeps what the cheapest way has. The bound is clairvoyant: each window's proven fewest chips, moves free.
    """
    hours = [each.hours or 0.0 for each in scenarios]
    chips = np.array([layout.chips for layout in layouts])
    moves = _moves(layouts, terms or Terms())
    served = [np.array([layout.holds(number) for layout in layouts]) for number in range(len(scenarios))]
    least, came = np.zeros(len(layouts)), []
    for number, holds in enumerate(served):
        reached = least[:, None] + moves if number else np.tile(least[:, None], (1, len(layouts)))
        came.append(reached.argmin(axis=0))
        least = reached.min(axis=0) + chips * hours[number] + (np.where(holds, 0.0, math.inf) if holds.any() else 0.0)
    at = int(least.argmin())
    path = [at]
    for number in range(len(scenarios) - 1, 0, -1):
        path.append(int(came[number][path[-1]]))
    path.reverse()
    moving = sum(float(moves[first, second]) for first, second in itertools.pairwise(path))
    chosen = tuple(layouts[each] if served[number].any() else None for number, each in enumerate(path))
    peak = next((each for each in layouts if all(each.holds(n) for n, held in enumerate(served) if held.any())), None)
    return Policy(
        layouts=chosen,
        chip_hours=sum(float(chips[each]) * hours[number] for number, each in enumerate(path)) + moving,
        moving_chip_hours=moving,
        bound_chip_hours=sum(each.least_chips * own for each, own in zip(scenarios, hours, strict=True)),
        peak=peak,
        peak_chip_hours=peak.chips * sum(hours) if peak else math.inf,
    )


def _moves(layouts: Sequence[Layout], terms: Terms) -> Floats:
    """Return the chip-hours that moving from each layout to each other one holds, [layouts, layouts]."""
    options = list({id(layout.option): layout.option for layout in layouts}.values())
    kinds, numbers = kinds_of(*(option.manifest for option in options))
    columns = {id(option): own for option, own in zip(options, numbers, strict=True)}
    counts = np.zeros((len(layouts), len(kinds)))
    for row, layout in enumerate(layouts):
        for kind, count in zip(columns[id(layout.option)], layout.counts, strict=True):
            counts[row, kind] += count
    source = {kind: option.manifest for option in options for kind in columns[id(option)]}
    come = np.array([_start_seconds(source[kind], pool, terms) for kind, pool in enumerate(kinds)])
    go = np.array([drain_seconds(source[kind], pool) for kind, pool in enumerate(kinds)])
    chips = np.array([pool.chips_per_instance for pool in kinds])
    change = counts[None, :, :] - counts[:, None, :]
    held = np.maximum(change, 0.0) @ (come * chips) + np.maximum(-change, 0.0) @ (go * chips)
    return np.asarray(held / HOUR_SECONDS, dtype=np.float64)


def _start_seconds(manifest: Manifest, pool: Pool, terms: Terms) -> float:
    """Return how long an instance takes until it serves, its weights read off peers."""
    rate = weight_plane(manifest.clusters[pool.hardware].spec, 0.0, None)[1]
    return terms.startup_seconds + pool.memory_bytes_per_device.weights / rate
