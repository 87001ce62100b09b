"""Scenarios, each solved alone, and layouts (numbers of instances) that may run in several of them.

An option is a manifest and the rate of an instance of each of its pools in each scenario. So the instances that a
scenario needs are known, and layouts are compared by counting (``changeover.policy``).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ground.errors import Infeasible
from ground.units import format_duration, rounded_up
from planner.changeover.capacity import carried
from planner.checks.on_trace import search_on_trace
from planner.instances.alignment import Lot, lost_instances, placed
from planner.manifest.migration import kinds_of
from planner.manifest.schema import Manifest, Pool, Prediction
from planner.plans.assemble import assemble, standing, stated_levels, stated_workload
from planner.plans.expectation import queued
from planner.plans.plan import Plan
from planner.question import Question
from planner.search.answer import Answer
from planner.search.changes.missing import asked_limit, with_limit
from planner.search.changes.nearest import limit_change
from planner.search.changes.variations import alike
from planner.search.search import search
from planner.serving.capacity import Limits
from planner.workload import TraceRows

MOST_LAYOUTS = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A question with a rate, its weight, and its hours if it is a window of time.

    Scenarios of one name happen at once, each for its own model. ``best`` is the plan with the fewest chips for the
    scenario alone, None where none keeps the limits; ``least_chips`` is its proven bound. ``relaxed`` says which limits
    were relaxed because no plan keeps the asked ones.
    """

    name: str
    question: Question
    weight: float
    hours: float | None
    best: Plan | None
    least_chips: float
    relaxed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Pools that go together, and the instances that each scenario needs of them, None where it cannot be served.

    ``own`` are the names of scenarios whose own plan has these pools and just the needed instances.
    """

    manifest: Manifest
    needs: tuple[tuple[int, ...] | None, ...]
    own: frozenset[str] = frozenset()

    @property
    def pools(self) -> list[Pool]:
        """The pools of the option."""
        return self.manifest.pools


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Instances of each pool of an option; no option where a model does not run."""

    option: Option
    counts: tuple[int, ...]

    @property
    def pools(self) -> list[tuple[Pool, int]]:
        """The pools, each with its instances."""
        return list(zip(self.option.pools, self.counts, strict=True))

    @property
    def chips(self) -> float:
        """Chips of all instances."""
        return sum(pool.chips_per_instance * count for pool, count in self.pools)

    @property
    def devices(self) -> int:
        """Devices of all instances."""
        return sum(pool.devices_per_instance * count for pool, count in self.pools)

    @property
    def nodes(self) -> int:
        """Nodes of all instances, not shared with other models."""
        found = 0
        for name, cluster in self.option.manifest.clusters.items():
            devices = sum(pool.devices_per_instance * count for pool, count in self.pools if pool.hardware == name)
            found += -(-devices // int(cluster.spec.devices_per_node.value))
        return found

    def within(self, other: "Layout") -> bool:
        """Whether another layout of the same option has at least as many instances of each pool."""
        pairs = zip(self.counts, other.counts, strict=True)
        return self.option is other.option and all(mine <= theirs for mine, theirs in pairs)

    def is_own(self, scenario: Scenario) -> bool:
        """Whether the layout is the plan that was made for a scenario."""
        best = scenario.best
        return scenario.name in self.option.own and best is not None and self.chips == best.chips

    def holds(self, scenario: int) -> bool:
        """Whether the layout serves a scenario within its limits."""
        needs = self.option.needs[scenario]
        return needs is not None and all(have >= need for have, need in zip(self.counts, needs, strict=True))


def stood(together: Sequence[tuple[Layout, Question]]) -> list[Manifest]:
    """Return the manifests of layouts that run on the same machines at once, without shared nodes.

    Each states the traffic and limits of its question and the expected figures.
    """
    first: dict[str, dict[str, list[int]]] = {}
    for cluster in dict.fromkeys(name for layout, _ in together for name in layout.option.manifest.clusters):
        groups, machines = [], None
        for number, (layout, question) in enumerate(together):
            spec = layout.option.manifest.clusters.get(cluster)
            if spec is None:
                continue
            machines = next(each for each in (question.prefill, question.decode) if each.hardware == spec.spec)
            groups.append(
                [
                    Lot(f"{number}/{at}", pool.devices_per_instance, count)
                    for at, (pool, count) in enumerate(layout.pools)
                    if pool.hardware == cluster
                ]
            )
        assert machines is not None, "some layout has the cluster"
        places = placed(groups, machines)
        if places is None:
            raise Infeasible(f"{cluster}: {machines.devices} devices do not hold the instances of the layout")
        first[cluster] = places
    return [
        _stated(
            layout, question, [first[pool.hardware][f"{number}/{at}"] for at, pool in enumerate(layout.option.pools)]
        )
        for number, (layout, question) in enumerate(together)
    ]


def _stated(layout: Layout, question: Question, firsts: Sequence[Sequence[int]]) -> Manifest:
    """Return the manifest of a layout whose instances begin at given devices."""
    made = layout.option.manifest
    sizes = {name: int(cluster.spec.devices_per_node.value) for name, cluster in made.clusters.items()}
    rate = question.rate_per_second or 0.0
    workload = stated_workload(question, rate)
    own = made.workload == workload and layout.counts == tuple(len(pool.instances) for pool in made.pools)
    pools = [
        pool.model_copy(
            update={
                "instances": standing(pool.role, pool.devices_per_instance, sizes[pool.hardware], own_firsts),
                "predicted": pool.predicted if made.workload == workload else None,
            }
        )
        for pool, own_firsts in zip(made.pools, firsts, strict=True)
    ]
    nodes = {
        name: 1 + max(node for pool in pools if pool.hardware == name for each in pool.instances for node in each.nodes)
        for name in made.clusters
    }
    clusters = {name: each.model_copy(update={"nodes": nodes[name]}) for name, each in made.clusters.items()}
    update = {"pools": pools, "clusters": clusters, "workload": workload, "service_levels": stated_levels(question)}
    manifest = made.model_copy(update=update)
    if own:
        return manifest
    expected = queued(manifest, question.workload, rate)
    return manifest.model_copy(update={"predicted": expected.prediction or Prediction()})


def options_of(scenarios: Sequence[Scenario]) -> list[Option]:
    """Return the options from every scenario's own best plan, equal ones once."""
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
        found.append(Option(manifest=manifest, needs=needs, own=frozenset(alike)))
    return found


def _needs(manifest: Manifest, scenario: Scenario, own: Manifest | None) -> tuple[int, ...] | None:
    """Return the fewest instances of each pool for a scenario; its own plan's where that has these kinds."""
    if own is not None:
        return tuple(len(pool.instances) for pool in own.pools)
    question = scenario.question
    rate = question.rate_per_second or 0.0
    rates = carried(manifest, question.workload, Limits.of(question))
    counts = []
    for pool, each in zip(manifest.pools, rates, strict=True):
        if each <= 0:
            return None
        per_node, size = int(manifest.clusters[pool.hardware].spec.devices_per_node.value), pool.devices_per_instance
        (spare,) = lost_instances(question.survive, question.decode, np.array([size]), np.array([per_node]))
        counts.append(max(math.ceil(rate / each * (1 - 1e-9)), 1) + int(spare))
    return tuple(counts)


def at_hand(question: Question) -> int:
    """Return the available devices of a question."""
    return sum({side.budget: side.devices for side in (question.prefill, question.decode)}.values())


def layouts_of(options: Sequence[Option], most_devices: int) -> list[Layout]:
    """Return every layout whose counts some scenario needs and whose devices are available."""
    found = []
    for option in options:
        columns = zip(*(need for need in option.needs if need is not None), strict=True)
        for counts in itertools.product(*(sorted(set(column)) for column in columns)):
            layout = Layout(option=option, counts=counts)
            if layout.devices <= most_devices:
                found.append(layout)
    return sorted(found, key=lambda layout: layout.chips)[:MOST_LAYOUTS]


def solved_scenario(
    name: str, asked: Question, rows: TraceRows | None = None, *, weight: float = 1.0, hours: float | None = None
) -> Scenario:
    """Return a scenario with its own best plan and the fewest chips that the search proved.

    ``rows`` are the requests of its trace, where a plan can be played on them.
    """
    alone = asked.prefill, asked.decode
    prefill, decode = (replace(machines, among_others=True) for machines in alone)  # layouts of several models
    asked = replace(asked, prefill=prefill, decode=prefill if asked.one_pool else decode)
    answer, question, relaxed = served_nearest(asked, rows)
    bound = answer.bound.value if answer.best and answer.bound else None
    return Scenario(
        name=name,
        question=question,
        weight=weight,
        hours=hours,
        best=answer.best,
        least_chips=0.0 if answer.best is None else bound if bound is not None else answer.best.chips,
        relaxed=relaxed,
    )


def served_nearest(question: Question, rows: TraceRows | None) -> tuple[Answer, Question, str | None]:
    """Return the plan with the fewest chips; where none keeps the limits, that for the nearest limits, and these.

    With a trace the plan is played on it; limits that it misses are relaxed to the values reached.
    """
    proven = partial(search, beside=False, proof=True)  # of what stands beside, a scenario takes the bound alone
    found = None if rows is None else search_on_trace(question, rows, proven, proven)
    answer, on_trace = (proven(question), None) if found is None else (found.answer, found.on_trace)
    if answer.best is None:
        for ttft in (True, False):
            change = limit_change(question, ttft, alike())
            if change.question is not None:
                answer, nearest, _ = served_nearest(change.question, rows)
                return answer, nearest, f"{change.direction} {change.told}"
    told = []
    if on_trace is not None and not on_trace.keeps:
        for name, ttft in (("TTFT", True), ("TPOT", False)):
            limit = asked_limit(question, ttft)[1]
            measured = rounded_up(on_trace.at(name.lower(), question.percentile) or 0.0)
            if measured > limit:
                question = with_limit(question, ttft, measured)
                told.append(f"{name} {format_duration(measured)} on its trace instead of {format_duration(limit)}")
    nearest = replace(answer.question, ttft_seconds=question.ttft_seconds, tpot_seconds=question.tpot_seconds)
    return answer, nearest, " and ".join(told) or None
