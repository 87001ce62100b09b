"""Until aggregated instances are played: what their queues take from ``planner.serving.closed_forms.birth_death``."""

from planner.serving.closed_forms.birth_death import (
    residence_variance,
)

__all__ = ["residence_variance"]
