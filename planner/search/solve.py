"""The best choice of columns for a fleet (a single model is a fleet of one), and its plans."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from ground.errors import Fault
from planner.instances.aggregated import AggregatedServer
from planner.instances.operating import DecodeServer, PrefillServer
from planner.objective import SLACK, Aim, preferred
from planner.plans.aggregated import make_aggregated
from planner.plans.places import paid_devices
from planner.plans.plan import DisaggregatedPlan, Plan, cost_of, make_plan
from planner.programme.columns import Picks, Side
from planner.programme.programme import Programme
from planner.programme.proof import Bound, proven
from planner.search.fleet import aim_of
from planner.search.gather import Cut, Option
from planner.search.ways import Gathered, Rows, Ways, every_way
from planner.serving.capacity import largest_rate

# Factor on KV transfer times that made a plan late, for the next search, which then carries a little less.
LONGER = 1.02

# Parts by which the largest rate is lowered, tried in turn, where more requests show it to be late. A step takes a long
# play, and the least is as much as such a sample errs by.
_LOWER = tuple(0.005 * 1.6**step for step in range(10))

# Factors on the asked rate, tried in turn, where the plan for the asked rate is late: 0.1 % more, then twice as much.
ROOMIER = tuple(1 + 0.001 * 2**step for step in range(10))


class Choice(NamedTuple):
    """The best columns of every model over all options."""

    ways: Ways
    programme: Programme
    picks: Picks

    @property
    def gathered(self) -> Gathered:
        """Every option."""
        return self.ways.gathered

    @property
    def chosen(self) -> list[tuple[Option, tuple[int, ...]]]:
        """The option of every member, and its columns."""
        return chosen_of(self.gathered, self.picks)

    @property
    def carried(self) -> float:
        """Rate of each member, in units of its asked rate."""
        return self.programme.carried(self.picks)


def chosen_of(gathered: Gathered, picks: Picks) -> list[tuple[Option, tuple[int, ...]]]:
    """Return the option of every member, and its columns."""
    return [(own[pick.way], pick.columns) for own, pick in zip(gathered.options, picks, strict=True)]


def choose(
    separate: Gathered, aim: Aim | None = None, rows: Rows | None = None, known: float = 0.0
) -> Choice | Gathered:
    """Return the best choice over every option; the gathered options where none fits.

    Separate pools are solved first, as they are quicker to cost and to solve. Of the others only those whose bounds may
    beat separate pools are solved (``ways.every_way``). Where the rate is maximised, a choice below the rate ``known``
    counts as none.
    """
    aim = aim or aim_of(separate.fleet)
    ways = every_way(separate, aim, rows, known)
    if ways.gathered.closed:
        return ways.gathered
    programme = ways.gathered.programme(aim)
    picks = programme.settle(ways.least)
    return ways.gathered if picks is None else Choice(ways, programme, picks)


def plan_at(option: Option, columns: Sequence[int], rate_per_second: float) -> Plan | None:
    """Return the plan of chosen columns at a rate; None beyond saturation.

    Servers are on the clocks of their roles. With the latency objective the plan has the budgets and caps that are
    quickest at the rate, else those that carry most.
    """
    timed, times = option.question.goal.timed, option.question.stretch_of
    chosen = list(zip(option.sides, columns, strict=True))
    if option.encode:
        (side, column), rest = chosen[0], option._replace(sides=option.sides[1:])
        server = side.chosen(column, rate_per_second if timed else None)
        assert isinstance(server, PrefillServer)
        left = int(side.left[column])
        of_each = server.pool_capacity(left) / left / times("encode") if timed else side.rate_of_each(column)
        plan = plan_at(rest, columns[1:], rate_per_second)
        return plan and plan.encoded(server, int(side.instances[column]), of_each)
    if option.aggregated:
        return _aggregated_at(option, *chosen[0], rate_per_second, timed=timed)
    first, second = (side.chosen(column, rate_per_second if timed else None) for side, column in chosen)
    assert isinstance(first, PrefillServer) and isinstance(second, DecodeServer)
    if timed:
        left = int(option.sides[0].left[columns[0]])
        each = first.pool_capacity(left) / left / times("prefill"), second.pool_capacity(1) / times("decode")
    else:
        each = chosen[0][0].rate_of_each(chosen[0][1]), chosen[1][0].rate_of_each(chosen[1][1])
    counts = [int(side.instances[column]) for side, column in chosen]
    return make_plan(option.question, (first, counts[0], each[0]), (second, counts[1], each[1]), rate_per_second)


def _aggregated_at(option: Option, side: Side, column: int, rate_per_second: float, *, timed: bool) -> Plan | None:
    server, left = side.chosen(column, rate_per_second if timed else None), int(side.left[column])
    assert isinstance(server, AggregatedServer)
    carried = max(server.pool_capacity(left) / option.question.stretch_of("mixed"), rate_per_second)
    return make_aggregated(option.question, server, int(side.instances[column]), carried / left, rate_per_second)


def plan_of(option: Option, columns: Sequence[int], share: float) -> Plan | None:
    """Return the plan of chosen columns at a share of the asked rate."""
    return plan_at(option, columns, share * (option.question.rate_per_second or 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best plans of a fleet, empty where nothing fits."""

    separate: Gathered
    choice: Choice | None
    refused: Gathered | None = None  # the gathered options where nothing fits
    plans: tuple[Plan, ...] = ()
    growth: float = 0.0
    gap: float = 0.0
    """Distance from the bound as a part of the plan's value, where the rate was lowered because KV waits for links."""
    others: tuple[Plan, ...] | None = None  # runners-up, where they were asked for

    @property
    def best(self) -> Plan | None:
        """The plan of a single model."""
        return self.plans[0] if self.plans else None

    @property
    def cut(self) -> Cut:
        """Strategies and layouts that were not costed, by role and rule."""
        return (self.choice.gathered if self.choice else self.refused or self.separate).cut

    def bound(self) -> Bound | None:
        """Return the proven bound of the covered space; None where nothing fits."""
        if self.choice is None:
            return None
        names = [member.name for member in self.separate.fleet.members]
        bound = proven(self.choice.programme, self.choice.picks, names, self.choice.gathered.left_out)
        goal = self.choice.programme.aim.goal
        if goal.timed:
            return bound.of_plan(mean_seconds(self.plans))
        if goal.priced:
            return self._in_whole_nodes(bound)
        return bound._replace(gap=self.gap) if self.gap else bound

    def _in_whole_nodes(self, bound: Bound) -> Bound:
        """Return a bound on devices as one on whole nodes, which are paid for, where that can be told.

        Spread instances are asked on the fewest nodes (``search.fewest``). Where each role has machines of its own, the
        fewest devices of both together are the fewest of each, and so are their nodes.
        """
        pools = [pool for plan in self.plans for _, pool in plan.pools()]
        cost, kinds = cost_of(self.plans), {pool.machines.budget: pool.machines for pool in pools}
        if cost is None:  # one kind of chip, without a price, of which the fewest are the cheapest
            return bound._replace(objective="chips")
        spent = sum(pool.devices * pool.machines.device_cost for pool in pools)
        apart = self.separate.fleet.single and len(kinds) > 1 and bound.value >= spent * (1 - SLACK)
        if apart or any(plan.spread for plan in self.plans):
            bound = bound._replace(value=cost)
        elif len(kinds) == 1:
            (machines,) = kinds.values()
            devices = math.ceil(bound.value / machines.device_cost - SLACK)
            bound = bound._replace(value=paid_devices(machines, devices) * machines.device_cost)
        return bound.of_plan(cost)


