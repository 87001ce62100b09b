"""`plan ui`: what-if in a browser on this machine; sliders ask, and the plan follows."""

from importlib.util import find_spec
from types import ModuleType
from typing import Any

from cli.options import Text, options
from cli.output import note
from cli.page import STYLE, Page
from cli.plan_view import show_plan
from cli.plots import curves
from cli.report import FRONT_TOLD, breakdown, front_plot, html_report
from ground.errors import BadInput, Infeasible
from ground.units import read_index
from planner.engines.loader import engine_names
from planner.instances.reachable import REFERENCE
from planner.manifest.document import dump_manifest
from podplan.catalogue import hardware as hardware_of, models as models_of
from podplan.options import QuestionFlags, argument, command_line, flag, switch
from podplan.planning import PlanResult, plan

HOST = "127.0.0.1"
PORT = "8390"
PAUSE_SECONDS = 0.2  # of a slider that still moves
LARGEST, WHOLE, DEFAULT = "largest", "all", "default"
OPEN = (LARGEST, WHOLE, DEFAULT)  # what leaves a flag out
LENGTHS = ["256", "512", "1k", "2k", "4k", "8k", "16k", "32k", "64k"]
RATES = [LARGEST, *(f"{each}/s" for each in (1, 2, 5, 10, 20, 50, 100, 150, 200, 300, 500, 1000))]
TTFTS = ["100ms", "200ms", "500ms", "1s", "2s", "3s", "5s", "10s", "30s"]
TPOTS = ["5ms", "10ms", "15ms", "20ms", "25ms", "30ms", "40ms", "50ms", "60ms", "80ms", "100ms", "200ms"]
SLIDERS = {"rate": RATES, "isl": LENGTHS, "osl": LENGTHS, "ttft": TTFTS, "tpot": TPOTS}
FIRST = {"rate": LARGEST, "isl": "4k", "osl": "1k", "ttft": "2s", "tpot": "50ms", "shape": "disaggregated"}
SHAPES = ["disaggregated", "aggregated", "auto"]


class Desk:
    """What is asked, and the answer to it; the page shows this, and Python can ask it, too."""

    def __init__(self, model: str, hw: str) -> None:
        """Begin with the defaults of the command on a machine of the catalogue."""
        self.asked: dict[str, str] = {"model": model, "hw": hw, **FIRST}
        self.found: PlanResult | None = None

    @property
    def given(self) -> dict[str, str]:
        """What is asked, as keywords of ``podplan.plan``."""
        return {key: value for key, value in self.asked.items() if value not in OPEN}

    @property
    def command(self) -> str:
        """The command line that gives the same answer."""
        return command_line(QuestionFlags(**self.given))

    def solve(self) -> tuple[PlanResult | None, str]:
        """Return the plan, if there is one, and as HTML it with its breakdown and its front, or why there is none."""
        page = Page("")
        try:
            found = plan(**self.given)
        except BadInput as error:
            page.text(str(error))
            return None, page.fragment()
        if found.best is None:
            page.text(f"{found.headline}.")
            return None, page.fragment()
        show_plan(page, found)
        breakdown(page, found.best)
        page.figure(curves(front_plot(found)), FRONT_TOLD)
        return found, page.fragment()

    def manifest(self) -> str:
        """Return the plan's manifest as YAML; Infeasible without a plan."""
        if self.found is None:
            raise Infeasible("there is no plan to export")
        return dump_manifest(self.found.manifest())

    def report(self) -> str:
        """Return the plan's report as HTML; Infeasible without a plan."""
        if self.found is None:
            raise Infeasible("there is no plan to export")
        return html_report(self.found)


