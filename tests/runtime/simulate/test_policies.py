"""Each policy of a manifest does what it is for; the papers' results hold in direction and rough size."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ground.errors import BadInput
from ground.prefix_cache import PrefixCache
from planner.manifest.layout import Degrees, Instance
from planner.manifest.schema import CachingPool, Manifest, Recovery, Routing, ServiceLevels
from runtime.simulate.faults import Outage, shrunk_cost
from runtime.simulate.metrics import SimulationResult
from runtime.simulate.options import SimulationOptions
from runtime.simulate.quantiles import interval
from runtime.simulate.request import Request
from runtime.simulate.run import _Run, simulate, with_policies
from runtime.simulate.workload import Modulation, Requests, backlog, closed_loop, modulated, open_loop
from tests.manifests import build, manifest, pool, requests

BURSTS = Modulation(burst=5.0, share=0.15, mean_burst_seconds=3.0)


def all_at_once(count: int, inputs: int, outputs: int, blocks: int = 0) -> Requests:
    """Return equal requests that arrive together; with ``blocks`` each has as many identifiers of its own."""
    ids = tuple(np.arange(i * blocks, (i + 1) * blocks) for i in range(count)) if blocks else None
    rows = [(0.0, inputs, outputs, 0)] * count
    return requests(*rows, blocks=ids, block_tokens=inputs // blocks if blocks else 0)


def within(made: Manifest, ttft: float, tpot: float) -> Manifest:
    """Return a manifest with other limits."""
    return made.model_copy(update={"service_levels": ServiceLevels(ttft_seconds=ttft, tpot_seconds=tpot)})


def bursty() -> Manifest:
    """Return four instances of each role under prompts like those of Azure's traces, with tight limits."""
    workload = {"input_tokens": 2048, "output_tokens": 60, "input_cv2": 0.93, "output_cv2": 2.0}
    return within(manifest(prefill=4, decode=4, workload=workload), 0.5, 0.004)


def under(
    made: Manifest, offered: Requests, *policies: str, options: SimulationOptions | None = None
) -> list[SimulationResult]:
    """Return what a manifest does with requests under each of some policies; ``a+b`` sets two at once."""
    return [simulate(with_policies(made, each.split("+")), offered, options) for each in policies]


def beats(better: SimulationResult, worse: SimulationResult, measure: str) -> bool:
    """Whether a mean is smaller beyond chance, on the same requests."""
    one, other = better.batches.matched(worse.batches)
    found = interval(one.means(measure) - other.means(measure))
    return found is not None and found[0] + found[1] < 0


def test_prefill_routing_matters_in_bursts() -> None:
    """xLLM section 5: minimal load above round robin, SLO-aware dynamic roles above both, on bursty traffic.

    There minimal load attains up to 4.3 % more than round robin, and dynamic roles carry 1.67 times its rate; here
    the length-aware shared queue of xDeepServe lies between them.
    """
    made = bursty()
    names = ("round_robin", "least_load", "collaborative", "least_load+dynamic")
    usual = modulated(made.workload, 45.0, 1000, BURSTS, 2)
    results = under(made, usual, *names)
    attained = [each.slo_attainment for each in results]
    assert attained == sorted(attained) and attained[1] > attained[0] + 0.02
    assert beats(results[1], results[0], "ttft")
    much = modulated(made.workload, 75.0, 1000, BURSTS, 2)
    fixed, dynamic = under(made, much, *names[1::2])
    # Dynamic roles carry 1.67 times the rate about as well as fixed ones carry the usual one.
    assert dynamic.slo_attainment > attained[1] - 0.02 > fixed.slo_attainment + 0.1
    assert dynamic.role_flips > 0


