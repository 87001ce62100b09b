"""How long an instance takes until it serves: its weights from where they are, and its start.

CloudMatrix384 (arXiv 2506.12708) section 4.4 and Table 2: an object store that all instances share, and pooled host
memory, which reads a model from the store once and gives it to every instance.
"""

from hardware.formats import ELEMENT_BYTES
from hardware.spec import Dtype, HardwareSpec
from models.parameters import count_parameters
from models.spec import ModelSpec

STARTUP_SECONDS = 60.0
"""From weights in place to the first request: processes, captured graphs, warm-up. Assumed: operators tell of cold
starts of 2 to 8 minutes, most of which is the load that is counted apart."""
STORAGE_BYTES_PER_SECOND = 2.5e9  # of an object store, all readers together: CloudMatrix384 Table 2


def slowest_plane(spec: HardwareSpec) -> tuple[str, float]:
    """Return the plane that storage is taken to be behind, and its bytes per second and device."""
    plane = min(spec.planes, key=lambda each: each.reached_bytes_per_second)
    return plane.name, plane.reached_bytes_per_second


def checkpoint_bytes(model: ModelSpec, weights: Dtype) -> float:
    """Return the bytes of a model's weights, each once."""
    return count_parameters(model).total * ELEMENT_BYTES[weights]


def stored_seconds(checkpoint: float, held: float, storage: float, plane: float, together: int = 1) -> float:
    """Return the seconds in which each of ``together`` instances has its weights off a store that they share.

    Each reads the checkpoint once and passes on to its devices what several of them hold.

    Args: ``checkpoint`` bytes of the model and ``held`` bytes of a device; bytes per second
    ``storage`` of the store and ``plane`` of a device.
    """
    return max(together * checkpoint / storage, held / plane)
