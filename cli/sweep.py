"""`plan sweep`, which shares all but its points with `plan compare`."""

from cli.compare import sweep as command

__all__ = ["command"]