@pytest.mark.parametrize(("rate", "seed"), [(30.0, 2), (30.0, 4), (45.0, 3), (60.0, 4)])
def test_dynamic_roles_cost_nothing_where_they_are_not_needed(rate: float, seed: int) -> None:
    """At loads that fixed roles carry, whatever flips or helps loses less than one request in a hundred."""
    made = bursty()
    offered = modulated(made.workload, rate, 600, BURSTS, seed)
    fixed, dynamic = under(made, offered, "least_load+fixed", "least_load+dynamic")
    assert dynamic.slo_attainment >= fixed.slo_attainment - 0.01


def test_a_single_decode_instance_helps_with_prompts() -> None:
    """Nothing can flip beside one decode instance: past the rate of prefill it spares prompts some of its time."""
    made = within(manifest(prefill=2, workload={"input_tokens": 4096, "output_tokens": 30}), 0.5, 0.004)
    offered = open_loop(made.workload, 80.0, 400, 1)
    fixed, dynamic = under(made, offered, "least_load+fixed", "least_load+dynamic")
    assert dynamic.slo_attainment > fixed.slo_attainment + 0.05
    assert dynamic.role_flips == 0


def test_instances_turn_to_decode_when_requests_wait_for_it() -> None:
    """One decode instance of few slots beside four of prefill: fixed roles starve, dynamic ones move over.

    Where the wait keeps the TPOT limit nobody moves.
    """
    limits = {"requests_per_dp_rank": 2, "tokens_per_device": 2048}
    made = manifest(prefill=4, decode=1, workload={"input_tokens": 64, "output_tokens": 400}, limits=limits)
    offered = open_loop(made.workload, 60.0, 300, 1)
    assert under(made, offered, "dynamic")[0].role_flips == 0
    fixed, dynamic = under(within(made, 2.0, 0.003), offered, "fixed", "dynamic")
    assert dynamic.e2e_seconds.mean < 0.6 * fixed.e2e_seconds.mean
    assert dynamic.slo_attainment > fixed.slo_attainment + 0.2
    assert dynamic.role_flips >= 1


def test_instances_turn_for_long_prompts_and_come_home() -> None:
    """Long prompts among short ones: decode instances turn for them, and no other one takes their place meanwhile."""
    workload = {"input_tokens": 3000, "output_tokens": 100, "input_cv2": 3.0}
    made = within(manifest(prefill=4, decode=3, workload=workload), 0.5, 0.004)
    offered = open_loop(made.workload, 40.0, 1500, 2)  # of 37 seconds
    fixed, dynamic = under(made, offered, "least_load+fixed", "least_load+dynamic")
    assert dynamic.slo_attainment > fixed.slo_attainment + 0.5
    assert dynamic.role_flips > 0


def test_an_instance_that_keeps_more_waiting_than_it_runs_stays_with_prefill() -> None:
    """It turns once places make up for the KV that it takes, and back when prompts need it, whatever it runs."""
    limits = {"requests_per_dp_rank": 1, "tokens_per_device": 2048}
    made = with_policies(manifest(prefill=4, decode=1, prefill_limits=limits), ["dynamic"])
    run = _Run(made, [all_at_once(1, 64, 2)], SimulationOptions(), None)
    roles, unit = run._system.roles, run._system.units[0]
    unit.prefill.held_tokens = 2_400_000
    run._shared.placement.waiting += [Request(number, 0.0, 10_000, 100, 0) for number in range(240)]  # 80 fit in each
    roles._completed = 1
    pays = [roles._pays(unit) for run._shared.ledger.completed in (1, 10, 11)]  # in 8 places, hardly any others run
    assert pays == [False, False, True]
    roles._turn(unit, to_prefill=False)
    assert roles.to_prefill() is unit and roles.to_prefill() is None


@pytest.mark.parametrize("worse", ["decode=round_robin", "least_requests"])
def test_decode_placement_by_kv_balances_ranks(worse: str) -> None:
    """Prompts of very different lengths: iterations follow the fullest rank, so least KV first has the least TPOT."""
    made = manifest(prefill=4, workload={"input_tokens": 4000, "output_tokens": 60, "input_cv2": 4.0})
    offered = open_loop(made.workload, 60.0, 600, 1)
    by_kv, other = under(made, offered, "least_kv", worse)
    assert beats(by_kv, other, "tpot")


