"""Requests of a trace that a model has no positions for: engines refuse them, so plans and runs leave them out."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from ground.errors import BadInput
from ground.traces import Trace, select


def fitting(trace: Trace, positions: int, model: str) -> Trace:
    """Return the requests whose prompt and answer fit a model's positions, the others counted in a note.

    An engine answers a request with an error where prompt and asked tokens exceed its longest sequence (vLLM's
    ``--max-model-len``, SGLang's ``--context-length``), which no larger than the positions can be.

    Raises BadInput where none fits.
    """
    lengths = trace.input_tokens + trace.output_tokens
    kept = np.flatnonzero(lengths <= positions)
    if kept.size == len(trace):
        return trace
    if not kept.size:
        raise BadInput(
            f"--trace: all {len(trace)} requests of {trace.name} are longer than the {positions} positions of {model} "
            f"(the shortest has {int(lengths.min())} tokens); use a model that takes them"
        )
    told = (
        f"{len(trace) - kept.size} of {len(trace)} requests of {trace.name} are longer than the {positions} positions "
        f"of {model} (the longest has {int(lengths.max())} tokens) and left out, for engines refuse them"
    )
    return replace(select(trace, kept), left_out=len(trace) - kept.size, notes=(*trace.notes, told))


def fitting_parts(parts: Iterable[Trace], positions: int) -> Iterator[Trace]:
    """Yield the requests of each part that fit a model's positions, with their original stamps."""
    for part in parts:
        kept = np.flatnonzero(part.input_tokens + part.output_tokens <= positions)
        if kept.size:
            yield replace(select(part, kept), arrival_seconds=part.arrival_seconds[kept])
