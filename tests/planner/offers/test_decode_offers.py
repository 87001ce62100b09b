"""Rates of decode rows against the bounds of their offers."""

import numpy as np
import pytest

from planner.instances.candidates import Count
from planner.instances.space import role_rows
from planner.offers.decode_offers import decode_offers
from tests.questions import small_question


@pytest.mark.parametrize(("share", "percentile"), [(0.5, 99.0), (0.8, 50.0), (0.98, 99.0)])
def test_no_cap_carries_more_than_the_row(share, percentile):
    """A load that is bounded gets more slots, not a lower rate; and bounds are no smaller than what is carried."""
    asked = {"most_utilisation": share, "percentile": percentile, "tpot_seconds": 0.03}
    question = small_question("qwen3-30b-a3b", "h20", 4, lengths=(4096.0, 256.0), **asked)
    offers = decode_offers(question, role_rows(question, "decode"), Count(), 0.002)
    for number in range(0, len(offers), 6):
        kind = offers.build(number)
        most = kind.pool_capacity(1)
        assert most <= kind.bound_per_second * (1 + 1e-9) <= offers.bound_per_second[number] * (1 + 2e-9)
        for cap in np.geomspace(kind._full[0][0], kind.room, 12).astype(int).tolist():
            assert kind._server(cap).pool_capacity(1) <= most * (1 + 1e-9)
