"""What pictures become: patches and tokens as the families' processors make them."""

import pytest

from models.loader import load_model
from models.parameters import pictures_of
from models.spec import VisionTower


def tower(name: str) -> VisionTower:
    """Return the encoder of a model of the catalogue."""
    return load_model(name).vision


@pytest.mark.parametrize(
    ("name", "size", "tokens"),
    [
        ("qwen2.5-vl-7b-instruct", (1280, 720), 46 * 26),  # sides in units of 28 pixels
        ("qwen3-vl-8b-instruct", (1280, 720), 40 * 22),  # of 32
        ("qwen3-vl-8b-instruct", (32, 32), 1),
        ("gemma-3-27b-it", (4000, 100), 256),  # whatever its size (arXiv 2503.19786, section 2.1)
        ("llama-4-scout", (336, 336), 144),  # one tile and no copy of the whole
        ("llama-4-scout", (672, 336), 3 * 144),
        ("llama-4-scout", (9000, 9000), 17 * 144),
    ],
)
def test_tokens_of_a_picture(name: str, size: tuple[int, int], tokens: int) -> None:
    """A picture has as many tokens as by hand, and each token as many patches as are merged."""
    found = pictures_of(tower(name), 1, *size)
    assert found.tokens == tokens
    assert found.patches == tokens * tower(name).merge ** 2


def test_a_large_picture_is_shrunk() -> None:
    """Beyond the processor's limit a picture keeps its shape and about as many tokens as the limit."""
    found = pictures_of(tower("qwen3-vl-8b-instruct"), 1, 20_000, 10_000)
    assert found.tokens == pytest.approx(16384, rel=0.01)


def test_frames_are_encoded_in_pairs_that_do_not_see_each_other() -> None:
    """A video of 32 frames is 16 pictures of two frames each; a patch attends within its own."""
    one, video = (pictures_of(tower("qwen3-vl-8b-instruct"), 1, 640, 360, frames) for frames in (1, 32))
    assert video.tokens == 16 * one.tokens
    assert video.keys_per_patch == one.keys_per_patch == one.patches


def test_windows_limit_what_most_layers_see() -> None:
    """Qwen2.5-VL: 4 of 32 layers see the whole picture, the others 8 x 8 patches."""
    found = pictures_of(tower("qwen2.5-vl-7b-instruct"), 1, 1280, 720)
    assert found.keys_per_patch == pytest.approx((4 * found.patches + 28 * 64) / 32)
