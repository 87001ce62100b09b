"""One plan for several scenarios, and a policy over windows of time: the layouts of each window, moves counted.

Several models share the devices of each window. A state is the layouts of all models, an entry of an array with one
axis per model. The cost of moving is a sum over models, so the minimum over moves is taken axis by axis.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ground.arrays import Bools, Floats, Ints
from ground.units import HOUR_SECONDS
from planner.changeover.moving import Terms, drain_seconds, weight_plane
from planner.changeover.robust import Layout, Scenario, at_hand, layouts_of, options_of
from planner.manifest.migration import kinds_of
from planner.manifest.schema import Manifest, Pool

Joint = tuple[Layout, ...]  # one layout per model
MOST_JOINT = 250_000  # most joint layouts; beyond, only the cheapest layouts of each model are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowScenarios:
    """The scenarios of one window of time, one per model; None where a model has no traffic."""

    name: str
    asked: tuple[Scenario | None, ...]

    @property
    def here(self) -> list[Scenario]:
        """The scenarios with traffic."""
        return [each for each in self.asked if each is not None]

    @property
    def least_chips(self) -> float:
        """Sum of the fewest chips proven for each model alone."""
        return sum(each.least_chips for each in self.here)

    @property
    def weight(self) -> float:
        """Weight of the window."""
        return self.here[0].weight

    @property
    def hours(self) -> float:
        """Hours of the window; 0 where not stated."""
        return self.here[0].hours or 0.0

    @property
    def devices(self) -> int:
        """Available devices."""
        return min(at_hand(each.question) for each in self.here)


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The layouts that each model may have in windows.

    ``late`` are the layouts that missed a window's limits when played, by window and model. They do not serve that
    window, nor does the same option with fewer instances.
    """

    windows: tuple[WindowScenarios, ...]
    layouts: tuple[tuple[Layout, ...], ...]
    late: tuple[tuple[int, int, Layout], ...] = ()

    def chips(self) -> Floats:
        """Return the chips of every joint layout, [layouts of the first model, of the second ...]."""
        return self._sum([[each.chips for each in own] for own in self.layouts])

    def holds(self, window: int) -> Bools:
        """Return which joint layouts serve a window on its devices; several models stand on nodes of their own."""
        own, asked = self.windows[window], self.windows[window].here
        spec = asked[0].question.decode
        if len(self.layouts) > 1:
            taken, most = [[each.nodes for each in own] for own in self.layouts], own.devices // spec.devices_per_node
        else:
            taken, most = [[each.devices for each in own] for own in self.layouts], own.devices
        found: Bools = self._sum(taken) <= most
        for model, layouts in enumerate(self.layouts):
            number = sum(before.asked[model] is not None for before in self.windows[:window])
            if own.asked[model] is not None:
                late = [each for at, whose, each in self.late if (at, whose) == (window, model)]
                serve = [each.holds(number) and not any(each.within(other) for other in late) for each in layouts]
                found &= self._along(model, serve) > 0
        return found

    def joint(self, at: Sequence[int]) -> Joint:
        """Return the layouts at an index of the array."""
        return tuple(layouts[each] for layouts, each in zip(self.layouts, at, strict=True))

    def _along(self, model: int, values: Sequence[float]) -> Floats:
        shape = [1] * len(self.layouts)
        shape[model] = len(values)
        return np.array(values, dtype=np.float64).reshape(shape)

    def _sum(self, values: Sequence[Sequence[float]]) -> Floats:
        total = np.zeros([len(each) for each in values])
        for model, own in enumerate(values):
            total = total + self._along(model, own)
        return total


def space_of(scenarios: Sequence[Scenario]) -> Space | None:
    """Return the layouts of all models in the scenarios; None where a model has no plan in any scenario."""
    models = list(dict.fromkeys(each.question.model.name for each in scenarios))
    asked = {(each.name, each.question.model.name): each for each in scenarios}
    names = list(dict.fromkeys(each.name for each in scenarios))
    windows = [WindowScenarios(name=name, asked=tuple(asked.get((name, model)) for model in models)) for name in names]
    most = max(window.devices for window in windows)
    found = []
    for number in range(len(models)):
        own = [window.asked[number] for window in windows]
        options = options_of([each for each in own if each is not None])
        if not options:
            return None
        absent = [Layout(option=options[0], counts=(0,) * len(options[0].pools))] if None in own else []
        found.append((*absent, *layouts_of(options, most)))
    each = int(MOST_JOINT ** (1 / len(models)))
    return Space(windows=tuple(windows), layouts=tuple(_cheapest(own, each) for own in found))


