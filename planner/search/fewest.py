"""The fewest nodes that survive the loss of one: what a price of whole nodes asks of instances that are spread."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.instances.space import machines_of
from planner.objective import SLACK
from planner.plans.plan import Plan
from planner.question import Machines, Question, Role


def on_fewest_nodes(question: Question, best: Callable[[Question], Plan | None]) -> Question:
    """Return the question on the fewest nodes on which it has a plan; as it is where it has none, or needs no such cut.

    Instances that are spread thin need few spares and many nodes. With the objective ``cost`` all nodes are paid for,
    so fewer nodes come first and fewer devices on them second. What fewer nodes carry, more nodes carry, too, so they
    are found by bisection; where roles have machines of their own, for each role in turn.

    Args:
        question: the question.
        best: returns the best plan of a question within its devices.
    """
    if not (question.spread and question.goal.priced):
        return question
    parts: tuple[tuple[Role, ...], ...] = (("prefill", "decode"),) if question.one_pool else (("prefill",), ("decode",))
    for roles in parts:
        question = _fewest_of(question, roles, best)
    return question


def _fewest_of(question: Question, roles: Sequence[Role], best: Callable[[Question], Plan | None]) -> Question:
    """Return the question on the fewest nodes of the machines of some roles, where the plan uses them.

    Plans on fewer nodes of one kind of machine that cost more, for they take more of the other, do not count.
    """
    whole = machines_of(question, roles[0])
    plan = best(question) if whole.devices >= 2 * whole.devices_per_node else None
    taken = 0 if plan is None else sum(pool.devices for _, pool in plan.pools() if pool.machines.budget == whole.budget)
    if plan is None or not taken:
        return question
    known, goal = plan, question.goal
    found, few = question, max(-(-taken // whole.devices_per_node), 2) - 1
    most = _nodes(plan, whole.budget)
    while most - few > 1:
        count = (most + few) // 2
        cut = _on(question, roles, count)
        plan = best(cut)
        if plan is None or (len(roles) == 1 and goal.value(plan) > goal.value(known) * (1 + SLACK)):
            few = count
        else:
            found, most, known = cut, _nodes(plan, whole.budget), plan
    return _on(found, roles, most)


def _nodes(plan: Plan, budget: str) -> int:
    """Return the nodes of a budget that a plan stands on."""
    return sum(machines.nodes_of(devices) for machines, devices in plan.occupied if machines.budget == budget)


def _on(question: Question, roles: Sequence[Role], nodes: int) -> Question:
    """Return the question with so many nodes, at most, of the machines of some roles."""

    def cut(machines: Machines) -> Machines:
        return replace(machines, devices=min(nodes * machines.devices_per_node, machines.devices))

    return replace(
        question,
        prefill=cut(question.prefill) if "prefill" in roles else question.prefill,
        decode=cut(question.decode) if "decode" in roles else question.decode,
    )
