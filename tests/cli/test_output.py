"""Tables and sentences at any width: no digit, no pool and no word is cut."""

import io
import re
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from cli.output import Screen, short_duration
from cli.plan_parts import WORDS, engine_text, show_rows
from cli.plan_view import shape_cells, show_front, show_plan, show_pools, work_cells
from planner.engines import loader, rules
from podplan.plan_data import plan_row
from podplan.planning import PlanResult
from tests.questions import small_question

WIDTHS = [80, 100, 120, 200]
words = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12)
cells = st.one_of(
    st.just(""), st.floats(0, 1e9).map(lambda value: f"{value:.4g} ms"), st.lists(words, max_size=6).map(" ".join)
)


def shown(width: int, show) -> str:
    """Return what is written on a screen of a width."""
    text = io.StringIO()
    show(Screen(text, width))
    return text.getvalue()


@given(
    st.lists(words, min_size=1, max_size=9, unique=True).flatmap(
        lambda names: st.tuples(st.just(names), st.lists(st.tuples(*[cells] * len(names)), max_size=5))
    ),
    st.integers(20, 200),
)
def test_every_word_of_a_table_is_there_at_any_width(table, width):
    """Lines keep to the width where a word does; cells fold at words, or rows turn to records."""
    names, rows = table
    text = shown(width, lambda screen: screen.table(names, rows))
    told = text.split()
    for row in rows:
        for cell in row:
            assert all(word in told for word in cell.split())
    longest = max(len(word) for word in [*names, *(word for row in rows for cell in row for word in cell.split())])
    assert all(len(line) <= width + longest + 8 for line in text.splitlines())


def test_spare_columns_drop_whole_and_say_so() -> None:
    """The last named goes first; what is not spare stays, as a record if need be."""
    names = ["model", "pools", "power", "energy"]
    rows = [[f"qwen3-{size}b", "2_x_TP=1_and_more", "12.3 kW", "0.25 kWh"] for size in (1, 4, 8, 14, 32)]
    at = partial(shown, show=lambda screen: screen.table(names, rows, right=names[2:], spare=names[2:]))
    wide, narrow, least = at(80), at(42), at(20)
    assert "leave out" not in wide and "0.25 kWh" in wide
    assert "(42 columns leave out energy.)" in narrow and "0.25" not in narrow and "12.3 kW" in narrow
    assert least.count("2_x_TP=1_and_more") == 5 and least.count("energy") == 5 and "leave out" not in least


def test_sentences_fold_at_words_with_their_units() -> None:
    """A flag keeps its hyphen, a number its unit."""
    text = shown(30, lambda screen: screen.text("Assumed: weights --kv-dtype-of-both bf16 and a limit of 12.5 ms."))
    assert "--kv-dtype-of-both" in text and "12.5 ms" in text
    assert all(len(line) <= 30 for line in text.splitlines())


def test_nobody_weighs_nanoseconds_on_a_first_screen() -> None:
    """Zero is zero."""
    assert [short_duration(seconds) for seconds in (0.0, 3e-9, 2e-6)] == ["0 s", "< 1 us", "2 us"]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_plan_has_the_same_words(width: int, found: PlanResult) -> None:
    """Apart from layout: rules, and the head that a table repeats where it turns."""

    def words(at: int) -> dict[str, int]:
        text = shown(at, lambda screen: show_plan(screen, found, runners=False))
        return {word: text.split().count(word) for word in text.split() if not set(word) <= {"─"}}

    assert words(width) == words(1000)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_plan_loses_no_digit_and_no_pool(width: int, found: PlanResult) -> None:
    """Every cell of every pool stands on the screen, whatever its shape; the words are those of the widest."""
    best = found.best
    pools = shown(width, lambda screen: show_pools(screen, best))
    told = set(pools.split())
    for own in (*shape_cells(best).values(), *work_cells(best).values()):
        assert all(set(cell.split()) <= told for cell in own)
    whole = shown(width, lambda screen: show_plan(screen, found, runners=False))
    assert max(map(len, whole.splitlines())) <= width
    front = shown(width, lambda screen: show_front(screen, "front", found.pareto))
    rows = shown(width, lambda screen: show_rows(screen, [{"feasible": True, **plan_row(best)}], []))
    for role, pool in best.pools():
        assert role in pools and role in rows
        assert f"{pool.instances} ×" in front


def test_a_cell_of_words_folds_where_the_width_is_unknown() -> None:
    """A pipe has no width; a cell that is as long as a sentence folds there as a sentence does, and loses no word."""
    words = " ".join(f"word-{number:02d}" for number in range(30))
    text = shown(1000, lambda screen: screen.table(["engine", "does not run"], [["one", words], ["two", "nothing"]]))
    assert max(map(len, text.splitlines())) <= 100 and all(word in text for word in words.split())


def test_every_rule_of_an_engine_has_words() -> None:
    """The names of rules are for manifests and JSON; a table says in words what an engine does not run."""
    sources = "".join(Path(str(room.__file__)).read_text(encoding="utf-8") for room in (loader, rules))
    named = set(re.findall(r'Broken\(\s*"([a-z-]+)"', sources))
    assert named - {"accelerator"} == WORDS.keys()
    assert not any("-" in told and told == rule for rule, told in WORDS.items())


def test_machines_that_no_engine_runs_on_say_so() -> None:
    """The headline of such a plan names the reference runtime and why it is that one."""
    assert engine_text(small_question(model="qwen3-8b", hardware="h100")) == "the reference runtime"
    told = engine_text(small_question(model="pangu-pro-moe", hardware="mi300x"))
    assert "no engine of the catalogue runs pangu-pro-moe on mi300x" in told