def find(separate: Gathered, known: float = 0.0) -> Found:
    """Return the best plans for the predicted service times, from costed options.

    Waits for links may make KV transfers of a plan longer than those for which its decode was costed, and its TPOT
    late; then the search is repeated with longer ones between instances as the plan has them. Where the plan of a
    single model carries more if its own rate is lowered instead, that plan is returned, with its gap to the bound; so
    is one whose prefill memory is full of prompts that wait for decode. With the latency objective the bound is of the
    search without longer transfers. Where the rate is maximised, plans below the rate ``known`` count as none. For an
    asked rate see ``_with_room``.
    """
    goal, single, asked = separate.fleet.goal, separate.fleet.single, separate
    late, slowed, longer = list[Found](), list[Found](), dict[str, float]()
    while isinstance(choice := choose(separate, known=known), Choice):
        found = _planned(separate, choice)
        longer = _late(found.plans, choice)
        if not longer and not (single and found.plans[0].crowded_share > 0 and found.plans[0].excess > 1):
            return replace(late[0], plans=found.plans, growth=found.growth) if goal.timed and late else found
        late.append(found)
        slower = slowed_down(found.plans[0]) if single and goal.maximised else None
        if slower is not None:
            gap = found.plans[0].requests_per_second / slower.requests_per_second - 1
            slowed.append(replace(found, plans=(slower,), gap=gap))
            known = max(known, slower.requests_per_second / (slower.question.rate_per_second or 1.0))
        if not longer:
            break
        separate = separate.behind(choice.picks, longer)
    if slowed:
        return max(slowed, key=lambda each: each.plans[0].requests_per_second)
    if late and goal.maximised and not longer:
        return late[-1]
    if not late or goal.maximised or not single:
        return Found(separate=asked, choice=None, refused=choice if isinstance(choice, Gathered) else choice.gathered)
    roomy = _with_room(late[-1])
    return roomy if roomy.plans or len(late) == 1 else _with_room(late[0])


