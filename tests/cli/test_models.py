"""`plan models`."""

import pytest

from models.loader import model_names
from tests.shell import answered, printed


def test_the_table_lists_every_model_with_its_kind_of_attention(capsys):
    """All names, with parameters; windows, sparse attention, blocks of keys and hybrids are told apart."""
    shown = printed(capsys, "models")
    assert all(name in shown for name in model_names()) and "671G" in shown
    for told in ("GQA, 18 within 128", "MLA, sparse over 2048", "12 GQA, 36 delta-net", "blocks of keys"):
        assert told in shown
    assert "attention.window.tokens" in printed(capsys, "models", "gpt-oss-20b")


def test_one_model_shows_its_parameters_beside_the_published_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSeek-R1 has 671 thousand million parameters (its model card), counted here from the dimensions."""
    shown = printed(capsys, "models", "DeepSeek-R1")
    assert "published 671G (+0.0%)" in shown
    assert "attention.kv_lora_rank" in shown


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    """Only JSON on stdout, for the list and for one model."""
    listed = answered(capsys, "models")
    assert [entry["name"] for entry in listed["models"]] == model_names()
    one = answered(capsys, "models", "deepseek-v3")
    assert one["spec"]["layers"] == 61
    assert one["parameters"] == pytest.approx(671e9, rel=0.005)
