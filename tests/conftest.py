"""How tests run: one BLAS thread each, no deadlines, short streams, and the whole suite on every core."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from ground.workers import spare_threads

spare_threads()
os.environ.pop("COLUMNS", None)  # of a terminal, or put in by readline: tables of tests are as wide as those in a file
settings.register_profile("podplan", deadline=None)  # no test says how long a machine takes
settings.load_profile("podplan")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the whole suite on every core; a few files start sooner in one process, and a debugger needs one."""
    option = config.option
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not hasattr(config, "workerinput")
    if whole and getattr(option, "numprocesses", 0) is None and not (option.usepdb or option.collectonly):
        option.numprocesses, option.dist = "auto", "worksteal"


@pytest.fixture(autouse=True, scope="session")
def short_streams() -> Iterator[None]:
    """Tell aggregated instances' latencies on 2,500 requests instead of 40,000: what is compared is played alike."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.instances.aggregated._REQUESTS", 2_500)
        patch.setattr("planner.instances.aggregated._LONGEST", 5_000)
        yield


@pytest.fixture(autouse=True, scope="session")
def compiled_once(request: pytest.FixtureRequest, short_streams: None) -> None:
    """Let workers of the whole suite compile different loops, not all of them the same at the same time."""
    if hasattr(request.config, "workerinput"):
        from tests.compiling import compile_apart

        compile_apart()


@pytest.fixture
def long_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell them on as many as users get, for figures that are printed or held against other plays."""
    monkeypatch.setattr("planner.instances.aggregated._REQUESTS", 40_000)
    monkeypatch.setattr("planner.instances.aggregated._LONGEST", 400_000)
