"""Durations of the virtual clock beside the closed forms of the planner, with the clock's own latency and bandwidth."""

from dataclasses import dataclass
from typing import Any

from cli.output import Screen
from ground.units import format_bytes, format_duration
from planner.closed_forms import mixserve
from planner.manifest.schema import Manifest
from podplan.result import picked
from runtime.execute.clock import Way
from runtime.execute.timeline import Iteration
from runtime.execute.timing import PoolTimes, Timing

EXPLAINED_FROM = 0.15
ROUNDS = {"pairwise all-to-all": 1, "ring reduce-scatter": 1, "ring all-gather": 1, "ring all-reduce": 2}
"""How often a part goes round the ring, in n - 1 rounds of a part each, or each pair meets."""
SHOWN_COLLECTIVES = 12


@dataclass(frozen=True, slots=True)
class ClockedBeside:
    """One collective by clock and by closed form."""

    role: str
    timing: Timing
    form: str
    expected_seconds: float

    @property
    def gap(self) -> float:
        """Closed form / clock - 1."""
        return self.expected_seconds / self.timing.seconds - 1 if self.timing.seconds else 0.0

    @property
    def why(self) -> str:
        """Why the closed form is more than 15 % off; nothing where it is not."""
        timing = self.timing
        if abs(self.gap) <= EXPLAINED_FROM:
            return ""
        if timing.note.strip():
            return timing.note.strip()
        if timing.per_node < timing.ranks and timing.inner.plane == timing.line.plane:
            return (
                f"links inside and between nodes are one plane, {timing.line.plane}: they share ports, so what the "
                "form overlaps takes turns, and what it counts apart waits for each other"
            )
        if timing.operation.startswith("synchronous"):
            return "the form pays a latency per round; here all rounds are posted at once"
        return "the form pays every round's latency; only some of the rounds cross nodes"


def clock_rows(manifest: Manifest) -> list[ClockedBeside]:
    """Time the collectives of every pool's instance and return them beside their closed forms."""
    timed = ((pool.role, timing) for pool in manifest.pools for timing in PoolTimes(manifest, pool).timings())
    return [ClockedBeside(role, timing, *closed_form(timing)) for role, timing in timed]


def closed_form(timing: Timing) -> tuple[str, float]:
    """Return the name of the closed form and its seconds for a timed collective."""
    n, size, line = timing.ranks, timing.message_bytes, timing.line
    if timing.operation in ROUNDS:
        times = ROUNDS[timing.operation]
        name = "MixServe Eq. (3)" if times == 1 else f"{times} x Eq. (3)"
        return name, times * float(mixserve.eq3_all_to_all(size, n, _pair(line)))
    if timing.operation == "all-reduce":
        return "MixServe Eq. (2)", float(mixserve.eq2_all_reduce(size, n, _at_once(line, n)))
    if timing.operation == "direct all-to-all":
        return "MixServe Eq. (1)", float(mixserve.eq1_round(size, n, _at_once(line, n)))
    return _hybrid(timing)


def _pair(line: Way) -> mixserve.Line:
    """One pair talks."""
    return mixserve.line(line.latency_seconds, line.bandwidth_bytes_per_second, element_bytes=1.0)


def _at_once(line: Way, n: int) -> mixserve.Line:
    """All pairs of a group talk at once: a mesh has a link for each, a switch one port for all."""
    if line.mesh:
        return _pair(line)
    return mixserve.port_line(line.latency_seconds, line.bandwidth_bytes_per_second, n, element_bytes=1.0)


