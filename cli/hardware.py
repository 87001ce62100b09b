"""`plan hardware` and `plan supernode`: the machines that are known, where every value comes from, and their sizes."""

from collections.abc import Callable, Sequence
from pathlib import Path

from cli.options import FORCE, JSON, Text, options
from cli.output import Outputs, Screen, print_json
from cli.plots import Plot, PlotLine, plotted
from ground.errors import BadInput, ExitCode
from ground.files import write_files
from ground.records import Sourced
from ground.units import MICRO, format_bytes, format_duration, format_si
from hardware.engines import SOURCE, EngineKernel, engine_kernels
from hardware.formats import multiplied
from hardware.loader import load_hardware, problems_of
from hardware.spec import Fitted, HardwareSpec
from hardware.values import sourced_values
from podplan.catalogue import HardwareResult, hardware as hardware_of, supernode as supernode_of
from podplan.options import argument, flag, switch


@options
def command(
    name: Text = argument("HARDWARE", "Catalogue name or path to a hardware YAML.", default=None),
    json: bool = JSON,
    check: bool = switch("List what is assumed, and what is missing."),
    engine: Text = flag("NAME", "Show the kernels measured under an engine."),
    plot: Text = flag("FILE", "With --engine: draw its experts' times, .png or .svg."),
    force: bool = FORCE,
) -> int:
    """Show the hardware of the catalogue, or one entry with the source of every value.

    \b
    Examples:
      plan hardware
      plan hardware cm384
      plan hardware my-cluster.yaml --check
      plan hardware h200 --engine vllm --plot experts.svg

    With --engine (vllm, sglang or trtllm) the kernels that were measured under it are shown, and how far their fits
    are off: parameters, or the times of a block of experts at some token counts.

    With --check alone every entry of the catalogue is checked. Of a file that breaks the schema --check lists every
    field that is missing or wrong, and ends with 2.
    """
    Outputs(force, {"--plot FILE": plot})
    if engine is not None:
        return _report_engine(name, engine, json, plot, force)
    if plot is not None:
        raise BadInput("--plot draws the kernels of an engine; give --engine with it")
    if check and name is not None and (wrong := problems_of(name)):
        told = [f"{name}: {len(wrong)} to mend before it can be used", *(f"  wrong    {each}" for each in wrong)]
        print_json({"hardware": [{"name": name, "problems": wrong}]}) if json else Screen().lines(*told)
        return ExitCode.BAD_INPUT
    found = hardware_of(name)
    if json:
        print_json(found.checked() if check else found.to_dict())
    elif check:
        _check(found)
    elif found.one:
        spec = found.specs[0]
        Screen().grid(sourced_values(spec), ONE, f"{spec.title} ({spec.name})")
    else:
        Screen().grid(found.specs, ALL, spare=["title", "multiplies", "also called"])
    return ExitCode.DONE


def _report_engine(name: str | None, engine: str, json: bool, plot: str | None, force: bool) -> int:
    """Write an engine's kernels on a machine: fits, and curves of experts by kernel and shape."""
    if name is None:
        raise BadInput("HARDWARE is missing; --engine shows the kernels of an engine on one machine")
    spec = load_hardware(name)
    kernels = engine_kernels(spec, engine)
    if plot is not None:
        write_files({Path(plot): plotted(_curves(spec, engine, kernels), Path(plot))}, force=force)
    if json:
        told = [kernel._asdict() for kernel in kernels]
        print_json({"name": spec.name, "engine": engine, "source_url": SOURCE, "kernels": told})
        return ExitCode.DONE
    rows = [[k.family, k.kernel, k.version, f"{k.median_residual:.1%}", k.told] for k in kernels]
    columns = ["family", "kernel", "version", "residual", "parameters, or times at 1, 16, 256 and 4096 tokens"]
    Screen().table(columns, rows, right=["residual"], title=f"{engine} on {spec.title} ({spec.name})")
    return ExitCode.DONE


