"""What engines and their hosts add to the devices' time, by version: `behaviour.yaml`; how they schedule stands in
their profiles.

A gap between steps that only a profile states is taken from there; systems that were measured but have no profile
stand here, with the source of each figure. None of them depends on the model.
"""

import re
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from ground.errors import BadInput
from ground.files import read_yaml
from ground.records import Sourced, Stated, from_dict
from hardware.spec import HardwareSpec
from planner.engines.loader import accelerator_of, engine_names, load_engine

DEFAULT_BUDGET = 8192.0
"""Tokens of a step and DP rank where nobody states them: max_num_tokens of TensorRT-LLM (llmapi/llm_args.py) and
max_num_batched_tokens of vLLM's server on large GPUs (engine/arg_utils.py)."""
FILE = Path(__file__).parent / "behaviour.yaml"
DAY = re.compile(r"\d{4}-\d\d-\d\d")
REQUEST_SECONDS = 0.005  # client's library, HTTP and streaming of a first token, beside steps
ADMISSION_SECONDS = 0.005
"""What a step with prompts waits while the engine's loop takes requests in: they are broadcast to all ranks, get blocks
and inputs. With the one before 10 ms, fitted with the next one. Of 2.5 to 10 ms TPOT of the 837 runs falls from 7.2 to
7.0 or 6.9 % off; where the fit does not see it, it takes 2.5 or 7.5, Qwen3-32B falls from 6.3 to 5.5 %, Llama-3.1-70B
from 5.0 to 4.9, and others gain 0.1 at most (``scripts/fit_engines.py``)."""
TOKEN_SECONDS = 5e-6
"""Tokenisation and the text's way through client and server, per prompt token, one prompt after another. The two are
fitted on TTFT of 757 closed-loop runs of TensorRT-LLM and vLLM (engine_runs.csv): 14.5 % off, and as much in models
that the fit did not see, for each of which it gives the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions(Stated):
    """From ``first``, released on the day ``since`` (YYYY-MM-DD; none: any day), up to, not including, ``before``."""

    first: str
    before: str
    since: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour(Stated):
    """One engine over a range of versions.

    ``step_seconds`` the device waits for the host in every step (none: what its profile says);
    ``prompt_layer_seconds`` the host takes per layer to launch a step that carries prompts, which no captured graph
    replays, and ``prompt_expert_launch_seconds`` per layer of experts besides, of models with latent attention:
    such a step takes no less; ``prompt_moe_layer_seconds`` a layer's experts take in it beyond their kernels, by
    machine; ``replay_seconds`` the device waits in every layer of a decode step, whose graphs are replayed layer by
    layer. ``quantises_in_norms``: model types whose norms write quantised activations. ``norms_in_sums``: those whose
    norms are part of the all-reduce before them, or machines where all are, and the narrowest that are.
    ``writes_cache_apart``: keys are turned by one kernel, written by another. ``sends_duplicates``: every
    device of a DP rank sends all its tokens to the experts. ``fuses_shared``: model types whose shared expert a kernel
    of routed experts, by its name, computes as one more of every token. ``expert_start_up_seconds``: what a block of
    routed experts takes beyond the curve of a kernel that another engine lends, by machine and dtype.
    ``indexer_start_up_seconds``: what a layer with an indexer takes in decode beyond the kernels of others, by machine
    or for ``all``; ``index_choice_seconds``: that and more where requests have more keys than the indexer picks.
    ``short_prompts_dense``: prompts that have no more keys run without the indexer's choice, as dense attention.
    ``sources`` has an address for each choice that is no number.
    """

    versions: Versions
    step_seconds: Sourced | None = None
    prompt_layer_seconds: Sourced | None = None
    prompt_expert_launch_seconds: Sourced | None = None
    prompt_moe_layer_seconds: dict[str, Sourced] = field(default_factory=dict)
    replay_seconds: Sourced | None = None
    quantises_in_norms: list[str] | None = None
    norms_in_sums: dict[str, int] = field(default_factory=dict)
    writes_cache_apart: bool = False
    sends_duplicates: bool = False
    fuses_shared: dict[str, list[str]] = field(default_factory=dict)
    expert_start_up_seconds: dict[str, Sourced] = field(default_factory=dict)
    indexer_start_up_seconds: dict[str, Sourced] = field(default_factory=dict)
    index_choice_seconds: Sourced | None = None
    short_prompts_dense: bool = False
    sources: dict[str, str] = field(default_factory=dict)


@cache
def behaviour(engine: str | None) -> Behaviour | None:
    """Return the behaviour of ``NAME`` (the newest) or ``NAME@VERSION``; None for an engine that none is known of.

    A day (YYYY-MM-DD) stands for what was newest on it. A version that is no number, or outside all ranges, is taken
    for the newest.
    """
    name, _, version = (engine or "").partition("@")
    known = _known().get(name)
    if not known:
        return None
    if DAY.fullmatch(version):
        return [own for own in known if own.versions.since <= version][-1]
    asked = _number(version)
    for own in known:
        if asked and (_number(own.versions.first) or ()) <= asked < (_number(own.versions.before) or ()):
            return own
    return known[-1]


def behaviour_names() -> tuple[str, ...]:
    """Return the engines that a behaviour is known of."""
    return tuple(_known())


def behaviour_values(engine: str) -> list[tuple[str, Sourced]]:
    """Return the numbers of an engine's newest behaviour by name, what it does not state left out."""
    own = behaviour(engine)
    named: list[tuple[str, object]] = [(each.name, getattr(own, each.name)) for each in fields(Behaviour)]
    if own is not None:
        by_name = [(name, each) for name, each in named if isinstance(each, dict)]
        named += [(f"{name} {key}", value) for name, values in by_name for key, value in values.items()]
    return [(name, value) for name, value in named if isinstance(value, Sourced)]


