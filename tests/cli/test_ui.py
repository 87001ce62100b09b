"""`plan ui`: what the desk answers, and the page under NiceGUI's own client."""

import asyncio
from importlib.util import find_spec

import pytest

from cli.ui import Desk, show
from ground.errors import Infeasible
from tests.shell import printed, refused

NICEGUI = find_spec("nicegui") is not None


def small(**asked: str) -> Desk:
    """Return a desk that asks a small question."""
    desk = Desk("qwen3-8b", "h100")
    desk.asked |= {"nodes": "1", "rate": "5/s", "osl": "256", **asked}
    return desk


def test_the_command_beside_the_plan_gives_the_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """The desk asks podplan what the line says, and shows plan, breakdown and front."""
    desk = small()
    desk.found, html = desk.solve()
    assert desk.command.startswith("plan qwen3-8b --hw h100 --nodes 1 --isl 4k --osl 256 --rate 5/s")
    assert f'"chips": {desk.found.best.chips:g}' in printed(capsys, *desk.command.split()[1:], "--json")
    assert html.count("<svg") == 3 and "Deploy" in html
    assert desk.manifest().startswith("manifest_version") and desk.report().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("asked", "told"), [({"nodes": "9999"}, "--nodes"), ({"tpot": "1us"}, "no plan"), ({"model": "<b>"}, "&lt;b&gt;")]
)
def test_what_has_no_plan_says_why(asked: dict[str, str], told: str) -> None:
    """Bad input and refusals stand where the plan would; nothing can be exported."""
    desk = small(**asked)
    desk.found, html = desk.solve()
    assert told in html
    with pytest.raises(Infeasible):
        desk.manifest()


def test_a_wrong_port_or_model_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, exit code 2."""
    for arguments, told in ((["--port", "70000"], "--port"), (["qwen3-9b"], "qwen3-9b"), (["--hw", "h9"], "h9")):
        refused(capsys, told, "ui", *arguments)


@pytest.mark.skipif(not NICEGUI, reason="NiceGUI is an extra")
@pytest.mark.filterwarnings("default")
def test_the_page_follows_what_is_asked() -> None:
    """NiceGUI's own client opens the page, and the answer follows a change."""
    from nicegui.testing import user_simulation

    async def visit() -> None:
        async with user_simulation(root=lambda: show(small())) as user:
            await user.open("/")
            await user.should_see("--rate 5/s")
            user.find(marker="rate").elements.pop().set_value(2)
            await user.should_see("--rate 2/s", retries=50)

    asyncio.run(visit())
