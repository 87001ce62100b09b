"""Engines side by side: every rule has words, and machines that no engine runs on say so."""

import re
from pathlib import Path

import planner.engines.rules as rules
from cli.plan_parts import WORDS, engine_text
from tests.questions import small_question


def test_every_rule_of_an_engine_has_words() -> None:
    """The names of rules are for manifests and JSON; a table says in words what an engine does not run."""
    named = set(re.findall(r'Broken\(\s*"([a-z-]+)"', Path(rules.__file__).read_text(encoding="utf-8")))
    assert named - {"accelerator"} == WORDS.keys()
    assert not any("-" in told and told == rule for rule, told in WORDS.items())


def test_machines_that_no_engine_runs_on_say_so() -> None:
    """The headline of such a plan names the reference runtime and why it is that one."""
    assert engine_text(small_question(model="qwen3-8b", hardware="h100")) == "the reference runtime"
    told = engine_text(small_question(model="qwen3-8b", hardware="mi300x"))
    assert "no engine of the catalogue runs on mi300x" in told
