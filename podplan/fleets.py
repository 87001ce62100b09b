"""`podplan.fleet`: the pools of a cluster and several models and rates on it, which stand on given pools or on any."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, get_args

from ground.errors import BadInput, file_names, naming, suggest
from ground.units import counted, format_count
from planner.checks.check import Verdict, check_deployed
from planner.checks.deployed import from_plan
from planner.objective import OBJECTIVES, ObjectiveName
from planner.plans.day import Seen, over_the_day
from planner.plans.places import devices_on, nodes_of, paid_devices
from planner.plans.plan import Plan
from planner.question import Machines
from planner.search.answer import Answer
from planner.search.cluster import Floor, fleet_floor, plan_cluster
from planner.search.fleet import Fleet, Member
from planner.serving.capacity import Limits
from podplan.checking import after_text, loss_json, margin_json, spares_text
from podplan.day import day_json
from podplan.options import SIZES, QuestionFlags, flag_name, flags_of
from podplan.plan_data import bound_json, bounded_text, levels_of, plan_json, plan_row, question_json
from podplan.question import Asked, check_prices, check_shape, read_question
from podplan.question_files import Entry, read_questions, read_rows, typed_of
from podplan.readers import ROLES, by_role, is_auto, read_choice
from podplan.result import Result, Row, as_json, picked

if TYPE_CHECKING:
    from planner.manifest.schema import Manifest

ANY = "any"
POOL_KEYS = ("name", "hw", *SIZES, "price", "power", "electricity")
OWN_KEYS = ("share_nodes", "switch")
MOST_POOLS = 8
Read = tuple[Member, Asked, list[str]]
SUMMARY = ("fleet.json", "fleet.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetInput:
    """The fleet that a file describes, and what was typed for each of its models."""

    fleet: Fleet
    asked: tuple[Asked, ...]
    notes: tuple[str, ...] = ()  # pools on which a model cannot stand, and why
    switches: bool = False  # whether models take turns on the devices, window by window


def read_fleet(path: Path, overrides: Mapping[str, str]) -> FleetInput:
    """Return the fleet of a file; ``overrides`` are flags that hold for all its models whatever the file says.

    Raises BadInput naming the model and the key.
    """
    pools = _pools(path)
    entries = [
        replace(entry, values={**entry.values, **overrides})
        for entry in read_questions(path, OWN_KEYS, "models", blocks=("pools",))
    ]
    models = [str(entry.get("model")) for entry in entries]
    entries = [  # a model without a name has its own, where no other of the file is the same
        replace(entry, name=model)
        if entry.name == f"{path.stem}-{number}" and models.count(model) == 1 and "/" not in model
        else entry
        for number, (entry, model) in enumerate(zip(entries, models, strict=True), start=1)
    ]
    shared = {}
    for key in ("objective", *OWN_KEYS):
        shared[key], *others = {entry.get(key) for entry in entries}
        if others:
            raise BadInput(f"{path}: {key} stands beside models and holds for all; give it once")
    read = [_on_pools(entry, pools) if pools else _on_machines(entry) for entry in entries]
    objective: ObjectiveName = read_choice(shared["objective"], "objective", get_args(ObjectiveName), "chips")
    fleet = Fleet(
        members=tuple(member for member, _, _ in read),
        devices=_devices(read, entries),
        objective=objective,
        share_nodes=read_choice(shared["share_nodes"], "share_nodes", ("yes", "no"), "yes") == "yes",
    )
    if OBJECTIVES[objective].priced:
        on = (each for member, _, _ in read for each in _machines(member))
        check_prices(on, "objective", "add price: to its pool, USD per chip and hour")
    return FleetInput(
        fleet=fleet,
        asked=tuple(asked for _, asked, _ in read),
        notes=tuple(note for _, _, own in read for note in own),
        switches=read_choice(shared["switch"], "switch", ("yes", "no"), "no") == "yes",
    )


def _pools(path: Path) -> list[Entry]:
    """Return the pools of a file; none where every model names its machines itself."""
    found: list[Entry] = []
    for where, values in read_rows(path, "pools", POOL_KEYS, MOST_POOLS):
        if "hw" not in values:
            raise BadInput(f"{where}: hw is missing; a pool is a machine and its size, such as hw: cm384, nodes: 24")
        if "=" in values["hw"]:
            raise BadInput(f"{where}: hw names one machine; give a pool of its own for each")
        name = values.get("name", values["hw"]).strip()
        if name in (each.name for each in found) or name == ANY:
            raise BadInput(f"{where}: {name[:40]!r} is taken; give every pool a name of its own")
        own = {key: value for key, value in values.items() if key != "name"}
        found.append(Entry(name=name, where=where, values=own))
    return found


def _values(entry: Entry) -> dict[str, str]:
    """Return the flags of one model's question; BadInput where one is missing that every model needs."""
    for needed in ("model", "rate"):
        others = ("rate_profile", "trace") if needed == "rate" else ()
        if all(entry.get(key) is None for key in (needed, *others)):
            raise BadInput(f"{entry.where}: {needed} is missing; every model of a fleet needs model, hw and rate")
    if "prefix_routing" in entry.values:
        raise BadInput(f"{entry.where}: prefix_routing: instances of a fleet share prefixes; leave it out")
    return {key: value for key, value in entry.values.items() if key not in ("objective", *OWN_KEYS)}


