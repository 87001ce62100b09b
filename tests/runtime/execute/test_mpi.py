"""The same programs in real processes: several ranks each, and ends that name rank and operation."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planner.manifest.document import dump_manifest
from tests.runtime.execute.deployments import deployed, slim

ROOT = Path(__file__).parents[3]
MPIRUN = shutil.which("mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
LAUNCHED = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OPENBLAS_NUM_THREADS": "1"}
FAULTY = """
import os, sys, time
from cli.main import main
from runtime.execute import run

iterate = run.Rank.iterate

async def faulty(self, iteration):
    if self.worker.endpoint.rank == 11 and iteration == 1:
        {fault}
    await iterate(self, iteration)

run.Rank.iterate = faulty
sys.exit(main(sys.argv[1:]))
"""

pytest.importorskip("mpi4py", reason="the extra podplan[mpi] is not installed")
pytestmark = pytest.mark.skipif(MPIRUN is None, reason="no mpirun: the extra podplan[mpi] is not installed")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight prefill and eight decode ranks, staged, hybrid, with drafts."""
    path = tmp_path_factory.mktemp("mpi") / "manifest.yaml"
    made = deployed(slim("deepseek-r1"), "SP=4 + DP=2, TP=2 + EP=4", "TP=2 + DP=4, EP=8", decode_drafts=1)
    path.write_text(dump_manifest(made))
    return path


def launched(processes: int, program: list[str], seconds: float = 100.0) -> subprocess.CompletedProcess[str]:
    """Run a program in so many processes."""
    assert MPIRUN is not None, "skipped without it"
    return subprocess.run(
        [MPIRUN, "--oversubscribe", "-n", str(processes), sys.executable, *program],
        capture_output=True,
        text=True,
        timeout=seconds,
        env=os.environ | LAUNCHED,
        cwd=ROOT,
    )


def test_ranks_over_processes_compute_the_same_model(manifest: Path) -> None:
    """Sixteen ranks in three processes; one report."""
    done = launched(3, ["-m", "cli", "execute", str(manifest), "--transport", "mpi", "--iterations", "2", "--json"])
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["equal"] and data["wrong_tokens"] == 0
    assert [one["pairs_met_by_forced_routes"] for one in data["exchanges"]] == [32, 64]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("raise ValueError('bad shape')", "rank 11: ValueError: bad shape"),
        ("time.sleep(1000)", "rank 11 is stuck: at work since decode 0"),
        ("os._exit(9)", "waits for"),
        ("os.kill(os.getpid(), 9)", "waits for"),
    ],
    ids=["raises", "hangs", "dies", "is killed"],
)
def test_a_lost_rank_ends_the_run(manifest: Path, tmp_path: Path, fault: str, told: str) -> None:
    """With rank and operation, within the time limit; nothing hangs."""
    program = tmp_path / "faulty.py"
    program.write_text(FAULTY.format(fault=fault))
    flags = ["execute", str(manifest), "--transport", "mpi", "--timeout", "4s", "--iterations", "2"]
    done = launched(3, [str(program), *flags], seconds=60)
    assert done.returncode != 0
    assert told in done.stderr, done.stderr
    if told == "waits for":
        assert "in decode 1, microbatch" in done.stderr, done.stderr
