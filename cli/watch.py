"""`plan watch`: what a running system tells beside its plan; exit 3 when a change pays."""

import time
from dataclasses import asdict

from cli.options import JSON, Text, takes
from cli.output import Screen, print_json, progress, short_duration
from ground.errors import ExitCode
from ground.units import counted, format_count, format_rate, parse_duration
from podplan.options import argument, flag, switch
from podplan.plan_data import pools_text
from podplan.watching import WatchFlags, WatchResult, watch


@takes(WatchFlags)
def command(
    flags: WatchFlags,
    sources: list[str] = argument("SOURCE...", "URLs or files of metrics, a request log, results of verify."),
    once: bool = switch("Look once, for cron and CI: exit code 3 when a change pays."),
    every: Text = flag("DURATION", "Between two looks [5min]."),
    json: bool = JSON,
) -> int:
    """Compare the metrics of a running system with its plan, and say when a change pays.

    \b
    Examples:
      plan watch http://router:8000/metrics --manifest out/manifest.yaml --once
      plan watch before.prom after.prom --window 10min --manifest out/manifest.yaml --once
      plan watch today.jsonl.gz --manifest out/manifest.yaml --once
      plan watch results/ --manifest out/manifest.yaml --once

    Metrics are those of vLLM, SGLang (also of the instances that answer, summed) or Dynamo's front end. It changes
    nothing itself: it prints the plan for what it sees, and the steps to it; docs/changes.md.
    """
    pause = 300.0 if every is None else parse_duration(every, "--every")
    while True:
        with progress("watching ..."):
            found = watch(*sources, **asdict(flags))
        print_json(found.to_dict()) if json else _show(Screen(), found)
        if once:
            return ExitCode.INFEASIBLE if found.pays else ExitCode.DONE
        time.sleep(pause)


def _show(screen: Screen, found: WatchResult) -> None:
    seen, low, high = found.seen, *found.factor_interval
    workload = seen.workload
    screen.text(f"{found.headline}.")
    if seen.requests and seen.seconds:
        reuse = f", {workload.prefix_reuse:.0%} of prompts reused" if workload.prefix_reuse else ""
        screen.text(
            f"Seen: {format_count(seen.requests)} requests in {short_duration(seen.seconds)}; prompts of "
            f"{workload.input_tokens.mean:.0f}{_wide(seen.prompt_half_width)} and answers of "
            f"{workload.output_tokens.mean:.0f}{_wide(seen.answer_half_width)} tokens{reuse}."
        )
    levels = found.manifest.service_levels
    for name, value, limit in (
        ("TTFT", seen.ttft_seconds, levels.ttft_seconds),
        ("TPOT", seen.tpot_seconds, levels.tpot_seconds),
    ):
        if value is not None and limit is not None:
            beyond = ", which it misses" if value > limit else ""
            screen.text(f"{name} p{levels.percentile:g}: {short_duration(value)} of {short_duration(limit)}{beyond}.")
    told = "outside" if found.violated else "inside"
    steps = (
        f"take {found.factor:.2f} times what is predicted, {told} the plan's 80 % interval of {low:.2f} to {high:.2f}"
        if found.seen.step_factor is not None or found.seen.mean_tpot_seconds is not None
        else "are not timed by this source and are taken as predicted"
    )
    screen.text(
        f"Steps {steps}; with them the plan carries {format_rate(found.carries)}, {found.headroom:+.0%} over the upper "
        "end of the rate."
    )
    for role, (now, then) in found.balance.items():
        screen.text(f"Experts of {role}: the busiest rank has {now:.2f} times the mean, planned are {then:.2f}.")
    screen.text(f"{'A change pays' if found.pays else 'No change pays'}: {found.why}.")
    if found.plan is not None and found.found is not None:
        pools = pools_text(found.plan, "{count} x {devices} {role}", ", ")
        promise = found.found.migration.promise
        screen.text(
            f"Plan: {pools} on {counted(found.plan.chips, 'chip')}. {counted(len(found.found.order.moves), 'step')}, "
            f"{short_duration(promise.seconds)}, {short_duration(promise.below_seconds)} below the limits; plan "
            "migrate writes them."
        )


def _wide(half_width: float | None) -> str:
    return f" ± {half_width:.0f}" if half_width else ""
