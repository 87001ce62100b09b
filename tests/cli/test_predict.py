"""`plan predict`: the keys of its JSON, and its text."""

import pytest

from cli.main import main
from tests.shell import answered

DECODE = ["predict", "deepseek-r1", "--hw", "cm384", "--phase", "decode", "--strategy", "DP=32, EP=32", "--batch", "8"]
PREFILL = [
    "predict", "deepseek-r1", "--hw", "h800", "--phase", "prefill", "--strategy", "DP=32, EP=32", "--tokens", "16k",
]  # fmt: skip
MIXED = [
    "predict", "qwen3-32b", "--hw", "h100", "--phase", "mixed", "--strategy", "TP=4", "--concurrency", "64",
    "--isl", "2048", "--osl", "512",
]  # fmt: skip

COMMON = {
    "model", "hardware", "phase", "strategy", "devices", "chips", "redundant_experts", "shared_experts",
    "iteration_seconds", "tokens_per_iteration_per_request", "interval", "tokens_per_second_per_device",
    "tokens_per_second_per_chip", "microbatches", "memory_bytes_per_device", "fits", "bottleneck", "assumptions",
    "operators", "extrapolated",
}  # fmt: skip
OPERATOR = {"name", "stream", "count", "seconds", "exposed_seconds", "flops", "bytes", "message_bytes", "bound"}


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (DECODE, {"tpot_seconds"}),
        (PREFILL, {"ttft_seconds", "computed_tokens_per_second_per_chip"}),
        (MIXED, {"tpot_seconds", "ttft_seconds", "ttft_interval"}),
    ],
)
def test_json_has_exactly_the_documented_keys(capsys, arguments, more):
    """Keys of the object, of every operator, of the memory and of the interval."""
    data = answered(capsys, *arguments)
    assert set(data) == COMMON | more
    assert all(set(row) == OPERATOR for row in data["operators"])
    kinds = {"weights", "kv_cache", "activations", "buffers", "reserve", "capacity"}
    assert set(data["memory_bytes_per_device"]) == kinds
    assert set(data["interval"]) == {"low", "high", "level"}
    assert sum(row["exposed_seconds"] for row in data["operators"]) == pytest.approx(data["iteration_seconds"])


def test_what_was_asked_is_echoed(capsys: pytest.CaptureFixture[str]) -> None:
    """Strategy, layout of the experts and size as given; a 910C chip is two devices."""
    data = answered(
        capsys, "predict", "DeepSeek-R1", "--hw", "CM384", "--phase", "decode", "--strategy", "dp=320,ep=320",
        "--batch", "48", "--kv-len", "4k", "--mtp", "1", "--redundant-experts", "32", "--shared-experts",
        "dedicated=32", "--microbatches", "2", "--devices", "320",
    )  # fmt: skip
    assert data["strategy"] == "DP=320, EP=320"
    assert (data["devices"], data["chips"]) == (320, 160)
    assert (data["redundant_experts"], data["shared_experts"], data["microbatches"]) == (32, "dedicated=32", 2)
    assert data["tokens_per_iteration_per_request"] == pytest.approx(1.7)
    assert data["tokens_per_second_per_chip"] == pytest.approx(2 * data["tokens_per_second_per_device"])


def test_assumptions_name_the_defaults_and_not_what_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that is given leaves the assumptions; the load distribution is named while it matters."""
    bare = answered(capsys, *DECODE)["assumptions"]
    assert {"kv_len": 4096, "mtp": 0, "weights": "int8", "expert_balance": "measured"}.items() <= bare.items()
    assert bare["expert_load_distribution"].startswith("mixed-domains")
    given = answered(capsys, *DECODE, "--kv-len", "2048", "--weights", "bf16", "--expert-balance", "perfect")
    assert not {"kv_len", "weights", "expert_balance", "expert_load_distribution"} & set(given["assumptions"])


def test_what_does_not_fit_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    """``fits`` is false with exit code 0, and the text says by how much."""
    huge = [*DECODE[:-1], "2000"]
    assert answered(capsys, *huge)["fits"] is False
    assert main(huge) == 0
    assert "DOES NOT FIT" in capsys.readouterr().out


def test_text_starts_with_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """Headline first, then operators by exposed time, memory and what was assumed."""
    assert main(MIXED) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "qwen3-32b on h100, mixed, TP=4 (4 devices = 4 chips)"
    assert lines[2].startswith("TPOT")
    assert lines[3].startswith("TTFT")
    assert "--max-batched-tokens 8192" in "\n".join(lines)


def test_computed_throughput_leaves_reused_tokens_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the prompts reused: half of the throughput is computed."""
    data = answered(capsys, *PREFILL, "--prefix-reuse", "50%")
    assert data["computed_tokens_per_second_per_chip"] == pytest.approx(data["tokens_per_second_per_chip"] / 2)
