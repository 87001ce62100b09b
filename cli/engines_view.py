"""Engines side by side: what each one reaches on the same machines, and which layouts it does not run."""

from collections import Counter

from cli.output import Screen
from planner.engines.accelerators import accelerator_of
from planner.instances.reachable import REFERENCE
from planner.plans.plan import Plan
from planner.question import Question
from planner.search.answer import Answer
from podplan.plan_data import own_cuts

WORDS = {
    "attention-grid": "this TP + DP of attention",
    "dedicated-shared-experts": "ranks for shared experts alone",
    "domains": "attention and experts apart",
    "drafts": "more MTP drafts",
    "exchange-ranks": "this EP degree of exchanges",
    "expert-grid": "this TP + EP of experts",
    "expert-model": "experts of this model so",
    "experts-divide": "uneven experts per rank",
    "kv-dtype": "this KV format",
    "microbatches": "two microbatches",
    "microbatches-dp": "two microbatches without DP",
    "microbatches-mode": "two microbatches without EP",
    "microbatches-redundancy": "two microbatches with replicas",
    "pair-device": "two kinds of machines",
    "pair-instances": "more instances",
    "pair-kv-dtype": "two KV formats",
    "pair-pipeline": "pipeline stages",
    "pair-tensor": "this pair of TP degrees",
    "pipeline": "pipeline stages",
    "pipeline-drafts": "MTP over pipeline stages",
    "power-of-two": "degrees that are no power of two",
    "rank-in-node": "TP over nodes",
    "redundancy-divides": "uneven replicas",
    "redundancy-mode": "replicas of experts with TP",
    "redundancy-per-device": "other numbers of replicas",
    "staged-attention": "SP prefill",
    "tensor-scope": "TP beyond a node",
    "weights": "this weight format",
    "whole-nodes": "parts of nodes",
}
"""What an engine does not run, by the rule of ``planner.engines.rules`` that cut it."""


def engine_text(question: Question) -> str:
    """Return an engine and its version as they are read: ``sglang 0.5.23``; where none runs there, that."""
    if question.engine != REFERENCE:
        return question.engine.replace("@", " ")
    machines = {part.hardware.name: accelerator_of(part.hardware) for part in (question.prefill, question.decode)}
    shared = set(machines.values())
    none = (
        f" (no engine of the catalogue runs on {' and '.join(machines)})" if None in shared or len(shared) > 1 else ""
    )
    return f"the reference runtime{none}"


def show_engines(screen: Screen, answer: Answer) -> None:
    """Write what each engine reaches and which layouts it cannot run; last what the reference engine would."""
    rows = []
    for tried in answer.engines:
        cuts: Counter[str] = sum((Counter(rules) for rules in own_cuts(tried).values()), Counter())
        cannot = dict.fromkeys(WORDS.get(rule, rule) for rule, _ in cuts.most_common())
        name = tried.engine.replace("@", " ")
        rows.append([name, *_reached(tried.plan, tried.binding_limit), ", ".join(cannot) or "nothing of these"])
    best, most = answer.best, answer.unrestricted
    if best is not None and most is not None:
        goal = best.question.goal
        gap = goal.value(most) / goal.value(best) - 1
        told = f"nothing: {gap:+.1%} {goal.unit}" if abs(gap) > 5e-4 else "nothing, and is no better"
        rows.append(["the reference runtime", *_reached(most, ""), told])
    screen.table(["engine", "requests/s", "chips", "does not run"], rows, right=["requests/s", "chips"])


def _reached(plan: Plan | None, limit: str) -> tuple[str, str]:
    return ("no plan", limit) if plan is None else (f"{plan.requests_per_second:.3g}", f"{plan.chips:g}")
