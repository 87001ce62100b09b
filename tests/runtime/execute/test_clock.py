"""The virtual clock: closed forms where traffic is uniform, contention where ports are shared, fused against not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cli.execute_clock import ClockedBeside, clock_rows
from hardware.loader import load_hardware
from planner.closed_forms import mixserve
from runtime.execute import collectives as c
from runtime.execute.clock import Machine, Sized, Wire
from runtime.execute.timing import hybrid_seconds, run_timed
from tests.manifests import machine
from tests.runtime.execute.deployments import deployed

ALPHA, RATE = 1e-6, 1e11


def seconds(n: int, body: Callable[[c.Comm], Any], part_bytes: float, **changes: Any) -> float:
    """Time a collective over n ranks of the toy machine, 100 GB/s and 1 us between any two."""
    return run_timed(Machine(machine(), list(range(n)), **changes), [range(n)], body, Wire(float_bytes=part_bytes))


@pytest.mark.parametrize("n", [2, 5, 16])
def test_rings_and_pairwise_take_a_round_per_peer(n: int) -> None:
    """(n - 1) · (latency + part/bandwidth), to rounding."""
    part, round_seconds = 1e6, ALPHA + 1e6 / RATE
    for body, rounds in [
        (lambda g: c.ring_reduce_scatter(g, [np.zeros(1)] * n), n - 1),
        (lambda g: c.ring_all_gather(g, np.zeros(1)), n - 1),
        (lambda g: c.ring_all_reduce(g, np.zeros(n)), 2 * (n - 1)),
        (lambda g: c.pairwise_all_to_all(g, [np.zeros(1)] * n), n - 1),
    ]:
        assert seconds(n, body, part) == pytest.approx(rounds * round_seconds, rel=1e-9)


@pytest.mark.parametrize("n", [2, 5, 16])
def test_direct_exchange_pays_one_latency_and_its_port(n: int) -> None:
    """latency + (n - 1) · part/bandwidth: parts leave at once through one port, and others come meanwhile."""
    taken = seconds(n, lambda g: c.direct_all_to_all(g, [np.zeros(1)] * n), 1e6)
    assert taken == pytest.approx(ALPHA + (n - 1) * 1e6 / RATE, rel=1e-9)


def test_incast_is_served_one_by_one() -> None:
    """Eight ranks send a megabyte each to one."""

    async def incast(group: c.Comm) -> None:
        if group.index:
            group.send(0, Sized(1e6))
        else:
            for source in range(1, group.size):
                await group.receive(source)

    assert seconds(8, incast, 1.0) == pytest.approx(ALPHA + 7 * 1e6 / RATE, rel=1e-9)


def test_a_shared_nic_halves_what_each_gets() -> None:
    """Two devices on one port take twice as long."""
    body = lambda g: c.direct_all_to_all(g, [np.zeros(1)] * 4)  # noqa: E731
    alone, shared = (seconds(4, body, 1e8, sharing=share) for share in ({}, {"fabric": 2}))
    assert shared / alone == pytest.approx(2.0, rel=0.35)
    assert shared > 1.3 * alone


def test_ways_follow_the_machine() -> None:
    """910B: a mesh with a link per pair inside a server, one RoCE port per device between servers."""
    links = Machine(load_hardware("910b"), list(range(16)))
    inside, between = links(0, 7), links(0, 8)
    assert (inside.plane, between.plane) == ("hccs", "roce")
    assert inside.bandwidth_bytes_per_second == pytest.approx(2.8e10)
    assert between.bandwidth_bytes_per_second == pytest.approx(2.5e10)
    assert inside.out_port != links(0, 6).out_port and between.out_port == links(0, 9).out_port


@pytest.mark.parametrize(("hardware", "n", "m"), [("910b", 4, 8), ("910b", 2, 8), ("h20", 2, 8), ("cm384", 2, 16)])
@pytest.mark.parametrize("bsh", [1e6, 3e7])
def test_fused_exchange_takes_what_the_paper_says(hardware: str, n: int, m: int, bsh: float) -> None:
    """MixServe section III-D: within 5 % of max(inter, intra) plus one round, and faster than synchronous."""
    links = Machine(load_hardware(hardware), list(range(n * m)))
    inner, outer = links(0, m - 1), links(0, m)
    intra = mixserve.line if len(inner.out_port) > 3 else mixserve.port_line
    arguments = (inner.latency_seconds, inner.bandwidth_bytes_per_second)
    lines = mixserve.Links(
        intra=intra(*arguments, element_bytes=1.0)
        if intra is mixserve.line
        else mixserve.port_line(*arguments, m, element_bytes=1.0),
        inter=mixserve.line(outer.latency_seconds, outer.bandwidth_bytes_per_second, element_bytes=1.0),
    )
    shape = mixserve.Shape(b=1.0, s=1.0, h=bsh, k=8)
    dispatch, combine = (hybrid_seconds(links, n, m, bsh * 8 / n, bsh, half, True) for half in (False, True))
    assert dispatch == pytest.approx(mixserve.fused_dispatch(shape, m, n, lines), rel=0.05)
    assert combine == pytest.approx(mixserve.fused_combine(shape, m, n, lines), rel=0.05)
    if inner.plane == outer.plane:
        return  # one port for both: nothing to overlap
    slow = [hybrid_seconds(links, n, m, bsh * 8 / n, bsh, half, False) for half in (False, True)]
    assert combine < 0.95 * slow[1]
    assert dispatch < 0.95 * slow[0] if n > 2 else dispatch == pytest.approx(slow[0])


@pytest.fixture(scope="module")
def rows() -> list[ClockedBeside]:
    """The clock of MixServe's cluster: 32 devices in four nodes of eight, on 910B links."""
    manifest = deployed("deepseek-r1", "TP=8 + DP=4, EP=32")
    hardware = load_hardware("910b")
    cluster = manifest.clusters["toy"].model_copy(update={"spec": hardware})
    return clock_rows(manifest.model_copy(update={"clusters": {"toy": cluster}}))


def test_uniform_collectives_agree_with_their_closed_forms(rows: list[ClockedBeside]) -> None:
    """Ring, pairwise and fused within 5 % where all links of the group are alike."""
    uniform = [row for row in rows if not row.timing.note.strip()]
    assert {row.timing.operation for row in uniform} >= {"ring all-reduce", "fused dispatch", "fused combine"}
    for row in uniform:
        assert abs(row.gap) <= 0.05, (row.timing.operation, row.gap)
    assert all("Eq." in row.form or "III-" in row.form for row in rows)


def test_every_large_gap_is_explained(rows: list[ClockedBeside]) -> None:
    """Skew, contention, shared NICs: the reason stands beside the gap."""
    far = [row for row in rows if abs(row.gap) > 0.15]
    assert far and all(row.why for row in far)
    assert all(not row.why for row in rows if abs(row.gap) <= 0.15)


def test_equations_12_and_13_are_ordered_as_the_clock_orders_them(rows: list[ClockedBeside]) -> None:
    """On the 910B cluster the hybrid is faster, by the paper's equations and by their messages."""
    named = {row.timing.operation: row for row in rows}
    pure, hybrid = named["pure EP as Eq. (12)"], named["hybrid as Eq. (13)"]
    assert pure.expected_seconds > hybrid.expected_seconds and pure.timing.seconds > hybrid.timing.seconds
    assert pure.gap == pytest.approx(0, abs=0.05) and hybrid.gap == pytest.approx(0, abs=0.05)
