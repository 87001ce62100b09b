"""Prompts that wait for a pass because those that wait for a place in decode hold the KV of prefill."""

from typing import NamedTuple, Self

import numpy as np

from planner.closed_forms.birth_death import DecodeState
from planner.serving.latency import Latency, cells

_LEAST = 1e-4


class Crowding(NamedTuple):
    """Who finds prefill full, and for how long it stays so."""

    share: float
    """Of prompts."""
    seconds: float
    """Mean of those; exponential, as what of the line is longer than the room."""

    @classmethod
    def before(cls, decode: DecodeState, rate_per_second: float, room_prompts: float, ttft: Latency) -> Self:
        """Return what the line before decode does to prefill, which holds so many prompts in all.

        The line is geometric past the places of decode, of ratio L / (1 + L) with L the mean of one that is not empty.
        Prompts in passes, by Little's law no more than the rate times TTFT, take room, too. Too few to move what a
        ``Latency`` tells are none.
        """
        waiting = decode.waiting_probability
        seconds = decode.mean_wait_seconds / waiting if waiting else 0.0
        line = rate_per_second * seconds
        share = waiting * (line / (1 + line)) ** max(room_prompts - rate_per_second * ttft.mean, 0.0)
        return cls(share if share > _LEAST else 0.0, seconds)

    def delayed(self, ttft: Latency) -> Latency:
        """Return TTFT with what those wait who find prefill full."""
        if not self.share:
            return ttft
        levels, masses = cells()
        own = np.array([ttft.at(float(level)) for level in levels])
        late = own[:, None] - self.seconds * np.log1p(-levels / 100)[None, :]
        seconds = np.concatenate([own, late.ravel()])
        both = np.concatenate([masses * (1 - self.share), np.outer(masses, masses).ravel() * self.share / 100])
        order = np.argsort(seconds, kind="stable")
        return Latency.from_masses(seconds[order], both[order], ttft.mean + self.share * self.seconds)
