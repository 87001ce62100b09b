"""What lies near a plan, each solved: other sizes and instances, and one more unit of each resource of the machines.

For a resource the pools have just the devices of the plan, so that unused chips do not hide the change.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ground.records import Sourced
from hardware.spec import HardwareSpec
from planner.plans.plan import Plan
from planner.plans.servers import PREDICTED
from planner.question import Pin, Question
from planner.search.changes.variations import most_carried, rows_that_matter
from planner.search.search import search
from planner.search.sure import is_plain, rate_with
from planner.search.ways import Rows

MORE = 1.1  # factor of one unit more: a tenth of compute, bandwidth or memory. A unit of chips is one node

Change = Callable[[HardwareSpec], HardwareSpec]
Each = Callable[..., Iterable[Any]]
"""Maps a function over items, as ``map`` does: in several processes, or with a progress bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A resource of the machines."""

    name: str
    unit: str
    apply: Callable[[Question], Question]
    other_sizes: bool = False  # whether instances may have new sizes
    idle: bool = False  # whether the plan does not use the resource, so that nothing is solved again


AS_IT_IS = Resource(name="", unit="", apply=lambda question: question)

Size = tuple[int, int]  # devices of prefill and of decode
NO_SIZES: Mapping[Size, float] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bought:
    """Rate with one more unit of a resource on the devices of the plan."""

    resource: str
    unit: str
    requests_per_second: float
    gain: float  # relative gain in rate over the plan's devices as they are


def bought(
    plan: Plan, resources: Sequence[Resource] | None = None, each: Each = map, sizes: Mapping[Size, float] = NO_SIZES
) -> list[Bought]:
    """Return the gain of each resource, largest first; each is solved anew over the rows that matter.

    Resources are independent: ``each`` maps over them, perhaps in several processes. Known rates of other ``sizes`` are
    not solved again, nor is the plan's own rate where the largest rate was asked for.
    """
    base, known = on_plan_devices(plan), plan.requests_per_second
    asked = resources_of(base) if resources is None else resources
    most = plan.question.goal.maximised and is_plain(plan.question)
    full = most and known >= min(pool.capacity_per_second for _, pool in plan.pools()) * (1 - 1e-9)
    rate_of = {AS_IT_IS.name: known} if full else {}
    rate_of |= {one.name: sizes[size] for one in asked if (size := size_of(one.apply(base))) in sizes}
    left = [one for one in (AS_IT_IS, *asked) if not one.idle and one.name not in rate_of]
    rates = each(partial(_carried, base, rows_that_matter(base, known), known), left)
    rate_of |= {one.name: rate for one, rate in zip(left, rates, strict=True)}
    now = rate_of[AS_IT_IS.name]
    found = [
        Bought(resource=resource.name, unit=resource.unit, requests_per_second=rate, gain=rate / now - 1)
        for resource in asked
        for rate in (rate_of.get(resource.name, now),)
    ]
    return sorted(found, key=lambda each: -each.gain)


def _carried(base: Question, rows: Rows, known_per_second: float, resource: Resource) -> float:
    return most_carried(resource.apply(base), None if resource.other_sizes else rows, known_per_second)


def size_of(question: Question) -> Size:
    """Return the devices of prefill and of decode in a question."""
    return question.prefill.devices, question.decode.devices


def on_plan_devices(plan: Plan) -> Question:
    """Return the question for the largest rate on the devices of a plan; of spread instances on their whole nodes."""
    taken = {machines.budget: devices for machines, devices in plan.occupied}
    question = plan.question.on_roles(lambda own: replace(own, devices=taken.get(own.budget, 0)))
    return replace(question, objective="throughput", rate_per_second=None)


def resources_of(question: Question) -> list[Resource]:
    """Return the resources of a question's machines; of each role where they differ."""
    both, apart = [("prefill", "decode")], [("prefill",), ("decode",)]
    alike, shared = question.prefill.hardware == question.decode.hardware, question.one_pool
    found = []
    for roles in both if alike else apart:
        spec = (question.prefill if roles[0] == "prefill" else question.decode).hardware
        suffix = "" if alike else f" of {roles[0]} ({spec.name})"
        idle = {f"network {plane.name}" for plane in spec.planes if plane.name not in spec.planes_in_use}
        for name, change in changes_of(spec):
            apply = partial(_with_hardware, roles, change)
            found.append(Resource(name=f"{name}{suffix}", unit=f"+{MORE - 1:.0%}", apply=apply, idle=name in idle))
    for roles in both if shared else apart:
        suffix = "" if shared else f" of {roles[0]}"
        apply = partial(_one_node_more, roles)
        found.append(Resource(name=f"chips{suffix}", unit="+1 node", apply=apply, other_sizes=True))
    return found


def changes_of(spec: HardwareSpec) -> list[tuple[str, Change]]:
    """Return the changes of one machine: compute, both sides of memory, each network plane."""
    found: list[tuple[str, Change]] = [
        ("compute", more_compute),
        ("memory bandwidth", more_bandwidth),
        ("memory size", more_memory),
    ]
    return found + [(f"network {plane.name}", partial(more_network, plane=plane.name)) for plane in spec.planes]


def _with_hardware(roles: Sequence[str], change: Change, question: Question) -> Question:
    """Return the question with changed machines of some roles, which are equal; one object for both marks that."""
    spec = change((question.prefill if "prefill" in roles else question.decode).hardware)
    return question.on_roles(lambda machines: replace(machines, hardware=spec), roles)


