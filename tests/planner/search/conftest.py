"""Searches of tests play short streams: what is compared is played on the same ones."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def short_streams() -> Iterator[None]:
    """Tell aggregated instances' latencies on 2,500 requests instead of 40,000."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.instances.aggregated._REQUESTS", 2_500)
        patch.setattr("planner.instances.aggregated._LONGEST", 5_000)
        yield