def test_reserving_prompts_only_admits_more_and_may_have_to_take_back() -> None:
    """Answers that are not set aside let more requests in; those that outgrow the cache are computed anew."""
    kv = {"block_tokens": 16, "bytes_per_token_per_device": 160.0, "capacity_tokens_per_rank": 2000}
    whole, prompt = under(manifest(decode_kv=kv), all_at_once(64, 200, 400), "whole", "prompt")
    assert (whole.completed, prompt.completed) == (64, 64)
    assert prompt.occupancy["slots"] > whole.occupancy["slots"]
    assert prompt.retried_requests > 0 == whole.retried_requests


def test_prefill_that_decode_does_not_empty_stops() -> None:
    """Prompts keep their KV until they are pulled: with little of it TTFT follows decode."""
    slow = {"requests_per_dp_rank": 1, "tokens_per_device": 2048}
    tight = {"block_tokens": 16, "bytes_per_token_per_device": 160.0, "capacity_tokens_per_rank": 1024}
    offered = all_at_once(60, 512, 100)
    free, held = (simulate(manifest(decode_limits=slow, **changes), offered) for changes in ({}, {"prefill_kv": tight}))
    assert held.ttft_seconds.p99 > 3 * free.ttft_seconds.p99
    assert held.completed == 60


def test_order_of_chunks_trades_first_tokens_for_later_ones() -> None:
    """Prompts first: lower TTFT and higher TPOT than running requests first (Sarathi-Serve, arXiv 2403.02310)."""
    limits = {"requests_per_dp_rank": 64, "tokens_per_device": 256}
    pools = [pool("mixed", Degrees(attention_tp=1, attention_dp=1), [Instance(name="a", nodes=[0])], limits=limits)]
    made = build(pools, {"input_tokens": 1500, "output_tokens": 60, "input_cv2": 1.0})
    decode, prompts = under(made, open_loop(made.workload, 8.0, 120, 1), "decode_first", "prefill_first")
    assert prompts.ttft_seconds.mean < decode.ttft_seconds.mean
    assert prompts.tpot_seconds.p99 > decode.tpot_seconds.p99


def test_balanced_links_spread_over_the_prefill_group() -> None:
    """CloudMatrix384 section 4.3.3: decode ranks pull from all ranks of a TP group of four, not from the first one."""
    made = manifest(prefill_degrees=Degrees(attention_tp=4, attention_dp=2, moe_ep=8))
    links = made.kv_transfer
    mapping = links.mapping.model_copy(update={"ratio": 4.0, "group_size": 2.0})
    slow = links.model_copy(update={"bandwidth_bytes_per_second": 2e7, "mapping": mapping})
    offered = all_at_once(64, 512, 20)
    balanced, first = (
        simulate(made.model_copy(update={"kv_transfer": slow.model_copy(update={"links": name})}), offered)
        for name in ("balanced", "first")
    )
    assert balanced.transfer_wait_seconds < 0.5 * first.transfer_wait_seconds
    assert balanced.e2e_seconds.mean < first.e2e_seconds.mean


def caching(**changes: Any) -> CachingPool:
    """Return a cache of 160 bytes a token."""
    fields = {"plane": "fabric", "capacity_bytes": 1e9, "bandwidth_bytes_per_second": 1e9, "block_tokens": 64}
    return CachingPool.model_validate(fields | changes)


def test_cache_evicts_what_was_used_least_recently() -> None:
    """Two blocks fit: the third drops the second, as the first was looked up since; a hit ends at the first gap, and
    SSD gives back what DRAM dropped.
    """
    cache = PrefixCache.of_bytes(64, 160.0, 2 * 64 * 160.0, 0.0)
    cache.insert([1, 2])
    assert cache.look_up([1], 1000).tokens == 64
    cache.insert([3])
    assert len(cache) == 2
    assert cache.look_up([2, 3], 1000).tokens == 0
    assert cache.look_up([1, 3], 100).tokens == 99
    tiered = PrefixCache.of_bytes(64, 160.0, 2 * 64 * 160.0, 1e9)
    tiered.insert([1, 2, 3])
    found = tiered.look_up([1, 2, 3], 1000)
    assert (found.dram_tokens, found.ssd_tokens) in {(0, 192), (64, 128)}
    assert len(tiered) <= 2 and tiered.ssd_blocks == 3