@cache
def _known() -> dict[str, list[Behaviour]]:
    data: Any = read_yaml(FILE)
    return {
        name: [from_dict(Behaviour, entry) for entry in accumulate(entries, _over)] for name, entries in data.items()
    }


def _over(before: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return a range's entry over the one before it; a figure is taken whole, values by machine one by one."""
    whole = {key for key, value in own.items() if not isinstance(value, dict) or "value" in value}
    return before | {key: value if key in whole else before.get(key, {}) | value for key, value in own.items()}


def _number(version: str) -> tuple[int, ...] | None:
    """Return 1.1.0rc2 as (1, 1, 0); None where it does not begin with a number."""
    parts = []
    for part in version.removeprefix("v").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        parts.append(int(digits))
        if digits != part:
            break
    return tuple(parts) or None


class HostCosts(NamedTuple):
    """``step_seconds`` idle device time per step (None: the hardware's ``host.graph_launch_seconds``);
    ``request_seconds`` of one request outside all steps and ``token_seconds`` of each of its prompt tokens, part of
    its TTFT; ``engine`` the engine whose kernels run.
    """

    step_seconds: float | None = None
    request_seconds: float = REQUEST_SECONDS
    token_seconds: float = TOKEN_SECONDS
    engine: str | None = None
    source: str = "the hardware entry's graph_launch_seconds"


def untimed(system: str | None, hardware: HardwareSpec) -> str | None:
    """Return what stands for the times of a system on devices that it was never measured on, None of others."""
    engine = (system or "reference").partition("@")[0]
    if engine == "reference" or accelerator_of(hardware) != "amd":
        return None
    return f"none of {engine} measured on {hardware.name}: kernels are its entry's, host times those beside NVIDIA GPUs"


SYSTEMS = {  # measured systems without a profile in ``planner/engines``
    "cloudmatrix-infer": HostCosts(
        step_seconds=0.0,
        source="arXiv 2506.12708 section 4.2.4: the pipelined form hides all graph launches behind the running one",
    ),
    "xdeepserve": HostCosts(
        step_seconds=2e-3, source="arXiv 2508.02520 section 7.1: 2 ms of scheduling between iterations"
    ),
}


def host_costs(system: str | None) -> HostCosts:
    """Return the host costs of an engine or a measured system; the reference's where None is given.

    Raises BadInput for a name that is neither.
    """
    if system is None:
        return HostCosts()
    if system in SYSTEMS:
        return SYSTEMS[system]
    name, own = system.partition("@")[0], behaviour(system)
    if own is None and name not in engine_names():
        known = ", ".join(sorted({*engine_names(), *behaviour_names(), *SYSTEMS}))
        raise BadInput(f"system {system!r} has no host costs; known are {known}")
    gap = own.step_seconds if own is not None else None
    if gap is None:
        gap = load_engine(name).host.decode_gap_seconds
    return HostCosts(engine=system) if gap is None else HostCosts(gap.value, engine=system, source=gap.source)