def _planned(separate: Gathered, choice: Choice) -> Found:
    """Return the plans of a choice, at the rate that its columns carry or at the asked one."""
    maximised = choice.programme.aim.goal.maximised
    share = choice.carried if maximised else 1.0
    plans = tuple(_carried(option, columns, share) for option, columns in choice.chosen)
    growth = share if maximised else _spare(choice.programme.picked(choice.picks), plans)
    return Found(separate=separate, choice=choice, plans=plans, growth=growth)


def lasting(found: Found) -> Found:
    """Return a result whose plans keep their limits over as many requests as tell so (``Player.lasting``).

    The search plays over fewer, and its largest rate owes something to the luck of the sample. A plan that is late has
    its rate lowered, and the gap tells by how much; for an asked rate see ``_with_room``. If there is none, or several
    models share devices, plans stay as they are, with their intervals; so do the quickest, whose time is the bound.
    """
    fleet = found.separate.fleet
    if fleet.goal.timed or not found.plans:
        return found
    if fleet.single and fleet.goal.maximised:
        (best,) = found.plans
        told = long_run(best)
        gap = (1 + found.gap) * best.requests_per_second / told.requests_per_second - 1
        return replace(found, plans=(told,), gap=gap)
    played = tuple(_replayed(plan) for plan in found.plans)
    if all(plan.played is None or _lateness(plan) <= 1 for plan in played):
        return replace(found, plans=played)
    roomy = _with_room(found, _replayed) if fleet.single else found
    return roomy if roomy.plans else found


def long_run(plan: Plan) -> Plan:
    """Return a plan as many requests tell it, at the rate at which they are in time; as it is if they are at none."""
    longer = _replayed(plan)
    late = longer.played and _lateness(longer) > 1
    return (_lowered(plan, longer) or plan) if late else longer


def _lowered(plan: Plan, late: Plan) -> Plan | None:
    """Return a plan at the largest rate in time over as many requests as show it to be late; None if there is none."""
    at = plan.under(plan.question, requests=late.played.asked_requests if late.played else None)
    lower = (at((1 - part) * plan.requests_per_second) for part in _LOWER)
    lowered = next((each for each in lower if each and _lateness(each) <= 1), None)
    return lowered and _carrying(lowered, plan)


def _replayed(plan: Plan) -> Plan:
    """Return a plan played over as many requests as tell its latencies; itself where none are played."""
    if plan.played is None or plan.encode is not None or plan.question.workload.trace is not None:
        return plan
    found = plan.under(plan.question, requests=None)(plan.requests_per_second)
    return _carrying(found, plan) if found else plan


def _carrying(plan: Plan, searched: Plan) -> Plan:
    """Return a plan with the interval of the rate that the search found for its pools."""
    if plan.played is None or searched.played is None:
        return plan
    (low, high), rate = searched.played.requests_per_second, plan.requests_per_second
    lowered = rate < searched.requests_per_second or _lateness(plan) > 1
    ends = min(low, rate) if lowered else low, max(high, rate)
    return replace(plan, played=plan.played._replace(requests_per_second=ends))


def _lateness(plan: Plan) -> float:
    """Return the latency at the percentile over its limit, the largest of what is played and of what is not."""
    return max(plan.excess, plan.played.excess if plan.played else 0.0)


def _with_room(late: Found, told: Callable[[Plan], Plan] = lambda plan: plan) -> Found:
    """Return the plan of separate pools, or of columns that carry more than is asked, so that prompts find room.

    Args: ``told`` returns a plan as it is to be judged and told.

    ``late`` is what the columns that are best for the asked rate make of it; what it counts bounds every other choice.
    The columns that carry most come last: where they are late, too, there is no plan.
    """
    assert late.choice is not None, "a plan has columns"
    aim, own = late.choice.programme.aim, late.choice
    apart, told_apart = own.ways.separate, None
    if apart not in (None, own.picks):
        told_apart = _in_room(late, own._replace(picks=apart), told)
    aims = (*(replace(aim, rate=share) for share in ROOMIER), Aim(devices=aim.devices, objective="throughput"))
    roomier = (_in_room(late, choose(late.separate, each), told) for each in aims)
    found = [each for each in (told_apart, next(filter(None, roomier), None)) if each]
    best = preferred([each.best for each in found], aim.goal)
    return Found(separate=late.separate, choice=None, refused=own.gathered) if best is None else found[best]


