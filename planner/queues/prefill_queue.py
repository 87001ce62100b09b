"""Until aggregated instances are played: what their queue takes from bulk service."""

from planner.serving.closed_forms.bulk_service import Policy, thinned_squared_cv

__all__ = ["Policy", "thinned_squared_cv"]
