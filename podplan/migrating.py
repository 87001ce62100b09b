"""`podplan.migrate`: the cheapest safe steps from one manifest to another, or to the plan of a question."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from ground.errors import BadInput
from ground.files import read_yaml, to_yaml
from ground.units import counted, format_bytes, format_duration, format_rate, parse_size, read_index
from planner.changeover.change import Changeover, Conditions, change
from planner.changeover.moving import Terms
from planner.changeover.order import Order
from planner.manifest.document import dump_manifest, parse_manifest, read_manifest
from planner.manifest.schema import Manifest
from planner.plans.expectation import planned_rate
from planner.serving.deployed import workload_of
from podplan.options import Flags, Text, argument, flag, flags_of
from podplan.planning import solved
from podplan.question_files import asked_of, read_questions
from podplan.readers import read_choice, read_confidence
from podplan.result import Result, Row, picked

MIGRATION = "migration.yaml"
MOST_NODES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateFlags(Flags):
    """From where to where, under which traffic, and what may be used on the way."""

    old: Path = argument("OLD", "The manifest that runs.")
    new: Path = argument("NEW", "The manifest to come, or a question file whose plan it is.")
    rate: Text = flag("RATE", "Requests that arrive meanwhile [the rate planned for that traffic].", unit="/s")
    traffic: Text = flag(
        "WHOSE", "Manifest whose requests arrive meanwhile: old, new, or both, NEW's once it is there [old]."
    )
    confidence: Text = flag("C", "Probability that predicted times hold, from 0.5, as predicted, to 0.999 [0.5].")
    spare_nodes: Text = flag("N", "Nodes beside those of the manifests, of each cluster [0].")
    without_nodes: Text = flag(
        "LIST", "Nodes that are lost or belong to others, such as 3 or 0,4-6; OLD's instances there are gone."
    )
    max_concurrent: Text = flag("N", "Instances that stop, or start, in one step at most [all].")
    load_from: Text = flag(
        "SOURCES",
        "Where weights come from: peers, storage=RATE of the store, host=RATE a device [peers,storage=2.5GB/s].",
    )
    startup: Text = flag("DURATION", "From loaded weights to the first request [60s].", unit="s")


@dataclass(frozen=True, kw_only=True)
class MigrateResult(Result):
    """A change that was found.

    Attributes:
        change: its steps, their manifests and what is promised while they run.
        asked: the limits that it keeps.
        seconds: how long the search took.
    """

    change: Changeover
    asked: Conditions
    seconds: float

    @property
    def order(self) -> Order:
        """The steps with their bound."""
        return self.change.order

    @property
    def headline(self) -> str:
        """How long it takes, and what holds meanwhile."""
        promise, order = self.change.migration.promise, self.order
        if not order.moves:
            return "nothing has to stop or start"
        below = f"limits are not promised for {format_duration(order.below_seconds)} of it"
        holds = below if order.below_seconds else "limits hold throughout"
        return (
            f"{counted(len(order.moves), 'step')}, {format_duration(order.seconds)}, "
            f"{format_bytes(self.change.bytes)} of weights: {holds} at {format_rate(promise.requests_per_second)}"
        )

    @property
    def bound(self) -> str:
        """What is proven."""
        order = self.order
        if order.proven:
            return "proven: no order of steps has less time below the limits, nor takes less with as little"
        return (
            f"lots were bundled to keep the search short; no order has less than "
            f"{format_duration(order.below_bound_seconds)} below the limits or takes less than "
            f"{format_duration(order.seconds_bound)}"
        )

    def rows(self) -> list[Row]:
        """Return a row per step."""
        return [
            {"step": number, "drain": len(step.drain), "start": len(step.start), "seconds": step.seconds}
            | picked(move, "bytes source")
            | picked(step, "carries_requests_per_second=carries_per_second below_seconds")
            for number, (step, move) in enumerate(
                zip(self.change.migration.steps, self.order.moves, strict=True), start=1
            )
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``plan migrate --json`` prints."""
        found = self.change
        return {
            "steps": [step.model_dump(mode="json") | {"seconds": step.seconds} for step in found.migration.steps],
            "promise": found.migration.promise.model_dump(mode="json"),
            "kept_instances": found.kept,
            "weight_bytes": found.bytes,
            **picked(found, "carries_before_per_second=carries_before carries_after_per_second=carries_after"),
            "bound": picked(self.order, "proven below_seconds=below_bound_seconds seconds=seconds_bound"),
            "assumptions": picked(self.asked, "confidence spare_nodes most_at_once")
            | picked(found.terms, "startup_seconds storage_bytes_per_second host_bytes_per_second peers"),
            "search_seconds": self.seconds,
        }

    def files(self) -> Mapping[str, str]:
        """Return the steps and the manifest of every stage, by file name."""
        found = self.change
        names = [found.migration.begin, *(step.stage for step in found.migration.steps)]
        stages = {name: dump_manifest(stage) for name, stage in zip(names, found.stages, strict=True)}
        return {MIGRATION: to_yaml(found.migration.model_dump(mode="json")), **stages}