def test_a_slower_plane_to_the_cache_costs_first_tokens() -> None:
    """The same hits over VPC instead of UB: TTFT grows by the time that reading takes (CloudMatrix384 section 5)."""
    blocks = all_at_once(40, 2048, 1, blocks=4).blocks
    repeated = replace(all_at_once(80, 2048, 1, blocks=4), arrival_seconds=np.arange(80) * 0.2, blocks=blocks * 2)
    results = [
        simulate(manifest().model_copy(update={"caching": caching(bandwidth_bytes_per_second=rate)}), repeated)
        for rate in (1e9, 1e7)
    ]
    assert [result.prefix_hit_share for result in results] == pytest.approx([2047 / 4096] * 2)
    assert results[0].ttft_seconds.mean < results[1].ttft_seconds.mean
    small = caching(capacity_bytes=3 * 512 * 160.0)
    assert simulate(manifest().model_copy(update={"caching": small}), repeated).prefix_hit_share < 0.01


def test_prompts_go_where_their_head_stands() -> None:
    """With prefixes in instances a prompt is found by one of four by chance, by all that look where it stands.

    xLLM section 3.4. A pool behind the instances gives what they lack, and time is spent on that alone.
    """
    blocks = all_at_once(40, 2048, 1, blocks=4).blocks
    again = replace(
        all_at_once(80, 2048, 1, blocks=4), arrival_seconds=np.arange(80) * 0.5, blocks=(*blocks, *reversed(blocks))
    )
    kv = {"block_tokens": 64, "bytes_per_token_per_device": 160.0, "capacity_tokens_per_rank": 400_000}
    made = manifest(prefill=4, prefill_kv=kv)
    chance, sought = under(made, again, "instance+round_robin", "instance+prefix_aware")
    assert chance.prefix_hit_share < 0.3
    assert sought.prefix_hit_share == pytest.approx(2047 / 4096)
    assert sought.ttft_seconds.mean < chance.ttft_seconds.mean
    pooled = made.model_copy(update={"caching": caching(bandwidth_bytes_per_second=1e7)})
    near, far = under(pooled, again, "prefix_aware+instance", "prefix_aware+shared")
    assert near.prefix_hit_share == pytest.approx(far.prefix_hit_share)
    assert near.ttft_seconds.mean < far.ttft_seconds.mean


def test_requests_move_off_the_fullest_rank() -> None:
    """xLLM section 4.4: dealt in turn, ranks differ; with moves they do not, and iterations are shorter."""
    made, numbers = manifest(prefill=1, decode=1), np.arange(32)
    lengths = np.where(numbers % 4, 64, 4096)
    offered = replace(all_at_once(32, 64, 4000), arrival_seconds=0.05 * numbers, input_tokens=lengths)
    options = SimulationOptions(offline=backlog(made.workload, 1, 1))
    dealt, moved = under(made, offered, "decode=round_robin+placed", "decode=round_robin+even", options=options)
    assert moved.completed == dealt.completed == 32
    assert moved.tpot_seconds.mean < 0.99 * dealt.tpot_seconds.mean