@options
def command(
    model: str = argument("MODEL", "Catalogue name to begin with [deepseek-r1].", default="deepseek-r1"),
    hw: str = flag("HW", "Machine of the catalogue to begin with [cm384].", default="cm384"),
    port: Text = flag("N", f"Port on {HOST} [{PORT}]."),
    open_browser: bool = switch("Open the page in a browser.", "--open"),
) -> None:
    """Ask what-if questions in a browser: sliders for load, limits and machines, and the plan that follows.

    \b
    Examples:
      plan ui
      plan ui qwen3-30b-a3b --hw h800 --port 9000

    It needs podplan[ui]. The page is served to this machine only. Beside the plan stands the command line that gives
    the same answer; manifest and report can be saved.
    """
    number = read_index(port or PORT)
    if number is None or not 1 <= number <= 65535:
        raise BadInput(f"--port: {(port or '')[:20]!r} is not a port from 1 to 65535")
    models_of(model), hardware_of(hw)  # refuses a wrong name before the server starts
    if find_spec("nicegui") is None:
        raise BadInput("plan ui needs NiceGUI, which is not installed; install it with pip install 'podplan[ui]'")
    from nicegui import ui as pages

    note(f"plan ui: http://{HOST}:{number} (Ctrl-C ends it)")
    pages.run(
        lambda: show(Desk(model, hw)), host=HOST, port=number, show=open_browser, reload=False, title="podplan",
        show_welcome_message=False,
    )  # fmt: skip


def show(desk: Desk) -> None:
    """Build the page of one visitor."""
    from nicegui import run, ui as pages

    pages.add_head_html(f"<style>{STYLE} body {{ max-width: none; margin: 0 }}</style>")
    state = {"asked": 0}

    async def solve() -> None:
        """Answer the newest question; one that was overtaken is not shown."""
        state["asked"] += 1
        number = state["asked"]
        command.set_text(desk.command)
        busy.set_visibility(True)
        solved = await run.io_bound(desk.solve)
        if solved is not None and number == state["asked"]:  # None while the server ends
            desk.found, html = solved
            answer.set_content(html)
            busy.set_visibility(False)

    with pages.row().classes("w-full no-wrap items-start gap-8 p-4"):
        with pages.column().classes("w-80 shrink-0"):
            _inputs(pages, desk, solve)
        with pages.column().classes("grow min-w-0"):
            with pages.row().classes("items-center"):
                command = pages.label(desk.command).classes("font-mono").mark("command")
                busy = pages.spinner()
            with pages.row():
                pages.button("Manifest", on_click=lambda: _save(pages, desk, "manifest.yaml"))
                pages.button("Report", on_click=lambda: _save(pages, desk, "report.html"))
            answer = pages.html("", sanitize=False).classes("w-full").mark("answer")  # escaped where it is made
    pages.timer(PAUSE_SECONDS, solve, once=True)


def _inputs(pages: ModuleType, desk: Desk, solve: Any) -> None:
    """Write what is asked: names, sizes, load and limits."""
    timers: list[Any] = []

    def ask(key: str, value: str) -> None:
        """Note a value, and solve when no other comes within a moment."""
        if desk.asked.get(key) == value:
            return
        desk.asked[key] = value
        while timers:
            timers.pop().cancel()
        timers.append(pages.timer(PAUSE_SECONDS, solve, once=True))

    names = {
        "model": [spec.name for spec in models_of().specs],
        "hw": [spec.name for spec in hardware_of().specs],
        "engine": [DEFAULT, REFERENCE, *engine_names()],
        "shape": SHAPES,
    }
    for key, known in names.items():
        first = desk.asked.setdefault(key, known[0])
        pages.select(
            known, value=first, label=key, on_change=lambda event, key=key: ask(key, str(event.value))
        ).classes("w-full").mark(key)
    sizes = [str(2**power) for power in range(9)]
    for key, values in {"nodes": [WHOLE, *sizes], **SLIDERS}.items():
        first = desk.asked.setdefault(key, values[0])
        label = pages.label(f"{key}: {first}")

        def moved(event: Any, key: str = key, values: list[str] = values, label: Any = label) -> None:
            value = values[int(event.value)]
            label.set_text(f"{key}: {value}")
            ask(key, value)

        pages.slider(min=0, max=len(values) - 1, step=1, value=values.index(first), on_change=moved).mark(key)


def _save(pages: ModuleType, desk: Desk, name: str) -> None:
    """Let the browser save a file of the plan."""
    try:
        text = desk.manifest() if name == "manifest.yaml" else desk.report()
    except Infeasible as error:
        pages.notify(str(error))
        return
    pages.download.content(text, name)
