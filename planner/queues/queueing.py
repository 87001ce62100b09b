"""Until traces on aggregated instances are played by the core: the array that their recursion names."""

from planner.serving.latency import Array

__all__ = ["Array"]
