"""Work on many items in several processes gives what a loop gives."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import podplan
from ground.errors import BadInput
from ground.workers import aside, executor_of, spread


@pytest.fixture(params=[1, 2], ids=["one core", "two cores"])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """As many cores as are asked for, whatever this machine has."""
    monkeypatch.setattr("ground.workers.cores", lambda: request.param)
    return int(request.param)


def halves_of(whole: float) -> Callable[[int], tuple[int, float, int]]:
    """Return a closure, which no process could be sent."""
    return lambda number: (number, whole / 2, os.getpid())


def test_results_come_in_order(cores: int) -> None:
    """Whoever ends first, the first item's result is the first; closures need not travel."""
    found = list(spread(halves_of(3.0), range(7)))
    assert [(number, half) for number, half, _ in found] == [(number, 1.5) for number in range(7)]
    assert (os.getpid() in {process for _, _, process in found}) == (cores == 1)


def test_one_item_stays_here(cores: int) -> None:
    """No process is begun for it."""
    assert list(spread(halves_of(1.0), [4])) == [(4, 0.5, os.getpid())]
    assert list(spread(halves_of(1.0), [])) == []


def test_what_is_wrong_is_raised_here(cores: int) -> None:
    """The same exception with its sentence, after the results before it."""

    def picky(number: int) -> int:
        if number == 2:
            raise BadInput("--isl: 2 is too small")
        return number

    found = spread(picky, range(4))
    assert next(found) == 0
    with pytest.raises(BadInput, match="--isl: 2 is too small"):
        list(found)


def test_workers_are_named_by_a_number_or_a_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many processes, whatever the machine has; anything else is told in a sentence."""
    found = list(executor_of(2)(halves_of(3.0), range(4)))
    assert [half for _, half, _ in found] == [1.5] * 4
    assert os.getpid() not in {process for _, _, process in found}
    for wrong in ("many", "0", 1000):
        with pytest.raises(BadInput, match="is neither 1 to 256 processes nor dask:ADDRESS"):
            executor_of(wrong)
    monkeypatch.setattr("ground.workers.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install 'podplan\[dask\]'"):
        executor_of("dask:localhost:8786")


@pytest.mark.skipif(find_spec("distributed") is None, reason="dask is an extra")
def test_a_dask_cluster_of_processes_gives_the_same() -> None:
    """Questions travel to its workers and rows come back; a scheduler that is not there is told."""
    from distributed import LocalCluster

    asked = {"hw": "h100", "devices": 2, "shape": "disaggregated", "over": {"osl": [64, 128]}}
    here = podplan.sweep("qwen3-8b", **asked).rows()
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        there = podplan.sweep("qwen3-8b", **asked, workers=f"dask:{cluster.scheduler_address}").rows()
        assert there == here
        with pytest.raises(BadInput, match="--osl: 'x'"):
            podplan.sweep("qwen3-8b", **{**asked, "over": "osl=64,x"}, workers=f"dask:{cluster.scheduler_address}")
    with pytest.raises(BadInput, match="no Dask scheduler answers"):
        podplan.sweep("qwen3-8b", **asked, workers="dask:tcp://127.0.0.1:1")


def test_work_aside_gives_what_it_gives_here(cores: int) -> None:
    """A closure's results come from another process where there is a second core; what it raises is raised here."""
    whole = 3.0

    def halves() -> Iterator[tuple[float, int]]:
        yield whole / 2, os.getpid()
        yield whole / 4, os.getpid()
        raise BadInput("--isl: 2 is too small")

    with aside(halves) as result:
        (half, process), (quarter, same) = result(), result()
        with pytest.raises(BadInput, match="--isl: 2 is too small"):
            result()
    assert (half, quarter) == (1.5, 0.75)
    assert process == same and (process == os.getpid()) == (cores == 1)


def test_work_of_a_lost_process_is_done_here(cores: int) -> None:
    """A process that the machine kills costs time, and no answer; what it has sent is not sent twice."""
    here = os.getpid()

    def lost() -> Iterator[int]:
        yield 6
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        yield 7

    with aside(lost) as result:
        assert (result(), result()) == (6, 7)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux alone")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("begun", ["with aside(work) as result: result(); result()", "list(spread(work, [1, 2], 2))"])
def test_workers_end_with_their_parent(number: signal.Signals, begun: str) -> None:
    """However it ends: nobody waits for what they still do."""
    text = (
        "import os, time\nfrom ground import workers\nfrom ground.workers import aside, spread\n"
        "workers.cores = lambda: 2\n"
        "def work(*_): os.write(1, b'x'); yield 1; time.sleep(60)\n"
        "def slow(_): os.write(1, b'x'); time.sleep(60)\n" + begun.replace("spread(work", "spread(slow")
    )
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, env=here) as process:
        assert process.stdout is not None and process.stdout.read(1) == b"x"
        process.send_signal(number)
        assert process.wait(timeout=20) == -number
        assert process.stdout.read() in (b"", b"x")  # which ends when nobody can write to it


def test_workers_end_when_their_results_are_no_longer_wanted(cores: int) -> None:
    """An error or an interrupt of one does not wait for what others do."""

    def work(number: int) -> int:
        if number:
            time.sleep(20)
        return number

    found = spread(work, range(2))
    start = time.monotonic()
    assert next(found) == 0
    found.close()  # type: ignore[attr-defined]  # a generator or a map
    assert time.monotonic() - start < 10
