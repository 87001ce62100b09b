"""Parts of the space that a choice of columns comes from, and the best choice over all of them.

Prefill and decode instances whose KV an engine lets them share are a part, and aggregated instances are one.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING

from planner.costs.latency import static_balance
from planner.instances.decode_candidates import Count
from planner.instances.reachable import REFERENCE, most_instances, pairs
from planner.instances.space import ROLES, Role, RoleSpace, Row, machines_of, role_space
from planner.mixed.offers import NONE_DROPPED, Dropped, mixed_offers
from planner.offers.asides import CountedAside
from planner.offers.choice import Aim, Choice, likely, settle
from planner.offers.columns import Side
from planner.offers.decode_offers import decode_offers
from planner.offers.offer import Offers
from planner.offers.prefill_offers import prefill_offers
from planner.question import Question
from planner.search.infeasible import slowest_transfer
from planner.search.shapes import (
    Known,
    better,
    key_of,
    known_of,
    limited,
    needed_beside,
    needed_rates,
    not_aggregated,
    on_each_pool,
    why_not_apart,
)

if TYPE_CHECKING:
    from planner.instances.apart import Alone


@dataclass(frozen=True, slots=True)
class Pools:
    """The columns of both roles, or of aggregated instances, and the candidates that were costed for them."""

    prefill: Side
    decode: Side
    count: Count
    cut: dict[Role, dict[str, int]]
    """What was not costed, by role and rule."""
    mixed: Side | None = None
    transfer_seconds: float = 0.0
    """For how long a transfer of a prompt's KV decode was costed."""
    dropped: Dropped = NONE_DROPPED

    @property
    def sides(self) -> tuple[Side, ...]:
        """Both roles, or the one of aggregated instances, in the order of a choice."""
        return (self.prefill, self.decode) if self.mixed is None else (self.mixed,)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The best choice of columns over all parts of the space, its part, and all parts."""

    pools: Pools
    choice: Choice
    parts: tuple[Pools, ...]
    other: tuple[Pools, Choice] | None = None
    """The best of the shape that loses, where it is known."""
    apart_dropped: int = 0
    """Decode rows beyond the grid whose bounds do not reach what is known without them."""


@dataclass(slots=True, eq=False)
class Costed:
    """A role that is being costed, maybe beside this process, and its columns."""

    question: Question
    role: Role
    offers: CountedAside[Offers]
    _side: Side | None = None

    @property
    def side(self) -> Side:
        """Its columns, which are waited for."""
        if self._side is None:
            self._side = make_side(self.question, self.role, self.offers.result())
        return self._side


@dataclass(frozen=True, slots=True)
class Costing:
    """What is costed of questions that differ in their number formats alone: each role once in each of its formats."""

    count: Count = field(default_factory=Count)
    _spaces: dict[tuple[str, ...], RoleSpace] = field(default_factory=dict)
    _costed: dict[tuple[object, ...], Costed] = field(default_factory=dict)

    def space(self, question: Question, role: Role) -> RoleSpace:
        """Return the rows of a role; only an engine's rules depend on formats."""
        key = (role,) if question.engine == REFERENCE else (role, *_formats(question, role))
        if key not in self._spaces:
            self._spaces[key] = role_space(question, role)
        return self._spaces[key]

    def prefill(self, question: Question, rows: list[Row]) -> Costed:
        """Return the prefill instances; another core, where one is free, costs them."""
        key = ("prefill", *_formats(question, "prefill"))
        if key not in self._costed:
            offers = CountedAside(self.count, partial(prefill_offers, question, rows))
            self._costed[key] = Costed(question, "prefill", offers)
        return self._costed[key]

    def decode(self, question: Question, rows: list[Row], transfer_seconds: float) -> Costed:
        """Return the decode instances for prompts whose KV takes so long; they are costed here once asked for."""
        key = ("decode", *_formats(question, "decode"), transfer_seconds)
        if key not in self._costed:
            cost = partial(decode_offers, question, rows, slowest_seconds=transfer_seconds)
            self._costed[key] = Costed(question, "decode", CountedAside(self.count, cost, here=True))
        return self._costed[key]


def _formats(question: Question, role: Role) -> tuple[str, str]:
    """Weights and KV cache of a role."""
    return machines_of(question, role).weights, question.kv_dtype


def gather_each(questions: Sequence[Question], transfer_seconds: float | None = None) -> list[Pools]:
    """Cost questions that differ in their number formats alone, as ``gather`` does one; what they share only once."""
    costing = Costing()
    return [gather(question, None, transfer_seconds, costing) for question in questions]


