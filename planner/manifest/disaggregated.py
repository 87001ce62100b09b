"""How attention domains and one pool of expert devices share the time of a layer (attention-expert disaggregation).

Attention devices form ``domains`` that talk to the expert devices one after the other; inside a
domain the microbatches alternate (xDeepServe section 5.2, arXiv 2508.02520).
"""

from typing import NamedTuple

from planner.manifest.terms import Number, larger


class Passage(NamedTuple):
    """Seconds of one microbatch of one domain in one layer.

    ``attention`` on the attention devices, gate and the send to the trampolines included;
    ``dispatch`` (A2E), ``experts`` and ``combine`` (E2A) on the expert devices.
    """

    attention: Number
    dispatch: Number
    experts: Number
    combine: Number

    @property
    def away(self) -> Number:
        """Seconds for which the microbatch is with the experts."""
        return self.dispatch + self.experts + self.combine

    @property
    def occupied(self) -> Number:
        """Seconds until the expert devices can take the next microbatch.

        They run three persistent kernels (receive, compute, send), so the longest of them sets the pace.
        """
        return larger(larger(self.dispatch, self.experts), self.combine)


def layer_bounds(passage: Passage, domains: Number, microbatches: int) -> tuple[Number, Number, Number]:
    """Return what a layer of all microbatches takes at least: attention devices, expert devices, one round trip.

    Attention computes ``microbatches`` in turn; the experts serve those of every domain in turn; a
    microbatch cannot start a layer before it is back from the one before.
    """
    return (
        microbatches * passage.attention,
        domains * microbatches * passage.occupied,
        passage.attention + passage.away,
    )


def layer_seconds(passage: Passage, domains: Number, microbatches: int) -> Number:
    """Return the seconds of a layer of all microbatches: the largest of its bounds.

    >>> published = Passage(attention=700e-6, dispatch=172e-6, experts=120e-6, combine=193e-6)
    >>> round(layer_seconds(published, domains=3, microbatches=2) * 1e6)
    1400
    """
    attention, experts, trip = layer_bounds(passage, domains, microbatches)
    return larger(larger(attention, experts), trip)


def drain_seconds(passage: Passage, layer: Number, microbatches: int) -> Number:
    """Return what the last microbatch takes beyond the last layer, which nothing overlaps (xDeepServe section 7.1).

    In the layer that attention binds it is one A2E, experts, E2A.
    """
    return larger(microbatches * passage.attention + passage.away - layer, 0.0)
