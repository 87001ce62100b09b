"""Why no aggregated instance keeps the limits, and the nearest change under which one does."""

import math
from dataclasses import replace

import numpy as np

from ground.units import counted, format_duration
from planner.costs.latency import tokens_per_iteration
from planner.instances.decode_candidates import Count
from planner.instances.space import groups, role_rows
from planner.mixed.candidates import BUDGETS
from planner.mixed.kinds import MixedKind, group_screen
from planner.mixed.offers import holding, mixed_offers
from planner.offers.choice import Aim
from planner.question import Question
from planner.search.infeasible import memory_sentence, missing, smallest_of
from planner.search.limits import limit_of, tightest
from planner.search.shapes import needed_rates, not_aggregated
from planner.survival import lost_instances

TRIED = 12
"""Kinds of instances, the most likely first, whose queues are solved before a limit is taken to be out of reach."""


def missing_anyhow(question: Question, prefill: bool) -> tuple[str, str]:
    """Return (binding limit, sentence) where separate pools lack a role and aggregated instances carry nothing.

    It is about what separate pools lack, but where aggregated instances alone are asked for or where memory lacks, of
    which they need least.
    """
    if question.shape == "aggregated":
        return missing_aggregated(question)
    told = missing(question, prefill)
    return missing_aggregated(question) if told[0] == "memory" and not_aggregated(question) is None else told


def missing_aggregated(question: Question) -> tuple[str, str]:
    """Return (binding limit, sentence) where no aggregated instance carries any rate within the limits."""
    best = fastest_alone(question)
    if best is None:
        return "memory", memory_sentence(question, "mixed", smallest_of(question, question.decode, mixed_sizes))
    if question.survive is not None and carries(replace(question, survive=None)):
        return unsurvivable_aggregated(question)
    ttft, tpot = best
    late = tpot <= question.tpot_seconds
    least = ttft if late else tpot
    flag, limit = limit_of(question, late)
    nearest = tightest(question, late, least, carries)
    change = f"nearest change: {flag} {format_duration(nearest)}" if nearest else "several times the limit do not help"
    return flag.strip("-"), (
        f"{flag} {format_duration(limit)} cannot be kept at percentile {question.percentile:g}: the fastest aggregated "
        f"instance on up to {question.decode.devices} devices takes {format_duration(least)} with nothing else to do; "
        f"{change}"
    )


def unsurvivable_aggregated(question: Question) -> tuple[str, str]:
    """Return (binding limit, sentence) where instances fit, but not as many as must be left after a loss."""
    per_node = question.decode.devices_per_node
    wanted = min((1 + lost_instances(question.survive, size, per_node)) * size for size in mixed_sizes(question))
    held = counted(question.decode.devices, "device")
    return "survive", (
        f"--survive: losing one {question.survive} would leave no instance on {held}; "
        f"nearest changes: --devices {wanted}, or no --survive"
    )


def mixed_sizes(question: Question) -> list[int]:
    """Devices of every aggregated row that holds a request."""
    drafts = min(question.drafts)
    found = (holding(question, group)[0] for group in groups(question, "mixed", role_rows(question, "mixed"), drafts))
    return [row.strategy.devices for group in found for row in group.rows]


def fastest_alone(question: Question) -> tuple[float, float] | None:
    """Least seconds of a prompt, and per token of its answer, on any aggregated instance; None where none fits."""
    ttft = tpot = math.inf
    for drafts in question.drafts:
        accepted = tokens_per_iteration(drafts, question.acceptance)
        for group in groups(question, "mixed", role_rows(question, "mixed"), drafts):
            held, _ = holding(question, group)
            if not held.rows:
                continue
            screen = group_screen(question, held, BUDGETS[-1], Count())
            ttft = min(ttft, float(screen.alone().min()))
            tpot = min(tpot, float(screen.steps(1 / screen.ranks).bare.min()) / accepted)
    return (ttft, tpot) if math.isfinite(ttft) else None


def carries(question: Question) -> bool:
    """Whether some aggregated instance that the devices hold carries any rate within the limits."""
    aim = Aim(devices={question.decode.budget: question.decode.devices}, objective="throughput")
    needed = needed_rates(question, aim, None)
    offers, _ = mixed_offers(question, role_rows(question, "mixed"), Count(), needed)
    order = np.argsort(-offers.guess_per_second / offers.devices, kind="stable")
    kinds = (offers.build(int(number)) for number in order[:TRIED])
    return any(kind.pool_capacity(1) > 0 for kind in kinds if isinstance(kind, MixedKind))
