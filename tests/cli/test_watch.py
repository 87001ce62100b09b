"""`plan watch`: estimates out of every kind of source, and when a change pays."""

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.main import main
from planner.manifest.document import dump_manifest
from podplan import watching
from tests.plans import small_manifest
from tests.shell import printed, refused

NAMES = {
    "vllm": (
        "vllm:request_success_total",
        "vllm:request_prompt_tokens",
        "vllm:request_generation_tokens",
        "vllm:time_to_first_token_seconds",
        "vllm:request_time_per_output_token_seconds",
        "vllm:prefix_cache_hits_total",
    ),
    "sglang": (
        "sglang:num_requests_total",
        "sglang:prompt_tokens_histogram",
        "sglang:generation_tokens_histogram",
        "sglang:time_to_first_token_seconds",
        "sglang:inter_token_latency_seconds",
        "sglang:cached_tokens_total",
    ),
    "dynamo": (
        "dynamo_frontend_requests_total",
        "dynamo_frontend_input_sequence_tokens",
        "dynamo_frontend_output_sequence_tokens",
        "dynamo_frontend_time_to_first_token_seconds",
        "dynamo_frontend_inter_token_latency_seconds",
        "dynamo_frontend_cached_tokens_sum",
    ),
}


def metrics(engine: str, requests: int, tpot: float = 0.02, cached: float = 0.0) -> str:
    """Return what an engine serves after so many requests of 1,024 + 128 tokens."""
    total, *histograms, hits = NAMES[engine]
    lines = ["# TYPE x counter", f'{total}{{model="m"}} {requests}', f"{hits} {requests * 1024 * cached}"]
    for name, mean in zip(histograms, (1024, 128, 0.2, tpot), strict=True):
        edges = (mean / 2, mean, mean * 2, "+Inf")
        held = (0, requests, requests, requests)
        lines += [f'{name}_bucket{{le="{edge}"}} {count}' for edge, count in zip(edges, held, strict=True)]
        lines += [f"{name}_sum {requests * mean}", f"{name}_count {requests}"]
    return "\n".join(lines) + "\n"


def scraped(folder: Path, requests: int, engine: str = "vllm", **told: float) -> list[str]:
    """Write two scrapes ten minutes and so many requests apart; return the words that name them."""
    for name, count in (("a", 50), ("b", 50 + requests)):
        (folder / f"{name}.prom").write_text(metrics(engine, count, **told))
    return [str(folder / "a.prom"), str(folder / "b.prom"), "--window", "10min"]