def test_measured_loads_under_the_placement_slow_the_busiest_rank() -> None:
    """A hot expert: steps take longer as long as its rank is the busiest."""
    offered = all_at_once(64, 64, 30)
    even, skewed = (simulate(manifest(), offered, SimulationOptions(balance={"decode": b})) for b in (1.0, 4.5))
    assert skewed.expert_imbalance["decode"] == 4.5
    assert beats(even, skewed, "tpot") or even.tpot_seconds.mean < skewed.tpot_seconds.mean
    changes = ((0.5 * skewed.duration_seconds, {"decode": 1.0}),)
    later, stepped = (
        simulate(manifest(), offered, SimulationOptions(balance={"decode": 4.5}, rebalances=changes, stepping=stepping))
        for stepping in (False, True)
    )
    assert even.tpot_seconds.mean < later.tpot_seconds.mean < skewed.tpot_seconds.mean
    assert later.tpot_seconds.mean == pytest.approx(stepped.tpot_seconds.mean)


def test_co_location_uses_what_online_requests_leave() -> None:
    """xLLM section 3.1: more offline tokens than on instances of their own, and online ones attain about as much.

    Two of six instances set apart for offline work, against all six for both with preemption.
    """
    workload = {"input_tokens": 1024, "output_tokens": 100, "input_cv2": 1.0, "output_cv2": 1.0}
    limits = {"requests_per_dp_rank": 64, "tokens_per_device": 2048}

    def sized(count: int) -> Manifest:
        return within(manifest(prefill=count, decode=count, workload=workload, limits=limits), 0.3, 0.0016)

    cut = SimulationOptions(until_seconds=8.0)
    offered = modulated(sized(3).workload, 60.0, 480, Modulation(burst=4.0, share=0.2, mean_burst_seconds=2.0), 1)
    apart = simulate(sized(2), offered, cut)
    offline_apart = simulate(sized(1), closed_loop(sized(1).workload, 400, 3000, 2), cut).output_tokens_per_second
    shared = replace(cut, offline=backlog(sized(3).workload, 6000, 2))
    together, first = under(sized(3), offered, "slo", "offline=equal", options=shared)
    assert together.slo_attainment >= apart.slo_attainment - 0.02
    assert together.offline["output_tokens_per_second"] > offline_apart
    assert first.slo_attainment < 0.5


def test_offline_answers_stay_on_prefill_instances_where_decode_is_full() -> None:
    """xLLM section 3.1: the relaxed pool decodes offline requests, which give way to online prompts."""
    made = within(manifest(prefill=4, workload={"input_tokens": 1024, "output_tokens": 50}), 0.3, 0.01)
    long = backlog(made.workload.model_copy(update={"input_tokens": 64, "output_tokens": 400}), 8000, 2)
    offered, cut = open_loop(made.workload, 60.0, 480, 1), SimulationOptions(until_seconds=8.0, warmup_seconds=2.0)
    alone = simulate(made, offered, cut)
    beside = simulate(made, offered, replace(cut, offline=backlog(made.workload, 1, 1)))
    assert beside.link_utilisation == pytest.approx(alone.link_utilisation, rel=0.1)  # however many take both roles
    kept, first = under(made, offered, "slo", "priority", options=replace(cut, offline=long))
    assert kept.offline["output_tokens_per_second"] > 1.5 * first.offline["output_tokens_per_second"]
    assert kept.slo_attainment > alone.slo_attainment - 0.01
    assert kept.ttft_seconds.p99 < 0.3


def test_an_instance_that_opens_again_does_what_it_was_planned_for() -> None:
    """Offline requests give every instance both parts: only its own takes online requests when it comes back."""
    made = manifest(prefill=2, decode=2)
    options = SimulationOptions(offline=backlog(made.workload, 10, 1))
    run = _Run(made, [all_at_once(4, 64, 30)], options, None)
    for name in ("prefill-0", "decode-0"):
        run._standby.close(name)
        run._standby.open(name)
        takes, opened = name == "prefill-0", name == "decode-0"
        assert [part.accepts for part in run._system.prefill if part.name == name] == [takes]
        ranks = next(part for part in run._system.decode if part.name == name)
        assert run._shared.placement.open[ranks.first_rank] is opened


