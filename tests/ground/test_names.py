"""Suggestions for mistyped names."""

import pytest

from ground.errors import close_names, suggest

KNOWN = ["deepseek-r1", "deepseek-v3", "kimi-k2", "Qwen3-235B-A22B"]


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("kimi-k3", "; did you mean kimi-k2?"),
        ("DEEPSEEK-R2", "; did you mean deepseek-r1 or deepseek-v3?"),
        ("qwen3", "; did you mean Qwen3-235B-A22B?"),
        ("zzz", ""),
        ("", ""),
    ],
)
def test_suggest_lists_near_names(typed: str, told: str) -> None:
    """Names near what was typed, in any case, or its continuations; nothing where none is near."""
    assert suggest(typed, KNOWN) == told


def test_no_more_names_than_asked_for() -> None:
    """The nearest come first, and the list is short."""
    assert len(close_names("deepseek", [f"deepseek-{n}" for n in range(20)])) == 3
    assert suggest("abcd1", ["abcd2", "abcd3", "abcd4"]).count("abcd") == 3
