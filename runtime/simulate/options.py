"""How a run is made, beyond the manifest and its requests."""

from dataclasses import dataclass, field
from typing import Literal

from runtime.simulate.changes import Autoscale, Migrating
from runtime.simulate.engine import NEVER
from runtime.simulate.faults import Outage
from runtime.simulate.workload import Requests


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """``mtp`` sampled draws the iterations of each answer at admission, expected takes their mean.

    Requests that arrive before ``warmup_seconds`` or after ``measured_until_seconds`` load the system and are not
    counted; the run ends when all are served, or at ``until_seconds``. ``stepping`` ends every decode iteration by an
    event of its own instead of summing those between which nothing changes: slower, and the same result.
    ``balance`` replaces the expert imbalance of a role's step costs, and each of ``rebalances`` does so from a time on.
    ``offline`` requests stand behind the online ones as ``routing.offline`` says. With ``migrating`` the manifest is
    the union of its stages; ``autoscale`` lets its instances come and go.
    """

    seed: int = 0
    mtp: Literal["sampled", "expected"] = "sampled"
    warmup_seconds: float = 0.0
    measured_until_seconds: float = NEVER
    until_seconds: float = NEVER
    stepping: bool = False
    balance: dict[str, float] = field(default_factory=dict)
    rebalances: tuple[tuple[float, dict[str, float]], ...] = ()
    offline: Requests | None = None
    faults: tuple[Outage, ...] = ()
    migrating: Migrating | None = None
    autoscale: Autoscale | None = None
