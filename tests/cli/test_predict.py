"""`plan predict`: the keys of its JSON, its text, and one sentence for every bad input."""

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
def test_json_has_exactly_the_documented_keys(
    capsys: pytest.CaptureFixture[str], arguments: list[str], more: set[str]
) -> None:
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
    assert bare["kv_len"] == 4096
    assert bare["mtp"] == 0
    assert bare["weights"] == "int8"
    assert bare["expert_balance"] == "measured"
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


BAD: list[tuple[list[str], list[str]]] = [
    (["predict", "depseek-r1", *DECODE[2:]], ["depseek-r1", "deepseek-r1"]),
    ([*DECODE[:3], "cm385", *DECODE[4:]], ["cm385", "cm384"]),
    ([*DECODE[:3], "prefill=910b,decode=cm384", *DECODE[4:]], ["--hw", "one"]),
    (DECODE[:-2], ["--batch", "decode"]),
    (PREFILL[:-2], ["--tokens", "prefill"]),
    (MIXED[:-6], ["--concurrency", "mixed"]),
    ([*DECODE[:5], "deocde", *DECODE[6:]], ["--phase", "decode"]),
    ([*DECODE, "--tokens", "8k"], ["--tokens", "prefill"]),
    ([*DECODE, "--requests", "100"], ["--requests", "--batch"]),
    ([*DECODE[:-1], "0"], ["--batch", "above zero"]),
    ([*DECODE[:-1], "-3"], ["--batch", "negative"]),
    ([*DECODE[:-1], "2.5"], ["--batch", "whole number"]),
    ([*DECODE[:-1], "many"], ["--batch"]),
    ([*DECODE, "--kv-len", "4x"], ["--kv-len", "unit"]),
    ([*DECODE, "--kv-len", "1M"], ["--kv-len", "163840"]),
    ([*PREFILL, "--isl", "200k"], ["--isl", "163840"]),
    ([*PREFILL[:-1], "1", "--isl", "128k"], ["--tokens", "passes"]),
    ([*MIXED[:-2], "--osl", "100k"], ["--osl", "positions"]),
    ([*MIXED, "--mtp", "1"], ["--mtp", "qwen3-32b"]),
    ([*DECODE, "--mtp", "9"], ["--mtp", "8"]),
    ([*DECODE, "--mtp", "1", "--mtp-acceptance", "1.2"], ["--mtp-acceptance", "from 0 to 1"]),
    ([*PREFILL, "--prefix-reuse", "0.5", "--cache-plane", "vpc"], ["--cache-plane", "nvlink"]),
    ([*PREFILL, "--prefix-reuse", "1"], ["--prefix-reuse", "not including, 1"]),
    ([*DECODE[:7], "DP=32, EP=33", *DECODE[8:]], ["--strategy"]),
    ([*DECODE[:7], "TP=3 + DP=8, EP=24", *DECODE[8:]], ["--strategy", "128 heads"]),
    ([*DECODE[:7], "DP=1024, EP=1024", *DECODE[8:]], ["--strategy", "768"]),
    ([*DECODE[:7], "SP=4 + DP=8, EP=32", *DECODE[8:]], ["--strategy", "SP", "TP=4"]),
    ([*PREFILL[:7], "DP=16 x 2, EP=16", *PREFILL[8:]], ["--strategy", "decode", "leave out the domains"]),
    ([*DECODE[:7], "DP=160 x 5, EP=288", *DECODE[8:]], ["--strategy", "1088", "768"]),
    ([*DECODE, "--devices", "64"], ["--devices", "64", "32"]),
    ([*DECODE, "--nodes", "1"], ["--strategy", "16"]),
    ([*DECODE, "--nodes", "49"], ["--nodes", "48"]),
    ([*DECODE, "--weights", "fp8"], ["--weights", "int8", "bf16"]),
    ([*DECODE, "--kv-dtype", "fp4"], ["--kv-dtype", "fp8"]),
    ([*DECODE, "--expert-balance", "0.5"], ["--expert-balance", "at least 1"]),
    ([*MIXED, "--expert-balance", "1.2"], ["--expert-balance", "qwen3-32b has no experts"]),
    ([*MIXED, "--expert-balance", "none"], ["--expert-balance", "qwen3-32b has no experts"]),
    ([*MIXED, "--expert-skew", "log-normal=0.5"], ["--expert-skew", "qwen3-32b has no experts"]),
    ([*MIXED, "--shared-experts", "dedicated=2"], ["--shared-experts", "qwen3-32b has no shared expert"]),
    ([*DECODE, "--redundant-experts", "7"], ["--redundant-experts", "0 or 32"]),
    ([*MIXED, "--redundant-experts", "8"], ["--redundant-experts", "qwen3-32b"]),
    ([*DECODE, "--shared-experts", "dedicated"], ["--shared-experts", "dedicated=N"]),
    ([*DECODE, "--shared-experts", "dedicated=32"], ["--shared-experts", "dedicated=32"]),
    ([*DECODE, "--microbatches", "3"], ["--microbatches", "auto"]),
    ([*MIXED, "--microbatches", "2"], ["--microbatches", "qwen3-32b"]),
    ([*DECODE[:-1], "1", "--microbatches", "2"], ["--microbatches", "--batch"]),
    ([*DECODE, "--engine", "vllm@0.1"], ["--engine", "0.1"]),
    ([*MIXED[:9], "1M", *MIXED[10:]], ["--concurrency", "at most 100000"]),
    ([*MIXED, "--length-spread", "1"], ["--length-spread", "1"]),
    ([*DECODE, "--length-spread", "0.1"], ["--length-spread", "mixed"]),
    ([*DECODE, "--engine", "vlm"], ["--engine", "vllm"]),
    ([*DECODE, "--colour"], ["--colour"]),
]


@pytest.mark.parametrize(("arguments", "named"), BAD, ids=lambda value: " ".join(value)[-60:])
def test_bad_input_is_one_sentence(capsys: pytest.CaptureFixture[str], arguments: list[str], named: list[str]) -> None:
    """Exit code 2, nothing on stdout, one line on stderr that names the flag and what would be right."""
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert all(text in shown.err for text in named), shown.err
