"""How large the numbers of a model's specification may be.

Upper limits catch a slipped digit and a number in the wrong field; no model comes near them.
"""

from typing import Annotated

from ground.records import Limits

LARGEST_DIMENSION = 100_000_000
MOST_LAYERS = 10_000
MOST_EXPERTS = 100_000

Dimension = Annotated[int, Limits(gt=0, le=LARGEST_DIMENSION, strict=True)]
Width = Annotated[int, Limits(ge=0, le=LARGEST_DIMENSION, strict=True)]
Layers = Annotated[int, Limits(gt=0, le=MOST_LAYERS, strict=True)]
SomeLayers = Annotated[int, Limits(ge=0, le=MOST_LAYERS, strict=True)]
"""Layers of one kind, of which there may be none."""
Experts = Annotated[int, Limits(gt=0, le=MOST_EXPERTS, strict=True)]
