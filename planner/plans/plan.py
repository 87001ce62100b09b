"""A plan at its operating point: its pools, their instances, and their latencies, cost and power together."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from ground.records import Sourced
from ground.units import carried_rate, format_duration
from hardware.spec import HardwareSpec
from planner.closed_forms.birth_death import Crowding
from planner.instances.alignment import Places
from planner.instances.encoding import apart
from planner.instances.kv_links import MOST_LINK_UTILISATION, LinkState
from planner.instances.operating import DecodeServer, PrefillServer
from planner.instances.space import Role
from planner.objective import SLACK
from planner.plans.handover import both_played, fed, state_of_links
from planner.plans.places import lost_of, nodes_of, paid_devices, places_of
from planner.plans.pools import (
    WHY_BATCH,
    Leaving,
    PlannedDecode,
    PlannedEncode,
    PlannedPool,
    PlannedPrefill,
    decode_pool_of,
    encode_pool,
    end_to_end,
    leaving,
    limit_of,
    online_state,
    prefill_pool_of,
)
from planner.question import Loss, Machines, Question
from planner.serving.latency import Latency, independent_sum
from planner.serving.played import MANY, Played
from planner.serving.prefill import play_prefill


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """Pools that serve ``requests_per_second`` within the limits, in one of the shapes below."""

    question: Question
    requests_per_second: float
    ttft: Latency
    tpot: Latency
    played: Played | None = None  # sample and intervals of the latencies, where an instance was played
    crowded_share: float = 0.0
    """Share of prompts that wait for a pass because prompts that wait for decode fill the KV memory of prefill."""
    encode: PlannedEncode | None = None
    """Encode instances before prefill; None where prefill or aggregated instances encode pictures."""
    paid_share: float = 1.0  # price that it bears over that of its nodes; less where other models stand on them

    def pools(self) -> tuple[tuple[Role, PlannedPool], ...]:
        """Return the pools with their roles, in the order in which a request passes them."""
        return (("encode", self.encode), *self.language_pools()) if self.encode else self.language_pools()

    @abstractmethod
    def language_pools(self) -> tuple[tuple[Role, PlannedPool], ...]:
        """Return the pools that run the language model with their roles, prefill first."""

    @property
    @abstractmethod
    def e2e(self) -> Latency:
        """Time from scheduled arrival to the last token."""

    @property
    def transfer_seconds(self) -> float:
        """Mean seconds to send a prompt's KV from prefill to decode."""
        return 0.0

    @property
    def excess(self) -> float:
        """TPOT at the percentile over its limit; KV transfers may bring it above 1."""
        return self.tpot.at(self.question.percentile) / self.question.tpot_seconds

    @property
    def binding_limit(self) -> str:
        """The asked rate; else the devices and what keeps them from a higher rate, or from being quicker."""
        if self.question.sized_for is None:
            return self.reached_limit
        return "devices" if self.question.goal.timed else "rate"

    @property
    @abstractmethod
    def reached_limit(self) -> str:
        """The devices, or given instances, and the limit that they reach."""

    @property
    def encode_text(self) -> str:
        """A sentence on the rate of encode instances; empty where there are none."""
        pool = self.encode
        if pool is None:
            return ""
        part = self.question.encode_share
        return (
            f"Encode instances carry {carried_rate(pool.capacity_per_second)} within {part:.0%} of the TTFT limit, "
            f"what follows has the rest; a pass of theirs is bound by {pool.prediction.bottleneck}. "
        )

    @property
    @abstractmethod
    def explanation(self) -> str:
        """The binding limit in one sentence, with its numbers."""

    def under(
        self, question: Question, share: float = 1.0, requests: int | None = MANY
    ) -> Callable[[float], "Plan | None"]:
        """Return the plan of the same pools under a question as a function of the rate; None beyond saturation.

        The pools' known capacities are ``share`` times those under the question; ``requests``: see ``Player.trial``.
        """
        pool = self.encode
        if pool is None:
            return self.language_under(question, share, requests)
        asked = apart(question, self.question.encode_share)
        rest, server = self.language_under(asked, share, requests), pool.server(asked)

        def at(rate_per_second: float) -> "Plan | None":
            plan = rest(rate_per_second)
            return plan and plan.encoded(server, pool.instances, pool.capacity_per_second / pool.instances / share)

        return at

    def encoded(self, server: PrefillServer, instances: int, capacity_of_each: float) -> "Plan | None":
        """Return the plan behind so many encode instances; None where its rate is beyond their saturation."""
        pool = encode_pool(self.question, (server, instances, capacity_of_each), self.requests_per_second)
        return None if pool is None else self.behind(pool, leaving(self.question, pool, self.requests_per_second))

    @abstractmethod
    def behind(self, encode: PlannedEncode, requests: Leaving) -> "Plan":
        """Return the plan behind an encode pool, with latencies from the arrival at encode on."""

    @abstractmethod
    def language_under(
        self, question: Question, share: float = 1.0, requests: int | None = MANY
    ) -> Callable[[float], "Plan | None"]:
        """Return ``under`` for the pools that run the language model."""

    @property
    def answering(self) -> PlannedPool:
        """The pool that generates the tokens after the first."""
        return self.pools()[-1][1]

    @property
    def devices(self) -> int:
        """Devices of all instances."""
        return sum(pool.devices for _, pool in self.pools())

    @property
    def chips(self) -> float:
        """Chips of all instances."""
        return sum(pool.chips for _, pool in self.pools())

    @property
    def spread(self) -> bool:
        """Whether instances below a node are spread over nodes, because the plan is to survive the loss of one."""
        smaller = (pool.candidate.devices < pool.machines.devices_per_node for _, pool in self.pools())
        return self.question.spread and any(smaller)

    @cached_property
    def places(self) -> Places:
        """The first device of every instance, by role, where no other plan shares the machines."""
        return places_of(self.pools(), spread=self.spread)

    def lost(self, loss: Loss | None) -> dict[Role, int]:
        """Return the most instances of each pool that a loss takes."""
        return lost_of(self.pools(), self.places if loss == "node" and self.spread else {}, loss)

    @property
    def occupied(self) -> list[tuple[Machines, int]]:
        """Devices of all instances, by machine; of spread ones those of their nodes."""
        return occupied([self])

    @property
    def nodes(self) -> int:
        """Nodes that the instances occupy, filled node by node."""
        return sum(machines.nodes_of(devices) for machines, devices in self.occupied)

    @property
    def output_tokens_per_second(self) -> float:
        """Output tokens of all requests."""
        return self.requests_per_second * self.question.workload.output_tokens.mean

    @property
    def offline_per_second(self) -> float:
        """Offline requests beside the others."""
        return self.requests_per_second * (self.question.requests_each - 1.0)

    @property
    def offline_output_tokens_per_second(self) -> float:
        """Output tokens of offline requests."""
        offline = self.question.offline
        return self.offline_per_second * offline.output_tokens if offline else 0.0

    @property
    def e2e_mean_seconds(self) -> float:
        """Mean time from scheduled arrival to the last token."""
        return self.e2e.mean

    @property
    def paid_chips(self) -> float:
        """Chips that are paid for: those of whole nodes."""
        paid = (paid_devices(machines, devices) / machines.devices_per_chip for machines, devices in self.occupied)
        return self.paid_share * sum(paid)

    @property
    def cost_per_hour(self) -> float | None:
        """Price of the nodes in USD per hour; None where a pool's chip has no price."""
        return (cost := cost_of([self])) and self.paid_share * cost

    @property
    def power_watts(self) -> float | None:
        """Power of all chips with host, network and cooling; None where a pool's machine states none."""
        return self._of_chips(lambda hardware: hardware.power_watts_per_chip)

    @property
    def chip_power_watts(self) -> float | None:
        """Design power of the chips alone; None where a pool's machine states none."""
        return self._of_chips(lambda hardware: hardware.chip_power_watts)

    def _of_chips(self, figure: Callable[[HardwareSpec], Sourced | None]) -> float | None:
        """Return a figure per chip times the chips, over all pools; None where one does not state it."""
        total = 0.0
        for _, pool in self.pools():
            stated = figure(pool.machines.hardware)
            if stated is None:
                return None
            total += stated.value * pool.chips
        return total

    @property
    def joules_per_million_tokens(self) -> float | None:
        """Energy per million output tokens at the full stated power, busy or not; None where there is none."""
        return (watts := self.power_watts) and watts / self.output_tokens_per_second * 1_000_000

    @property
    def cost_per_million_tokens(self) -> float | None:
        """Price of the nodes in USD per million output tokens; None where a pool's chip has no price."""
        return (hourly := self.cost_per_hour) and hourly / (self.output_tokens_per_second * 3600) * 1_000_000


