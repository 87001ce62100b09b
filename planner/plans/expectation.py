"""Expected latencies of a manifest under some traffic, from the manifest alone.

Prefill of equal prompts and decode have closed forms (``closed_forms``). All else is played, with the step costs of the
manifest. One request at a time needs no queue (``plans.recorded``).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from ground.errors import BadInput
from planner.closed_forms.birth_death import Crowding, DecodeState
from planner.closed_forms.bulk_lattice import Passes
from planner.closed_forms.bulk_service import Policy, latency_of, thinned_squared_cv
from planner.costs.cache import Cache
from planner.instances.aggregated import AggregatedState, player_of
from planner.instances.handover import Handover
from planner.instances.kv_links import KvLinks, LinkSide, LinkState, Sink, Source, link_state, mean_wait
from planner.instances.operating import Decoding
from planner.instances.prefill_passes import Dealing, has_closed_form, mean_passes, pass_times
from planner.manifest.schema import (
    Manifest,
    Pool,
    Prediction,
    Role,
    ServiceLevels,
    Statistics,
)
from planner.plans.pools import end_to_end, online_state
from planner.serving.capacity import Limits
from planner.serving.deployed import aggregated_pool, group_budget, separate_pools, workload_of
from planner.serving.latency import Latency, independent_sum
from planner.serving.played import MANY, PlayedPrefill
from planner.serving.prefill import OfflineBeside, PrefillPool
from planner.serving.streams import with_answers
from planner.workload import Lengths, Offline, Workload

QUEUED = "the queues of this traffic with the manifest's step costs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The expected figures, None where there are none, and a clause on their origin or the reason."""

    prediction: Prediction | None
    basis: str


def expect(manifest: Manifest, workload: Workload, requests_per_second: float) -> Expectation:
    """Return the expected figures of a manifest under an open stream of requests.

    They are the plan's own for the planned traffic; otherwise both queues are solved with the manifest's step costs.
    There are none beyond saturation, or where the roles are not one prefill and one decode pool.
    """
    planned = manifest.workload
    if workload == workload_of(planned) and requests_per_second == planned.requests_per_second:
        return Expectation(prediction=manifest.predicted, basis="the plan's own figures")
    return queued(manifest, workload, requests_per_second)


def queued(manifest: Manifest, workload: Workload, requests_per_second: float) -> Expectation:
    """Return the expected figures from the queues, whatever the plan itself states."""
    encode = pool_encode(manifest, workload, requests_per_second)
    if encode is None:
        return Expectation(prediction=None, basis="the encode pool cannot keep up with this rate")
    aggregated = mixed_pool(manifest)
    if aggregated is not None:
        return _expect_mixed(manifest, aggregated, workload, requests_per_second, encode)
    pools = pool_pair(manifest)
    if isinstance(pools, str):
        return Expectation(prediction=None, basis=pools)
    prefill, decode = pools
    count = len(prefill.instances)
    ttft = pool_ttft(manifest, prefill, workload, requests_per_second / count, count, None)
    if ttft is None:
        return Expectation(prediction=None, basis="the prefill pool cannot keep up with this rate")
    several = len(decode.instances)
    links, state = decode_behind(manifest, pools, workload)(requests_per_second / several, several)
    if links is None:
        return Expectation(prediction=None, basis="the links that KV crosses cannot keep up with this rate")
    if state is None:
        return Expectation(prediction=None, basis="the decode pool cannot keep up with this rate")
    decoded, each = decoded_of(manifest, workload, offline_of(manifest, requests_per_second))
    queue = decoding_of(decode, decoded).queue(0.0)
    share = queue.busy_share(each * requests_per_second / several) if workload.decodes else 0.0
    room = count * room_prompts(prefill, workload)
    ttft = encode(Crowding.before(state, requests_per_second, room, ttft).delayed(ttft))
    return Expectation(
        prediction=open_prediction(
            ttft=ttft,
            tpot=state.tpot,
            e2e=end_to_end(ttft, online_state(state, workload, decoded), workload),
            requests_per_second=requests_per_second,
            output_tokens=workload.output_tokens.mean,
            limits=manifest.service_levels,
            busy={"decode": share},
            links=links,
        ),
        basis=QUEUED,
    )


