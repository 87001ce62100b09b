"""The vision encoder of a multimodal model, and what pictures become in it: patches, and tokens of the prompt."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from ground.records import Limits, Stated, described
from models.dimensions import Dimension, Layers, SomeLayers

Few = Annotated[int, Limits(gt=0, le=10_000, strict=True)]
"""Heads, or pixels along something small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTower(Stated):
    """A vision transformer (ViT) and the projector behind it. Patches attend to each other within a picture.

    ``native``: a picture keeps its size, down to whole tokens. ``fixed``: every picture becomes a square of
    ``image_size`` pixels. ``tiles``: it is cut into such squares, and where there are several a small copy of the
    whole joins them.
    """

    layers: Layers
    hidden_size: Dimension
    heads: Few
    intermediate_size: Dimension
    gated: bool = described("three products in the feed-forward instead of two", default=False)
    patch_size: Few = described("pixels along a patch")
    merge: Few = described("patches along what becomes one token of the prompt")
    frames_per_patch: Few = described("frames of a video that one patch covers", default=1)
    window_patches: Annotated[int, Limits(ge=0, le=100_000, strict=True)] = described(
        "patches of a window, in which all but ``full_layers`` layers attend; 0: every layer sees the picture",
        default=0,
    )
    full_layers: SomeLayers = 0
    resolution: Literal["native", "fixed", "tiles"]
    image_size: Few | None = described("pixels along a fixed picture or a tile", default=None)
    most: Dimension | None = described(
        "tokens of a native picture, or tiles of one, beyond which it is shrunk", default=None
    )

    @property
    def token_pixels(self) -> int:
        """Pixels along what becomes one token."""
        return self.patch_size * self.merge

    @property
    def parameters(self) -> int:
        """Weights of the layers: four projections of attention, and two or three products."""
        products = 3 if self.gated else 2
        return self.layers * (4 * self.hidden_size**2 + products * self.hidden_size * self.intermediate_size)

    def __post_init__(self) -> None:
        if self.hidden_size % self.heads:
            raise ValueError(f"a hidden_size of {self.hidden_size} must be a multiple of {self.heads} heads")
        if (self.resolution == "native") != (self.image_size is None):
            raise ValueError("image_size is that of resolution fixed or tiles; state it there and nowhere else")
        if self.full_layers > self.layers:
            raise ValueError(f"full_layers must be at most the {self.layers} layers")


class Pictures(NamedTuple):
    """What the pictures of one request are: ``segments`` sets of patches that attend to each other, all alike."""

    tower: VisionTower
    segments: int
    segment_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens that they add to the prompt."""
        return self.segments * self.segment_tokens

    @property
    def patches(self) -> int:
        """Patches that the encoder takes."""
        return self.tokens * self.tower.merge**2

    @property
    def keys_per_patch(self) -> float:
        """Keys that a patch attends to, in the mean over layers: those of its segment, or of its window."""
        own, tower = self.segment_tokens * self.tower.merge**2, self.tower
        if not tower.window_patches:
            return float(own)
        full = tower.full_layers / tower.layers
        return full * own + (1 - full) * min(tower.window_patches, own)


def pictures_of(tower: VisionTower, count: int, width: int, height: int, frames: int = 1) -> Pictures:
    """Return what ``count`` pictures of so many pixels, or videos of ``frames`` such frames, become.

    Native: both sides rounded to whole tokens, the picture shrunk where it has more than ``most`` tokens (as the
    processors of Qwen2.5-VL, Qwen3-VL and MoonViT do it). Tiles: as many as cover the picture, up to ``most``, and one
    of the whole where there are several (Llama 4). Raises ValueError for a side that is shorter than a token.
    """
    units = count * math.ceil(frames / tower.frames_per_patch)
    if tower.image_size is not None:
        tokens = (tower.image_size // tower.token_pixels) ** 2
        if tower.resolution == "tiles":
            tiles = min(math.ceil(width / tower.image_size) * math.ceil(height / tower.image_size), tower.most or 1)
            units *= tiles + (tiles > 1)
        return Pictures(tower=tower, segments=units, segment_tokens=tokens)
    shrink = min(1.0, math.sqrt((tower.most or math.inf) * tower.token_pixels**2 / (width * height)))
    sides = [round(side * shrink / tower.token_pixels) for side in (width, height)]
    if min(sides) < 1:
        raise ValueError(
            f"a picture of {width}x{height} pixels is smaller than a token of {tower.token_pixels} pixels a side; "
            "use a larger one"
        )
    return Pictures(tower=tower, segments=units, segment_tokens=sides[0] * sides[1])


Encoding = Literal["fused", "apart", "alone"]
"""Of an instance: it encodes pictures within its steps with prompts, leaves that to encode instances, or is one."""


class Seen(NamedTuple):
    """Pictures of every request, spread over the tokens of its prompt of ``prompt_tokens``, theirs included."""

    pictures: Pictures
    prompt_tokens: float
    encoding: Encoding = "fused"

    @property
    def patches_per_token(self) -> float:
        """Patches that the encoder takes for a token of the prompt."""
        return self.pictures.patches / self.prompt_tokens
