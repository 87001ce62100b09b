"""KV from prefill to decode: the links of both sides as servers of their own.

A transfer takes as many links as the narrower of the two attention groups has devices, all of them together; so a
group of n devices sends or pulls n // links prompts at once over its channels (CloudMatrix384 section 4.3.3 maps decode
ranks to them). Each side works off its transfers first come, first served, and KV is there when both have:

    wait of a side = rho/(1 - rho) (ca² + c²)/2 s,   and (n - 1)/2 · s/channels behind prompts of the same pass

with s the transfer of one prompt, c² its squared CV, rho the load of a channel, n the group's prompts of a pass.
Prompts come out of a busy prefill instance more evenly than they went in, which a link with little load sees (ca² of
departures), and no more evenly over long times, which a loaded one sees (ca² of arrivals): ca² is mixed by rho². The
decode side is served about in turn, which divides ca² = 1 by its channels. The waits of both sides are added.

Ref: J. F. C. Kingman 1961; departures: W. Whitt, The Queueing Network Analyzer, Bell Syst. Tech. J. 62:2779, 1983,
Eq. (38); what a loaded server sees: S. Suresh and W. Whitt, The heavy-traffic bottleneck phenomenon in open queueing
networks, Oper. Res. Letters 9:355, 1990; a batch's own part: M. L. Chaudhry and J. G. C. Templeton, A First Course in
Bulk Queues, 1983, section 3.2. The mix and the sum are ours; docs/queueing.md has their error.
"""

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from planner.costs.cache import Cache
from planner.serving.closed_forms.waits import kingman_wait
from planner.serving.latency import Array
from planner.serving.prompts import Prompts

if TYPE_CHECKING:  # a plan needs links and no manifest, whose schema takes time to build
    from planner.manifest.schema import KvTransfer, Pool, Role

