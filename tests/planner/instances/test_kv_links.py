"""Links that KV crosses: what is played beside closed forms and the runtime."""

import numpy as np
import pytest

from planner.closed_forms.bulk_lattice import Passes
from planner.costs.cache import Cache
from planner.instances.kv_links import KvLinks, LinkSide, Sink, Source, link_state
from planner.workload import Lengths, Workload
from tests.planner.closed_forms.waits import pollaczek_khinchine_wait


def _links(groups=(4, 8), devices=(1, 1), rate=1e9) -> KvLinks:
    prefill, decode = (LinkSide(groups=count, devices=size) for count, size in zip(groups, devices, strict=True))
    return KvLinks(
        prefill=prefill, decode=decode, link_bytes_per_second=rate, latency_seconds=0.001, cache=Cache(token_bytes=1e5)
    )


def _workload(answer=2.0) -> Workload:
    return Workload(input_tokens=Lengths(mean=1000.0), output_tokens=Lengths(mean=answer))


def _passes(seconds: float, most: int = 1) -> Passes:
    return Passes.tabulated(lambda prompts: np.full(prompts.size, seconds), most)


def _sink(instances: int, most: int = 1_000_000, seconds: float = 1e-3) -> Sink:
    return Sink(lambda running: np.full(running.size, seconds), 1.0, most, instances)


MEAN = 1000 * 1e5 / 1e9


def test_channels_are_links_over_those_of_a_transfer():
    """Groups of 8 devices send to groups of 2 over four channels, and as fast as two links."""
    links = _links(groups=(3, 5), devices=(8, 2))
    assert (links.channels(links.prefill), links.channels(links.decode)) == (4, 1)
    assert (links.servers(links.prefill), links.servers(links.decode)) == (12, 5)
    assert links.held_seconds(np.array([1000.0])) == pytest.approx([1000 * 1e5 / 2e9])


def test_a_single_link_under_poisson_is_md1():
    """Passes that take no time, one link out and very many in: Pollaczek-Khinchine."""
    found = link_state(_links(groups=(1, 1000)), 0.7 / MEAN, _workload(), Source(_passes(1e-9), 1), _sink(1))
    assert found is not None
    assert found.wait_seconds == pytest.approx(pollaczek_khinchine_wait(0.7 / MEAN, MEAN, 0.0), rel=0.1)
    assert found.utilisation["prefill"] == pytest.approx(0.7)
    assert found.transfer_seconds == pytest.approx(MEAN + 0.001)


def test_overloaded_links_have_no_state():
    """More bytes than the links carry: none."""
    assert link_state(_links(groups=(1, 8)), 11.0, _workload(), Source(_passes(0.01), 1), _sink(1)) is None


def test_fast_links_are_negligible():
    """A plane that carries a prompt in a millisecond at a hundredth of its load makes nobody wait."""
    found = link_state(_links(rate=1e12), 100.0, _workload(), Source(_passes(1e-3, 4), 1), _sink(1))
    assert found is not None
    assert found.wait_seconds < 1e-5


def test_prompts_of_a_pass_wait_for_one_another():
    """A group that is always full ends five prompts at once: they wait for two transfers on average."""
    source = Source(_passes(1.0, 5), 1)
    found = link_state(_links(groups=(1, 1000)), 4.99, _workload(), source, _sink(1))
    assert found is not None
    assert found.wait_seconds == pytest.approx(2 * MEAN, rel=0.05)


def test_decode_that_has_room_on_one_rank_is_waited_for():
    """Two prompts a second for ranks that hold one request each: whoever finds room pulls it from an idle rank."""
    source = Source(_passes(0.5, 4), 4)
    found = link_state(_links(groups=(4, 40)), 8.0, _workload(answer=101.0), source, _sink(1, most=40, seconds=0.02))
    assert found is not None
    assert found.wait_seconds < 0.2 * MEAN
