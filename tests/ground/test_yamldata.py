"""YAML in and out."""

import pytest
from hypothesis import given, settings, strategies as st

from ground.errors import BadInput
from ground.yamldata import parse_yaml, to_yaml

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
    | st.sampled_from(
        ["no", "on", "1e5", "1:30", "2025-01-31", "0o17", "0x1f", "010", "~", "null", "<<", "=", "&a", "*a", "- x"]
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SCALARS.filter(bool), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3.76e14", 3.76e14),
        ("1e-6", 1e-6),
        (".5", 0.5),
        ("-12", -12),
        ("true", True),
        ("no", "no"),
        ("1:30", "1:30"),
        ("2025-01-31", "2025-01-31"),
        ("010", "010"),
        ("'12'", "12"),
        ("~", None),
        ("", None),
        ("# nothing", None),
        ("{a: [1, b], c: }", {"a": [1, "b"], "c": None}),
        ("a: x & y\nb: 2 * 3", {"a": "x & y", "b": "2 * 3"}),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    """Core schema of YAML 1.2.2 section 10.3: PyYAML alone reads 3.76e14 as text, no as false and 1:30 as 90."""
    parsed = parse_yaml(text, "f.yaml")
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\nb: 2\na: 3", "f.yaml, line 3: key 'a' stands twice"),
        ("a: &x [1]\nb: *x", "f.yaml, line 1: the anchor or alias 'x' is not accepted"),
        ("a: 1\nb: !!python/object:os.system {}", "f.yaml, line 2: the tag "),
        ("a: !!int '3'", "f.yaml, line 1: the tag "),
        ("? [a]\n: 1", "f.yaml, line 1: a key must be a name or a number"),
        ("a: 1\n---\nb: 2", "f.yaml, line 3: a second document starts here"),
        ("a: [1, 2", "f.yaml, line 2: not YAML"),
        ("a:\n\t- b", "f.yaml, line 2: not YAML"),
        ("a: \x01", "f.yaml: not YAML"),
        ("[" * 100_000, "f.yaml, line 1: lists and mappings are nested more than 100 deep"),
        ('["]", ' * 100_000, "f.yaml, line 1: lists and mappings are nested more than 100 deep"),
    ],
)
def test_what_is_not_accepted_is_told_with_its_line(text: str, told: str) -> None:
    """One sentence that names the file and the line, whatever stands in the file."""
    with pytest.raises(BadInput) as caught:
        parse_yaml(text, "f.yaml")
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


def test_what_no_file_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text beyond the limit before it is parsed, and halves of letters before they are written."""
    with pytest.raises(BadInput, match="is no Unicode text, which YAML is"):
        to_yaml({"a": "\ud800"})
    monkeypatch.setattr("ground.yamldata.SIZE_LIMIT", 4)
    assert parse_yaml("a: 1", "f.yaml") == {"a": 1}
    with pytest.raises(BadInput, match=r"f\.yaml: YAML of more than 0 MiB is not read"):
        parse_yaml("a: 12", "f.yaml")


def test_nested_aliases_cannot_fill_the_memory() -> None:
    """Ten levels of ten aliases would be ten thousand million items."""
    levels = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 11)]
    with pytest.raises(BadInput, match="alias"):
        parse_yaml("\n".join(levels), "bomb.yaml")


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_what_is_written_reads_back(value: object) -> None:
    """parse(to_yaml(x)) is x, texts that look like numbers included."""
    assert parse_yaml(to_yaml(value), "f.yaml") == value


@settings(max_examples=150, deadline=None)
@given(st.text("[]{}:,-?&*!|>'\"%@#\n a1\t", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing but BadInput comes out of a broken file."""
    try:
        parse_yaml(text, "f.yaml")
    except BadInput as error:
        assert str(error).startswith("f.yaml")


def test_writing_keeps_order_and_repeats_shared_values() -> None:
    """The same data gives the same bytes: keys as given, no aliases."""
    shared = [1, 2.5]
    assert to_yaml({"b": shared, "a": shared, "c": (True, None)}) == (
        "b:\n- 1\n- 2.5\na:\n- 1\n- 2.5\nc:\n- true\n- null\n"
    )


def test_aliases_of_others_stand_for_their_values() -> None:
    """Spelt out with nested anchors and merge keys where files of others are read; the file's own keys go first."""
    text = "a: &a {x: &x [1, 2], y: *x}\nb: {<<: *a, y: 3}\nc: [*a, *x]\nd: {<<: [{e: 1}, {e: 2, f: 3}]}\n"
    assert parse_yaml(text, "w", aliases=True) == {
        "a": {"x": [1, 2], "y": [1, 2]},
        "b": {"x": [1, 2], "y": 3},
        "c": [{"x": [1, 2], "y": [1, 2]}, [1, 2]],
        "d": {"e": 1, "f": 3},
    }
    with pytest.raises(BadInput, match="'a' is not accepted"):
        parse_yaml(text, "w")