def test_offline_tokens_are_more_than_with_priority_and_late_first_tokens_earlier() -> None:
    """Decode instances go on taking prompts while they have time; the limit decides how long passes are."""
    workload = {"input_tokens": 1024, "output_tokens": 100, "input_cv2": 1.0}
    made = within(manifest(prefill=2, decode=2, workload=workload), 1.0, 0.01)
    offered = open_loop(made.workload, 60.0, 480, 1)
    options = SimulationOptions(until_seconds=8.0, warmup_seconds=2.0, offline=backlog(made.workload, 6000, 2))
    kept, first = under(made, offered, "slo", "priority", options=options)
    assert kept.offline["requests"] == first.offline["requests"] == 6000
    assert kept.offline["output_tokens_per_second"] > 1.3 * first.offline["output_tokens_per_second"]
    tight = within(made, 0.3, 0.01)
    late, early = (
        sum(simulate(levels, open_loop(made.workload, 60.0, 480, seed), options).ttft_seconds.p99 for seed in (1, 2))
        for levels in (made, tight)
    )
    assert early < late


def test_a_pass_is_filled_as_far_as_its_prompts_stay_in_time() -> None:
    """Other ranks wait for the fullest one, but experts serve all: what they carry makes a late prompt later."""
    made = within(manifest(), 0.3, 0.01)
    filled = []
    for waited in (0.0, 0.185, 0.2):  # a pass of the prompt takes 48 ms, a full one 61 ms; 240 ms are in time
        run = _Run(made, [all_at_once(1, 64, 8)], SimulationOptions(offline=backlog(made.workload, 1, 1)), None)
        instance = run._system.prefill[0]
        instance.queue.append(Request(0, -waited, 2048, 8, 0))
        instance.offline.extend(Request(number, 0.0, 256, 8, 0, offline=True) for number in range(1, 100))
        filled.append(sum(instance._fill().tokens) - 2048)
    assert filled[0] == 2048 * (instance.ranks - 1) > filled[1] > filled[2] == 0


def test_recovery_stages_lose_less_and_less() -> None:
    """xDeepServe section 6: restarting all is worst, failing over apart better, a rolled-back iteration hardly felt."""
    slots = [*range(16), *((expert + 5) % 16 for expert in range(16))]
    times = {}
    for stage in ("restart", "failover", "recompute"):
        recovery = Recovery(stage=stage, heartbeat_seconds=0.0, restart_seconds=1.0, reconfigure_seconds=0.05)
        for kind, target, decodes in (("device", "decode-0/1", 2), ("link", "decode-0", 1)):
            made = manifest(prefill=2, decode=decodes, slots=slots, workload={"output_tokens": 60})
            offered = open_loop(made.workload, 100.0, 300, 1)
            fault = Outage(kind=kind, target=target, at_seconds=1.0, for_seconds=0.02)  # type: ignore[arg-type]
            result = simulate(
                made.model_copy(update={"recovery": recovery}), offered, SimulationOptions(faults=(fault,))
            )
            assert result.completed == 300
            times[stage, kind] = result.e2e_seconds.mean
    assert times["restart", "device"] > 2 * times["failover", "device"]
    assert 2 * times["recompute", "link"] < times["failover", "link"] <= times["restart", "link"] * 1.01


@pytest.mark.parametrize(("target", "at"), [("decode-0/1", 0.05), ("prefill-0/0", 0.002)])
def test_requests_hang_until_a_loss_is_known(target: str, at: float) -> None:
    """Heartbeats (xDeepServe section 6): half an interval and one more for each that is missed but the first."""
    made, ends = manifest(prefill=2, decode=2, workload={"output_tokens": 100}), []
    fault = Outage(kind="device", target=target, at_seconds=at, for_seconds=1000.0)
    for heartbeat in (0.0, 0.4):
        recovery = Recovery(heartbeat_seconds=heartbeat, missed_heartbeats=3, kv="recompute")
        chosen = made.model_copy(update={"recovery": recovery})
        result = simulate(chosen, all_at_once(64, 128, 100), SimulationOptions(faults=(fault,)))
        assert result.completed == 64 and result.retried_requests
        ends.append(result.e2e_seconds.p99)
    assert ends[1] - ends[0] == pytest.approx(1.0, abs=0.1)


