"""`plan ui`: what the desk answers, and the page under NiceGUI's own client and in headless Chromium."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from importlib.util import find_spec

import pytest

from cli.exit_codes import ExitCode
from cli.main import main
from cli.ui import Desk, show
from ground.errors import Infeasible
from tests.shell import refused

NICEGUI = find_spec("nicegui") is not None
BROWSER = next((found for name in ("chromium-headless-shell", "chromium") if (found := shutil.which(name))), None)


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
    assert main([*desk.command.split()[1:], "--json"]) == ExitCode.DONE
    assert f'"chips": {desk.found.best.chips:g}' in capsys.readouterr().out
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


@pytest.mark.skipif(not NICEGUI or BROWSER is None or find_spec("playwright") is None, reason="no browser to drive")
@pytest.mark.filterwarnings("default")
def test_a_browser_moves_a_slider() -> None:
    """Headless Chromium: the plan comes, follows a slider, and nothing is fetched from elsewhere."""
    from playwright.sync_api import sync_playwright

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "cli.main", "ui", "qwen3-8b", "--hw", "h100", "--port", str(port)]
    plain = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST", "NICEGUI"))}
    server = subprocess.Popen(command, env=plain)  # NiceGUI looks for pytest
    try:
        _wait(f"http://127.0.0.1:{port}/")
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
            page = browser.new_page()
            hosts, faults = set(), []
            page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.goto(f"http://127.0.0.1:{port}/")
            page.wait_for_selector("dl", timeout=120_000)
            box = page.get_by_role("slider").nth(1).bounding_box()
            page.mouse.click(box["x"] + box["width"] * 3 / 12, box["y"] + box["height"] / 2)
            page.wait_for_function("document.querySelector('dl').innerText.includes('5 requests/s')", timeout=120_000)
            assert "--rate 5/s" in page.inner_text(".font-mono")
            assert hosts == {f"127.0.0.1:{port}"} and not faults
            browser.close()
    finally:
        server.terminate()
        server.wait()


def _wait(address: str) -> None:
    """Return when a server answers."""
    for _ in range(300):
        try:
            urllib.request.urlopen(address).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the server does not answer")