def _expect_mixed(
    manifest: Manifest, pool: Pool, workload: Workload, requests_per_second: float, encode: Callable[[Latency], Latency]
) -> Expectation:
    count = len(pool.instances)
    state = pool_mixed(manifest, pool, workload, requests_per_second / count, count, None)
    if state is None:
        return Expectation(prediction=None, basis="the aggregated instances cannot keep up with this rate")
    limits, state = manifest.service_levels, state._replace(ttft=encode(state.ttft), e2e=encode(state.e2e))
    return Expectation(
        prediction=aggregated_prediction(state, requests_per_second, workload.output_tokens.mean, limits), basis=QUEUED
    )


def aggregated_prediction(
    state: AggregatedState, requests_per_second: float, output_tokens: float, limits: ServiceLevels
) -> Prediction:
    """Return the figures of aggregated instances in the keys of a simulation's result."""
    return open_prediction(
        ttft=state.ttft,
        tpot=state.tpot,
        e2e=state.e2e,
        requests_per_second=requests_per_second,
        output_tokens=output_tokens,
        limits=limits,
        busy={},
    )


def mixed_pool(manifest: Manifest) -> Pool | None:
    """Return the pool of aggregated instances; None where there are pools other than it and an encode pool."""
    pools = language_pools(manifest)
    return pools[0] if [pool.role for pool in pools] == ["mixed"] else None


def language_pools(manifest: Manifest) -> list[Pool]:
    """Return the pools that run the language model."""
    return [pool for pool in manifest.pools if pool.role != "encode"]


def pool_encode(
    manifest: Manifest, workload: Workload, requests_per_second: float
) -> Callable[[Latency], Latency] | None:
    """Return a function that adds the encode latency to the latency behind encode, as independent variables.

    Without encode instances it changes nothing; None where they are beyond saturation.
    """
    pool = encode_instances(manifest)
    if pool is None:
        return lambda latency: latency
    count = len(pool.instances)
    latency = encode_latency(manifest, pool, workload, requests_per_second / count, count)
    return latency and partial(independent_sum, latency)


def encode_instances(manifest: Manifest) -> Pool | None:
    """Return the encode pool; None without one."""
    return next((pool for pool in manifest.pools if pool.role == "encode"), None)


def encode_latency(
    manifest: Manifest, pool: Pool, workload: Workload, rate_per_second: float, instances: int
) -> Latency | None:
    """Time of a request in one of so many encode instances until embeddings are sent; None beyond saturation."""
    tokens, crossing = manifest.workload.picture_tokens, manifest.embedding_transfer
    assert crossing is not None, "a manifest with encode instances says how embeddings cross"
    asked = replace(workload, input_tokens=Lengths(mean=tokens), prefix_reuse=0.0, prompts=None, trace=None)
    latency = pool_ttft(manifest, pool, asked, rate_per_second, instances)
    seconds = tokens * crossing.bytes_per_token / crossing.bandwidth_bytes_per_second + crossing.latency_seconds
    return latency and latency.later(seconds)


def pool_mixed(
    manifest: Manifest,
    pool: Pool,
    workload: Workload,
    rate_per_second: float,
    instances: int,
    requests: int | None = MANY,
) -> AggregatedState | None:
    """State of one of so many aggregated instances, at its rate, see ``Player.trial``; None beyond saturation."""
    every = instances if manifest.routing.prefill == "round_robin" else 1
    context, played = manifest.model.spec.max_position, aggregated_pool(manifest, pool, workload=workload)
    player = player_of(played, workload, Limits(percentile=manifest.service_levels.percentile), context)
    return player.state(rate_per_second, every, requests)


def pool_pair(manifest: Manifest) -> tuple[Pool, Pool] | str:
    """Return the prefill and the decode pool, or the reason why there is no such pair."""
    pools = language_pools(manifest)
    roles = sorted(pool.role for pool in pools)
    if roles != ["decode", "prefill"]:
        return f"closed forms are for one prefill and one decode pool or one mixed pool, not for {', '.join(roles)}"
    first, second = sorted(pools, key=lambda pool: pool.role == "decode")
    return first, second


