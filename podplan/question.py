"""From the flags of a question to what the planner is asked; every refusal names the flag and what would be right.

`--strategy`, `--instances`, `--batch`, `--tokens` and experts fix parts of the answer, with one value for all roles
that have such a thing, or one of each: ``prefill="SP=2 + DP=16, EP=32",decode=...``.
"""

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from ground.errors import BadInput
from ground.units import counted, parse_count
from models.loader import load_model
from models.spec import ModelSpec
from planner.checks.jobs import Job
from planner.costs.cache import find_plane
from planner.engines.loader import Needs, accelerator_of, load_engine
from planner.engines.spec import ShapeName
from planner.instances.alignment import occupied_devices
from planner.instances.encoding import ways_to_encode
from planner.instances.reachable import REFERENCE, Reach
from planner.instances.space import layouts, machines_of, role_rows
from planner.objective import OBJECTIVES, ObjectiveName
from planner.plans.day import Window
from planner.plans.quantised import alternatives, check_some, combinations
from planner.question import Encode, Machines, Pin, Question, Queueing, Role, Shape
from planner.search.gather import not_aggregated
from planner.serving.tables import LARGEST_BATCH
from planner.strategy import Strategy, check_strategy, format_strategy, parse_strategy
from podplan import readers
from podplan.job import UTILISATION, read_job
from podplan.machines import read_machines
from podplan.options import QuestionFlags, flag_name
from podplan.readers import by_role, read_redundant, read_shared, read_tokens
from podplan.traffic import AskedPool, AskedTraffic, read_offline, read_prefix_pool, read_prefix_routing, read_traffic

ROLES: tuple[Role, ...] = get_args(Role)
FIELDS = {  # flags that may be given per role, and what they fix
    "strategy": "strategy",
    "instances": "instances",
    "batch": "batch",
    "tokens": "tokens",
    "redundant_experts": "redundant",
    "shared_experts": "shared",
}
_LANGUAGE: tuple[Role, ...] = ("prefill", "decode", "mixed")
HAVE: dict[str, tuple[Role, ...]] = {  # roles that have what a flag fixes, where not all do
    **dict.fromkeys(("strategy", "redundant_experts", "shared_experts"), _LANGUAGE),
    "batch": ("decode", "mixed"),
    "tokens": ("prefill", "mixed"),
}
MOST_INSTANCES = 16_384
MOST_PARTS = 1000  # passes of one prompt


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
    count, most = parse_count(text, flag), MOST_INSTANCES if name == "instances" else LARGEST_BATCH
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


def _running_pins(question: Question) -> Question:
    """Return the question with an engine that runs what is fixed: the reference runtime, if it alone does."""
    try:
        check_some(question, check_pins)
    except BadInput as refused:
        own = replace(question, engine=REFERENCE, engines=())
        with suppress(BadInput):
            if question.engines:
                check_some(own, check_pins)
                return own
        raise refused from None
    return question


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
        start = f"--strategy {role}: {format_strategy(pin.strategy, moe=moe is not None)!r}"
        if pin.strategy.devices > machines.devices:
            held = counted(machines.devices, "device")
            raise BadInput(f"{start} takes {pin.strategy.devices} devices and there are {held}; use at most as many")
        most = question.max_instance_devices
        if most is not None and pin.strategy.devices > most:
            raise BadInput(f"{start} takes {pin.strategy.devices} devices and --max-instance-devices allows {most}")
        for redundant, dedicated in layouts(question, pin.strategy, role):
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


if TYPE_CHECKING:
    from ground.traces import Trace

