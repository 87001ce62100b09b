"""`plan verify` against a real OpenAI-compatible server of this machine, loaded by a real benchmark client.

The server answers at the pace of a manifest: one instance, steps as long as its step cost says, a token of every
running request a step, prompts whole beside them. The client is AIPerf (``pip install podplan[client]``, or where
PODPLAN_AIPERF points): these tests are skipped without it.
"""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import pytest

import podplan
from planner.manifest.document import dump_manifest
from planner.manifest.schema import Manifest
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepLoad

AIPERF = os.environ.get("PODPLAN_AIPERF") or shutil.which("aiperf")
pytestmark = pytest.mark.skipif(AIPERF is None, reason="no AIPerf")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
PROMPT, ANSWER = 256, 24


@dataclass(slots=True)
class Asked:
    """A request, its answer's tokens as they come."""

    prompt: int
    left: int
    tokens: asyncio.Queue[int] = field(default_factory=asyncio.Queue)


class Engine:
    """Continuous batching at a manifest's pace, ``slower`` times."""

    def __init__(self, manifest: Manifest, slower: float) -> None:
        """Take the step cost of the one pool."""
        self.cost, self.slower = manifest.pools[0].step_costs["mixed"].to_step_cost(), slower
        self.waiting: list[Asked] = []
        self.running: list[Asked] = []
        self.port = 0

    async def steps(self) -> None:
        """Run step after step, each until its own end on the clock."""
        loop, end = asyncio.get_running_loop(), 0.0
        while True:
            prompts, self.waiting = self.waiting, []
            if not prompts and not self.running:
                await asyncio.sleep(0.001)
                continue
            end = max(end, loop.time() - 0.002) + self.slower * self._seconds(prompts)
            await asyncio.sleep(max(end - loop.time(), 0.0))
            self.running += prompts
            for each in self.running:
                each.left -= 1
                each.tokens.put_nowait(each.left)
            self.running = [each for each in self.running if each.left > 0]

    def _seconds(self, prompts: list[Asked]) -> float:
        new, running = float(sum(each.prompt for each in prompts)), float(len(self.running))
        load = StepLoad(
            decode_sequences=running,
            decode_kv_tokens=float(sum(each.prompt for each in self.running)),
            prefill_tokens=new,
            prefill_pairs=sum(each.prompt**2 / 2.0 for each in prompts),
            finishing_prompts=float(len(prompts)),
            mean_tokens=new + running,
        )
        return float(evaluate(self.cost, load, 1).seconds)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one completion as server-sent events."""
        head = await reader.readuntil(b"\r\n\r\n")
        sizes = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
        body = json.loads(await reader.readexactly(int(sizes[0]))) if sizes else {}
        asked = Asked(prompt=PROMPT, left=int(body.get("max_tokens") or ANSWER))
        writer.write(HEAD)
        if body:
            count = asked.left
            self.waiting.append(asked)
            while await asked.tokens.get() > 0:
                writer.write(_event({"choices": [{"index": 0, "text": " a", "finish_reason": None}]}))
                await writer.drain()
            usage = {"prompt_tokens": PROMPT, "completion_tokens": count, "total_tokens": PROMPT + count}
            writer.write(_event({"choices": [{"index": 0, "text": " a", "finish_reason": "length"}]}))
            writer.write(_event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        await writer.drain()
        writer.close()

    async def serve(self) -> None:
        """Serve on a free port of this machine."""
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            await asyncio.gather(server.serve_forever(), self.steps())


def _tokenizer(folder: Path) -> Path:
    """Write a tokenizer whose tokens are bytes: the client needs one, and those with a name are on the network."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = [chr(each) for each in plain] + [chr(256 + n) for n in range(256 - len(plain))]
    model = {"type": "BPE", "vocab": {name: number for number, name in enumerate(names)}, "merges": []}
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    whole = {"version": "1.0", "added_tokens": [], "model": model, "pre_tokenizer": split, "decoder": split}
    held = folder / "tokenizer"
    held.mkdir()
    (held / "tokenizer.json").write_text(json.dumps(whole), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "!", "eos_token": "!"}
    (held / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return held


def _event(data: dict[str, object]) -> bytes:
    whole = {"id": "1", "object": "text_completion", "created": 1, "model": "m"} | data
    return b"data: " + json.dumps(whole).encode() + b"\n\n"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Manifest, Path]:
    """One instance of a dense model, and its file."""
    question = {"devices": 4, "isl": PROMPT, "osl": ANSWER, "engine": "vllm", "shape": "aggregated"}
    held = podplan.plan("llama-3.1-70b", hw="h100", strategy='mixed="TP=4"', **question).manifest()
    path = tmp_path_factory.mktemp("live") / "manifest.yaml"
    path.write_text(dump_manifest(held), encoding="utf-8")
    return held, path


@pytest.fixture(params=[1.0, 2.0])
def engine(request: pytest.FixtureRequest, planned: tuple[Manifest, Path]) -> Iterator[Engine]:
    """A running server, as quick as the plan says and half as quick."""
    held, loop = Engine(planned[0], request.param), asyncio.new_event_loop()
    task = loop.create_task(held.serve())
    thread = Thread(target=lambda: loop.run_until_complete(asyncio.gather(task, return_exceptions=True)), daemon=True)
    thread.start()
    while not held.port:
        thread.join(0.01)
    yield held
    loop.call_soon_threadsafe(task.cancel)
    thread.join(10)
    loop.close()


def test_a_served_manifest_is_measured_as_predicted(engine, planned, tmp_path):
    """Within a third of TPOT at the plan's own pace; at half of it outside, and steps are what is named."""
    command = f"{AIPERF} profile --model m --url http://127.0.0.1:{engine.port} --endpoint-type completions --streaming"
    command += (
        f" --tokenizer {_tokenizer(tmp_path)} --synthetic-input-tokens-mean {PROMPT} --synthetic-input-tokens-stddev 0"
    )
    command += f" --output-tokens-mean {ANSWER} --output-tokens-stddev 0 --use-server-token-count --concurrency 4"
    command += f" --request-count 32 --ui-type none --output-artifact-dir {tmp_path}"
    subprocess.run(command.split(), check=True, timeout=240, capture_output=True, cwd=tmp_path)
    found = podplan.verify(tmp_path / "profile_export_aiperf.json", manifest=planned[1])
    (run,) = found.compared
    assert run.run.features[1] == 4  # requests kept open, as the client's own file says
    error = engine.slower * run.predicted["tpot_seconds"] / run.run.measured["tpot_seconds"] - 1
    assert abs(error) < 1 / 3
    if engine.slower > 1:
        assert not run.inside["tpot_seconds"] and not found.holds
        assert any("a step: kernels" in note for note in found.notes)
