"""Links that KV crosses: closed forms, and the runtime on slow links."""

import numpy as np
import pytest

from planner.costs.cache import Cache
from planner.instances.kv_links import Departures, KvLinks, LinkSide, departures, link_state, pulled
from planner.serving.closed_forms.waits import pollaczek_khinchine_wait
from planner.serving.prompts import Prompts


def _links(groups=(4, 8), devices=(1, 1), rate=1e9) -> KvLinks:
    prefill, decode = (LinkSide(groups=count, devices=size) for count, size in zip(groups, devices, strict=True))
    return KvLinks(
        prefill=prefill,
        decode=decode,
        link_bytes_per_second=rate,
        latency_seconds=0.001,
        cache=Cache(token_bytes=1e5),
    )


PROMPTS = Prompts(np.array([1000.0, 4000.0]), np.zeros(2), np.array([0.75, 0.25]))


def test_channels_are_links_over_those_of_a_transfer():
    """Groups of 8 devices send to groups of 2 over four channels, and as fast as two links."""
    links = _links(groups=(3, 5), devices=(8, 2))
    assert (links.channels(links.prefill), links.channels(links.decode)) == (4, 1)
    assert (links.servers(links.prefill), links.servers(links.decode)) == (12, 5)
    assert links.held_seconds(np.array([1000.0])) == pytest.approx([1000 * 1e5 / 2e9])


def test_a_single_link_under_poisson_is_mg1():
    """One group and very many decode links: Pollaczek-Khinchine."""
    links = _links(groups=(1, 10_000))
    mean = 1750 * 1e5 / 1e9
    squared_cv = (0.75 * 1000**2 + 0.25 * 4000**2) / 1750**2 - 1
    found = link_state(links, 0.8 / mean, PROMPTS, Departures())
    assert found is not None
    assert found.wait_seconds == pytest.approx(pollaczek_khinchine_wait(0.8 / mean, mean, squared_cv), rel=1e-3)
    assert found.utilisation["prefill"] == pytest.approx(0.8)
    assert found.transfer_seconds == pytest.approx(mean + 0.001)


def test_overloaded_links_have_no_state():
    """More bytes than the links carry: none."""
    assert link_state(_links(groups=(1, 8)), 6.0, PROMPTS, Departures()) is None


def test_fast_links_are_negligible():
    """A plane that carries a prompt in a millisecond at a hundredth of its load makes nobody wait."""
    found = link_state(_links(rate=1e12), 100.0, PROMPTS, Departures())
    assert found is not None
    assert found.wait_seconds < 1e-5


def test_prompts_of_a_pass_wait_for_one_another():
    """Five prompts that end together wait for two transfers on average, even at no load."""
    mean = 1750 * 1e5 / 1e9
    found = link_state(_links(groups=(1, 10_000)), 1e-6, PROMPTS, Departures(together=5))
    assert found is not None
    assert found.wait_seconds == pytest.approx(2 * mean, rel=1e-3)


def test_departures_of_a_busy_server_are_those_of_its_service():
    """Burke: Poisson in, exponential service, Poisson out; a full server with fixed passes lets prompts out evenly."""
    assert departures(1.0, 1.0, 0.6, 1).gap_squared_cv == pytest.approx(1)
    assert departures(1.0, 0.0, 1.0, 1).gap_squared_cv == pytest.approx(0)
    assert departures(0.25, 0.0, 0.0, 2).gap_squared_cv == pytest.approx(0.125)


def test_recorded_transfers_by_hand():
    """Two prompts of one group and one of another, two decode links of equal speed."""
    links = _links(groups=(2, 3), rate=1e8)  # 1,000 tokens take a second
    found = pulled(links, np.array([0.0, 0.5, 0.5]), np.array([0, 0, 1]), np.full(3, 1000.0))
    assert found.there_seconds == pytest.approx(np.array([1.0, 2.0, 1.5]) + 0.001)
    assert found.wait_seconds == pytest.approx([0.0, 0.5, 0.0])
    assert found.utilisation == pytest.approx({"prefill": 3 / (2 * 2), "decode": 3 / (3 * 2)})


def test_recorded_transfers_share_decode_links():
    """One decode link: it works off all prompts in turn, whichever group they come from."""
    links = _links(groups=(3, 1), rate=1e8)
    there = pulled(links, np.zeros(3), np.arange(3), np.full(3, 1000.0)).there_seconds
    assert sorted(there) == pytest.approx([1.001, 2.001, 3.001])


def test_nothing_to_transfer():
    """A stream of one-token answers sends nothing."""
    none = np.zeros(0)
    found = pulled(_links(), none, none.astype(np.int64), none)
    assert found.there_seconds.size == 0
    assert found.utilisation == {"prefill": 0.0, "decode": 0.0}
