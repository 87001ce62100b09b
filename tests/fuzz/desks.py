"""What a visitor of `plan ui` may ask, and what is wrong with what the page then shows."""

import re
import shlex
from collections.abc import Iterator
from random import Random

from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st

from cli.ui import FIRST, OPEN, SLIDERS, Desk
from ground.errors import Infeasible
from tests.fuzz.words import words

SMALL = {"nodes": "1", "isl": "512", "osl": "64"}
KNOWN = {**SLIDERS, "nodes": ["all", "1", "2"], "engine": ["default", "reference", "vllm"], "shape": ["aggregated"]}
VOID = {"br", "img", "meta"}


def desks(count: int, number: int) -> list[dict[str, str]]:
    """Return what is asked in so many visits: mostly what sliders have, and at times a word that no page sends."""
    found: list[dict[str, str]] = []
    fields = {
        name: st.one_of(*[st.sampled_from(known)] * 3, words("search", name, False)) for name, known in KNOWN.items()
    }
    fields |= {"model": words("search", "model", False), "hw": words("search", "hw", False)}

    @seed(number)
    @settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck]
    )
    @given(st.fixed_dictionaries({}, optional=fields), st.randoms(use_true_random=False))
    def collect(asked: dict[str, str], chance: Random) -> None:
        kept = chance.sample(sorted(asked), min(len(asked), 3))
        found.append({name: asked[name] for name in kept})

    collect()
    return found


def desk_faults(asked: dict[str, str]) -> Iterator[str]:
    """Yield what is wrong with the answer: unsound HTML, another command, no files."""
    desk = Desk("qwen3-8b", "h100")
    desk.asked |= {**SMALL, **asked}
    desk.found, html = desk.solve()
    unclosed: list[str] = []
    for end, tag, alone in re.findall(r"<(/?)([a-z0-9]+)[^>]*?(/?)>", html):
        if end and (not unclosed or unclosed.pop() != tag):
            yield f"</{tag}> closes nothing"
        unclosed += [] if end or alone or tag in VOID else [tag]
    if unclosed or not html or "<script" in html:
        yield f"no sound HTML: {html[:200]!r}"
    line = shlex.split(desk.command)
    for name, value in desk.given.items():
        if value not in line and name not in FIRST.keys() - asked.keys() and value not in OPEN:
            yield f"the command lacks {name} {value!r}: {desk.command[:200]}"
    try:
        if not (desk.manifest().startswith("manifest_version") and desk.report().startswith("<!DOCTYPE html>")):
            yield "files are none"
    except Infeasible:
        if desk.found is not None:
            yield "a plan has no files"