MOST_LINK_UTILISATION = 0.8
"""Of a side's links that a plan may count on: twice a transfer is waited for there, and soon much more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSide:
    """One role's links: attention groups of all its instances, and how many devices each has, with a link each."""

    groups: int
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLinks:
    """The links between two pools."""

    prefill: LinkSide
    decode: LinkSide
    link_bytes_per_second: float
    """Of one link, one way."""
    latency_seconds: float
    cache: Cache
    """Of the whole model, each layer once."""

    @classmethod
    def between(cls, kv: "KvTransfer", prefill: "Pool", decode: "Pool") -> Self:
        """Return the links of a manifest."""
        sides = [
            LinkSide(
                groups=len(pool.instances) * pool.degrees.attention_groups,
                devices=pool.degrees.attention_tp * pool.degrees.pp,
            )
            for pool in (prefill, decode)
        ]
        cache = Cache(
            token_bytes=kv.bytes_per_token,
            reach_tokens=kv.reach_tokens,
            reach_share=kv.reach_share,
            sequence_bytes=kv.sequence_tokens * kv.bytes_per_token,
        )
        return cls(
            prefill=sides[0],
            decode=sides[1],
            link_bytes_per_second=kv.bandwidth_bytes_per_second,
            latency_seconds=kv.latency_seconds,
            cache=cache,
        )

    @property
    def width(self) -> int:
        """Links of one transfer."""
        return min(self.prefill.devices, self.decode.devices)

    def channels(self, side: LinkSide) -> int:
        """Transfers that a group of a side has at once."""
        return side.devices // self.width

    def servers(self, side: LinkSide) -> float:
        """Transfers that all groups of a side have at once."""
        return side.groups * side.devices / self.width

    @property
    def sides(self) -> "tuple[tuple[Role, LinkSide], tuple[Role, LinkSide]]":
        """Both sides with their roles."""
        return ("prefill", self.prefill), ("decode", self.decode)

    def held_seconds(self, prompt_tokens: Array) -> Array:
        """Seconds for which prompts of so many tokens keep their links, [prompts]."""
        rate = self.width * self.link_bytes_per_second
        return np.asarray(self.cache.bytes(prompt_tokens, 1.0) / rate, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """Links at a rate: means over prompts."""

    transfer_seconds: float
    """Of a transfer alone, with its latency."""
    wait_seconds: float
    """Until its links are free on both sides."""
    utilisation: "dict[Role, float]"
    """Share of time in which a link of each role carries KV."""
    most_per_second: "dict[Role, float]"
    """Requests that the links of each role carry at ``MOST_LINK_UTILISATION``."""
    sent_bytes: float
    """Of one prompt."""
    width: int
    """Links of one transfer."""
    link_bytes_per_second: float

    @property
    def seconds(self) -> float:
        """From the first token until the KV is there."""
        return self.transfer_seconds + self.wait_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Departures:
    """How prompts leave prefill at one attention group; 1 counts gaps as Poisson."""

    arrival_squared_cv: float = 1.0
    """Of the gaps between the group's prompts as they come."""
    gap_squared_cv: float = 1.0
    """Of the gaps as they leave."""
    together: float = 1.0
    """Prompts that end in the same pass, as a prompt sees it."""


def departures(arrival_squared_cv: float, service_squared_cv: float, utilisation: float, groups: int) -> Departures:
    """How prompts leave each of the groups of an instance that deals them out, one by one.

    1 + (1 - u²)(ca² - 1) + u²(cs² - 1) of the instance, over its groups.

    Ref: Whitt 1983, Eq. (38) for one server; P. J. Burke 1956 for M/M/1, where it is exact.
    """
    share = utilisation**2
    squared_cv = 1 + (1 - share) * (arrival_squared_cv - 1) + share * (service_squared_cv - 1)
    return Departures(arrival_squared_cv=arrival_squared_cv / groups, gap_squared_cv=squared_cv / groups)


def link_state(links: KvLinks, rate_per_second: float, prompts: Prompts, leave: Departures) -> LinkState | None:
    """Return transfer and wait at a rate of requests; None where a side's links cannot keep up."""
    held = links.held_seconds(prompts.tokens)
    mean = float(held @ prompts.weights)
    squared_cv = float((held - mean) ** 2 @ prompts.weights) / mean**2 if mean else 0.0
    servers = {role: links.servers(side) for role, side in links.sides}
    loads = {role: rate_per_second * mean / count for role, count in servers.items()}
    if max(loads.values()) >= 1:
        return None
    loaded = loads["prefill"] ** 2
    gaps = {
        "prefill": (1 - loaded) * leave.gap_squared_cv + loaded * leave.arrival_squared_cv,
        "decode": 1 / servers["decode"],
    }
    wait = max(leave.together - 1, 0.0) / 2 * mean / links.channels(links.prefill)
    for role, count in servers.items():
        wait += kingman_wait(rate_per_second / count, mean, gaps[role], squared_cv)
    return LinkState(
        transfer_seconds=mean + links.latency_seconds,
        wait_seconds=wait,
        utilisation=loads,
        most_per_second={role: MOST_LINK_UTILISATION * count / mean for role, count in servers.items()},
        sent_bytes=mean * links.width * links.link_bytes_per_second,
        width=links.width,
        link_bytes_per_second=links.link_bytes_per_second,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """Transfers of a recorded stream, [requests]."""

    there_seconds: Array
    """When the KV is there."""
    wait_seconds: Array
    """Until its links were free on both sides."""
    utilisation: "dict[Role, float]"
    """Share of the time up to the last transfer in which a link of each role carries KV."""


def pulled(links: KvLinks, ready_seconds: Array, origin: Array, prompt_tokens: Array) -> Pulled:
    """Return when the KV of every request of a recorded stream is there; there may be none.

    Each side works off its transfers first come, first served.

    Args:
        ready_seconds: [requests], when each prompt's KV is complete.
        origin: [requests], the attention group of the prefill pool that holds it.
        prompt_tokens: [requests], lengths, reused tokens included.
    """
    held = links.held_seconds(prompt_tokens)
    sources = [[0.0] * links.channels(links.prefill) for _ in range(links.prefill.groups)]
    targets = [0.0] * (links.decode.groups * links.channels(links.decode))
    begun = np.zeros(held.size)
    order = np.argsort(ready_seconds, kind="stable")
    rows = zip(order.tolist(), ready_seconds[order].tolist(), held[order].tolist(), origin[order].tolist(), strict=True)
    for request, ready, seconds, group in rows:
        source = sources[group]
        # Placement goes to the rank with least KV, which is about the one whose turn is longest ago.
        sends, gets = max(ready, source[0]), max(ready, targets[0])
        heapq.heapreplace(source, sends + seconds)
        heapq.heapreplace(targets, gets + seconds)
        begun[request] = max(sends, gets)
    end = float((begun + held).max(initial=0.0))
    return Pulled(
        there_seconds=begun + held + links.latency_seconds,
        wait_seconds=begun - ready_seconds,
        utilisation={
            role: float(held.sum()) / (links.servers(side) * end) if end else 0.0 for role, side in links.sides
        },
    )