def _cheapest(layouts: tuple[Layout, ...], most: int) -> tuple[Layout, ...]:
    """Return the cheapest layouts, those that serve most scenarios among them first."""
    if len(layouts) <= most:
        return layouts
    count = len(layouts[-1].option.needs)
    first = [next((each for each in layouts if each.holds(number)), None) for number in range(count)]
    peak = next((each for each in layouts if all(each.holds(number) for number in range(count))), None)
    needed = {id(each) for each in (*first, peak)}
    kept = {id(each) for each in sorted(layouts, key=lambda each: id(each) not in needed)[:most]}
    return tuple(each for each in layouts if id(each) in kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Robust:
    """The layouts with the fewest chips that hold in a share of the windows, with the proven bound for that share."""

    layouts: Joint
    holds: tuple[bool, ...]
    least_chips: float

    @property
    def chips(self) -> float:
        """Chips of all models."""
        return sum(each.chips for each in self.layouts)


def one_plan(space: Space, share: float) -> Robust | None:
    """Return the plan that holds in windows of a share of the weight; None where no plan does.

    Bound: such a plan has at least the chips of each of its windows, so at least those of the dearest window among the
    cheapest ones that make up the share.
    """
    windows, chips = space.windows, space.chips()
    least = share * sum(each.weight for each in windows) * (1 - 1e-9)
    served = [space.holds(number) for number in range(len(windows))]
    weight = sum(window.weight * holds for window, holds in zip(windows, served, strict=True))
    costs = np.where(weight >= least, chips, math.inf)
    at = _place(costs)
    if not math.isfinite(costs[at]):
        return None
    reached, bound = 0.0, 0.0
    for each in sorted(windows, key=lambda window: window.least_chips):
        if reached >= least:
            break
        reached, bound = reached + each.weight, each.least_chips
    return Robust(layouts=space.joint(at), holds=tuple(bool(each[at]) for each in served), least_chips=bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The layouts of each window, None where none serves it; chip-hours, those of moving included."""

    layouts: tuple[Joint | None, ...]
    chip_hours: float
    moving_chip_hours: float
    bound_chip_hours: float  # proven lower bound: the bound of each window, with free moves
    replanned_chip_hours: float  # chip-hours of each window's cheapest layouts, with moves between them
    replanned_moving_chip_hours: float
    peak: Joint | None  # the one plan that serves every window that has a plan
    peak_chip_hours: float

    @property
    def gap(self) -> float:
        """Chip-hours above the bound, over the bound."""
        return self.chip_hours / self.bound_chip_hours - 1 if self.bound_chip_hours else 0.0


def policy(space: Space, terms: Terms | None = None) -> Policy:
    """Return the cheapest layouts over windows in their order, moves counted.

    Dynamic programme over windows and joint layouts. Its cost is the chip-hours of the windows and, between windows,
    those of moving: new instances load before a window begins, old ones drain after it ends. A window that nothing
    serves keeps the layouts before it. The bound has free moves: each window's proven fewest chips, or those of a
    better layout from another window, as the search sizes batches for one traffic.
    """
    hours, chips = [each.hours for each in space.windows], space.chips()
    moves = [moves_of(layouts, terms) for layouts in space.layouts]
    least, came, served, bound = np.zeros(chips.shape), [], [], 0.0
    cheapest: list[tuple[int, ...]] = []
    everywhere = np.ones(chips.shape, dtype=np.bool_)
    for number, own in enumerate(hours):
        steps: list[Ints] = []
        for axis, each in enumerate(moves if number else []):
            least, step = _moved(least, each, axis)
            steps.append(step)
        came.append(steps)
        holds = space.holds(number)
        served.append(bool(holds.any()))
        least = least + chips * own
        if served[-1]:
            bound += own * min(space.windows[number].least_chips, float(np.where(holds, chips, math.inf).min()))
        cheapest.append(_place(np.where(holds, chips, math.inf)) if served[-1] else cheapest[-1] if cheapest else ())
        if served[-1]:
            least = np.where(holds, least, math.inf)
            everywhere &= holds
    path = [_place(least)]
    for steps in reversed(came[1:]):
        path.append(_before(path[-1], steps))
    path.reverse()
    moving, always = (
        sum(
            float(each[first[axis], second[axis]])
            for first, second in itertools.pairwise(way)
            for axis, each in enumerate(moves)
        )
        for way in (path, [each for each in cheapest if each])
    )
    peak = np.where(everywhere, chips, math.inf)
    at = _place(peak)
    return Policy(
        layouts=tuple(space.joint(each) if held else None for each, held in zip(path, served, strict=True)),
        chip_hours=sum(float(chips[each]) * own for each, own in zip(path, hours, strict=True)) + moving,
        moving_chip_hours=moving,
        bound_chip_hours=bound,
        replanned_chip_hours=always
        + sum(float(chips[each]) * own for each, own in zip(cheapest, hours, strict=True) if each),
        replanned_moving_chip_hours=always,
        peak=space.joint(at) if math.isfinite(peak[at]) else None,
        peak_chip_hours=float(peak[at]) * sum(hours),
    )


def _place(costs: Floats) -> tuple[int, ...]:
    """Return the index of the least entry of an array."""
    return tuple(int(each) for each in np.unravel_index(int(costs.argmin()), costs.shape))


def _moved(least: Floats, moves: Floats, axis: int) -> tuple[Floats, Ints]:
    """Return the least cost after one model has moved from any layout to each, and the layout that it left."""
    front = np.moveaxis(least, axis, -1)
    cost, source = np.empty(front.shape), np.empty(front.shape, dtype=np.int64)
    for to in range(moves.shape[1]):
        reached = front + moves[:, to]
        source[..., to] = reached.argmin(axis=-1)
        cost[..., to] = reached.min(axis=-1)
    return np.moveaxis(cost, -1, axis), np.moveaxis(source, -1, axis)


def _before(at: tuple[int, ...], steps: Sequence[Ints]) -> tuple[int, ...]:
    """Return the joint layout before a move, tracing back the model that moved last first."""
    place = list(at)
    for axis in reversed(range(len(place))):
        place[axis] = int(steps[axis][tuple(place)])
    return tuple(place)


def moves_of(layouts: Sequence[Layout], terms: Terms | None = None) -> Floats:
    """Return the chip-hours of moving from each layout to each other one, [layouts, layouts].

    ``terms`` of loading weights; None: those that manifests state.
    """
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
    for empty in np.flatnonzero(~counts.any(axis=1)):  # no peer has the weights
        for row, own in enumerate(counts.astype(int).tolist()):
            starts = [source[kind].start_seconds(pool, own[kind] or 1) for kind, pool in enumerate(kinds)]
            held[empty, row] = float(counts[row] * starts @ chips)
    return np.asarray(held / HOUR_SECONDS, dtype=np.float64)


class LateStart(NamedTuple):
    """Instances of a model that start after a window has begun, as others drain from their devices first."""

    window: str
    model: str
    instances: int
    seconds: float


def late_starts(space: Space, found: Policy, *, around: bool) -> list[LateStart]:
    """Return the starts that the devices have no room for ahead of a window; ``around``: the first follows the last."""
    late: list[LateStart] = []
    for number, window in enumerate(space.windows):
        before, after = found.layouts[number - 1], found.layouts[number]
        if before is None or after is None or (not number and not around):
            continue
        pairs = list(zip(before, after, strict=True))
        spec = window.here[0].question.decode
        room = window.devices // spec.devices_per_node if len(pairs) > 1 else window.devices
        union = [_both(*pair) for pair in pairs]
        if sum(sum(each.nodes if len(pairs) > 1 else each.devices for each in own) for own in union) <= room:
            continue
        drains = [seconds for old, new in pairs for more, seconds in _changes(old, new) if more < 0]
        for model, (old, new) in enumerate(pairs):
            starts = [(more, seconds) for more, seconds in _changes(old, new) if more > 0]
            if starts:
                asked = next(each for each in (own.asked[model] for own in space.windows) if each is not None)
                wait = max(drains, default=0.0) + max(seconds for _, seconds in starts)
                count = sum(more for more, _ in starts)
                late.append(LateStart(window.name, asked.question.model.name, count, wait))
    return late


def _both(old: Layout, new: Layout) -> list[Layout]:
    """Return what stands while one layout gives way to another: instances of one option once."""
    if old.option is not new.option:
        return [old, new]
    return [replace(new, counts=tuple(max(pair) for pair in zip(old.counts, new.counts, strict=True)))]


def _changes(old: Layout, new: Layout) -> list[tuple[int, float]]:
    """Return by how many the instances of each pool change, and the seconds that one takes to start or to drain."""
    none, same, found = (0,) * max(len(old.counts), len(new.counts)), old.option is new.option, []
    peers = same and any(map(min, old.counts, new.counts))  # that keep the weights meanwhile
    sides = [(new, old.counts if same else none, new.counts), *([] if same else [(old, old.counts, none)])]
    for layout, then, now in sides:
        manifest = layout.option.manifest
        for pool, before, after in zip(manifest.pools, then, now, strict=False):
            if after > before:
                own = _start_seconds(manifest, pool, None) if peers else manifest.start_seconds(pool, after)
                found.append((after - before, own))
            elif after < before:
                found.append((after - before, drain_seconds(manifest, pool)))
    return found


def _start_seconds(manifest: Manifest, pool: Pool, terms: Terms | None) -> float:
    """Return the seconds until an instance serves, with weights from peers or, if quicker, from hosts."""
    known = terms or Terms.of(manifest)
    peers = weight_plane(manifest.clusters[pool.hardware].spec, 0.0, None)[1]
    return known.startup_seconds + pool.memory_bytes_per_device.weights / max(peers, known.host_bytes_per_second or 0.0)
