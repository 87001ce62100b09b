"""Where experts may stand: what is tried divides, is the least that does, and leaves no expert out."""

from hypothesis import given, settings, strategies as st

from models.loader import load_model
from planner.costs.deployment import redundancy_choices, shared_choices
from planner.strategy import Strategy

DEEPSEEK = load_model("deepseek-r1").moe


@settings(max_examples=40, deadline=None)
@given(ranks=st.integers(1, 400))
def test_the_first_choice_is_the_least_redundancy_that_divides(ranks: int) -> None:
    """Trying 0, 1, 2, ... replicas finds the same first number; the other adds one slot per rank."""
    tried = [extra for extra in range(DEEPSEEK.experts + 1) if (DEEPSEEK.experts + extra) % ranks == 0]

    choices = redundancy_choices(DEEPSEEK, Strategy(attention_dp=ranks, moe_ep=ranks), 0, None)

    most = DEEPSEEK.experts * (ranks - 1)
    assert choices == [extra for extra in tried[:2] if extra <= most]


def test_published_layouts_are_among_the_choices() -> None:
    """32 shared copies and 32 more slots on EP320 (CloudMatrix384 section 4.1), none on EP288 (xDeepServe 4.2)."""
    for ranks, redundant in ((320, 32), (288, 0)):
        strategy = Strategy(attention_dp=ranks, moe_ep=ranks)
        assert 32 in shared_choices(DEEPSEEK, strategy, "auto", decode=True)
        assert redundant in redundancy_choices(DEEPSEEK, strategy, 32, None)


@settings(max_examples=40, deadline=None)
@given(ranks=st.integers(1, 768), decode=st.booleans())
def test_dedicated_ranks_leave_a_rank_for_every_expert(ranks: int, decode: bool) -> None:
    """Spread that thin, each routed expert keeps a rank of its own; prefill dedicates none."""
    for dedicated in shared_choices(DEEPSEEK, Strategy(attention_dp=ranks, moe_ep=ranks), "auto", decode):
        assert dedicated == 0 or (decode and ranks - dedicated >= DEEPSEEK.experts and ranks % dedicated == 0)


def test_a_given_layout_is_the_only_one_tried() -> None:
    """Numbers asked for are not widened."""
    strategy = Strategy(attention_dp=320, moe_ep=320)

    assert shared_choices(DEEPSEEK, strategy, 16, decode=True) == [16]
    assert redundancy_choices(DEEPSEEK, strategy, 16, 48) == [48]
