"""Until aggregated instances are played: what their queues take from ``planner.serving.prompts``."""

from planner.serving.prompts import (
    Prompts,
    longest_of,
    prompts_of,
)

__all__ = ["Prompts", "longest_of", "prompts_of"]