def _on_machines(entry: Entry) -> Read:
    """Return a model that names its machines itself: pools are machines of one name and role."""
    with naming(entry.where):
        values = _values(entry)
        if "hw" not in values:
            raise BadInput("hw is missing; every model of a fleet needs model, hw and rate")
        if values["hw"].strip().lower() == ANY:
            raise BadInput("hw: any stands for the pools of the file; add pools: with hw and nodes of each")
        asked = read_question(flags_of(QuestionFlags, values))
    question = asked.question
    alike = question.prefill.hardware.name == question.decode.hardware.name
    apart = alike and question.prefill.budget != question.decode.budget
    prefill, decode = (
        replace(machines, budget=f"{role} {machines.hardware.name}" if apart else machines.hardware.name)
        for role, machines in zip(ROLES, (question.prefill, question.decode), strict=True)
    )
    asked = replace(asked, question=replace(question, prefill=prefill, decode=decode))
    return Member(name=entry.name, question=asked.question), asked, []


def _on_pools(entry: Entry, pools: list[Entry]) -> Read:
    """Return a model on the pools that its hw names, or on any of them."""
    with naming(entry.where):
        values = _values(entry)
        for key in (*SIZES, "price", "power", "electricity"):
            if key in values:
                raise BadInput(f"{key} stands with the pools of the file, which all models share")
        for key in ("weights", "kv_dtype"):
            if "," in values.get(key, "") or is_auto(values.get(key)):
                raise BadInput(f"{flag_name(key).strip('-')}: a model on pools of the file has one format; name it")
        wanted = by_role(values.pop("hw", ANY), "hw")
        if wanted.get("", "").strip().lower() == ANY:
            return _anywhere(entry, values, pools)
        at = {role: _named(wanted.get(role, wanted.get("")), role, pools) for role in ROLES}
        asked = read_question(flags_of(QuestionFlags, {**values, **at["prefill"].values}))
        if at["prefill"] is not at["decode"]:
            decode = read_question(flags_of(QuestionFlags, {**values, **at["decode"].values})).question.decode
            asked = replace(asked, question=replace(asked.question, decode=decode))
        machines = {role: getattr(asked.question, role) for role in ROLES}
        named = {role: replace(machines[role], budget=at[role].name) for role in ROLES}
        asked = replace(asked, question=replace(asked.question, **named))
        check_shape(asked.question)
        return Member(name=entry.name, question=asked.question), asked, []


def _named(name: str | None, role: str, pools: list[Entry]) -> Entry:
    names = [pool.name for pool in pools]
    if name is None:
        raise BadInput(f"hw names no pool for {role}; add {role}=NAME")
    if name.strip() not in names:
        raise BadInput(f"hw: {name[:40]!r} is not one of the pools {', '.join(names)}{suggest(name, names)}")
    return pools[names.index(name.strip())]


def _anywhere(entry: Entry, values: dict[str, str], pools: list[Entry]) -> Read:
    """Return a model whose roles may stand on any pool that takes its weights and its engine."""
    usable: list[Machines] = []
    notes: list[str] = []
    engines: dict[str, None] = {}
    asked: Asked | None = None
    for pool in pools:
        try:
            tried = read_question(flags_of(QuestionFlags, {**values, **pool.values}))
            asked, machines = asked or tried, tried.question.prefill
            engines |= dict.fromkeys(tried.question.engines)
        except BadInput as error:
            if not {"weights", "engine"} & values.keys():
                raise
            notes.append(f"{entry.name} not on {pool.name}: {error}")
            continue
        usable.append(replace(machines, budget=pool.name))
    if asked is None:
        raise BadInput(f"none of the pools takes it: {'; '.join(notes)}")
    question = replace(asked.question, prefill=usable[0], decode=usable[0], engines=tuple(engines))
    return Member(name=entry.name, question=question, pools=tuple(usable)), replace(asked, question=question), notes


