"""Every emitted flag was accepted by the released package's own parser: scripts/engine_parsers.py wrote which."""

import json

from deploy.reading.flags import FOLDER
from planner.engines.loader import load_engine
from scripts.engine_parsers import told
from tests.deploy.cases import PLANS, pairs
from tests.deploy.emitted import emitted, possible

PARSED = json.loads((FOLDER / "parsed.json").read_text(encoding="utf-8"))
NOT_INSTALLABLE = {"xllm", "trtllm"}  # C++, and a package without source


def test_every_command_was_accepted_by_its_parser() -> None:
    """Every plan, engine and kind has some; flags and the plain words behind them: a new one asks for the script."""
    tried = possible()
    assert {pair[1:] for pair in tried} == {pair[1:] for pair in pairs()} and {name for name, *_ in tried} == set(PLANS)
    assert PARSED.keys() == emitted().keys() - NOT_INSTALLABLE
    for parser, held in PARSED.items():
        assert not held["refused"]
        for flag, values in (pair for words in emitted()[parser] for pair in told(words)):
            accepted = flag in held["flags"] and values <= set(held["flags"][flag])
            assert accepted, f"{parser} {flag}: run scripts/engine_parsers.py"


def test_parsers_are_of_the_versions_that_files_are_made_for() -> None:
    """Another release may take other flags."""
    for engine in ("vllm", "sglang"):
        assert PARSED[engine]["packages"] == [f"{engine}=={load_engine(engine).versions.pinned}"]
    assert PARSED["vllm-ascend"]["packages"] == [f"vllm=={load_engine('vllm-ascend').versions.pinned}"]
