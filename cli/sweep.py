"""`plan sweep`, which shares all but its points with `plan compare`."""

from cli.compare import sweep_app as app

__all__ = ["app"]
