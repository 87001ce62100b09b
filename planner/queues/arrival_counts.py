"""Until aggregated instances are played: what their queues count arrivals with."""

from planner.serving.closed_forms.arrival_counts import (
    Arrivals,
    count_distribution,
)

__all__ = ["Arrivals", "count_distribution"]
