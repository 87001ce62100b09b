"""What hosts add to the devices' time: the gap between steps, and what a request costs beside its steps.

A serving engine's own gap stands in its profile (``planner/engines``); systems that were measured
but have no profile stand here, with the source of each figure. None of them depends on the model
or the machine.
"""

from typing import NamedTuple

from ground.errors import BadInput
from planner.engines.behaviour import behaviour, behaviour_names
from planner.engines.loader import engine_names, load_engine

REQUEST_SECONDS = 0.01
"""Client's library, HTTP and streaming of a first token; fitted with the next one (``scripts/fit_engines.py``)."""
TOKEN_SECONDS = 7e-6
"""Tokenisation and the text's way through client and server, per prompt token, one prompt after another. The two are
fitted on TTFT of 757 closed-loop runs of TensorRT-LLM and vLLM (engine_runs.csv): 15.9 % off, 16.8 % in families that
the fit did not see, for which it gives 10 to 15 ms and 5 to 7 us."""


class HostCosts(NamedTuple):
    """``step_seconds`` idle device time per step (None: the hardware's ``host.graph_launch_seconds``);
    ``request_seconds`` of one request outside all steps and ``token_seconds`` of each of its prompt tokens, part of
    its TTFT; ``engine`` the engine whose kernels run.
    """

    step_seconds: float | None = None
    request_seconds: float = REQUEST_SECONDS
    token_seconds: float = TOKEN_SECONDS
    engine: str | None = None
    source: str = "the hardware entry's graph_launch_seconds"


SYSTEMS = {
    "cloudmatrix-infer": HostCosts(
        step_seconds=0.0,
        source="arXiv 2506.12708 section 4.2.4: the pipelined form hides all graph launches behind the running one",
    ),
    "xdeepserve": HostCosts(
        step_seconds=2e-3, source="arXiv 2508.02520 section 7.1: 2 ms of scheduling between iterations"
    ),
}
"""Measured systems without a profile in ``planner/engines``."""


def host_costs(system: str | None) -> HostCosts:
    """Return the host costs of an engine or a measured system; the reference's where None is given.

    Raises BadInput for a name that is neither.
    """
    if system is None:
        return HostCosts()
    if system in SYSTEMS:
        return SYSTEMS[system]
    name, own = system.partition("@")[0], behaviour(system)
    if own is None and name not in engine_names():
        known = ", ".join(sorted({*engine_names(), *behaviour_names(), *SYSTEMS}))
        raise BadInput(f"system {system!r} has no host costs; known are {known}")
    gap = own.step_seconds if own is not None else None
    if gap is None:
        gap = load_engine(name).host.decode_gap_seconds
    return HostCosts(engine=system) if gap is None else HostCosts(gap.value, engine=system, source=gap.source)