DEFAULT_TTFT = "2s"
DEFAULT_TPOT = "50ms"
DEFAULT_PERCENTILE = "99"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was typed, the question that it stands for, and the trace and the day that it names."""

    flags: QuestionFlags
    question: Question
    trace: "Trace | None"
    day: tuple[Window, ...] = ()
    growth: tuple[float, ...] = ()  # the rate of every month
    job: Job | None = None

    def with_job(self, text: str) -> Question:
        """Return the question with another job."""
        return read_question(replace(self.flags, job=text)).question


def read_question(typed: QuestionFlags) -> Asked:
    """Return the question that the flags ask, with the defaults of the command line; BadInput naming the flag."""
    flags = typed
    for name in ("model", "hw"):
        if getattr(flags, name) is None:
            raise BadInput(f"{name} is missing; a question needs model and hw")
    model = load_model(flags.model or "")
    prefill, decode = read_machines(flags, flags.weights, model)
    pool = AskedPool(model, prefill, readers.read_caches(flags.kv_dtype)[0], read_prefix_pool(flags.cache, prefill))
    asked, job = read_traffic(flags, model, pool.with_hits), read_job(flags)
    if job is not None:
        flags = _of_job(flags, job, asked.workload.decoded_tokens)
        asked = replace(asked, rate_per_second=job.rate_per_second)
    beams = readers.read_beams(flags.beams)
    objective, pins = _objective(flags, asked, (prefill, decode)), read_pins(flags, model)
    drafts = _drafts(flags.mtp, model) if beams == 1 else (readers.undrafted(flags.mtp),)
    needs = Needs((prefill.hardware, decode.hardware), model.architecture, drafts=0 not in drafts)
    engines = readers.read_engines(flags.engine, needs)
    question = Question(
        model=model,
        prefill=prefill,
        decode=decode,
        engine=engines[0],
        engines=engines if readers.is_any(flags.engine) and engines != (REFERENCE,) else (),
        workload=replace(asked.workload, beams=beams),
        ttft_seconds=readers.read_limit(flags.ttft or DEFAULT_TTFT, "--ttft"),
        tpot_seconds=readers.read_limit(flags.tpot or DEFAULT_TPOT, "--tpot"),
        percentile=readers.read_percentile(flags.percentile or DEFAULT_PERCENTILE),
        rate_per_second=None if OBJECTIVES[objective].maximised else asked.rate_per_second,
        rate_flag="--growth" if asked.growth else "--rate-profile" if asked.day else "--rate",
        objective=objective,
        queueing=readers.read_choice(flags.queueing, "--queueing", get_args(Queueing), "bulk"),
        drafts=drafts,
        acceptance=readers.read_acceptance(flags.mtp_acceptance),
        driven=readers.read_host(flags.graphs, flags.host_jitter),
        balance=readers.read_balance(flags.expert_balance, flags.expert_skew, model),
        microbatches=(1, 2) if (parts := readers.read_microbatches(flags.microbatches, model)) is None else (parts,),
        redundant=readers.read_redundant(shared_flag(flags.redundant_experts), model),
        shared=readers.read_shared(shared_flag(flags.shared_experts), model),
        survive=readers.read_survive(flags.survive),
        confidence=readers.read_confidence(flags.confidence),
        headroom=readers.read_headroom(flags.headroom),
        most_utilisation=readers.read_utilisation(flags.max_utilisation),
        shape=pinned_shape(flags, readers.read_choice(flags.shape, "--shape", get_args(Shape), "auto")),
        encode=_encode(flags.encode, asked.workload.pictures is not None),
        prefix_pool=pool.measured,
        model_cache=_model_cache(flags.model_cache, prefill, decode),
        offline=read_offline(flags, asked, model),
        prefix_routing=read_prefix_routing(flags, asked),
        pins=pins,
        max_instance_devices=flags.count("max_instance_devices", None),
    )
    if question.offline is not None:
        question = _beside_offline(question)
    question = with_formats(question, flags.weights, flags.kv_dtype)
    check_shape(question)
    question = with_encoders(question)
    question = _running_pins(question)
    return Asked(flags=typed, question=question, trace=asked.trace, day=asked.day, growth=asked.growth, job=job)


def _of_job(flags: QuestionFlags, job: Job, tokens: float) -> QuestionFlags:
    """Return the flags with what a job takes for limits that are not given."""
    least = readers.SHORTEST_LIMIT_SECONDS
    return replace(
        flags,
        ttft=flags.ttft or f"{max(job.limit_seconds, least)!r}s",
        tpot=flags.tpot or f"{max(job.limit_seconds / max(tokens, 1.0), least)!r}s",
        max_utilisation=flags.max_utilisation or UTILISATION,
    )


def _beside_offline(question: Question) -> Question:
    """Return the question for instances that put offline requests behind others; BadInput where there are none."""
    if question.shape == "aggregated":
        raise BadInput("--offline: aggregated instances put no request behind others; use --shape disaggregated")
    if question.goal.timed or question.queueing == "mixserve":
        given = "--objective latency" if question.goal.timed else "--queueing mixserve"
        raise BadInput(f"--offline: {given} knows online requests alone; leave one of them out")
    return replace(question, shape="disaggregated")


def _model_cache(text: str | None, *machines: Machines) -> str | None:
    """Return the plane that weights come over, which every role's machines must have."""
    found = [find_plane(each.hardware, text, "--model-cache").name for each in machines] if text is not None else [None]
    return found[0]


def _encode(text: str | None, pictures: bool) -> Encode:
    """Return where pictures are encoded; BadInput where requests have none."""
    if text is not None and not pictures:
        raise BadInput("--encode: prompts have no pictures to encode; add --images 2@1280x720 or leave --encode out")
    return readers.read_choice(text, "--encode", get_args(Encode), "fused")


def with_encoders(question: Question) -> Question:
    """Return the question with the engines that encode pictures as is asked; BadInput where none does."""
    if question.encode == "fused":
        return question
    if question.queueing == "mixserve":
        raise BadInput("--encode: --queueing mixserve knows prefill and decode instances alone; leave --encode out")
    asked = [shape for shape in get_args(ShapeName) if question.shape in ("auto", shape)]
    engines = dict.fromkeys(question.engines or (question.engine,))
    ways = {engine: [ways_to_encode(replace(question, engine=engine), shape) for shape in asked] for engine in engines}
    able = tuple(engine for engine in engines if any(each.shares for each in ways[engine]))
    if not able and (broken := ways[next(iter(engines))][0].broken) is not None:
        others = [name for name in ("sglang", "reference") if not any(name in engine for engine in engines)]
        raise BadInput(f"--encode: {broken.sentence}, or --engine {' or '.join(others)}")
    return replace(question, engine=able[0], engines=able if question.engines else ())


