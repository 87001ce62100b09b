"""The columns of a model on given machines: every candidate of each role is costed, no queue is solved.

Which shapes are searched is told here too, and the rate that an instance must carry to beat the incumbent.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np

from ground.arrays import Floats, Ints
from ground.identity import Same
from models.spec import ModelSpec
from planner.instances.alignment import lost_instances
from planner.instances.candidates import Count
from planner.instances.encoding import ROWS, before, behind
from planner.instances.kv_links import transfer_seconds
from planner.instances.reachable import REFERENCE, most_instances, pairs
from planner.instances.space import (
    ROLES,
    Role,
    RoleSpace,
    Row,
    groups,
    machines_of,
    role_rows,
    role_space,
    row_deployment,
)
from planner.objective import SLACK, Aim, Incumbent
from planner.offers.aggregated_offers import aggregated_offers
from planner.offers.decode_kinds import DecodeKind
from planner.offers.decode_offers import decode_offers
from planner.offers.offer import Offers, Server, Stretched, on_own_clock
from planner.offers.prefill_offers import PrefillTables, prefill_offers, prefill_tables, timely_offers
from planner.offers.slower import Slower
from planner.programme.columns import Side
from planner.programme.programme import Programme
from planner.programme.spread import part_of_nodes, spread_apart
from planner.question import Machines, Question

_Key = tuple[Hashable, ...]

Cut = dict[Role, dict[str, int]]  # strategies and layouts that were not costed, by role and rule


class Option(NamedTuple):
    """A way to serve a model: the question on the machines used, and the columns of its roles in order.

    The roles are encode, if any, then prefill and decode, or aggregated alone.
    """

    question: Question
    sides: tuple[Side, ...]
    transfer_seconds: float = 0.0  # KV transfer seconds of a prompt for which decode was costed
    whole: "Option | None" = None  # the option whose instances with certain numbers of links are in it

    @property
    def aggregated(self) -> bool:
        """Whether the option is aggregated instances."""
        return self.decode.role == "mixed"

    @property
    def encode(self) -> tuple[Side, ...]:
        """The columns of encode instances; None without encode instances."""
        return tuple(side for side in self.sides if side.role == "encode")

    @property
    def decode(self) -> Side:
        """The columns of decode or aggregated instances."""
        return self.sides[-1]

    def behind(self, seconds: float) -> "Option":
        """Return the option with decode costed for KV transfers of so many seconds."""
        return self._replace(sides=(*self.sides[:-1], behind_kv(self.decode, seconds)), transfer_seconds=seconds)

    def without_spares(self) -> "Option":
        """Return the option without the demand to survive a loss."""
        return self._replace(sides=tuple(side.of(side.offers, spares=False) for side in self.sides))


class Pools(NamedTuple):
    """The columns of prefill and decode instances, and the numbers cut."""

    prefill: Side
    decode: Side
    cut: Cut
    transfer_seconds: float = 0.0

    @property
    def sides(self) -> tuple[Side, Side]:
        """The columns of both roles, in the order of a choice."""
        return self.prefill, self.decode

    def options(self, question: Question) -> list[Option]:
        """Return the options within which the engine can send KV from every prefill to every decode instance."""
        if not (self.prefill.offers and self.decode.offers):
            return []
        layers = [{(tp, pp) for tp, pp in side.offers.layers.tolist()} for side in self.sides]
        found = pairs(question, layers[0], layers[1])
        parts = [self.sides]
        if found != [(layers[0], layers[1])]:
            prefill, decode = self.sides
            parts = [
                (prefill.of(prefill.offers.with_layers(first)), decode.of(decode.offers.with_layers(second)))
                for first, second in found
            ]
        alone, encodes = question.spread and question.one_pool, question.encode_share > 0
        spread = [each for part in parts for each in spread_apart(part, encodes=encodes)] if alone else []
        every = (Option(question, part, self.transfer_seconds) for part in (*parts, *spread))
        return [option for option in every if all(side.offers for side in option.sides)]


@dataclass(frozen=True, slots=True)
class Costing:
    """Costs kept between similar questions, by everything that the columns of a role depend on.

    Engines and number formats share common costs, and so do questions that differ in one limit.
    """

    count: Count = field(default_factory=Count)
    model: str = ""  # name of the model in a fleet
    _sides: dict[_Key, Side] = field(default_factory=dict)
    _tables: dict[_Key, PrefillTables] = field(default_factory=dict)  # prefill tables, at the loosest TTFT limit so far
    _slower: dict[_Key, Slower] = field(default_factory=dict)
    """Late prefill instances, by what their questions have in common."""
    _parts: dict[tuple[Same[Side], int, float | None], Side] = field(default_factory=dict)
    """Instances of a side with so many links, of decode behind transfers of so many seconds."""

    def prefill(self, question: Question, rows: list[Row]) -> Side:
        """Return the columns of prefill instances."""
        asked, own = behind(question.on_clock("prefill")), (*_made_for(question, "prefill"), Same(rows))
        alike = _seen(question, "prefill", "tpot_seconds")
        if (*alike, *own) not in self._sides:
            key = (*_seen(question, "prefill", "tpot_seconds", "ttft_seconds"), *own)
            costed = self._tables.get(key)
            if costed is None or costed.ttft_seconds < asked.ttft_seconds:
                costed = self._tables[key] = prefill_tables(asked, rows, self.count)
            offers = timely_offers(asked, costed, self._slower.setdefault(alike, Slower()))
            self._sides[*alike, *own] = make_side(question, "prefill", offers, self.model)
        return self._sides[*alike, *own]

    def fed(self, option: Option) -> Option:
        """Return an option with the columns of encode instances before its own, where its question has some.

        Before roles that have shares of every node they have the rest of it.
        """
        question = option.question
        if not question.encode_share:
            return option
        key = (*_seen(question, "encode", "tpot_seconds"), *_made_for(question, "prefill"))
        if key not in self._sides:
            offers = prefill_offers(before(question.on_clock("encode")), ROWS, self.count)
            self._sides[key] = make_side(question, "encode", offers, self.model)
        encode, shares = self._sides[key], sum(side.machines.share for side in option.sides)
        if shares:
            encode = encode.on(part_of_nodes(question.prefill, question.prefill.devices_per_node - shares))
        return option._replace(sides=(encode, *option.sides))

    def by_links(self, option: Option) -> Iterator[Option]:
        """Yield an option by the links that KV leaves and reaches instances over, as many as both have carry it.

        Each has decode costed for its own transfers, and not for the slowest of all.
        """
        question, (prefill, decode) = option.question, option.sides[-2:]
        widths = [np.unique(side.offers.links).tolist() for side in (prefill, decode)]
        alike = question.spread or not option.transfer_seconds or widths[0] == widths[1] == [1]
        if alike:
            yield option
            return
        deployment = _decode_kind(decode.server(0)).full.candidate.deployment
        for first, second in product(*widths):
            seconds = float(transfer_seconds(question, deployment, min(first, second)))
            sides = self._of_links(prefill, first), self._of_links(decode, second, seconds)
            yield Option(question, (*option.encode, *sides), seconds, option)

    def _of_links(self, side: Side, links: int, seconds: float | None = None) -> Side:
        """Return the columns of instances with so many links, of decode behind transfers of so many seconds."""
        key = Same(side), links, seconds
        if key not in self._parts and seconds is not None:
            self._parts[key] = behind_kv(self._of_links(side, links), seconds)
        elif key not in self._parts:
            self._parts[key] = side.of(side.offers.select(np.flatnonzero(side.offers.links == links)))
        return self._parts[key]

    def decode(self, question: Question, rows: list[Row], transfer_seconds: float) -> Side:
        """Return the columns of decode instances for a KV transfer time of prompts."""
        alike = _seen(question, "decode", "ttft_seconds", "encode_share")
        key = (*alike, *_made_for(question, "decode"), Same(rows), transfer_seconds)
        if key not in self._sides:
            offers = decode_offers(question.on_clock("decode"), rows, self.count, transfer_seconds)
            self._sides[key] = make_side(question, "decode", offers, self.model)
        return self._sides[key]


def behind_kv(decode: Side, seconds: float) -> Side:
    """Return the columns of decode instances behind KV transfers of so many seconds."""

    def build(number: int) -> Server:
        server = decode.offers.build(number)
        later = _decode_kind(server).behind(seconds)
        return server._replace(kind=later) if isinstance(server, Stretched) else later

    return decode.of(replace(decode.offers, build=cache(build)))


def _decode_kind(server: Server) -> DecodeKind:
    """Return a decode instance on its own clock."""
    kind = on_own_clock(server)
    assert isinstance(kind, DecodeKind), "decode follows transfers"
    return kind


def _made_for(question: Question, role: Role) -> tuple[str, str, str]:
    """Engine, weights and KV cache of a role."""
    return question.engine, machines_of(question, role).weights, question.kv_dtype


def _seen(question: Question, role: Role, *others: str) -> _Key:
    """Return the fields that the columns of a role depend on, without engine, formats and ``others``."""
    unseen = {"engine", "engines", "kv_dtype", "formats", "confidence", "headroom", *others}
    values = (getattr(question, each.name) for each in fields(question) if each.name not in unseen)
    return role, *(
        (Same(value.hardware), value.devices, value.budget) if isinstance(value, Machines) else value
        for value in (Same(value) if isinstance(value, ModelSpec) else value for value in values)
    )


def gather(
    question: Question,
    rows: dict[Role, list[Row]] | None = None,
    transfer_seconds: float | None = None,
    costing: Costing | None = None,
) -> Pools:
    """Cost every candidate of both roles, or those of given rows; no queue is solved yet.

    ``transfer_seconds`` is the longest KV transfer where KV may come from other machines than the question's; decode is
    then costed even without prefill instances here. ``costing`` keeps the costs of questions in other formats.
    """
    costing = costing or Costing()
    none = Offers.none()
    if question.shape == "aggregated":
        prefill, decode = (make_side(question, role, none, costing.model) for role in ROLES)
        return Pools(prefill, decode, {})
    spaces = {} if rows else {role: role_space(question, role) for role in ROLES}
    rows = rows or {role: space.rows for role, space in spaces.items()}
    first = costing.prefill(question, rows["prefill"])
    # The slowest transfer of any prefill instance that may feed the pool, so that the limit holds with each.
    transfer = slowest_transfer(question, rows["prefill"]) if transfer_seconds is None else transfer_seconds
    if first.offers or transfer_seconds is not None:
        second = costing.decode(question, rows["decode"], transfer)
    else:
        second = make_side(question, "decode", none, costing.model)
    return Pools(first, second, {role: space.cut for role, space in spaces.items()}, transfer)


def slowest_transfer(question: Question, rows: Sequence[Row] | None = None) -> float:
    """Seconds to send a prompt's KV from the prefill instance with the fewest links."""
    narrowest = min(
        role_rows(question, "prefill") if rows is None else rows,
        key=lambda row: row.strategy.attention_tp,
        default=None,
    )
    if narrowest is None:
        return 0.0
    group = groups(question, "prefill", [narrowest], 0)[0]
    return float(transfer_seconds(question, row_deployment(group.deployment, narrowest)))


