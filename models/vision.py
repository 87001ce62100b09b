"""Patches and prompt tokens of pictures in the vision encoder of a multimodal model."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from models.spec import VisionTower


@dataclass(frozen=True, slots=True)
class Shown:
    """The pictures of one request as they are sent: ``count`` of so many pixels; a video has several ``frames``."""

    count: int
    width: int
    height: int
    frames: int = 1


class Pictures(NamedTuple):
    """The pictures of one request: ``segments`` equal sets of patches that attend to each other."""

    tower: VisionTower
    shown: Shown
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
    shown, units = Shown(count, width, height, frames), count * math.ceil(frames / tower.frames_per_patch)
    if tower.image_size is not None:
        tokens = (tower.image_size // tower.token_pixels) ** 2
        if tower.resolution == "tiles":
            tiles = min(math.ceil(width / tower.image_size) * math.ceil(height / tower.image_size), tower.most or 1)
            units *= tiles + (tiles > 1)
        return Pictures(tower=tower, shown=shown, segments=units, segment_tokens=tokens)
    shrink = min(1.0, math.sqrt((tower.most or math.inf) * tower.token_pixels**2 / (width * height)))
    sides = [round(side * shrink / tower.token_pixels) for side in (width, height)]
    if min(sides) < 1:
        raise ValueError(
            f"a picture of {width}x{height} pixels is smaller than a token of {tower.token_pixels} pixels a side; "
            "use a larger one"
        )
    return Pictures(tower=tower, shown=shown, segments=units, segment_tokens=sides[0] * sides[1])


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