def check_shape(question: Question) -> None:
    """Raise BadInput where aggregated instances alone are asked for and cannot be had."""
    if question.shape != "aggregated":
        return
    why = not_aggregated(alternatives(question)[0])
    if why is not None:
        raise BadInput(f"--shape aggregated: {why}; leave --shape out, or use disaggregated")


def _objective(flags: QuestionFlags, asked: AskedTraffic, machines: tuple[Machines, Machines]) -> ObjectiveName:
    """Return the objective: chips where a rate was given or measured, cost where it grows, else throughput.

    What grows is bought by the node, so its months have the cheapest nodes, where chips can be weighed by price.
    """
    rated = asked.rate_per_second is not None
    if flags.objective is None:
        return "cost" if asked.growth and not _unpriced(machines) else "chips" if rated else "throughput"
    objective: ObjectiveName = readers.read_choice(flags.objective, "--objective", get_args(ObjectiveName))
    if OBJECTIVES[objective].maximised:
        given = next(
            (flag_name(name) for name in ("rate", "rate_profile", "growth", "job") if getattr(flags, name)), None
        )
        if given and rated:
            raise BadInput(
                f"{given} and --objective throughput contradict, for that objective finds the largest rate; "
                "leave one out"
            )
        return objective
    if not rated:
        raise BadInput(f"--objective: {objective} needs the rate to serve; add for example --rate 100/s")
    if OBJECTIVES[objective].priced:
        check_prices(machines, "--objective", "give a YAML that does")
    return objective


def check_prices(machines: Iterable[Machines], flag: str, mend: str) -> None:
    """Raise BadInput where kinds of chips are to be weighed against each other and one of them has no price."""
    for name in _unpriced(machines):
        needs = f"cost needs price_usd_per_chip_hour, which hardware {name} does not state"
        raise BadInput(f"{flag}: {needs}; {mend}, or use {flag} chips")


def _unpriced(machines: Iterable[Machines]) -> list[str]:
    """Return the kinds of chips without a price, where there are several kinds."""
    specs = {spec.name: spec for spec in (each.hardware for each in machines)}
    return [name for name, spec in specs.items() if len(specs) > 1 and spec.price_usd_per_chip_hour is None]


def _drafts(text: str | None, model: ModelSpec) -> tuple[int, ...]:
    """Return the MTP depths to search: none and one where the model has a head, unless one or a range is given."""
    if text is None:
        return (0, 1) if model.mtp_layers else (0,)
    first, dots, last = text.partition("..")
    if not dots:
        return (readers.read_drafts(text, model),)
    low, high = readers.read_drafts(first, model), readers.read_drafts(last, model)
    if low > high:
        raise BadInput(f"--mtp: {text[:20]!r} must rise, such as 0..3")
    return tuple(range(low, high + 1))


def with_formats(question: Question, weights: str | None, kv_dtype: str | None) -> Question:
    """Return the question in the formats of the flags: the only ones, or as alternatives of which one is chosen.

    Of ``auto`` the engines' profiles leave what they run; formats that are named are searched whatever it says, and
    then cut by its rules.
    """
    runs = [load_engine(each).cache for each in question.engines or (question.engine,) if each != REFERENCE]
    caches = readers.read_caches(kv_dtype)
    if runs and kv_dtype is None:
        caches = list(dict.fromkeys(types.kv_of(question.model.architecture)[0] for types in runs))
    elif runs and readers.is_auto(kv_dtype):
        caches = _left(caches, {word for types in runs for word in types.kv.value})
    own = []
    for role, machines in (("prefill", question.prefill), ("decode", question.decode)):
        text = readers.weights_of(weights, role)
        words = readers.read_weight_choices(text, question.model, machines.hardware)
        known = {word for types in runs for word in types.weights.of(accelerator_of(machines.hardware))}
        own.append(_left(words, known) if runs and readers.is_auto(text) else words)
    prefill, decode = (
        replace(machines, weights=words[0])
        for machines, words in zip((question.prefill, question.decode), own, strict=True)
    )
    found = combinations((own[0], own[1]), caches)
    one_pool = prefill.budget == decode.budget
    if question.shape == "aggregated" and one_pool and not any(each.prefill == each.decode for each in found):
        raise BadInput("--weights: aggregated instances load one checkpoint; give both roles a common format")
    question = replace(question, prefill=prefill, decode=decode, kv_dtype=caches[0])
    return replace(question, formats=found) if len(found) > 1 else question


def _left(words: Sequence[readers.Word], known: Collection[str]) -> list[readers.Word]:
    """Return the words that are known, all where none is."""
    return [word for word in words if word in known] or list(words)
