"""What a question fixes of its instances: `--strategy`, `--instances`, `--batch`, `--tokens`, and experts per role.

Each takes one value for all roles that have such a thing, or one of each: ``prefill="SP=2 + DP=16, EP=32",decode=...``.
"""

from typing import Any, get_args

import numpy as np

from ground.errors import BadInput
from ground.units import counted, parse_count
from models.spec import ModelSpec
from planner.instances.alignment import occupied_devices
from planner.instances.reachable import Reach
from planner.instances.space import layouts, machines_of, role_rows
from planner.question import Pin, Question, Role, Shape
from planner.strategy import Strategy, check_strategy, format_strategy, parse_strategy
from podplan.options import QuestionFlags, flag_name
from podplan.readers import by_role, read_redundant, read_shared, read_tokens

ROLES: tuple[Role, ...] = get_args(Role)
FIELDS = {
    "strategy": "strategy",
    "instances": "instances",
    "batch": "batch",
    "tokens": "tokens",
    "redundant_experts": "redundant",
    "shared_experts": "shared",
}
"""Flags that may be given per role, and what they fix."""
_LANGUAGE: tuple[Role, ...] = ("prefill", "decode", "mixed")
HAVE: dict[str, tuple[Role, ...]] = {
    **dict.fromkeys(("strategy", "redundant_experts", "shared_experts"), _LANGUAGE),
    "batch": ("decode", "mixed"),
    "tokens": ("prefill", "mixed"),
}
"""Roles that have what a flag fixes, where not all do."""
MOST_INSTANCES = 16_384
MOST_BATCH = 4096
MOST_PARTS = 1000
"""Passes of one prompt."""


def of_roles(text: str, flag: str) -> dict[str, str]:
    """Return what a flag gives each role, or the whole text under ``""``; strategies hold signs of equality."""
    return by_role(text, flag, known=ROLES, right=f"{flag} prefill=...,decode=... or mixed=...", signs=True)


def shared_flag(text: str | None) -> str | None:
    """Return what a flag gives all roles at once; None where it gives each its own."""
    return text if text is None or "" in of_roles(text, "") else None


def read_pins(flags: QuestionFlags, model: ModelSpec) -> tuple[tuple[Role, Pin], ...]:
    """Return what is fixed of each role; BadInput names the flag and what would be right."""
    given = {name: of_roles(text, flag_name(name)) for name in FIELDS if (text := getattr(flags, name)) is not None}
    pins: dict[Role, dict[str, Any]] = {role: {} for role in ROLES}
    for name, texts in given.items():
        have = HAVE.get(name, ROLES)
        for role in ROLES:
            if role in texts and role not in have:
                raise BadInput(f"{flag_name(name)}: {role} instances have none; give it for {' or '.join(have)}")
            of_all = role in have and role != "encode" and not name.endswith("_experts")
            text = texts.get(role, texts.get("") if of_all else None)
            if text is not None:
                pins[role][FIELDS[name]] = _read(name, role, text, model, named=role in texts)
    return tuple((role, Pin(**own)) for role, own in pins.items() if own)


def _read(name: str, role: Role, text: str, model: ModelSpec, *, named: bool) -> object:
    flag = f"{flag_name(name)} {role}" if named else flag_name(name)
    if name == "strategy":
        return _strategy(text, role, model, flag)
    if name == "redundant_experts":
        return read_redundant(text, model)
    if name == "shared_experts":
        return read_shared(text, model)
    if name == "tokens":
        return read_tokens(text, flag, 0)
    count, most = parse_count(text, flag), MOST_INSTANCES if name == "instances" else MOST_BATCH
    if count > most:
        raise BadInput(f"{flag}: {text[:20]} are more than are planned for; use at most {most}")
    return count


def _strategy(text: str, role: Role, model: ModelSpec, flag: str) -> Strategy:
    strategy = parse_strategy(text, moe=model.moe is not None, flag=flag)
    check_strategy(strategy, model, flag)
    if strategy.staged and role != "prefill":
        raise BadInput(f"{flag}: SP is a way to run prefill attention; use TP={strategy.attention_tp} for {role}")
    if strategy.disaggregated and role != "decode":
        raise BadInput(f"{flag}: attention and experts stand apart in decode alone; write it as decode={text[:40]!r}")
    if model.moe is None and strategy.attention_dp > 1:
        own = strategy._replace(attention_dp=1, moe_ep=1)
        raise BadInput(
            f"{flag}: DP ranks of a model without experts share nothing, so each is an instance; use "
            f"{format_strategy(own, moe=False)!r} with --instances"
        )
    return strategy


