"""What an executed plan showed, as JSON and as text."""

from math import isfinite
from typing import Any

from cli.output import Screen
from ground.units import format_count, format_duration
from podplan.result import picked
from runtime.execute.check import TOLERANCE, Report, groups_with_four, lengths_of
from runtime.execute.faults import Recovered

SHOWN_POSITIONS = 10


def report_json(report: Report) -> dict[str, Any]:
    """Return what was checked and what came out, for `--json`."""
    world, compared = report.world, report.compared
    shortest, longest = lengths_of(world)
    instances = [world.decode] if world.mixed else [world.prefill, world.decode]
    return {
        "equal": report.equal,
        "tolerance": TOLERANCE,
        "model": world.decode.small.source.name,
        "layers": list(world.decode.small.layers),
        "left_out": world.decode.small.left_out,
        "int8": world.settings.int8,
        "seed": world.settings.seed,
        "instances": [picked(setup, INSTANCE) | {"ranks": len(setup.layout.places)} for setup in instances],
        "prompts": len(world.prompts),
        "prompt_tokens": {"min": shortest, "max": longest},
        "decode_groups": len(world.decode.layout.dp_groups()),
        "decode_groups_with_four_lengths": groups_with_four(world),
        "iterations": world.settings.iterations,
        **picked(compared, "tokens drafts accepted_drafts"),
        **picked(compared, "largest_logit_difference=logit_difference largest_draft_difference=draft_difference"),
        "wrong_tokens": len(compared.wrong),
        "wrong": [[at.request, at.index] for at in compared.wrong[:SHOWN_POSITIONS]],
        "too_close_to_call": [[at.request, at.index] for at in compared.close],
        "closest_token_margin": _finite(compared.closest_token),
        "closest_expert_margin": _finite(compared.closest_expert),
        "exchanges": [picked(swept, EXCHANGE) for swept in report.swept],
        "wall_seconds": report.seconds,
    }


def _finite(value: float) -> float | None:
    return value if value != float("inf") else None


INSTANCE = "role=layout.pool.role strategy=layout.pool.strategy drafts"
EXCHANGE = (
    "role pairs=plain.all_pairs pairs_met_by_the_run=natural pairs_met_by_forced_routes=plain.pairs "
    "forced_tokens=plain.tokens largest_difference=plain.difference "
    "int8_messages_largest_error=quantised.difference int8_messages_error_over_bound=quantised.bound_used"
)


def show_report(report: Report) -> None:
    """Print what was checked, the largest difference, and what was too close to call."""
    data, world, compared = report_json(report), report.world, report.compared
    verdict = "computes the same model" if report.equal else "DIFFERS from the unsharded model"
    Screen().table(
        ["instance", "strategy", "ranks", "microbatches", "drafts"],
        [
            [one["role"], one["strategy"], str(one["ranks"]), str(setup.layout.pool.microbatches), str(one["drafts"])]
            for one, setup in zip(data["instances"], [world.prefill, world.decode], strict=False)
        ],
        title=f"{data['model']}, small: the plan {verdict}",
        right=["ranks", "microbatches", "drafts"],
    )
    low, high = data["prompt_tokens"]["min"], data["prompt_tokens"]["max"]
    kind = "INT8 with a scale per token and output channel" if data["int8"] else "float64"
    lines = [
        f"Layers {', '.join(map(str, data['layers']))} of the checkpoint, every expert and slot, widths small; {kind}.",
        f"{data['prompts']} prompts of {low} to {high} tokens; {data['decode_groups_with_four_lengths']} of "
        f"{data['decode_groups']} decode groups have four of different lengths, the others one or more.",
        f"{format_count(compared.tokens)} tokens over {data['iterations']} iterations, {len(compared.wrong)} wrong; "
        f"largest difference of a logit {compared.logit_difference:.1e}, tolerance {TOLERANCE:.0e}.",
    ]
    if data["left_out"]:
        lines.append(f"Left out of the small model: {'; '.join(data['left_out'])}.")
    if compared.drafts:
        lines.append(
            f"{compared.accepted_drafts} of {compared.drafts} drafts accepted; "
            f"largest difference of a draft logit {compared.draft_difference:.1e}."
        )
    if compared.wrong:
        lines.append(f"Wrong at (request, token): {data['wrong']}.")
    lines += [_exchange_line(one) for one in data["exchanges"]]
    close = compared.close[:SHOWN_POSITIONS]
    experts = f", experts {compared.closest_expert:.1e}" if isfinite(compared.closest_expert) else ""  # dense: none
    lines.append(
        f"Closest decisions: tokens {compared.closest_token:.1e}{experts}; "
        f"{len(compared.close)} positions too close to call"
        + (f", (request, token) {[(at.request, at.index) for at in close]}." if close else ".")
    )
    lines.append(f"{format_duration(report.seconds)} in all.")
    Screen().lines(*lines)


def _exchange_line(one: dict[str, Any]) -> str:
    bound = one["int8_messages_error_over_bound"]
    quantised = f"; INT8 messages reach {bound:.1%} of their error bound" if bound else ""
    return (
        f"{one['role']}: {one['pairs_met_by_the_run']} of {one['pairs']} pairs of ranks exchanged tokens in the run, "
        f"{one['pairs_met_by_forced_routes']} under forced routes, largest difference {one['largest_difference']:.1e}"
        f"{quantised}."
    )


def recovery_json(recovered: Recovered) -> dict[str, Any]:
    """Return what was lost and what came of it, for `--json`."""
    compared = recovered.compared
    return {
        **picked(compared, "equal tokens largest_logit_difference=logit_difference"),
        "tolerance": TOLERANCE,
        "wrong_tokens": len(compared.wrong),
        "too_close_to_call": [[at.request, at.index] for at in compared.close],
        **picked(recovered, "lost_ranks moved_requests ranks_after noticed"),
    }


def show_recovery(recovered: Recovered, how: str) -> None:
    """Print what was lost, how the run went on, and whether the answers are still the model's."""
    compared = recovered.compared
    lost = ", ".join(map(str, recovered.lost_ranks))
    went_on = (
        f"Rank {lost} left; {recovered.ranks_after} ranks went on, {len(recovered.moved_requests)} requests were "
        "computed again on them."
        if how == "shrink"
        else "All groups rolled back one iteration and repeated it with every rank."
    )
    verdict = "the answers are the unsharded model's" if compared.equal else "the answers DIFFER"
    Screen().lines(
        *[
            f"Noticed: {recovered.noticed}.",
            went_on,
            f"{format_count(compared.tokens)} tokens, {len(compared.wrong)} wrong, largest difference of a logit "
            f"{compared.logit_difference:.1e}, tolerance {TOLERANCE:.0e}: {verdict}.",
        ]
    )
