"""Every emitted flag was accepted by the released package's own parser: scripts/engine_parsers.py wrote which."""

import json

import pytest

from deploy.reading.flags import FOLDER
from planner.engines.loader import load_engine
from scripts.engine_parsers import told
from tests.deploy.emitted import emitted

PARSED = json.loads((FOLDER / "parsed.json").read_text(encoding="utf-8"))
NOT_INSTALLABLE = {"xllm", "trtllm"}  # C++, and a package without source


def test_every_installable_parser_was_asked() -> None:
    """And none refused a command; engines in the versions that files are made for."""
    assert PARSED.keys() == emitted().keys() - NOT_INSTALLABLE
    assert not any(held["refused"] for held in PARSED.values())
    for engine in ("vllm", "sglang"):
        assert PARSED[engine]["packages"] == [f"{engine}=={load_engine(engine).versions.pinned}"]
    assert PARSED["vllm-ascend"]["packages"] == [f"vllm=={load_engine('vllm-ascend').versions.pinned}"]


@pytest.mark.parametrize("parser", PARSED)
def test_what_is_emitted_was_accepted(parser: str) -> None:
    """Flags, and the plain words behind them: a new one asks for the script to be run again."""
    accepted = PARSED[parser]["flags"]
    for words in emitted()[parser]:
        for flag, values in told(words):
            assert flag in accepted, f"{parser} {flag}: run scripts/engine_parsers.py"
            assert values <= set(accepted[flag]), f"{parser} {flag}: run scripts/engine_parsers.py"
