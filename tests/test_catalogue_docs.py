"""The examples of docs/catalogue.md are entries that load."""

import re
from pathlib import Path

from hardware.loader import load_hardware
from models.loader import load_model
from models.parameters import count_parameters

TEXT = (Path(__file__).parents[1] / "docs" / "catalogue.md").read_text(encoding="utf-8")


def example(folder: Path, number: int) -> str:
    """Write one of the YAML examples to a file and return its path."""
    path = folder / "mine.yaml"
    path.write_text(re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)[number], encoding="utf-8")
    return str(path)


def test_the_model_is_the_one_that_it_names(tmp_path: Path) -> None:
    """Its dimensions count to those of the catalogue's Qwen3-8B."""
    assert count_parameters(load_model(example(tmp_path, 0))) == count_parameters(load_model("qwen3-8b"))


def test_the_machine_takes_over_what_it_does_not_state(tmp_path: Path) -> None:
    """It has its own memory and price and the H100's kernels."""
    machine, base = load_hardware(example(tmp_path, 1)), load_hardware("h100")
    assert (machine.device.memory_bytes.value, machine.price_usd_per_chip_hour is not None) == (9.6e10, True)
    assert machine.kernels.gemm["fp8"].peak_fraction == base.kernels.gemm["fp8"].peak_fraction
