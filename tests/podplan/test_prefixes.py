"""`--cache`: the pool of prefixes as it is asked for, planned with and simulated."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import podplan
from podplan.options import QuestionFlags, flags_of
from podplan.question import read_question
from runtime.simulate.run import simulate
from runtime.simulate.workload import open_loop

ASKED = {
    "hw": "cm384", "nodes": 2, "isl": 8192, "osl": 200, "isl_cv": 0.5, "prefix_reuse": 0.6, "rate": 6, "ttft": 3,
    "engine": "reference", "strategy": {"prefill": "TP=2", "decode": "TP=2"},
}  # fmt: skip


def traced(folder: Path, rows: Sequence[tuple[int, int, Iterable[int]]]) -> Path:
    """Write a trace of rows of milliseconds, tokens of the answer, and blocks of 512 tokens of the prompt."""
    path, named = folder / "trace.jsonl", ("timestamp", "output_length", "hash_ids", "input_length")
    held = [(at, answer, list(blocks), 512 * len(list(blocks))) for at, answer, blocks in rows]
    path.write_text("\n".join(json.dumps(dict(zip(named, row, strict=True))) for row in held))
    return path


def test_hits_are_those_of_a_pool_of_that_size(tmp_path: Path) -> None:
    """Two conversations in turn: a pool that holds both finds all but their first turns, one of half of it none.

    R1's token takes 70,272 bytes, so two prompts of four blocks of 512 take 288 MB; with SSD behind all is found again.
    """
    blocks = [range(4 * (i % 2), 4 * (i % 2) + 4) for i in range(40)]
    path = traced(tmp_path, [(1000 * i, 8, own) for i, own in enumerate(blocks)])
    flags = QuestionFlags(model="deepseek-r1", hw="cm384", trace=str(path))
    found = {}
    for cache in (None, "ub=300MB", "ub=150MB", "UB=150MB, ssd=1TB"):
        question = read_question(replace(flags, cache=cache)).question
        found[cache] = question.workload.prefix_reuse, question.prefix_pool and question.prefix_pool.ssd_share
    assert found[None] == (pytest.approx(38 / 40, abs=1e-3), None)
    assert found["ub=300MB"] == (pytest.approx(38 / 40, abs=1e-3), 0.0)
    assert found["ub=150MB"][0] == 0.0
    assert found["UB=150MB, ssd=1TB"] == (pytest.approx(38 / 40, abs=1e-3), 1.0)


def test_sessions_are_planned_and_simulated_alike() -> None:
    """Turns that wait for answers find in the simulator what the plan says, at the TTFT that was planned."""
    asked = ASKED | {"prefix_reuse": None, "isl": 1000, "isl_cv": None, "sessions": "turns=4,think=5s", "rate": 20}
    manifest = podplan.plan("qwen3-8b", cache="ub=10TB", **asked).manifest()
    assert manifest.workload.prompt_kinds is not None and manifest.workload.sessions is not None
    assert manifest.workload.prefix_reuse == pytest.approx((1152 + 2304 + 3584) / 11200, abs=1e-3)
    played = podplan.simulate(manifest, requests=4000).to_dict()
    for role, share in played["predicted"]["link_utilisation"].items():  # of the window: the ramp before it is as long
        assert played["link_utilisation"][role] == pytest.approx(share, rel=0.08)
    assert played["prefix_hit_share"] == pytest.approx(manifest.workload.prefix_reuse, abs=0.03)
    assert played["ttft_seconds"]["mean"] == pytest.approx(played["predicted"]["ttft_seconds"]["mean"], rel=0.25)


def test_a_slower_plane_is_planned_and_simulated_alike() -> None:
    """Over VPC the same traffic takes more prefill than over UB, and the simulator finds the TTFT that was planned."""
    plans = {plane: podplan.plan("qwen3-8b", cache=f"{plane}=10TB", **ASKED) for plane in ("ub", "vpc")}
    chips = {plane: plan.to_dict()["best"]["chips"] for plane, plan in plans.items()}
    assert chips["ub"] <= chips["vpc"]
    manifest = plans["vpc"].manifest()
    assert manifest.caching.plane == "vpc"
    assert manifest.caching.bandwidth_bytes_per_second < 2.5e9
    played = simulate(manifest, open_loop(manifest.workload, 6.0, 4000, seed=1))
    assert np.isclose(played.ttft_seconds.mean, manifest.predicted.ttft_seconds.mean, rtol=0.1)


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> str:
    """604 prompts at 12/s, of a block of their own behind one of 151 heads of eight blocks in turn."""
    blocks = [[*range(8 * (i % 151), 8 * (i % 151) + 8), 10_000 + i] for i in range(604)]
    rows = [(round(i * 1000 / 12), 16, own) for i, own in enumerate(blocks)]
    return str(traced(tmp_path_factory.mktemp("trace"), rows))


def test_what_prompts_find_depends_on_who_is_sent_where(heads: str) -> None:
    """Of four prompts two find a head on two instances dealt in turn, three where it stands; as planned, so played."""
    asked = {"model": "qwen3-8b", "hw": "910b", "nodes": 2, "trace": heads, "ttft": "1s", "engine": "reference"}
    asked |= {"shape": "disaggregated", "instances": "prefill=2", "strategy": ASKED["strategy"]}
    everywhere = read_question(flags_of(QuestionFlags, asked)).question.workload.prefix_reuse
    assert everywhere == pytest.approx(3 / 4 * 8 / 9)
    reuse, shares = {}, {}
    for routing in ("round_robin", "prefix_aware"):
        found = podplan.plan(**asked, prefix_routing=routing)
        manifest, reuse[routing] = found.manifest(), found.best.question.workload.prefix_reuse
        assert found.to_dict()["assumptions"]["reuse"].startswith(f"{reuse[routing]:.1%} ")
        assert (manifest.routing.prefill, manifest.routing.prefixes) == (routing, "instance")
        shares[routing] = podplan.simulate(manifest, trace=heads).measured.prefix_hit_share
        assert shares[routing] >= reuse[routing] - 0.003
    assert shares["round_robin"] == pytest.approx(2 / 4 * 8 / 9, abs=0.01)
    assert shares["prefix_aware"] == pytest.approx(everywhere, abs=0.02) and reuse["prefix_aware"] > 0.6
