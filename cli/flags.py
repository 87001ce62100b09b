"""Flags that several commands share: each reader returns a value or names the flag and what would be right."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

from cli.options import Text, option
from ground.errors import BadInput
from ground.names import suggest
from ground.units import parse_count
from hardware.formats import storable
from hardware.spec import Dtype, HardwareSpec
from models.spec import ModelSpec
from planner.balance.imbalance import Balance, parse_balance
from planner.balance.skew import LoadDistribution, measured_distribution, parse_skew
from planner.costs.deployment import default_weights
from planner.costs.layouts import Shared

Word = TypeVar("Word", bound=str)

MtpAcceptance = Annotated[Text, option("--mtp-acceptance", "A", "Acceptance per draft [0.7].")]
Microbatches = Annotated[Text, option("--microbatches", "M", "1, 2 or auto [auto].")]
ExpertBalance = Annotated[Text, option("--expert-balance", "B", "perfect, measured, none or a factor [measured].")]
ExpertSkew = Annotated[
    Text,
    option(
        "--expert-skew",
        "D",
        "mixed-domains, single-domain, log-normal=S, power-law=A, or a file of loads [mixed-domains].",
    ),
]
RedundantExperts = Annotated[Text, option("--redundant-experts", "N", "Slots beyond one per expert, or auto [auto].")]
SharedExperts = Annotated[Text, option("--shared-experts", "WHERE", "local, dedicated=N or auto [auto].")]

MOST_DRAFTS = 8
MOST_TOKENS = 1_000_000_000


def read_engine(text: str | None, machines: Sequence[HardwareSpec]) -> str:
    """Return ``reference`` or NAME@VERSION; BadInput for an engine that is not known or not for these devices."""
    if text is None:
        return "reference"
    from planner.engines.accelerators import broken_accelerator  # the schema of profiles takes time to build
    from planner.engines.loader import load_engine

    profile = load_engine(text)
    for hardware in machines:
        broken = broken_accelerator(profile, hardware)
        if broken is not None:
            raise BadInput(f"--engine: {broken.sentence}")
    return profile.engine if profile.engine == "reference" else f"{profile.engine}@{profile.versions.pinned}"


def flag_name(field: str) -> str:
    """Return the flag that fills ``field``."""
    return "--" + field.replace("_", "-")


def read_choice(text: str, flag: str, accepted: tuple[Word, ...]) -> Word:
    """Return the accepted word, in any case."""
    word = text.strip().lower()
    for known in accepted:
        if word == known:
            return known
    listed = f"{', '.join(accepted[:-1])} or {accepted[-1]}" if len(accepted) > 1 else accepted[0]
    raise BadInput(f"{flag}: {text[:40]!r} is not {listed}{suggest(word, accepted)}")


def read_weights(text: str | None, model: ModelSpec, hardware: HardwareSpec) -> Dtype:
    """Return the dtype of the weights, as the model ships them where the device takes that; BadInput otherwise."""
    if text is None:
        return default_weights(hardware, model)
    known = storable(hardware)
    word = text.strip().lower()
    for dtype in known:
        if word == dtype:
            return dtype
    raise BadInput(f"--weights: {hardware.name} does not multiply {text[:20]!r}; use {' or '.join(known)}")


def read_balance(balance: str | None, skew: str | None, model: ModelSpec) -> Balance:
    """Return the balance of experts and the distribution that it rests on; BadInput naming the flag.

    Without experts nothing can be out of balance: what says that something is, is refused.
    """
    asked = Balance(kind="measured") if balance is None else parse_balance(balance)
    if model.moe is None and (asked.kind == "none" or asked.factor > 1):
        raise BadInput(f"--expert-balance: {model.name} has no experts to load unevenly; leave the flag out")
    if skew is None:
        return asked
    if model.moe is None:
        raise BadInput(f"--expert-skew: {model.name} has no experts to load unevenly; leave the flag out")
    if asked.kind in ("perfect", "factor"):
        raise BadInput(f"--expert-skew: --expert-balance {balance} says how busy ranks are already; leave one out")
    return replace(asked, distribution=read_skew(skew))


def read_skew(text: str) -> LoadDistribution:
    """Return a stated distribution of expert loads, or the one of a file of loads."""
    path = Path(text)
    if not os.path.isfile(path):
        return parse_skew(text)
    from planner.placement.loadfiles import read_loads  # only measured loads need it

    loads = read_loads(path).loads
    return measured_distribution(loads.sum(axis=2) if loads.ndim == 3 else loads, path.name)


def read_redundant(text: str | None, model: ModelSpec) -> int | None:
    """Return the redundant expert slots, None for auto."""
    if text is None or text.strip().lower() == "auto":
        return None
    count = parse_count(text, "--redundant-experts", allow_zero=True)
    if count and model.moe is None:
        raise BadInput(f"--redundant-experts: {model.name} has no experts to replicate; leave the flag out")
    return count


def read_shared(text: str | None, model: ModelSpec) -> Shared:
    """Return where the shared expert stands; BadInput where the model has none to dedicate ranks to."""
    word = "auto" if text is None else text.strip().lower()
    if word == "auto":
        return "auto"
    if word == "local":
        return "local"
    name, _, count = word.partition("=")
    if name != "dedicated" or not count:
        raise BadInput(f"--shared-experts: {(text or '')[:40]!r} is not local, dedicated=N or auto")
    if model.moe is None or not model.moe.shared_experts:
        raise BadInput(f"--shared-experts: {model.name} has no shared expert to dedicate ranks to; leave the flag out")
    return parse_count(count, "--shared-experts dedicated")


def read_drafts(text: str | None, model: ModelSpec) -> int:
    """Return the drafted tokens per iteration; BadInput where the model has no layer that drafts."""
    count = 0 if text is None else parse_count(text, "--mtp", allow_zero=True)
    if count and not model.mtp_layers:
        raise BadInput(f"--mtp: {model.name} ships no layer that drafts tokens (MTP); use --mtp 0")
    if count > MOST_DRAFTS:
        raise BadInput(
            f"--mtp: {count} drafts per iteration are more than the {MOST_DRAFTS} that are costed; use fewer"
        )
    return count


def read_microbatches(text: str | None, model: ModelSpec) -> int | None:
    """Return 1 or 2, None for auto."""
    if text is None or text.strip().lower() == "auto":
        return None
    if text.strip() not in ("1", "2"):
        raise BadInput(f"--microbatches: {text[:20]!r} is not 1, 2 or auto")
    if text.strip() == "2" and model.moe is None:
        raise BadInput(
            f"--microbatches: {model.name} has no expert exchange for a second microbatch to hide; use 1 or auto"
        )
    return int(text)


def read_tokens(text: str | None, flag: str, default: int) -> int:
    """Return a count of tokens or requests, at least 1."""
    if text is None:
        return default
    value = parse_count(text, flag)
    if value > MOST_TOKENS:
        raise BadInput(f"{flag}: {value} is more than can be meant; use at most {MOST_TOKENS}")
    return value


def read_fraction(text: str | None, flag: str, default: float, *, below_one: bool = False) -> float:
    """Return a share of 0 to 1, written as a number or in per cent."""
    if text is None:
        return default
    stripped = text.strip()
    try:
        value = float(stripped.removesuffix("%")) / (100 if stripped.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if 0 <= value < 1 or (value == 1 and not below_one):
        return value
    right = "from 0 up to, not including, 1" if below_one else "from 0 to 1"
    raise BadInput(f"{flag}: {text[:40]!r} is not a share {right}, such as 0.5")