def _curves(spec: HardwareSpec, engine: str, kernels: Sequence[EngineKernel]) -> Plot:
    """Return a picture of the measured blocks of experts, a line per shape and format."""
    curves = [
        PlotLine(
            k.family.removeprefix("experts "), [2.0**n for n in range(len(k.seconds))], [t / MICRO for t in k.seconds]
        )
        for k in kernels
        if k.seconds
    ]
    if not curves:
        raise BadInput(f"--plot: no block of experts was measured under {engine} on {spec.name}")
    return Plot(
        title=f"Experts of one rank under {engine} on {spec.title}",
        question="format, hidden size x width x experts per token x experts",
        x_label="tokens",
        y_label="us",
        curves=curves,
        logarithmic=True,
        logarithmic_y=True,
    )


def _check(found: HardwareResult) -> None:
    for each in found.checked()["hardware"]:
        based, assumed = each["based_on"], each["assumed"]
        Screen().lines(
            f"{each['name']}: {each['values']} values, {len(assumed)} assumed",
            *([f"  based on {based['name']}: {based['why']}"] if based else []),
            *(f"  assumed  {held['field']}: {held['note'] or held['source']}" for held in assumed),
            *(f"  missing  {gap['field']}: {gap['instead']}" for gap in each["missing"]),
        )


ONE: dict[str, Callable[[tuple[str, Sourced | Fitted]], str]] = {
    "field": lambda at: at[0],
    "value": lambda at: _value(*at),
    "kind": lambda at: at[1].kind,
    "source": lambda at: at[1].source,
}
ALL: dict[str, Callable[[HardwareSpec], str]] = {
    "name": lambda spec: spec.name,
    "title": lambda spec: spec.title,
    ">devices": lambda spec: f"{spec.nodes.value * spec.devices_per_node.value:.0f}",
    ">memory": lambda spec: format_bytes(spec.device.memory_bytes.value),
    ">bandwidth": lambda spec: f"{format_bytes(spec.device.memory_bandwidth_bytes_per_second.value)}/s",
    ">bf16 peak": lambda spec: format_si(spec.device.peak_flops_per_second["bf16"].value, "FLOP/s"),
    "multiplies": lambda spec: " ".join(multiplied(spec)),
    "also called": lambda spec: ", ".join(spec.aliases),
}


def _value(path: str, held: Sourced | Fitted) -> str:
    """Render a value by the unit that its field's name ends in; a fit by how far it is off."""
    if isinstance(held, Fitted):
        off = f", median residual {held.median_residual:.1%}" if held.median_residual is not None else ""
        return f"fit ({held.version}{off})"
    if "flops_per_second" in path:
        return format_si(held.value, "FLOP/s")
    if path.endswith("bytes_per_second"):
        return f"{format_bytes(held.value)}/s"
    if path.endswith("_seconds"):
        return format_duration(held.value)
    return format_bytes(held.value) if path.endswith("_bytes") else f"{held.value:g}"


@options
def supernode(
    hw: str = argument("HARDWARE", "Catalogue name or path to a hardware YAML.", default="cm384"),
    sizes: Text = flag("CHIPS", "Sizes by commas, such as 224,384 [parts of it]."),
    blocks: Text = flag("B", "Chips that must share one: mean=10.08,largest=64, 1:50,8:30 or manifests [first]."),
    json: bool = JSON,
) -> None:
    """Compare supernodes of several sizes by their switches and by how full jobs fill them.

    \b
    Examples:
      plan supernode cm384
      plan supernode cm384 --sizes 192,256,288,352,384 --blocks mean=11.28,largest=128
      plan supernode cm384 --blocks plan-r1/manifest.yaml,plan-qwen/manifest.yaml

    Blocks come in any order; one that does not fit begins the next supernode.
    """
    found = supernode_of(hw, sizes=sizes or "", blocks=blocks)
    if json:
        print_json(found.to_dict())
        return
    names = ["chips", "nodes", "switches", "ports used", "chips per switch", "chips allocated", "allocated per switch"]
    shown = [
        [f"{each:.1%}" if isinstance(each, float) and each <= 1 else f"{each:.4g}" for each in row.values()]
        for row in found.rows()
    ]
    Screen().text(f"{hw}, {found.headline}:")
    Screen().table(names, shown, right=names)