def _machines(member: Member) -> tuple[Machines, ...]:
    """Return what a model may stand on."""
    return member.pools or (member.question.prefill, member.question.decode)


def _devices(read: list[Read], entries: list[Entry]) -> dict[str, int]:
    """Return what each pool has; BadInput where two models give one of them another size."""
    devices: dict[str, int] = {}
    for (member, _, _), entry in zip(read, entries, strict=True):
        for machines in _machines(member):
            if devices.setdefault(machines.budget, machines.devices) != machines.devices:
                raise BadInput(
                    f"{entry.where}: {machines.budget} has another size than above; give hw and size once, or pools"
                )
    return devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One model of a fleet: its plan, the nodes of each pool that it stands on, and what was checked of it.

    ``verdict`` is None where neither a confidence nor a loss was asked for, ``day`` empty without a rate profile.
    """

    name: str
    plan: Plan
    nodes: dict[str, list[int]]
    verdict: Verdict | None
    day: tuple[Seen, ...]

    def row(self) -> Row:
        """Return where it stands, what it does, and what a loss and the asked confidence leave of its limits."""
        plan, verdict = self.plan, self.verdict
        row: Row = {
            "name": self.name,
            "model": plan.question.model.name,
            "pools": " → ".join(dict.fromkeys(pool.machines.budget for _, pool in plan.pools())),
            "on_nodes": "; ".join(f"{pool} {ranges_text(own)}" for pool, own in self.nodes.items()),
            **plan_row(plan),
        }
        if verdict is not None and verdict.after_loss is not None:
            row |= {"spare": spares_text(plan, verdict), "after_loss": after_text(verdict.after_loss)}
        if verdict is not None and plan.question.confidence is not None:
            row["confidence"] = bounded_text(verdict.held_confidence or 0.0)
        return row


@dataclass(frozen=True, kw_only=True)
class FleetResult(Result):
    """Several models on one cluster.

    Attributes:
        asked: the fleet that the file describes.
        answer: the planner's answer.
        placed: each model with its plan; none where the cluster does not carry them all.
        floor: where everything stands; None where it does not.
        seconds: how long the search took.
    """

    asked: FleetInput
    answer: Answer
    placed: tuple[Placed, ...]
    floor: Floor | None
    seconds: float

    @property
    def feasible(self) -> bool:
        """Whether the cluster carries them all."""
        return self.answer.feasible

    @property
    def headline(self) -> str:
        """What the cluster carries, or what binds."""
        answer = self.answer
        if not answer.feasible:
            start = "the cluster does not carry the fleet"
            return f"{start} (binding limit: {answer.binding_limit}): {answer.explanation}"
        used = (
            f"{answer.devices_used.get(pool, 0)} of {count} {pool}" for pool, count in self.asked.fleet.devices.items()
        )
        cost = self.cost_per_hour
        paid = "" if cost is None else f", {format_count(cost)} USD an hour"
        return f"Devices: {', '.join(used)} on {counted(sum(map(len, self.nodes.values())), 'node')}{paid}"

    @property
    def nodes(self) -> dict[str, set[int]]:
        """The nodes of each pool on which some model stands."""
        found: dict[str, set[int]] = {}
        for each in self.placed:
            for pool, own in each.nodes.items():
                found.setdefault(pool, set()).update(own)
        return found

    @property
    def cost_per_hour(self) -> float | None:
        """Price of these nodes in USD per hour, of devices where there is less than a node; None without a price."""
        costs = [each.plan.cost_per_hour for each in self.placed]
        return None if None in costs else sum(cost for cost in costs if cost is not None)

    def rows(self) -> list[Row]:
        """Return a row per model, with what was checked of it."""
        return [each.row() for each in self.placed]

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``plan fleet --json`` prints."""
        answer, fleet = self.answer, self.asked.fleet
        feasible = answer.feasible
        return {
            "feasible": feasible,
            **picked(fleet, "objective share_nodes devices"),
            "devices_used": answer.devices_used,
            "growth": answer.growth if feasible else None,
            "carried_share": None if feasible else answer.growth,
            "cost_per_hour": self.cost_per_hour if feasible else None,
            "power_watts": answer.power_watts if feasible else None,
            "models": [_placed_json(each) for each in self.placed],
            "bound": bound_json(answer.bound) if answer.bound else None,
            **picked(answer, "binding_limit explanation"),
            "changes": [picked(change, "direction told") for change in answer.changes],
            "not_tried": list(self.asked.notes),
            "candidates_evaluated": answer.candidates_evaluated,
            "search_seconds": self.seconds,
        }

    def manifests(self) -> "dict[str, Manifest]":
        """Return the manifest of every model by its file; together they stand on the machines at once."""
        from planner.plans.assemble import assemble  # takes 0.1 s to import

        assert self.floor is not None, "only a fleet that is carried has manifests"
        return {
            name: assemble(each.plan, question_json(replace(asked, question=each.plan.question)), places)
            for name, each, asked, places in zip(
                manifest_names(self.asked), self.placed, self.asked.asked, self.floor.places, strict=True
            )
        }

    def files(self) -> dict[str, str]:
        """Return the manifest of every model, fleet.json and fleet.csv."""
        from planner.manifest.document import dump_manifest

        texts = {name: dump_manifest(made) for name, made in self.manifests().items()}
        return texts | dict(zip(SUMMARY, (as_json(self.to_dict()), self.to_csv()), strict=True))