def occupied(plans: Iterable[Plan]) -> list[tuple[Machines, int]]:
    """Return the devices that plans take, by machine; of spread instances those of their nodes."""
    used: dict[str, tuple[Machines, int]] = {}
    for plan in plans:
        for _, pool in plan.pools():
            machines, devices = used.get(pool.machines.budget, (pool.machines, 0))
            used[machines.budget] = machines, devices + pool.devices
        for budget, nodes in nodes_of(plan.pools(), plan.places).items() if plan.spread else ():
            machines, devices = used[budget]
            used[budget] = machines, max(devices, len(nodes) * machines.devices_per_node)
    return list(used.values())


def cost_of(plans: Iterable[Plan]) -> float | None:
    """Return the price of the paid devices of plans in USD per hour; None where a chip has no price."""
    taken = occupied(plans)
    if any(machines.hardware.price_usd_per_chip_hour is None for machines, _ in taken):
        return None
    return sum(paid_devices(machines, devices) * machines.device_cost for machines, devices in taken)


@dataclass(frozen=True, kw_only=True)
class DisaggregatedPlan(Plan):
    """A prefill pool and a decode pool, with KV transfer between them."""

    prefill: PlannedPrefill
    decode: PlannedDecode
    links: LinkState  # transfer and waiting times of the KV links

    def language_pools(self) -> tuple[tuple[Role, PlannedPool], ...]:
        """Return the pools with their roles, prefill first."""
        return ("prefill", self.prefill), ("decode", self.decode)

    @property
    def transfer_seconds(self) -> float:  # noqa: D102
        return self.links.seconds

    @cached_property
    def handed_over(self) -> bool:
        """Whether decode was played behind its prefill instances, as answers are short."""
        return self.decoder(self.question).handover is not None

    @property
    def reached_limit(self) -> str:
        """The limit of the tighter pool, and the devices."""
        question, prefill, decode = self.question, self.prefill, self.decode
        pools: list[PlannedDecode | PlannedPrefill] = [decode, prefill, *([self.encode] if self.encode else [])]
        tighter = min(pools, key=lambda pool: pool.capacity_per_second)
        held = "devices" if question.pin(tighter.role).instances is None else "instances"
        return f"{held}, {tighter.role} {tighter.limit}"

    @property
    def explanation(self) -> str:
        """Sentences on the rate of each pool and its limit."""
        prefill, decode, links, binding = self.prefill, self.decode, self.links, self.binding_limit
        spares = ", spare instances included" if self.question.survive else ""
        if binding.endswith("kv_links"):
            carried = links.most_per_second
            return (
                f"The links that KV crosses are {max(links.utilisation.values()):.0%} busy: that of a prompt takes "
                f"{format_duration(links.transfer_seconds)} and waits {format_duration(links.wait_seconds)}, and at "
                f"{MOST_LINK_UTILISATION:.0%} they carry {carried['prefill']:.4g} (prefill) and "
                f"{carried['decode']:.4g} (decode) requests/s."
            )
        saturated = ""
        if binding.endswith("utilisation"):
            role, most = binding.split()[-2].capitalize(), prefill.question.most_utilisation
            saturated = f" {role} runs at {most:.3g} of saturation, the most that is planned with (--max-utilisation)."
        batch, why = decode.candidate.batch, WHY_BATCH[decode.candidate.limited_by]
        short = " Answers last less than ten prefill passes, so decode is played behind prefill." * self.handed_over
        return (
            f"{self.encode_text}The prefill pool carries {carried_rate(prefill.capacity_per_second)}, the decode pool "
            f"{carried_rate(decode.capacity_per_second)}{spares}."
            f"{saturated} Decode runs {batch} requests per DP rank, {why}. A decode step is bound by "
            f"{decode.prediction.bottleneck}, a prefill pass by {prefill.prediction.bottleneck}.{short}"
        )

    @property
    def excess(self) -> float:
        """TPOT over its limit or, where that is larger and prefill memory fills up, TTFT over its limit."""
        if not (self.crowded_share or self.encode):
            return self.tpot_excess
        return max(self.tpot_excess, self.ttft.at(self.question.percentile) / self.question.ttft_seconds)

    @property
    def tpot_excess(self) -> float:
        """TPOT over its limit; above 1 beyond the rate that decode played behind prefill carries, for TPOT scatters."""
        rate, carried = self.requests_per_second, self.decode.capacity_per_second
        late = self.handed_over and rate > carried * (1 + SLACK)
        return max(super().excess, rate / carried if carried else math.inf) if late else super().excess

    @cached_property
    def e2e(self) -> Latency:
        """Sum of TTFT and the time in decode, where offline answers may be of other lengths."""
        question = self.question
        state = online_state(self.decode.state, question.workload, question.decoded)
        return end_to_end(self.ttft, state, question.workload)

    def behind(self, encode: PlannedEncode, requests: Leaving) -> "DisaggregatedPlan":
        """Return the plan behind an encode pool; where prefill memory fills up, waits count as independent."""
        if self.crowded_share:
            return replace(self, encode=encode, ttft=independent_sum(encode.latency, self.ttft))
        times = self.question.stretch_of("prefill")
        pool = replace(self.prefill.server(self.question).pool, instances=self.prefill.instances)
        stream = requests.stream.at_rate(times)
        waits = play_prefill(pool, stream).first_token_seconds - stream.arrival_seconds
        took = times * waits + requests.encode_seconds
        return replace(self, encode=encode, ttft=Latency.from_samples(took[stream.counting]))

    def resized(self, prefill: int, decode: int) -> "DisaggregatedPlan | None":
        """Return the plan with other numbers of instances, which must carry its rate; None beyond saturation."""
        rate, (first, second) = self.requests_per_second, self._served(self.question)
        return make_plan(
            self.question,
            (first[0], prefill, max(first[2], rate / prefill)),
            (second[0], decode, max(second[2], rate / decode)),
            rate,
            limits=(self.prefill.limit, self.decode.limit),
        )

    def language_under(
        self, question: Question, share: float = 1.0, requests: int | None = MANY
    ) -> Callable[[float], "DisaggregatedPlan | None"]:
        """Return the plan of both pools under a question as a function of the rate; None beyond saturation."""
        pools, limits = self._served(question, share), (self.prefill.limit, self.decode.limit)
        return lambda rate: make_plan(question, *pools, rate, limits=limits, requests=requests)

    def decoder(self, question: Question) -> DecodeServer:
        """Return the server of one decode instance under a question, behind the plan's transfers."""
        server = DecodeServer(question, self.decode.candidate, self.transfer_seconds)
        return fed(question, ((self.prefill.server(question), self.prefill.instances), (server, self.decode.instances)))

    def _served(
        self, question: Question, share: float = 1.0
    ) -> tuple[tuple[PrefillServer, int, float], tuple[DecodeServer, int, float]]:
        """Return (server, instances, capacity of one over ``share``) of both pools under a question."""
        prefill, decode = self.prefill, self.decode
        return (
            (prefill.server(question), prefill.instances, prefill.capacity_per_second / prefill.instances / share),
            (self.decoder(question), decode.instances, decode.capacity_per_second / decode.instances / share),
        )


