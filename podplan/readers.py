"""Readers of flags: each returns a value, or names the flag and what would be right."""

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, get_args

from ground.errors import BadInput, suggest
from ground.units import number_of, parse_count, parse_duration
from hardware.formats import KvDtype, storable
from hardware.spec import Dtype, HardwareSpec
from models.parameters import Pictures, pictures_of
from models.spec import ModelSpec, VisionTower
from planner.balance.imbalance import Balance, LoadDistribution, measured_distribution, parse_balance, parse_skew
from planner.costs.deployment import Host, Shared, default_weights
from planner.engines.loader import Needs, load_engine
from planner.instances.reachable import REFERENCE
from planner.manifest.drafts import MOST_DRAFTS, Acceptance
from planner.plans.quantised import usual_weights
from planner.question import Loss
from podplan.options import left_open

Word = TypeVar("Word", bound=str)

AUTO = "auto"
ANY = "any"
ROLES = ("prefill", "decode")
MOST_JITTER_SECONDS = 10.0
DEFAULT_ACCEPTANCE = "0.7"
DEFAULT_UTILISATION = 0.98
SHORTEST_LIMIT_SECONDS = 1e-6
MOST_BEAMS = 1024
MOST_TOKENS = 1_000_000_000


def read_engines(text: str | None, needs: Needs) -> tuple[str, ...]:
    """Return the engines to choose from, NAME@VERSION: of ``any`` all that have what is needed.

    ``reference`` where that is asked for or none runs the model. BadInput for an engine that is not known or lacks
    something, and where the asked drafts are what all lack.
    """
    word = ANY if text is None else text.strip().lower()
    if word == REFERENCE:
        return (REFERENCE,)
    if word == ANY:
        found = needs.engines()
        if not found and needs._replace(drafts=False).engines():
            raise BadInput(f"--mtp: no engine here has MTP for models of type {needs.architecture!r}; use --mtp 0")
        return tuple(f"{each.engine}@{each.versions.pinned}" for each in found) or (REFERENCE,)
    profile = load_engine(text or "")
    if profile.engine == REFERENCE:
        return (REFERENCE,)
    for broken in needs.missing(profile):
        others = ", ".join(each.engine for each in needs.engines())
        raise BadInput(f"--engine: {broken.sentence}; use {others or ('--mtp 0' if needs.drafts else REFERENCE)}")
    return (f"{profile.engine}@{profile.versions.pinned}",)


def is_any(text: str | None) -> bool:
    """Whether podplan is to choose the engine."""
    return text is None or text.strip().lower() == ANY


def is_auto(text: str | None) -> bool:
    """Whether a flag says that podplan is to choose."""
    return text is not None and text.strip().lower() == AUTO


def read_choice(text: str | None, flag: str, accepted: tuple[Word, ...], default: Word | None = None) -> Word:
    """Return the accepted word, in any case; the default where nothing was given."""
    if text is None and default is not None:
        return default
    text = text or ""
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
    return asked._replace(distribution=read_skew(skew))


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
    if text is None or left_open(text):
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


def read_drafts(text: str | None, model: ModelSpec, *, beside: bool = False) -> int:
    """Return the drafted tokens per iteration.

    BadInput where the model has no layer that drafts, unless a model ``beside`` it may (``costs.operators``).
    """
    count = 0 if text is None else parse_count(text, "--mtp", allow_zero=True)
    if count and not model.mtp_layers and not beside:
        raise BadInput(f"--mtp: {model.name} ships no layer that drafts tokens (MTP); use --mtp 0")
    if count > MOST_DRAFTS:
        raise BadInput(
            f"--mtp: {count} drafts per iteration are more than the {MOST_DRAFTS} that are costed; use fewer"
        )
    return count


def read_microbatches(text: str | None, model: ModelSpec) -> int | None:
    """Return 1 or 2, None for auto."""
    if text is None or left_open(text):
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


def read_offline_lengths(text: str, longest: int) -> tuple[int, int]:
    """Return prompt and answer of ``1155+211``, which a model with so many positions has room for."""
    prompt, _, answer = text.partition("+")
    found = read_tokens(prompt, "--offline", 0), read_tokens(answer, "--offline", 0)
    if sum(found) > longest:
        raise BadInput(f"--offline: {text[:40]} is past the {longest} positions of the model")
    return found


def read_beams(text: str | None) -> int:
    """Return the beams of a request, at least 1."""
    count = 1 if text is None else parse_count(text, "--beams")
    if count > MOST_BEAMS:
        raise BadInput(f"--beams: {count} are more than the {MOST_BEAMS} that are costed; use fewer")
    return count


