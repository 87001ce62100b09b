"""What hosts add, by engine and measured system."""

import pytest

from ground.errors import BadInput
from planner.costs.hostcosts import REQUEST_SECONDS, HostCosts, host_costs


def test_host_costs_come_from_profiles_and_measured_systems() -> None:
    """An engine's profile says its gap, a measured system stands in the table, and no other name is known."""
    assert host_costs(None) == HostCosts()
    assert host_costs("xdeepserve").step_seconds == 2e-3
    assert host_costs("sglang").step_seconds == 0.0
    assert host_costs("trtllm").step_seconds == 0.0
    assert host_costs("reference").step_seconds is None
    assert host_costs("mindie").request_seconds == REQUEST_SECONDS
    with pytest.raises(BadInput, match="cloudmatrix-infer"):
        host_costs("no such system")