def _one_node_more(roles: Sequence[str], question: Question) -> Question:
    return question.on_roles(lambda own: replace(own, devices=own.devices + own.devices_per_node), roles)


def _more(value: Any) -> Any:
    return replace(value, value=value.value * MORE) if isinstance(value, Sourced) else value * MORE


def _with_device(spec: HardwareSpec, **fields: Any) -> HardwareSpec:
    return replace(spec, device=replace(spec.device, **fields))


def more_compute(spec: HardwareSpec) -> HardwareSpec:
    """Return the machine with higher peaks of every dtype; kernels keep their efficiencies."""
    peaks = {dtype: _more(peak) for dtype, peak in spec.device.peak_flops_per_second.items()}
    return _with_device(spec, peak_flops_per_second=peaks)


def more_bandwidth(spec: HardwareSpec) -> HardwareSpec:
    """Return the machine with faster memory."""
    return _with_device(spec, memory_bandwidth_bytes_per_second=_more(spec.device.memory_bandwidth_bytes_per_second))


def more_memory(spec: HardwareSpec) -> HardwareSpec:
    """Return the machine with larger memory."""
    return _with_device(spec, memory_bytes=_more(spec.device.memory_bytes))


def more_network(spec: HardwareSpec, plane: str) -> HardwareSpec:
    """Return the machine with a faster plane: its links, and all collectives and exchanges that were fitted on them.

    Latencies stay. A group is on the plane of the smallest scope that holds it.
    """
    scopes = [scope.name for scope in spec.scopes if scope.plane == plane]
    return replace(
        spec,
        planes=[_wider(each) if each.name == plane else each for each in spec.planes],
        scopes=[_wider(each) if each.plane == plane else each for each in spec.scopes],
        collectives=[
            replace(fit, protocols=[_wider(each) for each in fit.protocols]) if fit.scope in scopes else fit
            for fit in spec.collectives
        ],
        exchanges=[
            replace(
                fit, points=[_wider(each) if spec.scope_of(each.degree).plane == plane else each for each in fit.points]
            )
            for fit in spec.exchanges
        ],
    )


def _wider(part: Any) -> Any:
    """Return a plane, scope or fit with more of every bandwidth that it states."""
    names = ("bandwidth_bytes_per_second", "pair_bandwidth_bytes_per_second")
    return replace(part, **{name: _more(own) for name in names if (own := getattr(part, name, None))})


Neighbour = tuple[str, str, bool, Question]  # name, flag, ``less`` and question of a neighbour


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """A neighbouring question and its best plan; None where it has none."""

    name: str
    flag: str
    less: bool  # whether the neighbour has one unit of machines less
    plan: Plan | None

    @property
    def requests_per_second(self) -> float:
        """Rate within the limits."""
        return 0.0 if self.plan is None else self.plan.requests_per_second


def headroom_of(plan: Plan) -> float:
    """Return the relative rise of the rate at which a plan's pools first miss a limit with its confidence."""
    return rate_with(plan, plan.question.confidence or PREDICTED) / plan.requests_per_second - 1


def sizes_of(near: Iterable[Near]) -> dict[Size, float]:
    """Return the largest rates of other sizes."""
    sized = [(one.plan, one) for one in near if one.flag.startswith("--devices")]
    return {size_of(plan.question): one.requests_per_second for plan, one in sized if plan is not None}


def near_plans(plan: Plan, each: Each = map) -> list[Near]:
    """Return the neighbours of a plan; ``each`` maps over the searches, perhaps in several processes."""
    return list(each(_solved, list(_beside(plan))))


def _solved(asked: Neighbour) -> Near:
    name, flag, less, question = asked
    return Near(name=name, flag=flag, less=less, plan=search(question, beside=False).best)


def _beside(plan: Plan) -> Iterator[Neighbour]:
    """Yield other sizes, for their largest rates, and other instances, for the asked objective."""
    yield from _sizes(plan)
    question, pools = plan.question, plan.pools()
    widest = max(pool.candidate.devices for _, pool in pools)
    if widest > 1:
        narrower = replace(question, max_instance_devices=widest - 1)
        yield "narrower instances", f"--max-instance-devices {widest - 1}", False, narrower
    role, pool = max(pools, key=lambda each: each[1].instances)
    given = dict(question.pins)
    if pool.instances > 1 and given.get(role, Pin()).instances is None:
        pin = replace(given.get(role, Pin()), instances=pool.instances - 1)
        shape = "aggregated" if role == "mixed" else "disaggregated"
        fewer = replace(question, pins=tuple({**given, role: pin}.items()), shape=shape)  # type: ignore[arg-type]
        yield f"fewer {role} instances", f"--instances {role}={pool.instances - 1}", False, fewer


def _sizes(plan: Plan) -> Iterator[Neighbour]:
    """Yield the question for the largest rate on one unit less and one more than the plan takes, for each pool."""
    base = on_plan_devices(plan)
    roles = (("prefill", "decode"),) if base.one_pool else (("prefill",), ("decode",))
    for own in roles:
        machines = base.prefill if own[0] == "prefill" else base.decode
        unit = machines.unit(machines.devices - 1)
        for step in (-1, 1):
            devices = (-(-machines.devices // unit) + step) * unit
            if devices <= 0:
                continue
            question = base.on_roles(partial(replace, devices=devices), own)
            counts = f"{devices}" if base.one_pool else f"{own[0]}={devices}"
            what = "node" if unit == machines.devices_per_node else "chip"
            name = f"a {what} {'more' if step > 0 else 'less'}{'' if base.one_pool else f' of {own[0]}'}"
            yield name, f"--devices {counts}", step < 0, question