def test_a_link_that_is_back_before_its_loss_is_known_only_falters() -> None:
    """Probes tell a dead link from one that is slow for a while: nothing is computed anew."""
    offered, retried = all_at_once(64, 128, 100), []
    for length in (0.5, 1.5):
        recovery = Recovery(stage="failover", heartbeat_seconds=0.4, missed_heartbeats=3, restart_seconds=0.5)
        made = manifest(prefill=2, decode=2).model_copy(update={"recovery": recovery})
        fault = Outage(kind="link", target="decode-0", at_seconds=0.05, for_seconds=length)
        retried.append(simulate(made, offered, SimulationOptions(faults=(fault,))).retried_requests)
    assert retried[0] == 0 < retried[1]


def test_an_instance_shrinks_only_while_every_expert_has_a_replica() -> None:
    """Without replicas the loss of one device takes the instance down; with them one of eight ranks is missing."""
    slots = [*range(16), *((expert + 5) % 16 for expert in range(16))]
    spare = manifest(slots=slots).pools[1]
    cost = spare.step_costs["decode"].to_step_cost()
    less = shrunk_cost(cost, spare, {1})
    assert (less.attention_ranks, less.expert_ranks) == (7, 7) and less.balance > cost.balance
    fault = Outage(kind="device", target="decode-0/1", at_seconds=0.05, for_seconds=0.1)
    results = []
    for layout in (list(range(16)), slots):
        recovery = Recovery(heartbeat_seconds=0.0, restart_seconds=2.0, reconfigure_seconds=0.05)
        made = manifest(slots=layout).model_copy(update={"recovery": recovery})
        results.append(simulate(made, all_at_once(64, 128, 200), SimulationOptions(faults=(fault,))))
    bare, replicated = results
    assert bare.completed == replicated.completed == 64
    assert bare.duration_seconds > replicated.duration_seconds
    assert bare.retried_requests == 64 > replicated.retried_requests > 0


def test_kv_that_outlives_its_instance_is_moved_where_that_is_cheaper() -> None:
    """xLLM section 3.5: over a quick link KV moves, and its prompts are not computed again."""
    made = manifest(decode=2, workload={"output_tokens": 400})
    fault = Outage(kind="device", target="decode-0/1", at_seconds=0.2, for_seconds=1.0)
    passes = {}
    for kv in ("cheaper", "recompute"):
        recovery = Recovery(kv=kv, heartbeat_seconds=0.0, restart_seconds=0.5)
        chosen = made.model_copy(update={"recovery": recovery})
        result = simulate(chosen, all_at_once(100, 512, 400), SimulationOptions(faults=(fault,)))
        passes[kv] = result.steps["prefill"]
        assert result.completed == 100
    assert passes["cheaper"] < passes["recompute"]


def test_killing_prefill_keeps_decode() -> None:
    """xDeepServe section 6: where the only decode instance is lost, a prefill instance takes its role."""
    base = manifest(prefill=3, decode=1, workload={"output_tokens": 200})
    fault = Outage(kind="device", target="decode-0/1", at_seconds=0.3, for_seconds=1.0)
    times = []
    for kill in (False, True):
        recovery = Recovery(heartbeat_seconds=0.0, restart_seconds=5.0, kill_prefill=kill)
        made = base.model_copy(update={"recovery": recovery})
        result = simulate(made, open_loop(made.workload, 40.0, 200, 1), SimulationOptions(faults=(fault,)))
        assert result.completed == 200
        times.append(result.e2e_seconds.mean)
    assert times[1] < 0.5 * times[0]


def test_unknown_policies_are_refused() -> None:
    """The sentence lists what there is."""
    with pytest.raises(BadInput, match=r"--policies: 'fastest' is not a policy; use prefill=least_load"):
        with_policies(manifest(), ["fastest"])
    assert with_policies(manifest(), ["decode=round_robin"]).routing == Routing(decode="round_robin")