def pinned_shape(flags: QuestionFlags, shape: Shape) -> Shape:
    """Return the shape that the roles named by flags mean; BadInput where another is asked for."""
    texts = {name: of_roles(text, flag_name(name)) for name in FIELDS if (text := getattr(flags, name)) is not None}
    named = {role: name for name, own in texts.items() for role in own if role not in ("", "encode")}
    meant: set[Shape] = {"aggregated" if role == "mixed" else "disaggregated" for role in named}
    if len(meant) != 1:
        return shape
    (own,) = meant
    if shape not in ("auto", own):
        role, name = next(iter(named.items()))
        raise BadInput(f"{flag_name(name)}: {role} instances are of no {shape} deployment; leave it or --shape out")
    return own


def check_pins(question: Question) -> None:
    """Raise BadInput where what is fixed of a role cannot be, whatever the traffic: it does not divide, the engine
    does not run it, or the devices are fewer.
    """
    for role, pin in question.pins:
        if role == "encode" and question.encode == "fused":
            raise BadInput(f"--instances encode={pin.instances}: there are none; add --encode separate")
        machines, moe = machines_of(question, role), question.model.moe
        if pin.tokens is not None and question.workload.input_tokens.mean > MOST_PARTS * pin.tokens:
            least = -(-question.workload.input_tokens.mean // MOST_PARTS)
            raise BadInput(f"--tokens {role}: {pin.tokens} cut a prompt into too many passes; use at least {least:.0f}")
        if pin.strategy is None or role_rows(question, role):
            continue
        text = format_strategy(pin.strategy, moe=moe is not None)
        start = f"--strategy {role}: {text!r}"
        if pin.strategy.devices > machines.devices:
            held = counted(machines.devices, "device")
            raise BadInput(f"{start} takes {pin.strategy.devices} devices and there are {held}; use at most as many")
        most = question.max_instance_devices
        if most is not None and pin.strategy.devices > most:
            raise BadInput(f"{start} takes {pin.strategy.devices} devices and --max-instance-devices allows {most}")
        choices = layouts(question, pin.strategy, role)
        for redundant, dedicated in choices:
            reach = Reach(question, role)
            parts, broken = reach.most_microbatches(pin.strategy, redundant, dedicated)
            broken = reach.cut(pin.strategy) or broken
            if broken is not None or not parts:
                raise BadInput(f"{start}: {broken.sentence if broken else question.engine}")
        _refuse_slots(question, role, pin.strategy, start)
    _check_sizes(question)


def _refuse_slots(question: Question, role: Role, strategy: Strategy, start: str) -> None:
    """Raise BadInput for a strategy over whose ranks the slots do not divide, with redundancies that would."""
    moe, pin = question.model.moe, question.pin(role)
    assert moe is not None, "a model without experts has no slots to divide"
    dedicated = pin.shared if isinstance(pin.shared, int) else 0
    ranks = strategy.moe_ep - dedicated
    fitting = [slots - moe.experts for slots in range(ranks, moe.experts * ranks + 1, ranks) if slots >= moe.experts]
    if ranks < 1 or not fitting:
        raise BadInput(f"{start}: {dedicated} ranks for shared experts leave {ranks} of {strategy.moe_ep}")
    near = sorted(sorted(fitting, key=lambda slots: abs(slots - (pin.redundant or 0)))[:2])
    asked = "any few" if pin.redundant is None else f"{pin.redundant}"
    raise BadInput(
        f"{start}: {moe.experts} experts and {asked} redundant slots do not divide evenly over its {ranks} ranks; use "
        f"for example --redundant-experts {role}={' or '.join(map(str, near))}"
    )


def _check_sizes(question: Question) -> None:
    """Raise BadInput where the given instances take more devices than there are."""
    shapes: tuple[tuple[Role, ...], ...] = (("prefill", "decode"), ("mixed",))
    for roles in shapes:
        if not any(question.pin(role).instances for role in roles):
            continue
        needed: dict[str, tuple[int, int, list[str]]] = {}
        for role in roles:
            pin, machines = question.pin(role), machines_of(question, role)
            least = min((row.strategy.devices for row in role_rows(question, role)), default=0)
            size = least if pin.strategy is None else pin.strategy.devices
            used, _, told = needed.get(machines.budget, (0, 0, []))
            counts = pin.instances or 1
            told.append(f"{counts} x {size} for {role}")
            room = int(occupied_devices(machines, np.array([size]), np.array([counts]))[0])
            needed[machines.budget] = used + room, machines.devices, told
        for used, there, told in needed.values():
            if used > there:
                raise BadInput(
                    f"--instances: {' and '.join(told)} take {used} devices and there are {there}; use fewer instances"
                )