def gather(
    question: Question,
    rows: dict[Role, list[Row]] | None = None,
    transfer_seconds: float | None = None,
    costing: Costing | None = None,
) -> Pools:
    """Cost every candidate of both roles, or those of given rows; no queue is solved yet.

    ``transfer_seconds`` is how long a prompt's KV takes at most where it may come from other machines than the
    question's; decode instances are costed then even where these machines' prefill has none. ``costing`` is what is
    costed already of a question in other formats.
    """
    costing = costing or Costing()
    none = Offers.of([])
    if question.shape == "aggregated":
        return Pools(make_side(question, "prefill", none), make_side(question, "decode", none), costing.count, {})
    spaces = {} if rows else {role: costing.space(question, role) for role in ROLES}
    rows = rows or {role: space.rows for role, space in spaces.items()}
    know_balance(question, [row for role in ROLES for row in rows[role]])
    prefill = costing.prefill(question, rows["prefill"])
    # The slowest transfer of any prefill instance that may feed the pool: the limit holds whichever does.
    transfer = slowest_transfer(question, rows["prefill"]) if transfer_seconds is None else transfer_seconds
    decode = costing.decode(question, rows["decode"], transfer)
    if prefill.offers.elsewhere:
        decode.offers.prepare()  # meanwhile; else not before there is a prefill instance
    wanted = prefill.side.offers or transfer_seconds is not None
    columns = decode.side if wanted else make_side(question, "decode", none)
    cut = {role: space.cut for role, space in spaces.items()}
    return Pools(prefill.side, columns, costing.count, cut, transfer_seconds=transfer)


def make_side(question: Question, role: Role, offers: Offers) -> Side:
    """Return the columns of a role; a kind of instance is built once for all columns that it stands in."""
    offers = replace(offers, build=cache(offers.build))
    most = None if role == "mixed" else most_instances(question)  # of a deployment with prefill and decode instances
    return Side(role, machines_of(question, role), offers, question.survive, most_instances=most)


def choose(
    question: Question,
    pools: Pools,
    aim: Aim,
    rows: list[Row] | None = None,
    then: Callable[[], object] | None = None,
) -> Chosen | Pools:
    """Return the best choice over both shapes; the pools of the last shape tried where none fits in any.

    Prefill and decode instances come first, for they are quicker to cost and to queue for; of aggregated ones only
    those are queued for whose bounds may beat them. ``rows`` are the aggregated rows, None for all. ``then`` is called
    once another process has all that this waits for.
    """
    parts = list(compatible(question, pools)) if pools.prefill.offers and pools.decode.offers else []
    why_not = not_aggregated(question)
    places = on_each_pool(question)
    apart = begin_apart(question, pools) if parts and rows is None and why_not_apart(question) is None else None
    ahead = costed_ahead(places[0], pools, aim, parts, rows) if why_not is None else None
    if then is not None:
        then()
    best, choice = best_of(parts, aim) if parts else (pools, None)
    dropped = 0
    if apart is not None and (choice is not None or aim.rate is not None):
        wide, dropped = with_apart(question, pools, aim, known_best(best, choice), apart.result())
        parts = [*parts, wide] if wide.decode.size else parts
        best, choice = better_of(wide, (best, choice), aim)
    if ahead is None:
        cut: dict[Role, dict[str, int]] = {"mixed": {str(why_not): 1}}
        tried = pools if question.shape == "disaggregated" else replace(pools, cut=pools.cut | cut)
        return Chosen(best, choice, (*parts, tried), apart_dropped=dropped) if choice is not None else tried
    other: tuple[Pools, Choice] | None = None
    mixed = pools
    for own in places:
        known = known_best(best, choice)
        mixed = beside(own, mixed, ahead(own, known))
        parts.append(mixed)
        least = known.rate_per_second if known is not None and aim.objective == "throughput" else 0.0
        found = settle(mixed.sides, limited(own, aim, known), least)
        if found is not None and (known is None or better(aim, known_of(mixed.sides, found), known)):
            other = other if choice is None else (best, choice)
            best, choice = mixed, found
        elif found is not None:
            other = (mixed, found)
    return mixed if choice is None else Chosen(best, choice, tuple(parts), other, dropped)


def known_best(pools: Pools, choice: Choice | None) -> Known | None:
    """Return what the best choice of columns does; None where there is none."""
    return None if choice is None else known_of(pools.sides, choice)


def costed_ahead(
    first: Question, pools: Pools, aim: Aim, parts: Sequence[Pools], rows: list[Row] | None
) -> Callable[[Question, Known | None], "Aggregated"]:
    """Return what costs the aggregated instances of a pool that may beat what is known.

    What is likely best mostly is, so those of the first pool that may beat that are costed while it is proven.
    """
    likely_best = known_best(*best_of(parts, aim, likely)) if parts else None
    ahead = CountedAside(pools.count, partial(aggregated, first, aim, likely_best, rows))

    def cost(own: Question, known: Known | None) -> Aggregated:
        if own is first and known == likely_best:
            return ahead.result()
        return aggregated(own, aim, known, rows, pools.count)

    return cost


def begin_apart(question: Question, pools: Pools) -> CountedAside[list["Alone"]]:
    """Begin to bound decode with attention and experts on devices of their own, by what is known of nothing else."""
    from planner.instances.apart import most_alone  # only a model with experts needs it

    return CountedAside(pools.count, partial(most_alone, question))