def _in_room(late: Found, choice: Choice | Gathered, told: Callable[[Plan], Plan]) -> Found | None:
    """Return the result with the plan of other columns than those that are late; None where it is late, too.

    The quickest budget of prefill may make KV wait longer for links than the one that carries most, which then counts.
    """
    if not isinstance(choice, Choice):
        return None
    (option, columns), *_ = choice.chosen
    asked, timed = option.question, option.question.goal.timed
    plan = told(_carried(option, columns, 1.0))
    if _lateness(plan) > 1 and timed and choice.programme.aim.goal.maximised:
        sized = option._replace(question=replace(asked, objective="chips"))
        plan = replace(told(_carried(sized, columns, 1.0)), question=asked)
    if _lateness(plan) > 1:
        return None
    growth = _spare(choice.programme.picked(choice.picks), (plan,))
    gap = 0.0 if timed else 1 - late.plans[0].chips / plan.chips
    return replace(late, plans=(plan,), growth=growth, gap=gap)


def in_time(plan: Plan | None) -> Plan | None:
    """Return a plan, at a lower rate where KV transfers or full prefill memory make it late; None if none helps."""
    if plan is None or plan.excess <= 1:
        return plan
    return slowed_down(plan) if plan.question.goal.maximised else None


def slowed_down(late: Plan) -> Plan | None:
    """Return a plan that transfers or full prefill make late at its largest rate in time; None if there is none."""
    at = cache(late.under(late.question))

    def excess(rate_per_second: float) -> float:
        plan = at(rate_per_second)
        return math.inf if plan is None else plan.excess

    most = min(late.requests_per_second, *(pool.capacity_per_second for _, pool in late.pools()))
    rate = largest_rate(excess, 1.0, most, most) if most else None  # short answers keep their limit at no rate
    return None if rate is None else at(rate)


def carried_in_time(choice: Choice) -> float:
    """Return what a choice carries in units of what is asked, a single model's at the rate that ``find`` gives it.

    It is less than its columns carry where prompts find prefill full or KV is late, and nothing where it always is.
    """
    (option, columns), *others = choice.chosen
    plan = None if others or option.aggregated else plan_of(option, columns, choice.carried)
    if plan is None or plan.excess <= 1:
        return choice.carried
    slower, always = slowed_down(plan), not plan.answering.capacity_per_second
    at = slower.requests_per_second / plan.requests_per_second if slower else 0.0 if always else 1.0
    return choice.carried * at


def _carried(option: Option, columns: Sequence[int], share: float) -> Plan:
    plan = plan_of(option, columns, share)
    if plan is None:
        raise Fault(f"the programme chose a rate that the queues of {option.question.model.name} cannot carry")
    return plan


def _late(plans: Sequence[Plan], choice: Choice) -> dict[str, float]:
    """Return, by member, the longer transfers with which TPOT that is late because KV waits for links may be kept.

    Short answers are late because their prompts end together, which counts as so much longer a transfer.
    """
    longer = {}
    for member, plan, (option, _) in zip(choice.gathered.fleet.members, plans, choice.chosen, strict=True):
        if not isinstance(plan, DisaggregatedPlan):
            continue
        known, question = option.transfer_seconds, plan.question
        late = (plan.tpot_excess - 1) * question.tpot_seconds
        if late > 0 and (plan.handed_over or plan.transfer_seconds > known):
            longer[member.name] = max(
                LONGER * max(plan.transfer_seconds, known), known + late * question.workload.decoded_tokens
            )
    return longer


def _spare(picked: Sequence[tuple[Side, int]], plans: Sequence[Plan]) -> float:
    """Share of the asked rates that the slowest pool carries; aggregated pools are solved up to the asked rate only."""
    pools = [pool for plan in plans for _, pool in plan.pools()]
    return min(
        pool.capacity_per_second / pool.instances * int(side.left[column]) / side.unit
        for pool, (side, column) in zip(pools, picked, strict=True)
    )


def mean_seconds(plans: Sequence[Plan]) -> float:
    """Return the mean time from arrival to the last token over all requests of all models."""
    rate = sum(plan.requests_per_second for plan in plans)
    return sum(plan.requests_per_second / rate * plan.e2e_mean_seconds for plan in plans)
