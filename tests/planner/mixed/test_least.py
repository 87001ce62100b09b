"""The token budget that is quickest at a rate, found without sampling steps of those that cannot be."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.instances.least import Least
from planner.mixed.least import quickest_server


class Server:
    """Incumbent means, and how often TTFT itself was asked for."""

    def __init__(self, ttft: float, guess_share: float, span: float) -> None:
        self.seconds, self.asked = ttft + span, 0
        self._ttft, self._guess, self._span = ttft, ttft * guess_share, span

    def excess(self, rate_per_second: float, instances: int) -> float:
        """Within the limits."""
        return 0.5

    def state(self, rate_per_second: float, instances: int) -> "Server":
        """Itself."""
        return self

    def find_guess(self) -> SimpleNamespace:
        """What the line of one rank says."""
        return SimpleNamespace(mean=self._guess)

    @property
    def ttft(self) -> SimpleNamespace:
        """What the sample says."""
        self.asked += 1
        return SimpleNamespace(mean=self._ttft)

    @property
    def span(self) -> SimpleNamespace:
        """Of the answer."""
        return SimpleNamespace(mean=self._span)


def _quickest(servers: list[Server]) -> tuple[int, float]:
    unbounded = cast(Least, SimpleNamespace(seconds=lambda able, rates: np.zeros(able.size)))
    return quickest_server(cast(Any, servers), unbounded, np.arange(len(servers)), 1, 1.0)


_SERVERS = st.builds(Server, st.floats(0.01, 2.0), st.floats(0.6, 1.2), st.floats(0.1, 10.0))


@given(st.lists(_SERVERS, min_size=1, max_size=8))
def test_the_quickest_is_found(servers: list[Server]) -> None:
    """As brute force finds it, where guesses are short, or long by up to a quarter less rounding."""
    place, seconds = _quickest(servers)
    assert seconds == pytest.approx(min(each.seconds for each in servers))
    assert servers[place].seconds == seconds


def test_what_cannot_be_quicker_is_not_sampled() -> None:
    """The answer alone takes longer than all of what is known."""
    servers = [Server(0.5, 1.0, 2.0), Server(0.5, 1.0, 3.0), Server(0.5, 1.0, 2.2)]
    assert _quickest(servers) == (0, 2.5)
    assert [each.asked for each in servers] == [1, 0, 0]
