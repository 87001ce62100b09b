"""`--queueing`: which model a plan is made with, and what the other says of the same pools."""

import pytest

from tests.shell import answered, printed

SMALL = [
    "qwen3-30b-a3b", "--engine", "reference", "--hw", "h800", "--nodes", "2", "--rate", "30/s", "--shape",
    "disaggregated",
]  # fmt: skip


def test_either_model_plans_and_stands_beside_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    """The used one's figures are the plan's; the other's are of the same pools at the same rate."""
    for flags, used, other in (((), "bulk", "mixserve"), (("--queueing", "mixserve"), "mixserve", "bulk")):
        data = answered(capsys, *SMALL, *flags)
        told = data["queueing"]
        assert data["question"]["queueing"] == told["used"] == used
        for key in ("ttft_seconds", "tpot_seconds"):
            assert told[used][key] == data["best"][key]
            assert told[other][key] != data["best"][key]
        for model in (told["bulk"], told["mixserve"]):
            whole = model["ttft_seconds"]["mean"] + 1024 * model["tpot_seconds"]["mean"]
            assert model["stream_tokens_per_second"] == pytest.approx((4096 + 1024) / whole)


def test_the_text_names_both(capsys: pytest.CaptureFixture[str]) -> None:
    """One line: the used model, and what the other would have."""
    shown = " ".join(printed(capsys, *SMALL, "-v").split())
    assert "Queueing: bulk service; MixServe's M/M/1 (Eq. 7, 9 to 11), same pools: TTFT " in shown
