"""The fewest nodes that survive the loss of one: what a price of whole nodes asks of instances that are spread."""

from collections.abc import Callable
from dataclasses import replace

from planner.plans.plan import Plan
from planner.question import Question


def on_fewest_nodes(question: Question, best: Callable[[Question], Plan | None]) -> Question:
    """Return the question on the fewest nodes on which it has a plan; as it is where it has none, or needs no such cut.

    Instances that are spread thin need few spares and many nodes. With the objective ``cost`` all nodes are paid for,
    so fewer nodes come first and fewer devices on them second. What fewer nodes carry, more nodes carry, too, so they
    are found by bisection.

    Args:
        question: the question.
        best: returns the best plan of a question within its devices.
    """
    whole = question.prefill
    if not (question.spread and question.goal.priced) or whole.devices < 2 * whole.devices_per_node:
        return question
    plan = best(question)
    if plan is None:
        return question
    found, few = question, max(-(-plan.devices // whole.devices_per_node), 2) - 1
    most = plan.nodes
    while most - few > 1:
        count = (most + few) // 2
        cut = _on(question, count)
        plan = best(cut)
        if plan is None:
            few = count
        else:
            found, most = cut, plan.nodes
    return _on(found, most)


def _on(question: Question, nodes: int) -> Question:
    prefill, decode = (
        replace(each, devices=min(nodes * each.devices_per_node, each.devices))
        for each in (question.prefill, question.decode)
    )
    return replace(question, prefill=prefill, decode=decode)
