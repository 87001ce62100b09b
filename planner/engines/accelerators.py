"""Whose devices a machine has, and whether an engine runs on them."""

from hardware.spec import HardwareSpec
from planner.engines.loader import load_engine
from planner.engines.rules import Broken
from planner.engines.spec import Accelerator, EngineProfile

# The vendor is in the title of every device of the catalogue; "910" is how Ascend parts are named without it.
WORDS: dict[str, Accelerator] = {"nvidia": "nvidia", "ascend": "ascend", "910": "ascend"}


def accelerator_of(hardware: HardwareSpec) -> Accelerator | None:
    """Return the kind of a machine's devices by the words of its title, None where no engine here knows them."""
    titles = f"{hardware.device.title} {hardware.title}".lower()
    return next((kind for word, kind in WORDS.items() if word in titles), None)


def runs_on(engine: str, hardware: HardwareSpec) -> bool:
    """Whether ``reference`` or NAME@VERSION runs on a machine's devices."""
    return engine == "reference" or broken_accelerator(load_engine(engine), hardware) is None


def broken_accelerator(profile: EngineProfile, hardware: HardwareSpec) -> Broken | None:
    """Return the rule that a machine breaks: the reference engine runs on all, others on the devices they name."""
    fact = profile.accelerators
    if profile.engine == "reference" or accelerator_of(hardware) in fact.value:
        return None
    names = {"nvidia": "NVIDIA", "ascend": "Ascend"}
    sentence = (
        f"{profile.title} runs here on {' and '.join(names[kind] for kind in fact.value)} devices, "
        f"not on {hardware.device.title}"
    )
    return Broken("accelerator", sentence, fact.source)