def open_prediction(
    *,
    ttft: Latency,
    tpot: Latency,
    e2e: Latency,
    requests_per_second: float,
    output_tokens: float,
    limits: ServiceLevels,
    busy: dict[Role, float],
    links: LinkState | None = None,
) -> Prediction:
    """Return the figures of a stationary open system in the keys of a simulation's result.

    Attainment takes TTFT and TPOT as independent. Of the busy shares, by role, only decode's has a closed form here.
    """
    attained = attainment(ttft, limits.ttft_seconds) * attainment(tpot, limits.tpot_seconds)
    return Prediction(
        requests_per_second=requests_per_second,
        output_tokens_per_second=requests_per_second * output_tokens,
        ttft_seconds=_statistics(ttft),
        tpot_seconds=_statistics(tpot),
        e2e_seconds=_statistics(e2e),
        slo_attainment=attained,
        goodput_requests_per_second=requests_per_second * attained,
        utilisation=busy,
        mean_transfer_wait_seconds=links.wait_seconds if links else None,
        link_utilisation=links.utilisation if links else None,
    )


def _statistics(latency: Latency) -> Statistics:
    return Statistics(mean=latency.mean, p50=latency.p50, p90=latency.p90, p99=latency.p99)


def attainment(latency: Latency, limit_seconds: float | None) -> float:
    """Return the share of requests within a limit; 1 without one.

    Inverts ``Latency.at``: linear between its levels, exponential beyond the last.
    """
    if limit_seconds is None:
        return 1.0
    if limit_seconds <= latency.seconds[-1]:
        below = float(np.interp(limit_seconds, latency.seconds, latency.levels))
        return below / 100 if limit_seconds >= latency.seconds[0] else 0.0
    last = latency.levels[-1]
    slope = latency.at(100 - (100 - last) / math.e) - latency.seconds[-1]
    beyond = math.exp(-(limit_seconds - latency.seconds[-1]) / slope) if slope > 0 else 0.0
    return 1 - (100 - last) / 100 * beyond