def with_apart(
    question: Question, pools: Pools, aim: Aim, known: Known | None, alone: Sequence["Alone"]
) -> tuple[Pools, int]:
    """Return the decode columns beyond the grid that may beat what is known, and how many rows may not.

    They have attention and experts on devices of their own; ``alone`` bounds either without the other. Where nothing
    is known, they may carry the asked rate.
    """
    from planner.instances.apart import apart_rows

    found = apart_rows(question, needed_beside(question, aim, known, pools.prefill), pools.count, alone)
    decode = make_side(question, "decode", decode_offers(question, found.rows, pools.count, pools.transfer_seconds))
    decode.beyond_grid = True
    return replace(pools, decode=decode), found.dropped


def better_of(pools: Pools, known: tuple[Pools, Choice | None], aim: Aim) -> tuple[Pools, Choice | None]:
    """Return the best choice of the pools where it is better than the known one."""
    least = known_best(*known)
    choice = settle(pools.sides, aim, least.rate_per_second if least and aim.objective == "throughput" else 0.0)
    if choice is None or (least is not None and not better(aim, known_of(pools.sides, choice), least)):
        return known
    return pools, choice


@dataclass(frozen=True, slots=True)
class Aggregated:
    """Aggregated instances on one pool, and what was left out of them: by a bound, and by rules."""

    offers: Offers
    dropped: Dropped
    cut: dict[Role, dict[str, int]]


def aggregated(question: Question, aim: Aim, known: Known | None, rows: list[Row] | None, count: Count) -> Aggregated:
    """Cost the aggregated instances, or given ``rows`` of them, that may beat what is known."""
    space = RoleSpace(rows, {}) if rows is not None else role_space(question, "mixed")
    know_balance(question, space.rows)
    offers, dropped = mixed_offers(question, space.rows, count, needed_rates(question, aim, known), aim.rate)
    return Aggregated(offers, dropped, {} if rows is not None else {"mixed": space.cut})


def beside(question: Question, pools: Pools, found: Aggregated) -> Pools:
    """Return the columns of aggregated instances on one pool.

    What was dropped and cut on another pool before is counted beside.
    """
    cut = _joined(pools.cut, found.cut)
    both = Dropped(slow=pools.dropped.slow + found.dropped.slow, unfit=pools.dropped.unfit + found.dropped.unfit)
    return replace(pools, mixed=make_side(question, "mixed", found.offers), dropped=both, cut=cut)


def with_mixed(question: Question, pools: Pools, aim: Aim, known: Known | None, rows: list[Row] | None = None) -> Pools:
    """Return the columns of aggregated instances on one pool that may beat what is known."""
    return beside(question, pools, aggregated(question, aim, known, rows, pools.count))


def _joined(one: dict[Role, dict[str, int]], other: dict[Role, dict[str, int]]) -> dict[Role, dict[str, int]]:
    """Return what two counts of rules have cut together, by role."""
    added = {role: Counter(one.get(role, {})) + Counter(cut) for role, cut in other.items()}
    return one | {role: dict(sorted(cut.items())) for role, cut in added.items()}


def compatible(question: Question, pools: Pools) -> list[Pools]:
    """Return the parts of the columns in which the engine lets every prefill share KV with every decode instance."""
    layers = [{(tp, pp) for tp, pp in side.offers.layers.tolist()} for side in pools.sides]
    found = pairs(question, layers[0], layers[1])
    if found == [(layers[0], layers[1])]:
        return [pools]
    return [
        replace(
            pools,
            prefill=make_side(question, "prefill", pools.prefill.offers.with_layers(ours)),
            decode=make_side(question, "decode", pools.decode.offers.with_layers(theirs)),
        )
        for ours, theirs in found
    ]


def best_of(
    parts: Sequence[Pools], aim: Aim, find: Callable[[Sequence[Side], Aim], Choice | None] = settle
) -> tuple[Pools, Choice | None]:
    """Return the part with the best choice of columns, and that choice; None where none fits in any.

    ``find`` is how the best of each is found: proven, or ``likely``.
    """
    best: tuple[tuple[float, float], Pools, Choice] | None = None
    for pools in parts:
        choice = find(pools.sides, aim)
        if choice is None:
            continue
        key = key_of(aim, known_of(pools.sides, choice))
        if best is None or key < best[0]:
            best = (key, pools, choice)
    return (best[1], best[2]) if best else (parts[0], None)


def know_balance(question: Question, rows: list[Row]) -> None:
    """Find the expert balance of all rows at once, which is quicker than group by group."""
    if question.model.moe is None or question.balance.kind not in ("measured", "none"):
        return
    layouts = {(row.strategy.moe_ep - row.dedicated, row.redundant) for row in rows if row.strategy.moe_ep > 1}
    static_balance(question.model.moe.experts, sorted(layouts), question.balance)


def aim_of(question: Question) -> Aim:
    """Return what the columns are chosen for: lowest latency starts from the most that the devices carry."""
    return Aim(
        devices={machines.budget: machines.devices for machines in (question.prefill, question.decode)},
        objective="throughput" if question.objective == "latency" else question.objective,
        rate=question.rate_per_second,
    )
