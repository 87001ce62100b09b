"""MixServe's notation: reading, printing, refusing, and fitting a model."""

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from ground.errors import BadInput
from models.loader import load_model
from models.spec import GQA
from planner.strategy import Strategy, check_strategy, format_strategy, parse_strategy

DEEPSEEK, DENSE = load_model("deepseek-r1"), load_model("qwen3-32b")
DEGREES = st.integers(min_value=1, max_value=96)


PAPERS = {
    "TP=4 + DP=8, EP=32": Strategy(attention_tp=4, attention_dp=8, moe_ep=32),
    "TP=8 + DP=4, TP=8 + EP=4": Strategy(attention_tp=8, attention_dp=4, moe_tp=8, moe_ep=4),
    "DP=320, EP=320": Strategy(attention_dp=320, moe_ep=320),
    "TP=8 [PP=4]": Strategy(attention_tp=8, moe_tp=8, pp=4),
    "SP=4 + DP=8, EP=32": Strategy(attention_tp=4, attention_dp=8, staged=True, moe_ep=32),
    "DP=160 x 3, EP=288": Strategy(attention_dp=160, moe_ep=288, domains=3),
}
apart = st.builds(
    Strategy,
    attention_tp=DEGREES,
    attention_dp=DEGREES,
    staged=st.just(False),
    moe_tp=DEGREES,
    moe_ep=DEGREES,
    pp=st.just(1),
    domains=st.integers(1, 5),
)


@pytest.mark.parametrize(("text", "strategy"), PAPERS.items())
def test_the_papers_strategies_are_read_and_printed_as_written(text: str, strategy: Strategy) -> None:
    """MixServe sections III-B1 and IV-C1, CloudMatrix384 section 4, xDeepServe's three domains."""
    assert parse_strategy(text) == strategy
    assert format_strategy(strategy) == text


def test_disaggregated_stages_add_up() -> None:
    """Attention and expert devices are the same ones unless domains set them apart."""
    apart, shared = PAPERS["DP=160 x 3, EP=288"], PAPERS["TP=4 + DP=8, EP=32"]
    assert (apart.attention_devices, apart.expert_devices, apart.devices_per_stage) == (480, 288, 768)
    assert apart.disaggregated and apart.attention_groups == 480
    assert (shared.attention_devices, shared.expert_devices, shared.devices_per_stage) == (32, 32, 32)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("tp=4+dp=8,ep=32", "TP=4 + DP=8, EP=32"),
        (" DP = 8 + TP = 4 ,\tEP = 32 ", "TP=4 + DP=8, EP=32"),
        ("TP=8 + DP=4", "TP=8 + DP=4, TP=8 + EP=4"),
        ("EP=32", "DP=32, EP=32"),
        ("DP=32, DP=32", "DP=32, EP=32"),
        ("dp=160X3,ep=288", "DP=160 x 3, EP=288"),
        ("DP=160 \N{MULTIPLICATION SIGN} 3, EP=288", "DP=160 x 3, EP=288"),
        ("TP=1", "TP=1"),
        ("TP=1, EP=1 [pp = 1]", "TP=1"),
        ("TP=16, EP=16", "TP=16, EP=16"),
    ],
)
def test_spellings_that_mean_the_same(text: str, same: str) -> None:
    """Spaces, case, order and a lone block are free; the canonical print is one."""
    assert format_strategy(parse_strategy(text)) == same


@st.composite
def colocated(draw: st.DrawFn) -> Strategy:
    """Strategies whose attention and experts share their devices."""
    tp, dp, pp = draw(DEGREES), draw(DEGREES), draw(st.integers(1, 8))
    moe_tp = draw(st.sampled_from([n for n in range(1, tp * dp + 1) if tp * dp % n == 0]))
    return Strategy(
        attention_tp=tp,
        attention_dp=dp,
        staged=tp > 1 and draw(st.booleans()),
        moe_tp=moe_tp,
        moe_ep=tp * dp // moe_tp,
        pp=pp,
    )


@settings(max_examples=60, deadline=None)
@given(colocated() | apart)
def test_printing_and_reading_are_inverse(strategy: Strategy) -> None:
    """parse(format(s)) = s for every strategy whose devices add up."""
    assert parse_strategy(format_strategy(strategy)) == strategy


@settings(max_examples=30, deadline=None)
@given(DEGREES, DEGREES, st.integers(1, 8), st.booleans())
def test_dense_strategies_mirror_and_print_one_block(tp: int, dp: int, pp: int, staged: bool) -> None:
    """Of a dense model the experts' degrees repeat those of attention."""
    strategy = Strategy(attention_tp=tp, attention_dp=dp, staged=staged and tp > 1, moe_tp=tp, moe_ep=dp, pp=pp)
    text = format_strategy(strategy, moe=False)
    assert "," not in text
    assert parse_strategy(text, moe=False) == strategy


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="TPDESX =+,[]x0123456789.-\u00e9\u00b2\n", max_size=30))
def test_any_text_is_read_or_refused_in_one_sentence(text: str) -> None:
    """Nothing but BadInput leaves the parser, on one line and naming the flag."""
    try:
        strategy = parse_strategy(text, flag="--strategy")
    except BadInput as error:
        assert str(error).startswith("--strategy: ") and "\n" not in str(error)
    else:
        assert parse_strategy(format_strategy(strategy)) == strategy


@pytest.mark.parametrize("text", ["TP=4 + DP=8, EP=32", "DP=8 x 2, EP=8"])
def test_a_dense_model_has_no_experts_to_place(text: str) -> None:
    """Parts for experts are refused where there are none."""
    with pytest.raises(BadInput):
        parse_strategy(text, moe=False)


def test_a_dense_model_takes_a_mirrored_text() -> None:
    """What both parts say alike is no contradiction."""
    assert parse_strategy("TP=2 + DP=4, TP=2 + EP=4", moe=False) == parse_strategy("TP=2 + DP=4", moe=False)


@pytest.mark.parametrize("text", [*PAPERS, "TP=16", "DP=144, EP=144"])
def test_the_papers_strategies_fit_deepseek(text: str) -> None:
    """What the papers run can be run."""
    check_strategy(parse_strategy(text), DEEPSEEK)


def test_grouped_queries_replicate_their_key_heads() -> None:
    """TP=16 over 8 KV heads holds each twice; TP=32 over 12 KV heads can do neither."""
    spec = DENSE
    check_strategy(parse_strategy("TP=16", moe=False), spec)
    odd = replace(spec, attention=GQA(heads=96, kv_heads=12, head_dim=128))
    with pytest.raises(BadInput, match="12 KV heads neither divide nor are divided by attention TP=32; use 24 or 48"):
        check_strategy(parse_strategy("TP=32", moe=False), odd)


def test_staged_attention_is_for_latent_attention() -> None:
    """SP-TP-SP is defined on MLA's latent (CloudMatrix384 section 4.3.1)."""
    with pytest.raises(BadInput, match="use TP"):
        check_strategy(parse_strategy("SP=4", moe=False), DENSE)


def test_a_dense_model_refuses_experts_in_code_too() -> None:
    """A strategy that was not parsed is checked alike."""
    with pytest.raises(BadInput, match="no experts; use 'TP=4'"):
        check_strategy(Strategy(attention_tp=4, moe_ep=4), DENSE)