def make_plan(
    question: Question,
    prefill: tuple[PrefillServer, int, float],
    decode: tuple[DecodeServer, int, float],
    rate_per_second: float,
    *,
    limits: tuple[str, str] | None = None,
    requests: int | None = MANY,
) -> DisaggregatedPlan | None:
    """Return the plan of (server, instances, rate of one instance) per role at a rate; None beyond saturation.

    Where a role's steps take f times what is predicted, its clock is slower by f and its rate on that clock f times as
    high, transfers included. ``limits`` of the rates of instances, where known; ``requests``: see ``Player.trial``.
    """
    (first, first_count, first_rate), (second, second_count, second_rate) = prefill, decode
    times, slower = question.stretch_of("prefill"), question.stretch_of("decode")
    each, own = times * rate_per_second / first_count, slower * rate_per_second / second_count
    if first.ttft(each, first_count) is None:
        return None
    second = fed(question, ((first, first_count), (second, second_count)))
    requests = requests or second.lasting(own, second_count, first.lasting(each, first_count))
    ttft = first.ttft(each, first_count, requests)
    links = state_of_links(question, ((first, first_count), (second, second_count)), slower * rate_per_second, requests)
    if ttft is None or links is None:
        return None
    second = second.after(links.seconds)
    state = second.state(own, second_count, requests)
    if state is None:
        return None
    known = replace(second, question=question.on_clock("decode")).played(slower * second_rate, second_count)
    if second.handover is not None:
        second_rate = known.rate_per_second / slower if known else 0.0
    linked = {role: links.most_per_second.get(role, math.inf) for role in links.utilisation}
    limits = limits or (
        limit_of(first, times * first_rate, linked["prefill"] / first_count),
        limit_of(second, slower * second_rate, linked["decode"] / second_count),
    )
    if question.stretch:
        ttft, state = ttft.scaled(times), state.scaled(slower)
    prefill_pool = prefill_pool_of(question, prefill, rate_per_second, limits[0])
    decode_pool = decode_pool_of(question, (second, second_count, second_rate), state, limits[1])
    crowding = Crowding.before(state, rate_per_second, first_count * prefill_pool.room_prompts, ttft)
    played = None
    if not question.stretch:  # else told once the plan is restated as predicted
        if first.player is not None:
            played = first.player.told(each, first_count, (first_rate, second_count * second_rate), requests)
        if known is not None:
            told = rate_per_second, ttft.at(question.percentile), prefill_pool.capacity_per_second
            played = both_played(played, (known, second_count), told, requests)
    return DisaggregatedPlan(
        question=question,
        prefill=prefill_pool,
        decode=decode_pool,
        requests_per_second=rate_per_second,
        ttft=crowding.delayed(ttft),
        tpot=state.tpot,
        links=links,
        crowded_share=crowding.share,
        played=played,
    )
