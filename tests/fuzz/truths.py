"""Truths that hold between the answers to a random question and to its neighbours.

Not what an answer is, which goldens judge, but that no two answers contradict each other: whoever asks twice, the
other way round, or through another door, must not be told something else.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cli.output import Screen, short_duration
from cli.plan_parts import engine_text
from cli.plan_view import show_plan
from cli.report import reports
from ground.errors import BadInput
from ground.files import parse_yaml
from ground.units import carried_rate, counted, format_duration
from planner.manifest.document import dump_manifest, parse_manifest
from planner.plans.plan import DisaggregatedPlan, Plan
from planner.search.search import search
from podplan.checking import Checked, check as checked
from podplan.explaining import ExplainResult, explain
from podplan.options import QuestionFlags, flags_of
from podplan.plan_data import limit_text
from podplan.planning import PlanResult, solved
from podplan.question import read_question
from podplan.simulation import simulate

ROOT = Path(__file__).parents[2]
Flags = dict[str, Any]

EXACT = 1e-9
"""Of a rate: what rounding may leave."""
CLOSE = 0.01
"""Of a mean latency: waits for links that the search for the quickest plan bounds by nothing."""
STEP, ALIKE, TAIL, SHORT, WAITS = 0.001, 0.003, 0.01, 0.02, 0.25
"""Of a rate: a step of the grid; what budgets of aggregated instances may differ by, also at percentiles that few pass;
what 40,000 short answers leave open. Of a mean wait for KV links: its error, as prompts of one pass are in each
other's way.
"""
FAMILY = 2.1
"""Half widths of 95 % intervals that 500 runs stay within with 99 % confidence: 4.1 deviations over 1.96."""

SMALL = {"qwen3-8b": (2, 4, 6), "llama-3.1-8b": (2, 4), "gpt-oss-20b": (2, 4, 6), "qwen3-30b-a3b": (2, 4, 8)}
LARGE = {"qwen3-235b-a22b": (16, 24), "deepseek-v2-lite": (2, 4), "llama-3.1-70b": (8, 16), "deepseek-v3": (32, 64)}
GPUS = ("h100", "h200", "l40s", "b200", "a100", "h800", "h20", "rtx-pro-6000")
NPUS = ("910b", "910c", "cm384")
AGGREGATED = 0.05
"""Share of questions on one pool for both roles, whose searches play ten times as long."""
LOOSER: dict[str, Callable[[Flags, random.Random], Flags]] = {
    "more devices": lambda flags, chance: {"devices": flags["devices"] + chance.choice([2, flags["devices"]])},
    "a looser TTFT": lambda flags, chance: {"ttft": flags["ttft"] * chance.choice([1.01, 1.5, 10])},
    "a looser TPOT": lambda flags, chance: {"tpot": flags["tpot"] * chance.choice([1.01, 1.5, 10])},
    "a lower percentile": lambda flags, chance: {"percentile": chance.choice([flags["percentile"] - 1, 50])},
    "no confidence": lambda flags, _: {"confidence": None},
    "no headroom": lambda flags, _: {"headroom": None},
    "a fuller pool": lambda flags, _: {"max_utilisation": None},
}


@dataclass
class Asking:
    """Questions near a random one, each solved once."""

    flags: Flags
    chance: random.Random
    known: dict[str, PlanResult] = field(default_factory=dict)

    def answer(self, **changes: Any) -> PlanResult:
        """Return the answer where some flags are others; None leaves a flag out."""
        flags = {key: value for key, value in {**self.flags, **changes}.items() if value is not None}
        key = json.dumps(flags, sort_keys=True)
        if key not in self.known:
            self.known[key] = solved(read_question(flags_of(QuestionFlags, flags)), explain=False, beside=False)
        return self.known[key]

    def plan(self, **changes: Any) -> Plan | None:
        """Return the plan where some flags are others."""
        return self.answer(**changes).best

    def rate(self, **changes: Any) -> float:
        """Return the rate where some flags are others, 0 where none is carried."""
        plan = self.plan(**changes)
        return 0.0 if plan is None else plan.requests_per_second

    def check(self, **changes: Any) -> Checked:
        """Return what `plan check` says."""
        flags = {key: value for key, value in {**self.flags, **changes}.items() if value is not None}
        return checked(flags.pop("model"), workers=1, **flags).questions[0]


def drawn(number: int, seed: int) -> Asking:
    """Return a random question; the same number and seed give the same."""
    chance = random.Random(f"{seed}-{number}")
    model, sizes = chance.choice([*SMALL.items(), *SMALL.items(), *LARGE.items()])
    machine = chance.choice([*GPUS, *GPUS, *NPUS])
    engine = "vllm-ascend" if machine in NPUS else chance.choice(["vllm", "vllm", "sglang", "reference"])
    flags: Flags = {"model": model, "hw": machine, "engine": engine, "devices": chance.choice(sizes)}
    flags |= {"isl": chance.choice([128, 512, 1000, 2048, 4096, 8192]), "osl": chance.choice([1, 16, 128, 256, 1024])}
    flags |= {"ttft": chance.choice([0.3, 1, 2, 5, 20]), "tpot": chance.choice([0.015, 0.03, 0.05, 0.1, 0.3])}
    flags |= {"percentile": chance.choice([50, 90, 95, 99, 99, 99, 99.9])}
    extra = [
        {"confidence": chance.choice([0.6, 0.8, 0.9])},
        {"headroom": chance.choice(["5%", "20%"])},
        {"isl_cv": chance.choice([0.3, 1])},
        {"osl_cv": chance.choice([0.3, 1])},
        {"prefix_reuse": chance.choice([0.2, 0.5, 0.9])},
        {"max_utilisation": chance.choice(["80%", "90%"])},
        {"mtp": 0},
    ]
    for one in chance.sample(extra, chance.choice([0, 0, 1, 1, 2])):
        flags |= one
    aggregated = model in SMALL and chance.random() < AGGREGATED
    return Asking(flags | ({"strategy": "mixed=TP=1"} if aggregated else {"shape": "disaggregated"}), chance)


def _error(plan: Plan | None) -> float:
    """Share of its rate that a plan may leave: another budget of prompts, or another wait for links, may carry it."""
    if not isinstance(plan, DisaggregatedPlan):
        return 0.0 if plan is None else ALIKE if plan.question.percentile <= 99 else TAIL
    tokens = plan.question.workload.decoded_tokens
    if plan.handed_over:
        return SHORT
    return STEP + WAITS * plan.links.wait_seconds / (tokens * plan.question.tpot_seconds) if tokens else STEP


def looser(ask: Asking) -> Iterator[str]:
    """More devices, looser limits and less confidence never serve less."""
    needs = {"no confidence": "confidence", "no headroom": "headroom", "a fuller pool": "max_utilisation"}
    names = [name for name in LOOSER if needs.get(name, "model") in ask.flags]
    for name in ask.chance.sample(names, 2):
        change = LOOSER[name](ask.flags, ask.chance)
        rate, more = ask.rate(), ask.rate(**change)
        plan = ask.plan()
        played = min(plan.played.requests_per_second[0], rate) if plan and plan.played else rate
        if more < played * (1 - max(_error(plan), EXACT)):
            yield f"{name} ({change}) serves {more:.9g}/s, without it {rate:.9g}/s ({more / rate - 1:.3%})"


def sized(ask: Asking) -> Iterator[str]:
    """Up to the maximum every rate has a plan within the devices that keeps the limits; above it none has."""
    most = ask.rate()
    share = ask.chance.choice([0.3, 0.9, 0.97, 0.999, 1 - EXACT])
    if most:
        plan = ask.plan(rate=most * share)
        if plan is None:
            yield f"sizing refuses {share:.9g} of the {most:.9g}/s that planning serves"
            return
        yield from _kept(ask, plan)
        if plan.requests_per_second < most * share * (1 - EXACT):
            yield f"sized for {most * share:.9g}/s, a plan carries {plan.requests_per_second:.9g}/s"
        fewer = ask.plan(rate=most * share / 2)
        if fewer is None or fewer.chips > plan.chips + EXACT:
            yield f"half the rate needs {fewer and fewer.chips} chips, the whole {plan.chips}"
    rate = _beyond(ask.plan()) or 0.01
    above = ask.plan(rate=rate)
    if above is not None:
        yield f"sizing serves {rate:.9g}/s on {above.devices} devices, planning {most:.9g}/s at most"


def _beyond(plan: Plan | None) -> float:
    """Return a rate that a plan with the largest rate cannot carry: beyond the interval, if it was played."""
    most = 0.0 if plan is None else plan.requests_per_second
    high = max(most, plan.played.requests_per_second[1]) if plan and plan.played else most
    return (1 + max(STEP, _error(plan))) * high


def _kept(ask: Asking, plan: Plan) -> Iterator[str]:
    """A plan keeps its devices and limits."""
    level = ask.flags["percentile"]
    if plan.devices > ask.flags["devices"]:
        yield f"a plan takes {plan.devices} devices of {ask.flags['devices']}"
    for name, latency in (("ttft", plan.ttft), ("tpot", plan.tpot)):
        if ask.flags["osl"] > 1 and latency.at(level) > ask.flags[name] * (1 + EXACT):
            yield f"{name} is {latency.at(level):.6g} s at p{level}, above its limit of {ask.flags[name]:.6g} s"


def judged(ask: Asking) -> Iterator[str]:
    """What planning serves, a check of the question and of the manifest confirms; what it does not, they refuse."""
    found = ask.answer()
    if found.best is None:
        if ask.check(rate=0.01).verdict.holds:
            yield "a check holds at 0.01/s where planning serves nothing"
        return
    most = found.best.requests_per_second
    yield from _kept(ask, found.best)
    beyond = _beyond(found.best)
    if ask.check(rate=beyond).verdict.holds:
        yield f"a check holds at {beyond:.9g}/s, planning serves {most:.9g}/s"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "manifest.yaml"
        path.write_text(dump_manifest(found.manifest()), encoding="utf-8")
        own = {key: ask.flags[key] for key in ("confidence", "headroom") if key in ask.flags}
        verdict = checked(manifest=str(path), rate=most, **own).questions[0].verdict
    if not verdict.holds:
        yield f"a check of the manifest refuses its own {most:.9g}/s: {verdict.explanation}"


def quickest(ask: Asking) -> Iterator[str]:
    """Up to the maximum every rate has a quickest plan within devices and limits, no slower than the smallest plan."""
    most = ask.rate()
    rate = most * ask.chance.choice([0.5, 0.9, 0.97, 0.999, 1 - EXACT])
    if not most:
        return
    plan, smallest = ask.plan(rate=rate, objective="latency"), ask.plan(rate=rate)
    if plan is None:
        yield f"no plan is quickest at {rate:.9g} of the {most:.9g}/s that planning serves"
        return
    yield from _kept(ask, plan)
    if smallest and smallest.e2e.mean < plan.e2e_mean_seconds * (1 - CLOSE):
        yield f"the smallest plan takes {smallest.e2e.mean:.6g} s, the quickest {plan.e2e_mean_seconds:.6g} s"


def explained(ask: Asking) -> Iterator[str]:
    """What explain says that more of a resource buys is no loss, and its plan is the plan."""
    flags = dict(ask.flags)
    found, base = explain(flags.pop("model"), workers=1, **flags), ask.rate()
    rate = found.answer.best.requests_per_second if found.answer.best else 0.0
    if rate != base:
        yield f"explain has a plan of {rate:.9g}/s, planning of {base:.9g}/s"
    for each in found.resources:
        if each.requests_per_second < base * (1 - EXACT):
            yield f"{each.unit} {each.resource} carries {each.requests_per_second:.9g}/s, without it {base:.9g}/s"
    for change in found.changes:
        if change.question is not None and search(change.question, beside=False).best is None:
            yield f"{change.flag} {change.value}, which explain calls feasible, has no plan"


def most(ask: Asking) -> Iterator[str]:
    """No layout, batch and number of instances that is fixed by hand serves more than the maximum."""
    base, chance = ask.rate(), ask.chance
    for _ in range(3):
        prefill, tp, batch, dp = (2 ** chance.randrange(end) for end in (4, 4, 6, 4))
        if "strategy" in ask.flags:
            count = chance.randint(1, ask.flags["devices"])
            pins = {"batch": f"mixed={batch * 8}", "instances": f"mixed={count}"}
        else:
            decode = f"DP={dp}, EP={dp}" if dp > 1 and tp == 1 else f"TP={tp}"
            pins = {"strategy": f"prefill=TP={prefill},decode={decode}", "batch": f"decode={batch * 8}"}
            if chance.random() < 0.3:
                pins["instances"] = f"prefill={chance.randint(1, 3)}"
        with suppress(BadInput):  # what the model or the engine cannot be cut into
            own = ask.rate(**pins)
            if own > base * (1 + EXACT):
                yield f"{pins} serve {own:.9g}/s, the best plan {base:.9g}/s"


def told(ask: Asking) -> Iterator[str]:
    """Table, JSON, manifest and pages tell the same figures."""
    found = ask.answer()
    if found.best is None:
        return
    data, manifest, pages = found.to_dict()["best"], found.manifest(), reports(found)
    predicted = manifest.predicted.model_dump(mode="json")
    level = f"p{ask.flags['percentile']:g}"
    for name in ("requests_per_second", "output_tokens_per_second", "ttft_seconds", "tpot_seconds", "e2e_seconds"):
        own, theirs = data[name], predicted[name]
        pairs = [(own[key], theirs[key]) for key in theirs] if isinstance(own, dict) and theirs else [(own, theirs)]
        if any(one != other for one, other in pairs if other is not None):
            yield f"{name} is {own} in JSON and {theirs} in the manifest"
    if parse_manifest(parse_yaml(dump_manifest(manifest), "manifest"), "manifest") != manifest:
        yield "a manifest that is written and read is another one"
    for pool, written in zip(data["pools"], manifest.pools, strict=True):
        if len(written.instances) != pool["instances"]:
            yield f"{pool['instances']} instances in JSON, {len(written.instances)} in the manifest"
    figures = [format_duration(data[name][level]) for name in ("ttft_seconds", "tpot_seconds") if data[name][level]]
    for name, page in pages.items():
        lacking = [text for text in figures if text not in page]
        if lacking and ask.flags["osl"] > 1:
            yield f"{name} lacks {lacking}"


def alike(ask: Asking) -> Iterator[str]:
    """Headline, printed table, rows, JSON, explain and check tell the same figures of the same plan."""
    found = ask.answer()
    if found.best is None:
        if found.to_dict()["best"] is not None or f"(binding limit: {found.binding_limit})" not in found.headline:
            yield "an answer without a plan tells of one"
        return
    own, level = found.to_dict()["best"], f"p{ask.flags['percentile']:g}"
    yield from _printed_alike(ask, found, own)
    for key, value in found.rows()[0].items():
        theirs = own[key][level] if isinstance(own.get(key), dict) else own.get(key, value)
        if isinstance(value, float) and value != theirs:
            yield f"{key} is {value} in the table and {theirs} in JSON"
    explained = ExplainResult(asked=found.asked, answer=found.answer).to_dict()["best"]
    if explained != own:
        yield "explain has other figures of the plan than JSON"
    yield from _checked_alike(ask, found.best.requests_per_second)


def _printed_alike(ask: Asking, found: PlanResult, own: dict[str, Any]) -> Iterator[str]:
    """What is printed holds the figures of JSON, and the headline those that it tells."""
    page = StringIO()
    show_plan(Screen(page, 1000), found)
    text, level = " ".join(page.getvalue().split()), f"p{ask.flags['percentile']:g}"
    figures = {
        "rate": carried_rate(own["requests_per_second"]).split("/")[0],
        "chips": counted(own["chips"], "chip"),
        "nodes": counted(own["nodes"], "node"),
        "binding limit": limit_text(found.best, bound=found.answer.bound),
        "engine": engine_text(found.best.question),
    }
    yield from (
        f"the headline lacks {figures[name]}" for name in ("rate", "chips") if figures[name] not in found.headline
    )
    for pool in own["pools"]:
        figures[f"{pool['role']} pool"] = f"{pool['instances']} × {pool['devices_per_instance']} {pool['role']}"
        figures[f"load of {pool['role']}"] = f"{pool['utilisation']:.0%}"
    if ask.flags["osl"] > 1:
        figures |= {name: short_duration(own[f"{name}_seconds"][level]) for name in ("ttft", "tpot")}
    yield from (f"the {name} of JSON, {told}, is not printed" for name, told in figures.items() if told not in text)


def _checked_alike(ask: Asking, rate: float) -> Iterator[str]:
    """A check at the plan's rate holds, and tells the latencies of its plan, longer ones with a confidence alone."""
    verdict = ask.check(rate=rate).verdict
    if not verdict.holds:
        yield f"a check refuses the {rate:.9g}/s that planning serves: {verdict.explanation}"
    for margin in () if {"confidence", "headroom"} & ask.flags.keys() else verdict.margins:
        latency = {"ttft": verdict.plan.ttft, "tpot": verdict.plan.tpot}.get(margin.name) if verdict.plan else None
        planned = latency and latency.at(ask.flags["percentile"])
        if planned is not None and margin.value is not None and abs(margin.value - planned) > EXACT * planned:
            yield f"check tells {margin.name} {margin.value:.9g} s, its plan has {planned:.9g} s"