def undrafted(text: str | None) -> int:
    """Return no drafts; BadInput where some are asked for beside beams."""
    if text is not None and text.strip() not in ("0", "0..0"):
        raise BadInput("--mtp: drafts of one answer do not go with --beams; leave one of them out")
    return 0


def read_fraction(text: str | None, flag: str, default: float, *, below_one: bool = False) -> float:
    """Return a share of 0 to 1, written as a number or in per cent."""
    most = math.nextafter(1.0, 0.0) if below_one else 1.0
    right = "from 0 up to, not including, 1" if below_one else "from 0 to 1"
    return default if text is None else read_share(text, flag, (0.0, most), f"is not a share {right}, such as 0.5")


def read_share(text: str, flag: str, ends: tuple[float, float], right: str) -> float:
    """Return ``10%`` or ``0.1`` as a number between two ends; ``right`` is what the refusal of another text says."""
    word = text.strip()
    value = number_of(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    if not ends[0] <= value <= ends[1]:
        raise BadInput(f"{flag}: {text[:40]!r} {right}")
    return value


def read_confidence(text: str | None) -> float | None:
    """Return the confidence that is asked for."""
    right = "must be from 0.5, the figures as predicted, to 0.999"
    return None if text is None else read_share(text, "--confidence", (0.5, 0.999), right)


def read_headroom(text: str | None) -> float:
    """Return the headroom that is asked for as a share of the rate."""
    right = "must be a share of the rate such as 10%, at most 400%"
    return 0.0 if text is None else read_share(text, "--headroom", (0.0, 4.0), right)


def read_utilisation(text: str | None) -> float:
    """Return the most utilisation that is planned with."""
    right = "must be a share of saturation from 1% to 99.9%"
    return DEFAULT_UTILISATION if text is None else read_share(text, "--max-utilisation", (0.01, 0.999), right)


def read_survive(text: str | None) -> Loss | None:
    """Return what the limits must outlive."""
    return None if text is None else read_choice(text, "--survive", get_args(Loss))


def read_limit(text: str, flag: str) -> float:
    """Return the seconds of a latency limit; no machine comes near one below a microsecond."""
    if text.strip().lower() in ("none", "inf", "no", "off"):
        raise BadInput(f"{flag}: there is always a limit; give one that never binds, such as 1h, or ask for a --job")
    seconds = parse_duration(text, flag)
    if seconds < SHORTEST_LIMIT_SECONDS:
        raise BadInput(f"{flag}: {text[:40]!r} is shorter than any machine can keep; give at least 1us")
    return seconds


def read_percentile(text: str) -> float:
    """Return a percentile within 0 and 100."""
    value = number_of(text.strip().lower().removeprefix("p"))
    if not 0 < value < 100:
        raise BadInput(f"--percentile: {text[:40]!r} is not a percentile between 0 and 100, such as 99")
    return value


def read_acceptance(text: str | None) -> Acceptance:
    """Return the acceptance of every draft, or of the first, the second, ... separated by slashes."""
    shares = [read_fraction(part, "--mtp-acceptance", 0) for part in (text or DEFAULT_ACCEPTANCE).split("/")]
    if len(shares) > MOST_DRAFTS:
        raise BadInput(f"--mtp-acceptance: {len(shares)} depths are more than the {MOST_DRAFTS} that are drafted")
    return shares[0] if len(shares) == 1 else tuple(shares)


def read_host(graphs: str | None, jitter: str | None) -> Host:
    """Return how hosts drive the devices."""
    seconds = 0.0 if jitter is None else parse_duration(jitter, "--host-jitter", allow_zero=True)
    if seconds > MOST_JITTER_SECONDS:
        raise BadInput(f"--host-jitter: {jitter} is more than a step takes; use at most {MOST_JITTER_SECONDS:g}s")
    return Host(read_choice(graphs, "--graphs", ("on", "off"), "on") == "on", seconds)


def read_weight_choices(text: str | None, model: ModelSpec, hardware: HardwareSpec) -> list[Dtype]:
    """Return the formats that weights may have on a machine, the usual one first where all are meant."""
    if text is None:
        return [default_weights(hardware, model)]
    if is_auto(text):
        usual = default_weights(hardware, model)
        return [usual, *(dtype for dtype in usual_weights(hardware, model.native_dtype) if dtype != usual)]
    return [read_weights(word, model, hardware) for word in _words(text, "--weights")]


def read_caches(text: str | None) -> list[KvDtype]:
    """Return the formats that the KV cache may have."""
    if text is None:
        return ["bf16"]
    known = get_args(KvDtype)
    if is_auto(text):
        return list(known)
    return [read_choice(word, "--kv-dtype", known) for word in _words(text, "--kv-dtype")]


def weights_of(text: str | None, role: str) -> str | None:
    """Return what ``prefill=fp8,bf16,decode=int8`` gives a role; a text without roles gives it to both."""
    given = {"": text} if text is None else by_role(text, "--weights")
    for absent in (each for each in ROLES if "" not in given and each not in given):
        raise BadInput(f"--weights: {(text or '')[:60]!r} leaves open the format of {absent}; add {absent}=auto")
    return given.get(role, given.get(""))


def by_role(
    text: str, flag: str, *, known: Sequence[str] = ROLES, right: str = "prefill=... or decode=...", signs: bool = False
) -> dict[str, str]:
    """Return what ``prefill=A,decode=B`` gives each role, or the whole text under ``""``; values may hold commas.

    Raises BadInput where a role has nothing, stands twice, or something else stands before it; unless values hold
    ``signs`` of equality themselves, also where a name is none of the ``known``. ``right`` says what is.
    """
    names = "|".join(map(re.escape, known))
    before, *parts = re.split(rf"(?:^|,)\s*({names})\s*=\s*", text, flags=re.IGNORECASE)
    if not parts and (signs or "=" not in text):
        return {"": text}
    found: dict[str, str] = {}
    for name, value in zip(parts[::2], parts[1::2], strict=True):
        role = name.lower()
        if role in found:
            raise BadInput(f"{flag}: {role} stands twice in {text[:60]!r}; name it once")
        found[role] = value.strip().strip("\"'").strip()
    strange = [before, *(f"{role}=" for role, value in found.items() if not value)]
    strange += [] if signs else [word for own in found.values() for word in own.split(",")[1:] if "=" in word]
    for word in filter(None, (each.strip(" ,") for each in strange)):
        name = word.partition("=")[0].strip().lower()
        raise BadInput(f"{flag}: {word[:40]!r} is not {right}{'' if name in known else suggest(name, known)}")
    return found


def _words(text: str, flag: str) -> list[str]:
    words = [word.strip().lower() for word in text.split(",")]
    for word in words:
        if not word:
            raise BadInput(f"{flag}: {text[:40]!r} has an empty place between its commas; leave it out")
        if words.count(word) > 1:
            raise BadInput(f"{flag}: {word[:20]} stands twice in {text[:40]!r}; name it once")
    return words


def read_pictures(tower: VisionTower | None, model: str, images: str | None, video: str | None) -> Pictures | None:
    """Return what ``--images COUNT@WIDTHxHEIGHT`` or ``--video FRAMES@WIDTHxHEIGHT`` asks for; None for neither."""
    if images is None and video is None:
        return None
    flag, text = ("--images", images) if video is None else ("--video", video)
    if images is not None and video is not None:
        raise BadInput("--images and --video: a request has one of them here; leave the other out")
    if tower is None:
        raise BadInput(f"{flag}: {model} has no encoder of pictures in the catalogue; name a model that has one")
    match = re.fullmatch(r"(?:(\d{1,6})@)?(\d{1,5})x(\d{1,5})", (text or "").strip().lower())
    count, width, height = (int(number or 1) for number in match.groups()) if match else (0, 0, 0)
    if min(count, width, height) < 1:
        raise BadInput(f"{flag}: {(text or '')[:40]!r} is no number and size, such as 2@1280x720")
    try:
        if video is None:
            return pictures_of(tower, count, width, height)
        return pictures_of(tower, 1, width, height, frames=count)
    except ValueError as error:
        raise BadInput(f"{flag}: {error}") from None


MOST_POINTS = 1000


def spaced(first: float, last: float, count: int, *, logarithmic: bool) -> list[float]:
    """Return ``count`` values from ``first`` to ``last``, evenly spaced or by equal factors.

    >>> spaced(1, 100, 3, logarithmic=True)
    [1.0, 10.0, 100.0]

    Raises BadInput for fewer than 2 points, too many, and ends that no factor leads from one to the other.
    """
    if not 2 <= count <= MOST_POINTS:
        raise BadInput(f"a range of {count} points must have from 2 to {MOST_POINTS}")
    if not (math.isfinite(first) and math.isfinite(last)) or first == last:
        raise BadInput(f"a range from {first:g} to {last:g} must have two different ends")
    if logarithmic and not (first > 0 and last > 0):
        raise BadInput(f"a logarithmic range from {first:g} to {last:g} must have ends above zero")
    share = [number / (count - 1) for number in range(count)]
    if logarithmic:
        return [float(f"{first * (last / first) ** part:.12g}") for part in share]
    return [float(f"{first + (last - first) * part:.12g}") for part in share]
