"""Losing a rank: the answers stay the model's after shrinking and after rolling back."""

from pathlib import Path

import pytest

from ground.errors import BadInput
from planner.manifest.document import dump_manifest
from planner.manifest.schema import Manifest
from runtime.execute.faults import Drop, execute_with_drop, parse_drop
from runtime.execute.run import Settings
from tests.runtime.execute.deployments import deployed, slim
from tests.shell import answered, printed, refused


@pytest.fixture(scope="module")
def replicated() -> Manifest:
    """Every expert twice, on ranks four apart, dedicated shared ranks, drafts; prefill by another strategy."""
    return deployed(
        slim("deepseek-r1"),
        "SP=2 + DP=2, EP=4",
        "DP=10, EP=10",
        decode_redundant=32,
        decode_dedicated=2,
        decode_drafts=1,
    )


@pytest.mark.parametrize("rank", [0, 5, 9])
def test_shrinking_keeps_the_answers(replicated: Manifest, rank: int) -> None:
    """A rank with experts or with the shared one; its requests are computed again elsewhere."""
    result = execute_with_drop(replicated, Settings(iterations=4), Drop(rank, 2, "shrink"))
    assert result.compared.equal
    assert result.lost_ranks == [rank] and result.ranks_after == 9
    assert len(result.moved_requests) >= 1
    assert f"waits for rank {4 + rank}" in result.noticed or "others of its group" in result.noticed


def test_shrinking_by_a_whole_tp_group() -> None:
    """Two devices and their EP ranks leave together; two drafts, two microbatches."""
    manifest = deployed(slim("qwen3-235b-a22b"), "TP=2, EP=2", "TP=2 + DP=4, EP=8", decode_redundant=32)
    result = execute_with_drop(manifest, Settings(iterations=3), Drop(3, 1, "shrink"))
    assert result.compared.equal and result.lost_ranks == [2, 3] and result.ranks_after == 6


@pytest.mark.parametrize("decode", ["TP=2 + DP=2, TP=2 + EP=2", "DP=4 x 2, EP=8", "TP=2 + DP=2, EP=4 [PP=2]"])
def test_rolling_back_keeps_the_answers(decode: str) -> None:
    """Any strategy: the iteration that failed leaves no trace."""
    manifest = deployed(slim("deepseek-v3"), "TP=2, EP=2", decode)
    result = execute_with_drop(manifest, Settings(iterations=3), Drop(1, 1, "rollback"))
    assert result.compared.equal and result.lost_ranks == []
    assert "the run is stuck" in result.noticed and "decode 1" in result.noticed


def test_the_last_replica_cannot_be_lost() -> None:
    """The expert and the way out are named."""
    manifest = deployed(slim("deepseek-v3"), "DP=4, EP=4", "DP=4, EP=4")
    with pytest.raises(BadInput, match="has its only replica on the lost ranks"):
        execute_with_drop(manifest, Settings(iterations=3), Drop(1, 1, "shrink"))


def test_what_cannot_shrink_is_told() -> None:
    """Experts cut over a node go with the node."""
    manifest = deployed(slim("deepseek-v3"), "TP=2 + DP=2, TP=2 + EP=2")
    with pytest.raises(BadInput, match="cannot shrink by a rank"):
        execute_with_drop(manifest, Settings(iterations=3), Drop(1, 1, "shrink"))


@pytest.mark.parametrize(
    ("text", "recovery", "told"),
    [("5", "shrink", "--drop: '5'"), ("5@x", "shrink", "--drop"), ("5@1", "pray", "--recover: 'pray'")],
)
def test_wrong_drops_are_named(text: str, recovery: str, told: str) -> None:
    """Flag and what would be right."""
    with pytest.raises(BadInput, match=told):
        parse_drop(text, recovery)


def test_the_command_recovers(replicated: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0, what was lost and that the answers are equal."""
    path = tmp_path / "manifest.yaml"
    path.write_text(dump_manifest(replicated))
    flags = ["execute", str(path), "--iterations", "3", "--drop", "4@1", "--recover", "shrink"]
    data = answered(capsys, *flags)
    assert data["equal"] and data["lost_ranks"] == [4] and data["ranks_after"] == 9
    assert "rolled back" in printed(capsys, *flags[:-1], "rollback")
    refused(capsys, "must name a decode rank below 10", *flags[:4], "--drop", "99@1")
