"""Readers of flags: every refusal names the flag and what would be right."""

import pytest

from ground.errors import BadInput
from podplan.readers import read_pictures, spaced
from tests.models.test_vision import tower


@pytest.mark.parametrize("text", ["", "2", "0@1x1", "1280x", "-1@5x5", "1@1280x720x3", "1e3@10x10", "9" * 99])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    """What is no count and size is refused in one sentence that names the flag."""
    with pytest.raises(BadInput, match="--images"):
        read_pictures(tower("qwen3-vl-8b-instruct"), "qwen3-vl-8b-instruct", text, None)


def test_a_model_without_an_encoder_sees_nothing() -> None:
    """Pictures for a text model, and pictures beside a video, are refused."""
    with pytest.raises(BadInput, match="deepseek-r1 has no encoder"):
        read_pictures(None, "deepseek-r1", None, "8@640x360")
    with pytest.raises(BadInput, match="one of them"):
        read_pictures(tower("qwen3-vl-8b-instruct"), "qwen3-vl-8b-instruct", "1@9x9", "8@640x360")


@pytest.mark.parametrize("flag", ["images", "video"])
def test_a_picture_smaller_than_a_token_names_its_own_flag(flag: str) -> None:
    """Frames of a video are refused under --video, pictures under --images."""
    given = {"images": None, "video": None} | {flag: "1@4x4"}
    with pytest.raises(BadInput, match=f"--{flag}: a picture of 4x4 pixels is smaller than a token"):
        read_pictures(tower("qwen3-vl-8b-instruct"), "qwen3-vl-8b-instruct", **given)


def test_ends_and_spacing() -> None:
    """Even steps, or even factors; both ends are points."""
    assert spaced(20, 100, 5, logarithmic=False) == [20, 40, 60, 80, 100]
    assert spaced(1, 16, 5, logarithmic=True) == [1, 2, 4, 8, 16]
    assert spaced(9, 3, 3, logarithmic=False) == [9, 6, 3]


@pytest.mark.parametrize(
    ("first", "last", "count", "logarithmic"),
    [(1, 2, 1, False), (1, 2, 5000, False), (3, 3, 4, False), (0, 5, 3, True), (1, float("inf"), 3, False)],
)
def test_ranges_that_cannot_be(first: float, last: float, count: int, logarithmic: bool) -> None:
    """Too few or too many points, equal ends, and factors from zero."""
    with pytest.raises(BadInput, match="range"):
        spaced(first, last, count, logarithmic=logarithmic)
