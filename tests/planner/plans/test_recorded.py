"""Recorded streams: what is expected of them against the runtime, which plays the same requests event by event."""

from typing import Any

import numpy as np
import pytest

from ground.errors import BadInput
from planner.checks.on_trace import pools_of
from planner.manifest.layout import Degrees, Instance
from planner.manifest.schema import Manifest, Routing
from planner.plans.assemble import assemble
from planner.plans.recorded import expect_recorded, pools_on
from planner.serving.deployed import play
from planner.workload import TraceRows
from runtime.simulate.metrics import SimulationResult
from runtime.simulate.options import SimulationOptions
from runtime.simulate.run import simulate
from runtime.simulate.workload import Requests
from tests.manifests import build, pool
from tests.plans import small_manifest
from tests.questions import best_of

COUNT = 1200
ALIKE = {"prefill": "round_robin", "decode": "round_robin"}


def _made(ranks: int = 1, instances: int = 2, routing: dict[str, Any] = ALIKE, **more: Any) -> Manifest:
    degrees = Degrees(attention_tp=1, attention_dp=ranks, moe_ep=ranks)
    changes: dict[str, Any] = {
        "limits": {"requests_per_dp_rank": more.get("places", 64), "tokens_per_device": 512},
        "drafts": more.get("drafts", 0),
        "microbatches": 1,
    }
    capacity = more.get("kv_tokens", 1_000_000)
    changes["kv"] = {"block_tokens": 16, "bytes_per_token_per_device": 1e3, "capacity_tokens_per_rank": capacity}
    made = build([pool("mixed", degrees, [Instance(name=f"m{n}", nodes=[n]) for n in range(instances)], **changes)], {})
    return made.model_copy(update={"routing": Routing(**routing)})