def migrate(old: str | Path | Manifest, new: str | Path | Manifest, **flags: object) -> MigrateResult:
    """Find the cheapest safe steps from one manifest to another.

    Args:
        old: the manifest that runs, or its path.
        new: the one to come, or the path of it or of a question file.
        flags: the long flags of ``plan migrate``, such as ``rate="100/s"`` or ``spare_nodes=2``.

    Raises:
        BadInput: a keyword that is no flag, or a value that it cannot have.
        Infeasible: instances of both cannot serve beside each other.
    """
    typed = flags_of(MigrateFlags, flags)
    before = old if isinstance(old, Manifest) else read_manifest(Path(old))
    after = _manifest(new)
    asked = _asked(typed, before, after)
    begin = perf_counter()
    found = change(before, after, asked)
    return MigrateResult(change=found, asked=asked, seconds=perf_counter() - begin)


def _manifest(given: str | Path | Manifest) -> Manifest:
    """Return a manifest, that of a file, or that of the plan of the one question of a file."""
    if isinstance(given, Manifest):
        return given
    path = Path(given)
    data = read_yaml(path)
    if isinstance(data, dict) and "manifest_version" in data:
        return parse_manifest(data, str(path))
    entries = read_questions(path)
    if len(entries) != 1:
        raise BadInput(f"{path}: holds {len(entries)} questions; a change leads to the plan of one")
    return solved(asked_of(entries[0]), explain=False, beside=False).manifest()


def _asked(flags: MigrateFlags, old: Manifest, new: Manifest) -> Conditions:
    whose = read_choice(flags.traffic, "--traffic", ("old", "new", "both"), "old")
    if whose == "both" and flags.rate is not None:
        raise BadInput("--rate: each manifest's own goes with --traffic both; leave it out")
    traffic = new if whose == "new" else old
    terms = _terms(flags, new)
    if not (terms.peers or terms.storage_bytes_per_second or terms.host_bytes_per_second):
        raise BadInput("--load-from: names no source of weights; give peers, storage=2.5GB/s or host=20GB/s")
    return Conditions(
        workload=workload_of(traffic.workload),
        rate_per_second=flags.per_second("rate", None) or planned_rate(traffic),
        both=whose == "both",
        confidence=read_confidence(flags.confidence) or 0.5,
        spare_nodes=flags.count("spare_nodes", 0, zero=True),
        without=_without(flags.without_nodes, old),
        most_at_once=flags.count("max_concurrent", None),
        terms=terms,
    )


def _without(text: str | None, old: Manifest) -> frozenset[tuple[str, int]]:
    """Return the nodes of a list, such as ``0,4-6``, with CLUSTER/ before a number where there are several."""
    found: set[tuple[str, int]] = set()
    for word in () if text is None else text.split(","):
        cluster, _, numbers = word.strip().rpartition("/")
        names = [name for name in old.clusters if cluster in ("", name)]
        ends = [read_index(end) for end in numbers.split("-")]
        known = [end for end in ends if end is not None and end < MOST_NODES]
        if len(names) != 1 or len(known) != len(ends) or len(ends) > 2 or known != sorted(known):
            raise BadInput(
                f"--without-nodes: {word[:40]!r} is no node of {', '.join(old.clusters)}, such as 3, 4-6 or "
                f"{next(iter(old.clusters))}/3"
            )
        found |= {(names[0], node) for node in range(known[0], known[-1] + 1)}
    return frozenset(found)


def _terms(flags: MigrateFlags, new: Manifest) -> Terms:
    """Return where weights come from, and how long an instance takes from there to its first request."""
    known = Terms.of(new)
    startup = flags.seconds("startup", known.startup_seconds, zero=True)
    if flags.load_from is None:
        return replace(known, startup_seconds=startup)
    rates: dict[str, float | None] = {}
    for word in flags.load_from.split(","):
        name, given, rate = word.strip().partition("=")
        size, slash, period = rate.strip().partition("/")
        known_name = name == "peers" if not given else name in ("storage", "host") and (slash, period) == ("/", "s")
        if not known_name:
            right = "peers, storage=RATE or host=RATE, such as storage=2.5GB/s"
            raise BadInput(f"--load-from: {word[:40]!r} is not {right}")
        rates[name] = parse_size(size, "--load-from") if given else None
    return Terms(
        startup_seconds=startup,
        storage_bytes_per_second=rates.get("storage"),
        host_bytes_per_second=rates.get("host"),
        peers="peers" in rates,
    )