def make_side(question: Question, role: Role, offers: Offers, model: str = "") -> Side:
    """Return the columns of a role from offers on its clock; the server of an offer is built once for all columns."""
    offers = offers.stretched(question.stretch_of(role))
    offers = replace(offers, build=cache(offers.build))
    most = most_instances(question) if role in ROLES else None  # of a deployment with prefill and decode instances
    given = question.pin(role).instances
    allowed = None if most is None else range(1, most + 1)
    allowed = allowed if given is None else range(given, given + 1)
    unit, machines = question.rate_per_second or 1.0, machines_of(question, role)
    alone = (role == "mixed" or not question.one_pool) and not question.encode_share
    if not (question.spread and alone):
        machines = replace(machines, among_others=True)
    return Side(role, machines, offers, question.survive, unit, allowed, model)


class Aggregated(NamedTuple):
    """Aggregated instances on one pool, and the numbers pruned by a bound and cut by rules."""

    offers: Offers
    slow: int  # rows whose bound does not reach the incumbent
    cut: Cut

    def option(self, question: Question, model: str = "") -> Option:
        """Return the instances as an option."""
        return Option(question, (make_side(question, "mixed", self.offers, model),))


def aggregated(
    question: Question, aim: Aim, known: Incumbent | None, rows: list[Row] | None, count: Count
) -> Aggregated:
    """Cost the aggregated instances, or given ``rows`` of them, that may beat the incumbent ``known``.

    No capacity beyond the asked rate is sought.
    """
    space = RoleSpace(rows, {}) if rows is not None else role_space(question, "mixed")
    times = question.stretch_of("mixed")
    asked = None if aim.rate is None else aim.rate * (question.rate_per_second or 1.0) * times
    needed = needed_rates(question, aim, known, times)
    offers, slow = aggregated_offers(behind(question.on_clock("mixed")), space.rows, count, needed, asked)
    return Aggregated(offers, slow, {} if rows is not None else {"mixed": space.cut})