def seen(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> dict[str, Any]:
    """Return what a look prints with --json, of an exit code."""
    assert main(["watch", *arguments, "--once", "--json"]) == code
    return json.loads(capsys.readouterr().out)


SMALL = {"model": "qwen3-8b", "hardware": "h100", "devices": 4, "weights": "bf16"}


@pytest.fixture
def planned(tmp_path: Path) -> str:
    """A planned manifest as a file, whose question is soon planned again."""
    path = tmp_path / "manifest.yaml"
    path.write_text(dump_manifest(small_manifest(**SMALL)), encoding="utf-8")
    return str(path)


def rate_of(share: float) -> float:
    """Return a share of the rate that the manifest was planned for."""
    return share * (small_manifest(**SMALL).workload.requests_per_second or 0.0)


@pytest.mark.parametrize("engine", list(NAMES))
def test_two_scrapes_tell_rate_lengths_and_reuse(engine, planned, tmp_path, capsys):
    """Counters of every engine's own names give the same estimates; a lightly loaded plan is too large for an hour."""
    count = round(rate_of(0.2) * 600)
    files = [*scraped(tmp_path, count, engine, cached=0.25), "--manifest", planned]
    found = seen(capsys, 3, *files)
    assert found["rate_per_second"] == pytest.approx(count / 600)
    assert found["rate_half_width"] == pytest.approx(1.96 * count**0.5 / 600)
    assert found["input_tokens"]["mean"] == pytest.approx(1024)
    assert found["prefix_reuse"] == pytest.approx(0.25)
    assert found["change_pays"]
    assert found["migration"]["steps"]
    assert "there and back" in found["why"]
    if engine == "vllm":
        assert not seen(capsys, 0, *files, "--hold", "1s")["change_pays"]


def test_a_plan_that_is_too_small_pays_to_change(planned, tmp_path, capsys):
    """More than it carries: exit code 3, or none of the machines' plans carries it, and that is said."""
    files = scraped(tmp_path, round(rate_of(1.2) * 600))
    found = seen(capsys, 3, *files, "--manifest", planned, "--headroom", "0")
    assert found["headroom"] < 0
    assert found["plan"]["requests_per_second"] > found["rate_per_second"]


def test_slow_steps_break_the_interval(planned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mean TPOT far above the prediction is outside the interval and takes of what the plan carries."""
    carried = []
    for tpot in (0.02, 0.08):
        files = scraped(tmp_path, round(rate_of(0.5) * 600), tpot=tpot)
        main(["watch", *files, "--manifest", planned, "--once", "--json"])
        found = json.loads(capsys.readouterr().out)
        carried.append(found["carries_requests_per_second"])
    assert found["interval_violated"]
    assert carried[1] < carried[0]


def test_runs_of_one_token_tell_no_steps(planned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whose predicted TPOT is none, whatever was measured."""
    columns = "id,model,hardware,engine,weights,strategy,isl,osl,concurrency,ttft_seconds,tpot_seconds"
    (tmp_path / "runs.csv").write_text(f"{columns}\na,qwen3-8b,h100,vllm,bf16,TP=1,1024,1,8,0.1,0.01\n")
    assert main(["watch", str(tmp_path / "runs.csv"), "--manifest", planned, "--once"]) == 2
    assert "no run could be set beside a prediction: they state no TPOT" in capsys.readouterr().err


def test_a_request_log_tells_traffic(planned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Arrivals and lengths of a trace; at the planned rate the plan stays."""
    stamps = np.cumsum(np.random.default_rng(1).exponential(1 / rate_of(0.9), 2000))
    rows = "\n".join(f'{{"timestamp": {1000 * at:.3f}, "input_length": 1024, "output_length": 128}}' for at in stamps)
    log = tmp_path / "log.jsonl"
    log.write_text(rows + "\n")
    found = seen(capsys, 0, str(log), "--manifest", planned, "--headroom", "0")
    assert found["requests"] == 2000
    assert found["rate_per_second"] == pytest.approx(rate_of(0.9), rel=0.1)
    assert not found["change_pays"]
    told = " ".join(printed(capsys, "watch", str(log), "--manifest", planned, "--headroom", "0", "--once").split())
    assert "Steps are not timed by this source and are taken as predicted" in told


@pytest.fixture
def endpoint() -> Iterator[str]:
    """A server whose counters grow with every scrape."""
    asked = [0]

    class Serve(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked[0] += 1
            body = metrics("vllm", 1000 * asked[0]).encode()
            self.send_response(200)
            self.end_headers()
            for byte in b"a" * 20 if self.path == "/drops" else ():
                self.wfile.write(bytes([byte]))
                time.sleep(0.05)
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Serve)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_endpoint_is_scraped_twice(endpoint: str, planned: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What was counted between two scrapes."""
    main(["watch", endpoint, "--manifest", planned, "--window", "100ms", "--once", "--json"])
    assert json.loads(capsys.readouterr().out)["requests"] == 1000


def test_an_answer_that_comes_drop_by_drop_is_not_waited_for(
    endpoint: str, planned: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes soon, and the whole of it does not."""
    monkeypatch.setattr(watching, "WAIT_SECONDS", 0.2)
    source = endpoint.replace("metrics", "drops")
    refused(capsys, "does not answer: not whole in time", "watch", source, "--manifest", planned, "--once")


def test_few_requests_tell_nothing(planned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one sentence."""
    path = tmp_path / "x.prom"
    path.write_text(metrics("vllm", 3))
    asked = ["watch", str(path), "--manifest", planned, "--window", "10min", "--once"]
    refused(capsys, "3 requests in 10 min tell nothing", *asked)