def pool_ttft(
    manifest: Manifest,
    pool: Pool,
    workload: Workload,
    rate_per_second: float,
    instances: int,
    requests: int | None = MANY,
) -> Latency | None:
    """TTFT of one of so many prefill instances, at its rate, see ``Player.trial``; None beyond saturation.

    Policies other than dealing in turn count as random in closed forms, and as least load where they are played.
    """
    dealing, budget = _prefill_dealing(pool, workload), group_budget(pool)
    limits, context = Limits(percentile=manifest.service_levels.percentile), float(manifest.model.spec.max_position)
    offline = offline_of(manifest, rate_per_second * instances)
    beside = OfflineBeside(offline, manifest.service_levels.ttft_seconds or math.inf) if offline else None
    if has_closed_form(workload, _chunks(workload, budget), beside):
        policy: Policy = "round_robin" if manifest.routing.prefill == "round_robin" else "random"
        squared_cv = thinned_squared_cv(workload.arrival_squared_cv, instances, policy)
        return latency_of(pool_passes(pool, workload), rate_per_second, squared_cv)
    together = 1 if manifest.routing.prefill == "round_robin" else instances
    played = PrefillPool(
        times=pass_times(dealing, budget, context),
        ranks=dealing.ranks,
        budget_tokens=budget,
        instances=together,
        policy="least_load" if together > 1 else "round_robin",
        beside=beside,
    )
    player = PlayedPrefill.of(played, workload, limits, context)
    rate = rate_per_second * together
    return player.trial(rate, instances // together, requests).ttft if rate < player.saturation_per_second else None


def pool_passes(pool: Pool, workload: Workload) -> Passes:
    """Return the pass times of an instance of a prefill pool with prompts of mean length."""
    prompt, budget = workload.input_tokens.mean, group_budget(pool)
    most = max(int(budget / prompt * (1 + 1e-9)), 1) * pool.degrees.attention_dp
    return mean_passes(_prefill_dealing(pool, workload), most, _chunks(workload, budget))


def _prefill_dealing(pool: Pool, workload: Workload) -> Dealing:
    cost = pool.step_costs["prefill"].to_step_cost()
    return Dealing(cost, workload, pool.degrees.attention_dp, pool.microbatches)


def _chunks(workload: Workload, budget_tokens: int) -> int:
    return max(math.ceil(workload.input_tokens.mean / budget_tokens * (1 - 1e-9)), 1)


def _links_of(manifest: Manifest, pools: tuple[Pool, Pool]) -> KvLinks:
    """Return the KV links from prefill to decode."""
    kv = manifest.kv_transfer
    assert kv is not None, "a manifest with prefill and decode pools has links"
    first, second = (
        LinkSide(len(each.instances) * each.degrees.attention_groups, each.degrees.attention_tp * each.degrees.pp)
        for each in pools
    )
    cache = Cache(
        token_bytes=kv.bytes_per_token,
        reach_tokens=kv.reach_tokens,
        reach_share=kv.reach_share,
        sequence_bytes=kv.sequence_tokens * kv.bytes_per_token,
    )
    return KvLinks(first, second, kv.bandwidth_bytes_per_second, kv.latency_seconds, cache)


def room_prompts(prefill: Pool, workload: Workload) -> float:
    """Return the number of mean prompts whose KV one prefill instance holds."""
    return prefill.degrees.attention_dp * prefill.kv.capacity_tokens_per_rank // workload.input_tokens.mean


def offline_of(manifest: Manifest, requests_per_second: float) -> Offline | None:
    """Return the offline requests of a manifest, which keep their rate, beside so many others."""
    own = manifest.workload.offline
    if own is None:
        return None
    each = own.requests_per_second / requests_per_second
    return Offline(per_request=each, input_tokens=own.input_tokens, output_tokens=own.output_tokens)


def decoded_of(manifest: Manifest, workload: Workload, offline: Offline | None) -> tuple[Workload, float]:
    """Return the traffic of decode instances, as ``Question.decoded`` is, and its requests for each online one."""
    online = with_answers(workload, float(manifest.model.spec.max_position))
    return (offline.beside(online), 1.0 + offline.per_request) if offline else (online, 1.0)


def decoding_of(pool: Pool, workload: Workload) -> Decoding:
    """Return the iteration cost and queue of an instance of a decode pool under a workload."""
    return Decoding(
        cost=pool.step_costs["decode"].to_step_cost(),
        workload=workload,
        ranks=pool.degrees.attention_groups,
        slots=pool.limits.requests_per_dp_rank,
        microbatches=pool.microbatches,
        drafts=pool.mtp.drafts,
        acceptance=pool.mtp.acceptance,
    )


def decode_behind(
    manifest: Manifest, pools: tuple[Pool, Pool], workload: Workload
) -> Callable[..., tuple[LinkState | None, DecodeState | None]]:
    """Return the KV links and one of so many decode instances at the rate of one; each None beyond saturation.

    Those that are played are as their router fills them.
    """
    (prefill, decode), links = pools, _links_of(manifest, pools)
    context = float(manifest.model.spec.max_position)
    source = Source(pool_passes(prefill, workload), len(prefill.instances))

    @lru_cache(maxsize=8)
    def side(offline: Offline | None) -> tuple[Workload, float, Sink]:
        decoded, each = decoded_of(manifest, workload, offline)
        return decoded, each, Sink(decoding_of(decode, decoded).queue(0.0), len(decode.instances))

    handover = None
    if manifest.workload.offline is None:
        played = partial(separate_pools, manifest, pools, workload=workload)
        handover = Handover.of(played, workload, source, side(None)[-1], context)

    def behind(
        rate_per_second: float, instances: int, requests: int = MANY
    ) -> tuple[LinkState | None, DecodeState | None]:
        online_rate = rate_per_second * instances
        decoded, each, sink = side(offline_of(manifest, online_rate))
        rate = each * online_rate
        wait_seconds = partial(mean_wait, links, rate, decoded, source, sink)
        if handover is not None:
            wait_seconds = partial(handover.link_wait_seconds, rate_per_second, instances, requests)
        crossed = link_state(links, rate, decoded, wait_seconds)
        if crossed is None:
            return None, None
        if not workload.decodes:
            return crossed, DecodeState.idle(rate_per_second)
        if handover is not None:
            return crossed, handover.state(rate_per_second, instances, requests)
        alike = 1 if manifest.routing.decode == "round_robin" else instances  # that share one balanced queue
        return crossed, sink.queue.after(crossed.seconds).state(each * rate_per_second, alike)

    return behind


def planned_rate(manifest: Manifest) -> float:
    """Return the planned rate of a manifest. Raises BadInput where it states none."""
    rate = manifest.workload.requests_per_second
    if rate is None:
        raise BadInput("--rate: the manifest's workload states no requests_per_second; give a rate or a concurrency")
    return rate