def _wild(rate: float, answer: float = 120.0, reuse: bool = False, seed: int = 2) -> TraceRows:
    """Requests of a CV of 1, some cut over several steps, twice as fast for a quarter of them."""
    random = np.random.default_rng(seed)
    gaps = random.exponential(1 / rate, COUNT)
    gaps[COUNT // 4 : COUNT // 2] /= 2
    tokens = np.clip(np.rint(random.lognormal(5.9, 0.83, COUNT)), 8, 8000).astype(np.int64)
    return TraceRows(
        arrival_seconds=np.cumsum(gaps),
        input_tokens=tokens,
        output_tokens=np.clip(np.rint(random.gamma(1.5, answer / 1.5, COUNT)), 1, 2000).astype(np.int64),
        reused_tokens=(tokens * np.where(random.random(COUNT) < 0.4, 0.9, 0.0)).astype(np.int64) * reuse,
    )


def _simulated(manifest: Manifest, trace: TraceRows) -> SimulationResult:
    requests = Requests(**{name: np.asarray(getattr(trace, name)) for name in TraceRows.__dataclass_fields__})
    return simulate(manifest, requests, SimulationOptions(mtp="expected"))


def _agree(manifest: Manifest, trace: TraceRows, mean: float, p99: float) -> None:
    told, found = expect_recorded(manifest, trace).prediction, _simulated(manifest, trace)
    for name in ("ttft_seconds", "tpot_seconds", "e2e_seconds"):
        mine, runtimes = getattr(told, name), getattr(found, name)
        assert mine.mean == pytest.approx(runtimes.mean, rel=mean), name
        assert mine.p99 == pytest.approx(runtimes.p99, rel=p99), name
    if "mixed" in told.utilisation:  # that of decode is the tail's: how long the longest answer of the last runs alone
        assert told.utilisation == pytest.approx(found.utilisation, rel=mean)
    assert told.requests_per_second == pytest.approx(found.requests_per_second, rel=mean)
    assert told.slo_attainment == pytest.approx(found.slo_attainment, abs=mean / 2)


@pytest.mark.parametrize("part", [0.4, 0.8, 1.4])
def test_separate_pools_meet_what_the_runtime_plays(part: float) -> None:
    """From light load to more than the plan carries: the mean within 5 %, p99 within 10 %, a backlog where there is."""
    manifest = small_manifest()
    planned = manifest.workload.requests_per_second
    _agree(manifest, _wild(part * planned, reuse=True), 0.05, 0.1)


def test_warm_up_leaves_out_the_first_requests() -> None:
    """What is counted are the requests from then on, beside those before them."""
    manifest, trace = small_manifest(), _wild(50.0)
    whole, late = (expect_recorded(manifest, trace, warmup).prediction for warmup in (0.0, 5.0))
    assert whole.ttft_seconds != late.ttft_seconds
    with pytest.raises(BadInput, match="--warmup"):
        expect_recorded(manifest, trace, 1e9)


@pytest.mark.parametrize(
    ("manifest", "rate"),
    [(_made(), 40.0), (_made(), 90.0), (_made(ranks=4), 160.0), (_made(places=3), 25.0), (_made(drafts=1), 40.0)],
    ids=["light", "heavy", "ranks", "places", "drafts"],
)
def test_requests_meet_what_the_runtime_plays(manifest: Manifest, rate: float) -> None:
    """Means within 2 %, p99 within 5 %, of TTFT and of TPOT, light load and more than the instances carry."""
    _agree(manifest, _wild(rate), 0.02, 0.05)


@pytest.mark.parametrize(
    ("manifest", "rate"),
    [
        (_made(ranks=4, places=4, routing=ALIKE | {"decode": "least_requests"}), 90.0),
        (_made(ranks=2, routing=ALIKE | {"decode": "least_kv"}), 100.0),
        (_made(instances=3, routing=ALIKE | {"prefill": "least_load"}), 90.0),
    ],
    ids=["least requests", "least kv", "least load"],
)
def test_choices_that_follow_the_state_are_those_of_the_runtime(manifest: Manifest, rate: float) -> None:
    """A thousandth of a step more or less sends a request elsewhere, so single paths differ: means of five of them."""
    told, found = [], []
    for seed in range(10, 15):
        trace = _wild(rate, seed=seed)
        prediction = expect_recorded(manifest, trace).prediction
        told.append(prediction)
        found.append(_simulated(manifest, trace))
    for name in ("ttft_seconds", "tpot_seconds", "e2e_seconds"):
        mine, runtimes = (np.mean([getattr(each, name).mean for each in runs]) for runs in (told, found))
        assert mine == pytest.approx(runtimes, rel=0.04), name


def test_reuse_takes_no_room_in_steps() -> None:
    """Tokens that are cached are read, not computed: the first token comes sooner, and never after no time."""
    manifest, pools = _made(), {}
    for reuse in (False, True):
        trace = _wild(40.0, reuse=reuse)
        found = pools_on(manifest)
        assert not isinstance(found, str)
        pools[reuse] = play(found, trace)
        assert (pools[reuse].ttft_seconds > 0).all() and pools[reuse].link_utilisation is None
    assert pools[True].ttft_seconds.mean() < 0.8 * pools[False].ttft_seconds.mean()


def test_kv_that_is_full_keeps_requests_waiting() -> None:
    """What a rank holds is never more than its KV; one that no rank could hold takes an empty one."""
    trace = _wild(25.0)
    longest = int(np.max(np.add(trace.input_tokens, trace.output_tokens))) + 16
    ample, scarce = (expect_recorded(_made(kv_tokens=tokens), trace).prediction for tokens in (100_000, longest))
    least = expect_recorded(_made(kv_tokens=longest // 2), trace).prediction
    ttft = [found.ttft_seconds.mean for found in (ample, scarce, least) if found.ttft_seconds]
    assert ttft[0] < ttft[1] < ttft[2]
    found = _simulated(_made(kv_tokens=longest), trace)
    assert found.failed == 0
    assert ttft[1] == pytest.approx(found.ttft_seconds.mean, rel=0.05)


def test_steps_of_their_own_for_prompts_are_those_of_the_runtime() -> None:
    """With ``prefill_first`` running requests wait while there are prompts: means within 2 %, p99 within 5 %."""
    _agree(_made(routing=ALIKE | {"chunks": "prefill_first"}), _wild(40.0), 0.02, 0.05)


def test_a_plan_plays_a_trace_as_its_manifest_does() -> None:
    """Its pools are those of the manifest that is made of it, request by request."""
    plan = best_of(model="qwen3-8b", devices=2, lengths=(512.0, 64.0), shape="aggregated")
    manifest, trace = assemble(plan, {}), _wild(plan.requests_per_second, answer=64.0)
    pools = pools_on(manifest)
    assert not isinstance(pools, str)
    mine, manifests = play(pools_of(plan), trace), play(pools, trace)
    assert mine.ttft_seconds.mean() == pytest.approx(manifests.ttft_seconds.mean(), rel=0.02)
    assert np.nanmean(mine.tpot_seconds) == pytest.approx(np.nanmean(manifests.tpot_seconds), rel=0.01)