def _hybrid(timing: Timing) -> tuple[str, float]:
    """MixServe section III-C and III-D over n nodes of m devices; elements are bytes here."""
    m, n = timing.per_node, timing.ranks // timing.per_node
    links = mixserve.Links(intra=_at_once(timing.inner, m), inter=_pair(timing.line))
    shape = mixserve.Shape(b=1.0, s=1.0, h=timing.message_bytes, k=timing.copies)
    reduced = mixserve.eq2_all_reduce(shape.bsh, m, links.intra)
    dispatch, combine = (f(shape, m, n, links) for f in (mixserve.fused_dispatch, mixserve.fused_combine))
    forms = {
        "fused dispatch": ("MixServe III-D2", dispatch),
        "fused combine": ("MixServe III-D1", combine),
        "synchronous dispatch": ("MixServe III-C2", mixserve.sequential_dispatch(shape, m, n, links)),
        "synchronous combine": ("MixServe III-C2", mixserve.sequential_combine(shape, m, n, links)),
        "pure EP as Eq. (12)": ("MixServe Eq. (12)", mixserve.eq12_expert_parallel(shape, m, n, links)),
        "hybrid as Eq. (13)": ("MixServe Eq. (13)", mixserve.eq13_hybrid(shape, m, n, links)),
        "hybrid, fused": ("III-D1 + III-D2", reduced + dispatch + combine),
        "pure EP, duplicates dropped": (
            "Eq. (2) + 2 x Eq. (3)",
            reduced + 2 * mixserve.eq3_all_to_all(shape.bshk / m, n * m, links.inter),
        ),
    }
    form, seconds = forms[timing.operation]
    return form, float(seconds)


def clock_json(rows: list[ClockedBeside]) -> list[dict[str, Any]]:
    """Return the comparison for `--json`."""
    keys = "role operation=timing.operation where=timing.where ranks=timing.ranks bytes=timing.message_bytes"
    keys += " clock_seconds=timing.seconds form form_seconds=expected_seconds gap why"
    return [picked(row, keys) for row in rows]


def show_clock(rows: list[ClockedBeside]) -> None:
    """Print clock beside closed forms, and why the far ones are far."""
    if not rows:
        Screen().lines("Nothing is exchanged between ranks, so there is nothing to hold against closed forms.")
        return
    Screen().grid(
        rows,
        {
            "collective": lambda row: row.timing.operation,
            "of": lambda row: f"{row.role}, {row.timing.where}",
            ">ranks": lambda row: str(row.timing.ranks),
            ">bytes": lambda row: format_bytes(row.timing.message_bytes),
            ">clock": lambda row: format_duration(row.timing.seconds),
            ">closed form": lambda row: format_duration(row.expected_seconds),
            "": lambda row: row.form,
            ">gap": lambda row: f"{row.gap:+.1%}",
        },
        "Virtual clock beside closed forms, links at unit efficiency, one microbatch at the planned batch",
    )
    told = [f"  {row.timing.operation} ({row.role}, {row.timing.where}): {why}." for row in rows if (why := row.why)]
    # Whether Eq. (12) and (13) order pure EP and the hybrid as the clock does
    lines = []
    for role in dict.fromkeys(row.role for row in rows):
        named = {row.timing.operation: row for row in rows if row.role == role}
        if "pure EP as Eq. (12)" in named:
            pure, hybrid = named["pure EP as Eq. (12)"], named["hybrid as Eq. (13)"]
            by_form = pure.expected_seconds > hybrid.expected_seconds
            by_clock = pure.timing.seconds > hybrid.timing.seconds
            agree = "agree" if by_form == by_clock else "DISAGREE"
            faster = "the hybrid" if by_clock else "pure EP"
            lines.append(f"{role}: Eq. (12) against Eq. (13) and the clock {agree}: {faster} is faster.")
    Screen().lines(*(["Gaps above 15 %:", *told] if told else []), *lines)


def show_iteration(iteration: Iteration) -> None:
    """Print the collectives of one decode iteration of the plan, from its actual messages."""
    told = f"One decode iteration of {iteration.layers} layers on the clock: {format_duration(iteration.seconds)}"
    if not iteration.collectives:
        Screen().lines(f"{told}.")
        return
    Screen().grid(
        iteration.collectives[:SHOWN_COLLECTIVES],
        {
            "collective": lambda row: row.name,
            "of": lambda row: row.purpose,
            ">ranks": lambda row: str(row.ranks),
            ">times": lambda row: str(row.count),
            ">mean bytes": lambda row: format_bytes(row.mean_bytes),
            ">mean": lambda row: format_duration(row.mean_seconds),
            ">longest": lambda row: format_duration(row.longest_seconds),
        },
        f"{told}; waiting for slower ranks included",
    )
