"""Where experts may stand: redundancy and shared-expert layouts of an EP degree."""

from typing import Literal

from models.spec import MoE
from planner.strategy import Strategy

Shared = Literal["auto", "local"] | int


def shared_choices(moe: MoE | None, strategy: Strategy, shared: Shared, decode: bool) -> list[int]:
    """Return the numbers of dedicated shared-expert ranks to try; 0 is a copy on every rank.

    Auto: besides 0, one of k + 1 or of k + 2 ranks, about the share of tokens that the shared
    expert gets (CloudMatrix384: 32 of 320; xDeepServe: 32 of 288), where enough ranks remain for
    the routed experts. Only decode spreads experts that thin.
    """
    if isinstance(shared, int):
        return [shared]
    ranks = strategy.moe_ep
    if shared == "local" or moe is None or not moe.shared_experts or not decode:
        return [0]
    if strategy.moe_tp > 1 or ranks <= moe.experts:
        return [0]
    parts = (moe.experts_per_token + 1, moe.experts_per_token + 2)
    dedicated = {ranks // part for part in parts if ranks % part == 0 and ranks - ranks // part >= moe.experts}
    return [0, *sorted(dedicated)]


def redundancy_choices(moe: MoE | None, strategy: Strategy, dedicated: int, redundant: int | None) -> list[int]:
    """Return the redundant slots to try: the fewest that divide evenly, and one more per rank."""
    if redundant is not None:
        return [redundant]
    ranks = strategy.moe_ep - dedicated
    if moe is None or ranks < 1:
        return [0]
    least = -moe.experts % ranks
    most = moe.experts * (ranks - 1)
    return [extra for extra in (least, least + ranks) if extra <= min(most, moe.experts)]
