"""`plan import`: a running deployment as a manifest, with its headroom, what is wrong and what would mend it."""

from dataclasses import asdict

from cli.options import JSON, takes
from cli.output import Screen, print_json
from ground.errors import ExitCode
from ground.units import counted
from podplan.importing import ImportFlags, ImportResult, import_deployment


@takes(ImportFlags)
def command(flags: ImportFlags, json: bool = JSON) -> int:
    """Read what others deployed: its layout, the rate that it carries, what is wrong, and the changes that mend it.

    \b
    Examples:
      plan import deploy/ --hw h800
      plan import lws.yaml --hw h200 --rate 20/s --ttft 2s --tpot 50ms --out plan/
      plan import "vllm serve Qwen/Qwen3-8B --max-num-seqs 512" --hw h100 --isl 512 --osl 128

    Kubernetes objects (LeaderWorkerSet, DisaggregatedSet, Deployment, StatefulSet, Pod, Volcano's Job, Dynamo's graph),
    scripts, command lines and MindIE's settings. Exit code 0: it keeps the limits; 3: it does not.
    """
    result = import_deployment(**asdict(flags))
    print_json(result.to_dict()) if json else _show(Screen(), result, flags)
    return ExitCode.DONE if result.feasible else ExitCode.INFEASIBLE


def _show(screen: Screen, result: ImportResult, flags: ImportFlags) -> None:
    """Print roles, headroom and findings."""
    for found, held in result.roles:
        experts = f", EP={held.moe_ep}" if held.moe_ep else ""
        sizes = f"{counted(found.instances, 'instance')} of {counted(held.devices, 'device')}"
        screen.lines(
            f"{found.name} ({found.role}, {found.engine}): {sizes}, TP={held.attention_tp}, DP={held.attention_dp}"
            f"{experts}, {held.sequences} requests and {held.tokens} tokens a step per DP rank"
        )
        if found.assumed:
            screen.lines(f"  assumed: {', '.join(found.assumed)}")
    screen.lines(result.headline)
    if result.headroom is not None:
        screen.lines(f"headroom over {result.asked_per_second:g}/s: {result.headroom:+.0%}")
    for finding in result.findings:
        mended = f" [{finding.change}]" if finding.change else ""
        screen.lines(f"{'must' if finding.blocking else 'could'}  {finding.role}: {finding.what}{mended}")
    if result.mended_per_second is not None:
        screen.lines(f"With these changes it carries {result.mended_per_second:.3g}/s.")
    if flags.out is not None and result.manifest is not None:
        screen.lines(f"Wrote {flags.out / 'manifest.yaml'}.")
