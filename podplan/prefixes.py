"""`--prefix-routing`: prompts find prefixes in the KV memory of the instance that they are sent to.

How much they find depends on how many instances there are, how much memory each has, and who is sent where, so on the
plan; and the plan depends on what they find. Both are settled in turn: a plan is made, played on the trace with its
caches and its router, and made again for what prompts have found.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ground.traces import Trace, scale_rate
from planner.checks.on_trace import OnTrace
from planner.plans.assemble import assemble
from planner.plans.plan import Plan
from planner.search.answer import Answer
from planner.workload import TraceRows, Traffic
from podplan.question import Asked
from runtime.simulate.ledger import Outcomes
from runtime.simulate.observe import Observer
from runtime.simulate.options import SimulationOptions
from runtime.simulate.run import simulate
from runtime.simulate.workload import from_trace

_ROUNDS, _MOST_ROUNDS = 3, 8
"""Plans that are tried after which the best is good enough, and where none of them finds what it was made for."""
_ALIKE = 0.003  # share of prompt tokens by which what was planned with and what was found may differ


Solved = tuple[Answer, OnTrace | None]  # the answer to a question, and what its plan does on the trace


class _Noting(Observer):
    """Notes what each prompt finds."""

    def __init__(self, requests: int) -> None:
        super().__init__()
        self.reused = np.zeros(requests, dtype=np.int64)

    def outcomes(self, done: Outcomes) -> None:
        """Note the requests that ended."""
        self.reused[done.number] = done.reused


def in_own_caches(
    asked: Asked, solve: Callable[[Asked], Solved], roughly: Callable[[Asked], Solved]
) -> tuple[Asked, Solved]:
    """Return the question with the reuse that its own plan has, and its answer; unchanged where no plan fits.

    ``roughly`` solves the question for a stationary stream of such requests in a fraction of the time; most rounds use
    it.
    """
    about, (answer, _) = _settled(asked, roughly)
    return _settled(asked if answer.best is None else about, solve)


def _settled(asked: Asked, solve: Callable[[Asked], Solved]) -> tuple[Asked, Solved]:
    """Return the question with the reuse that its own plan has by a way to solve it, and its answer.

    A plan for more reuse may have fewer instances, in which prompts find less, so there may be no fixed point. Then the
    result is the largest reuse that was tried at which prompts find at least as much.
    """
    safe: tuple[Asked, Solved] | None = None
    tried: list[float] = []
    while len(tried) < _MOST_ROUNDS:
        solved, trace, planned = solve(asked), asked.trace, asked.question.workload.prefix_reuse
        last, plan = (asked, solved), solved[0].best
        assert trace is not None, "read with a trace"
        if plan is None:
            break
        reused = _found(plan, trace)
        share = float(reused.sum() / trace.input_tokens.sum())
        if share >= planned - _ALIKE and (safe is None or safe[0].question.workload.prefix_reuse < planned):
            safe = last
        again = len(tried) >= _ROUNDS or any(abs(share - each) <= _ALIKE for each in tried)
        if abs(share - planned) <= _ALIKE or (safe is not None and again):
            break
        tried.append(planned)
        found = Traffic.from_trace(TraceRows.of(trace, reused)).workload
        workload = replace(found, beams=asked.question.workload.beams)
        asked = replace(
            asked, trace=replace(trace, reused_tokens=reused), question=replace(asked.question, workload=workload)
        )
    return safe or last


def _found(plan: Plan, trace: Trace) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the tokens that each prompt finds where a plan plays the trace at its rate."""
    manifest, noting = assemble(plan, {}), _Noting(len(trace))
    own = Traffic.from_trace(TraceRows.of(trace, None)).rate_per_second
    faster = scale_rate(trace, plan.requests_per_second / own)
    simulate(manifest, from_trace(faster, manifest.workload), SimulationOptions(), noting)
    return noting.reused