def _placed_json(each: Placed) -> dict[str, object]:
    plan, verdict = each.plan, each.verdict
    return {
        "name": each.name,
        "model": plan.question.model.name,
        **picked(plan.question, "confidence headroom"),
        "pools": {role: pool.machines.budget for role, pool in plan.pools()},
        "nodes": each.nodes,
        "margins": [margin_json(margin) for margin in verdict.margins] if verdict else None,
        "held_confidence": verdict.held_confidence if verdict else None,
        "after_loss": loss_json(verdict.after_loss) if verdict and verdict.after_loss else None,
        "day": day_json(each.day, levels_of(plan)) if each.day else None,
        "best": plan_json(plan, compact=True),
    }


def fleet(file: str | Path, **flags: object) -> FleetResult:
    """Place several models with rates and limits on one cluster.

    Args:
        file: a fleet file: pools, models, their rates and limits.
        flags: ``objective``, ``survive`` and ``confidence``, which hold for all models whatever the file says.

    Raises:
        BadInput: the file or a flag is wrong, with its place.
    """
    return placed_on(read_fleet(Path(file), typed_of(flags)))


def placed_on(asked: FleetInput) -> FleetResult:
    """Return the answer to a fleet that was read."""
    begin = perf_counter()
    answer = plan_cluster(asked.fleet)
    seconds = perf_counter() - begin
    if not answer.feasible:
        return FleetResult(asked=asked, answer=answer, placed=(), floor=None, seconds=seconds)
    floor = fleet_floor(asked.fleet, answer.plans)
    placed, pools = [], [plan.pools() for plan in answer.plans]
    taken = [devices_on(*each) for each in zip(pools, floor.places, strict=True)]
    together: dict[str, Counter[int]] = {}
    for own in taken:
        for pool, devices in own.items():
            together.setdefault(pool, Counter()).update(devices)
    for number, (member, plan, one) in enumerate(zip(asked.fleet.members, answer.plans, asked.asked, strict=True)):
        day = tuple(over_the_day(plan, one.day)) if one.day and not asked.fleet.goal.maximised else ()
        nodes = nodes_of(plan.pools(), floor.places[number])
        bearing = _bearing(plan, taken[number], together)
        placed.append(Placed(name=member.name, plan=bearing, nodes=nodes, verdict=_verdict(plan), day=day))
    return FleetResult(asked=asked, answer=answer, placed=tuple(placed), floor=floor, seconds=seconds)


def _bearing(plan: Plan, taken: Mapping[str, Counter[int]], together: Mapping[str, Counter[int]]) -> Plan:
    """Return a plan that bears of each node as much as it takes of the devices that are taken there, by pool."""
    alone = borne = 0.0
    for machines, devices in plan.occupied:
        alone += paid_devices(machines, devices) * machines.device_cost
        for node, own in taken[machines.budget].items():
            there = together[machines.budget][node]
            borne += own / there * paid_devices(machines, there) * machines.device_cost
    return replace(plan, paid_share=borne / alone)


def _verdict(plan: Plan) -> Verdict | None:
    """Return what a plan does with the asked confidence and after the loss; None where neither was asked."""
    question = plan.question
    if question.survive is None and question.confidence is None:
        return None
    deployed, rate, sure = from_plan(plan), plan.requests_per_second, (question.confidence, question.headroom)
    return check_deployed(deployed, Limits.of(question), rate, *sure, loss=question.survive)


def manifest_names(asked: FleetInput) -> list[str]:
    """Return a file for each model, named as the model is in the fleet."""
    return [f"{name}/manifest.yaml" for name in file_names((each.name for each in asked.fleet.members), SUMMARY)]


def ranges_text(nodes: Sequence[int]) -> str:
    """Return ascending numbers as ranges: 0–3, 7."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(nodes), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