Needed = Callable[[Ints], Floats]
"""The rate that one instance of so many devices, [instances], must carry to matter; infinite where none does."""

TINY = 1e-9  # a positive rate, in requests per second, that stands for any


def not_aggregated(question: Question) -> str | None:
    """Return why aggregated instances are not searched; None where they are."""
    if question.shape == "disaggregated":
        return "--shape disaggregated: prefill and decode instances alone were asked for"
    one_pool = question.one_pool
    if not one_pool and question.shape != "aggregated":
        return "each role is asked for on devices of its own; --shape aggregated searches either pool alone"
    if one_pool and question.prefill.weights != question.decode.weights:
        return "aggregated instances load one checkpoint, and each role has a format of its own"
    if question.workload.beams > 1:
        return "--beams: requests with beams are answered by decode instances of their own"
    if question.queueing == "mixserve":
        return "--queueing mixserve knows prefill and decode instances alone"
    return None


def on_machines(question: Question, machines: Machines) -> Question:
    """Return the question with both roles on the machines of one pool."""
    if question.one_pool:
        return question
    return replace(question, prefill=machines, decode=machines)


def on_each_pool(question: Question) -> list[Question]:
    """Return a question for every pool that allows aggregated instances, with both roles on that pool."""
    if question.one_pool:
        return [question]
    return [on_machines(question, machines) for machines in (question.decode, question.prefill)]


