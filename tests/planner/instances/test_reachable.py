"""A search for an engine plans only what that engine can run, and says what it cut."""

from dataclasses import replace

import pytest

from planner.engines.loader import load_engine
from planner.engines.rules import Setup, broken_pair, broken_rule
from planner.instances.reachable import REFERENCE, pairs
from planner.instances.space import ROLES, engine_cut, role_rows, role_space, structure
from planner.plans.assemble import assemble
from planner.search.changes.missing import memory_sentence
from planner.strategy import Strategy
from tests.questions import best_of, small_question

ENGINES = {"vllm@0.33.0": "h100", "sglang@0.5.23": "h100", "xllm@0.9.0": "cm384", "vllm-ascend@0.23.0": "cm384"}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_every_row_is_one_that_the_engine_runs(engine: str, role: str) -> None:
    """The rows are those of the reference engine that break no rule, with the microbatches that break none."""
    question = small_question(hardware=ENGINES[engine], devices=32, engine=engine)
    profile, every = load_engine(engine), role_rows(replace(question, engine=REFERENCE), role)  # type: ignore[arg-type]
    kept = role_rows(question, role)  # type: ignore[arg-type]
    found = {(row.strategy, row.redundant, row.dedicated): row.microbatches for row in kept}
    assert 0 < len(kept) <= len(every)
    for row in every:
        broken = {
            parts: broken_rule(
                profile,
                Setup(
                    strategy=row.strategy,
                    role=role,  # type: ignore[arg-type]
                    devices_per_node=question.decode.devices_per_node,
                    experts=128,
                    architecture=question.model.architecture,
                    redundant=row.redundant,
                    dedicated=row.dedicated,
                    microbatches=parts,
                ),
            )
            for parts in (1, 2)
        }
        possible = [parts for parts, rule in broken.items() if rule is None]
        pipelined = row.strategy.pp > 1 and not profile.prefill_decode.pipeline.value
        key = (row.strategy, row.redundant, row.dedicated)
        assert found.get(key, 0) == (0 if pipelined else max(possible, default=0))


def test_the_reference_engine_cuts_nothing() -> None:
    """All rows overlap two microbatches, and the summary says that all are kept."""
    question = small_question()
    rows = role_rows(question, "decode")
    assert {row.microbatches for row in rows} == {2}
    assert engine_cut(question, "decode") == f"{len(rows)} layouts kept"


def test_no_prefill_apart_caches_prefixes_under_xllm() -> None:
    """Neither role has a layout, which is why there is no plan; aggregated instances, which cache them, have some."""
    asked = small_question(hardware="910b", devices=8, engine="xllm@0.9.0")
    asked = replace(asked, workload=replace(asked.workload, prefix_reuse=0.3))
    assert [bool(role_rows(asked, role)) for role in ("prefill", "decode", "mixed")] == [False, False, True]
    assert memory_sentence(asked, "prefill").startswith("xLLM caches no prefixes where prefill and decode are apart")


def test_the_cut_is_told_by_rule() -> None:
    """xLLM has no pipelines, and vLLM no hybrid of EP and TP."""
    told = engine_cut(small_question(hardware="cm384", devices=32, engine="xllm@0.9.0"), "prefill")
    assert "pipeline" in told and "cut (" in told
    assert "expert-grid" in engine_cut(small_question(engine="vllm@0.33.0"), "decode")


def test_rows_that_overlap_are_costed_apart_from_those_that_do_not() -> None:
    """A group has one structure, so that its microbatches are the same for all its rows."""
    rows = role_rows(small_question(engine="vllm@0.33.0"), "decode")
    assert {row.microbatches for row in rows} == {1, 2}
    assert structure(rows[0]) != structure(next(r for r in rows if r.microbatches != rows[0].microbatches))


@pytest.mark.parametrize("engine", ["vllm@0.33.0", "xllm@0.9.0"])
def test_a_plan_names_its_engine_and_is_reachable(engine: str) -> None:
    """The manifest carries the profile's id and version."""
    best = best_of(hardware=ENGINES[engine], devices=32, engine=engine)
    manifest = assemble(best, {})
    assert f"{manifest.engine.id}@{manifest.engine.version}" == engine
    pools = {pool.role: pool for pool in manifest.pools}
    allowed = load_engine(engine).microbatching.roles.value
    for role, pool in pools.items():
        assert pool.microbatches == 1 or role in allowed
        assert pool.degrees.pp == 1 and not pool.degrees.staged


def test_what_was_cut_is_counted_by_rule() -> None:
    """Rows that an engine keeps and those that its rules cut are those of the reference."""
    for role in ROLES:
        everything = role_space(small_question(), role)
        own = role_space(small_question(engine="vllm@0.33.0"), role)
        cut = sum(count for rule, count in own.cut.items() if rule.startswith("vllm"))
        assert cut and len(own.rows) + cut == len(everything.rows)
        assert all("reference" not in rule for rule in everything.cut)


@pytest.mark.parametrize("engine", ["vllm@0.33.0", "sglang@0.5.23", "mindie@3.0.0", "vllm-ascend@0.23.0"])
def test_pairs_hold_what_may_share_kv(engine: str) -> None:
    """Every prefill of a part goes with every decode of it, and no allowed pair is lost."""
    question, layers = small_question(engine=engine), {(1, 1), (2, 1), (4, 1), (1, 2)}
    parts = pairs(question, layers, layers)
    for ours in layers:
        for theirs in layers:
            first, second = (
                Setup(strategy=Strategy(attention_tp=tp, pp=pp), role=role, devices_per_node=8, experts=128)
                for role, (tp, pp) in zip(ROLES, (ours, theirs), strict=True)
            )
            allowed = broken_pair(load_engine(engine), first, second) is None
            assert allowed == any(ours in some and theirs in others for some, others in parts)