def repeated(ask: Asking) -> Iterator[str]:
    """Two runs, three seeds of hashing and two locales give the same bytes."""
    first = digest(ask.flags)
    code = "import json,sys;from tests.fuzz.truths import digest;print(digest(json.load(sys.stdin)))"
    places = ({"PYTHONHASHSEED": "1", "LC_ALL": "C"}, {"PYTHONHASHSEED": "7", "LC_ALL": "C.UTF-8", "TZ": "Asia/Tokyo"})
    for own in places:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(ROOT), **own},
            input=json.dumps(ask.flags),
            capture_output=True,
            text=True,
            check=True,
        )
        if done.stdout.strip() != first:
            yield f"other bytes with {own}"


def digest(flags: Flags) -> str:
    """Return a digest of all that an answer becomes."""
    found = solved(read_question(flags_of(QuestionFlags, flags)), explain=False, beside=False)
    data = {key: value for key, value in found.to_dict().items() if key != "search_seconds"}
    texts = [json.dumps(data)]
    if found.best is not None:
        texts += [dump_manifest(found.manifest()), *reports(found).values()]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def simulated(ask: Asking) -> Iterator[str]:
    """At the lower end of its rate's interval a plan keeps in simulation what it promises."""
    found = ask.answer()
    best = found.best
    if best is None or "prefix_reuse" in ask.flags:
        return
    rate = min([best.requests_per_second, *(best.played.requests_per_second if best.played else ())])
    run = simulate(found.manifest(), rate=rate, seed=ask.chance.randrange(100)).measured
    if run.completed + run.failed + run.running != run.requests or run.failed:
        yield f"of {run.requests} requests {run.completed} are done, {run.failed} failed, {run.running} run"
    late = 2 * (1 - ask.flags["percentile"] / 100) + FAMILY * max(run.confidence.get("attained", 0), 3 / run.requests)
    if run.slo_attainment < 1 - late:
        yield f"{run.slo_attainment:.4f} of requests keep the limits at {rate:.6g} of {best.requests_per_second:.6g}/s"


Truth = Callable[[Asking], Iterator[str]]
TRUTHS: dict[Truth, float] = {
    looser: 0.9,
    sized: 0.6,
    judged: 0.4,
    most: 0.6,
    told: 0.3,
    alike: 1.0,
    simulated: 0.3,
    explained: 0.06,
    repeated: 0.03,
    quickest: 0.2,
}
"""Each with the share of questions that it is asked of: some take many searches."""


def contradictions(number: int, seed: int, truths: Sequence[Truth] = ()) -> tuple[Flags, list[str]]:
    """Return a random question, and what contradicts itself around it, in these truths or in some.

    A question that is bad input, such as a layout that no engine runs in the model's formats, has no answer to hold.
    """
    ask, found = drawn(number, seed), list[str]()
    try:
        ask.answer()
    except BadInput:
        return ask.flags, found
    for truth in truths or [each for each, share in TRUTHS.items() if ask.chance.random() < share]:
        ask.chance.seed(f"{seed}-{number}-{truth.__name__}")  # so that one alone can be asked again
        found += [f"{truth.__name__}: {each}" for each in truth(ask)]
    return ask.flags, found