def why_not_apart(question: Question) -> str | None:
    """Return why AFD is not searched beyond the grid; None where it is."""
    if question.pin("decode").strategy is not None:
        return "--strategy: the one of decode is given"
    if question.model.moe is None:
        return "a dense model has no experts to set apart"
    return None if question.engine == REFERENCE else f"{question.engine}: domains"


def limited(question: Question, aim: Aim, known: Incumbent | None) -> Aim:
    """Return the aim limited to the devices that beat the incumbent; with all devices where the rate is maximised.

    At equal devices or cost the incumbent stays, so such queues need not be solved.
    """
    if known is None or aim.goal.maximised or aim.goal.timed:
        return aim
    machines = question.decode
    most = math.ceil(known.spent[0] / machines.per_device(aim.goal)[0] - SLACK) - 1
    return replace(aim, devices={**aim.devices, machines.budget: min(most, aim.devices[machines.budget])})


def needed_rates(question: Question, aim: Aim, known: Incumbent | None, times: float = 1.0) -> Needed:
    """Return the rate that aggregated instances of a pool must carry to beat the incumbent; any rate without one.

    It is told on a clock that runs ``times`` as quick.
    """
    devices = limited(question, aim, known).devices[question.decode.budget]
    return _of_each(question, devices, times * _least(question, aim, known))


def needed_beside(question: Question, aim: Aim, known: Incumbent, sides: tuple[Side, Side]) -> Needed:
    """Return the rate that decode instances beyond the grid must carry to beat the incumbent.

    Prefill takes its devices first, the fewest whose bounds carry the rate. For an asked rate, decode must take fewer
    devices than the columns of the grid that carry it. The rate is told on the clock of decode.
    """
    prefill, decode = sides
    machines, least = question.decode, _least(question, aim, known)
    able = prefill.rate * prefill.unit >= least
    most = aim.devices[machines.budget] if able.any() else 0
    if able.any() and prefill.machines.budget == machines.budget:
        most -= int(prefill.room[able].min())
    if able.any() and aim.rate is not None:
        alone = Programme((((decode,),),), replace(aim, objective="chips")).settle(aim.rate)
        most = most if alone is None else min(most, int(decode.room[alone[0].columns[0]]) - 1)
    return _of_each(question, most, question.stretch_of("decode") * least)


def _least(question: Question, aim: Aim, known: Incumbent | None) -> float:
    """Return the least rate of a whole pool that may beat the incumbent."""
    rate = aim.rate if aim.rate is not None else known.rate if known is not None else 0.0
    return max(rate * (question.rate_per_second or 1.0) * (1 - SLACK), TINY)


def _of_each(question: Question, devices: int, least: float) -> Needed:
    """Return the rate per instance, where the devices are filled with instances less those of a loss."""

    def needed(sizes: Ints) -> Floats:
        held = devices // sizes
        held -= lost_instances(question.survive, question.decode, sizes, held)
        with np.errstate(divide="ignore"):
            return np.where(held > 0, least / np.maximum(held, 1), np.inf)

    return needed
