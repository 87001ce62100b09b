"""Exchange buffers by the libraries' arithmetic, held against published sizes."""

from planner.engines.memory import (
    deepep_low_latency_bytes,
    deepep_normal_bytes,
    hccl_low_latency_mebibytes,
    hccl_normal_mebibytes,
)


def test_hccl_holds_what_guides_and_logs_say() -> None:
    """vLLM-Ascend sets 600 for 80 tokens, EP 32, 8 experts a device of R1; the others were reckoned by hand."""
    for tokens, ranks, local, needed in ((80, 32, 8, 598), (82, 48, 6, 687), (86, 64, 5, 799), (172, 64, 5, 1597)):
        found = hccl_low_latency_mebibytes(tokens, 7168, ranks=ranks, local=local, experts_per_token=8)
        assert abs(found - needed) <= 1, (tokens, ranks, local)
    assert hccl_normal_mebibytes(2048, 7168, experts_per_token=8) == 862


def test_deepep_grows_with_tokens_and_experts() -> None:
    """Low latency: linear in both; normal kernels: chunks of a node and of the nodes beside it."""
    one = deepep_low_latency_bytes(128, 7168, 256)
    assert 1.9 < deepep_low_latency_bytes(256, 7168, 256) / one < 2.1
    assert 1.9 < deepep_low_latency_bytes(128, 7168, 512) / one < 2.1
    assert deepep_normal_bytes(8, 7168) < deepep_normal_bytes(16, 7168) < deepep_normal_bytes(64, 7168) < 1e9
