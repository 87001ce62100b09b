"""What proves a deployment: the check runs against a server of this machine, the benchmark sends the plan's traffic."""

import re
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from deploy.reading.shell import processes
from planner.engines.spec import PlatformKind
from planner.manifest.schema import ShownPictures
from tests.deploy.cases import files_of, plan
from tests.deploy.plans import deployed

SGLANG, TEXT = "python3 -m sglang.bench_serving", {"--random-input-len": "1704"}


class Server(BaseHTTPRequestHandler):
    """Counts tokens as an engine does, while ``through`` lets requests reach it."""

    counted = 0
    through = True

    def do_GET(self) -> None:
        """Serve the counters."""
        prompts = f'vllm:prompt_tokens_total{{model_name="m"}} {self.counted}'
        self._answer(f"{prompts}\nvllm:generation_tokens_total {self.counted}\n")

    def do_POST(self) -> None:
        """Answer a completion."""
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).counted += 16 if self.through else 0
        self._answer('{"choices": [{"text": " Paris"}], "usage": {"completion_tokens": 16}}')

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    """A running server's address."""
    held = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    Thread(target=held.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{held.server_port}"
    held.shutdown()
    held.server_close()


@pytest.mark.parametrize("through", [True, False])
def test_the_check_sees_each_role_s_counter_move(server: str, tmp_path: Path, through: bool) -> None:
    """It ends well where tokens went through both roles, and names the role where they did not."""
    Server.through = through
    text = files_of("qwen-h800", "vllm", "lws")["smoke.yaml"]
    script = text.partition("smoke.sh: |\n")[2].partition("\n---")[0].replace("\n    ", "\n")
    script, count = re.subn(r"http://qwen3-235b-a22b-(\w+)-\d\.qwen3-235b-a22b-\1:8000", f"http://{server}", script)
    assert count == 3
    path, env = tmp_path / "smoke.sh", {"ROUTER": f"http://{server}", "PATH": "/usr/bin:/bin"}
    path.write_text(script, encoding="utf-8")
    done = subprocess.run(["bash", str(path)], env=env, capture_output=True, text=True, check=False)
    said = "one request went through prefill and decode" if through else "nothing went through prefill"
    assert (done.returncode == 0, said in done.stdout + done.stderr) == (through, True), done.stderr


@pytest.mark.parametrize(
    ("name", "engine", "programme", "wanted"),
    [
        ("qwen-h800", "vllm", "vllm bench serve", {"--random-input-len": "4096", "--max-concurrency": "512"}),
        ("seen-h800", "vllm", "vllm bench serve", TEXT | {"--random-mm-bucket-config": "{(720, 1280, 1): 1.0}"}),
        ("seen-h800", "sglang", SGLANG, TEXT | {"--image-count": "2", "--image-resolution": "720x1280"}),
        ("r1-cm384", "sglang", SGLANG, {"--random-range-ratio": "1.000"}),
        ("r1-cm384", "xllm", "aiperf profile", {"--synthetic-input-tokens-mean": "4096", "--concurrency": "3072"}),
    ],
)
def test_the_benchmark_sends_the_plan_s_traffic(name: str, engine: str, programme: str, wanted: dict[str, str]) -> None:
    """Lengths and requests in flight are the manifest's; its rate too, where it has one."""
    text = files_of(name, engine)["benchmark.sh"]
    lines = [line for line in text.splitlines() if not line.startswith("command -v")]
    (process,) = processes("\n".join(lines), {"ROUTER": "http://r", "OUT": "/out"})
    words = list(process.words)
    assert " ".join(words).startswith(programme)
    for flag, value in wanted.items():
        assert words[words.index(flag) + 1] == value
    assert ("--request-rate" in words) == (plan(name).workload.requests_per_second is not None)


def _played(tmp_path: Path, files: dict[str, str], nodes: str, **more: str) -> list[str]:
    """Run a batch job with srun, scontrol and getent played; return the arguments of each srun."""
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in {
        "srun": 'echo "$@" >> "$RECORD"; sleep 2',
        "scontrol": f"printf '%s\\n' {nodes}",
        "getent": 'echo "10.0.0.${2: -1} STREAM"',
    }.items():
        (tools / name).write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        (tools / name).chmod(0o755)
    record = tmp_path / "record"
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gpu-[a-z]"}
    environment |= {"RECORD": str(record), **more}
    command = ["bash", "job.sbatch"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return record.read_text(encoding="utf-8").splitlines()


def test_a_slurm_job_fills_in_addresses_and_starts_every_node(tmp_path: Path) -> None:
    """With srun and scontrol played: the plan's nodes are the job's, decode comes first, paths are the run's."""
    lines = _played(tmp_path, files_of("qwen-h800", "vllm", "slurm"), "gpu-a gpu-b", PODPLAN_ROUTER_SRUN="--image=r")
    run = tmp_path / "run-7"
    started = sorted(line.partition(f"bash {run}/")[2] for line in lines)
    assert started == ["decode.sh 0 0", "prefill.sh 0 0", "prefill.sh 1 0", "router.sh"]
    assert sum("--nodelist=gpu-b" in line for line in lines) == 2  # decode and the router
    assert ["--image=r" in line for line in lines] == [line.endswith("router.sh") for line in lines]
    assert "PREFILL_HOSTS=(10.0.0.a 10.0.0.a)" in (run / "site.env").read_text(encoding="utf-8")
    for name in ("router.sh", "smoke.sh"):
        assert "FILL-IN" not in (run / name).read_text(encoding="utf-8")
    assert "http://10.0.0.b:9000" in (run / "benchmark.sh").read_text(encoding="utf-8")


def test_slurm_starts_an_instance_of_tensorrt_llm_rank_by_rank(tmp_path: Path) -> None:
    """One step over the nodes of an instance, a process for each device, by PMIx; a server spawns none itself."""
    files = files_of("dense-mixed", "trtllm", "slurm")
    assert "exec trtllm-llmapi-launch trtllm-serve" in files["mixed.sh"]
    assert "#SBATCH --ntasks-per-node=8\n" in files["job.sbatch"]
    lines = _played(tmp_path, files, "gpu-a gpu-b gpu-c gpu-d")
    (second,) = (line for line in lines if line.endswith("mixed.sh 1 0"))
    assert "--mpi=pmix --nodes=2 --ntasks=16 --ntasks-per-node=8 --nodelist=gpu-c,gpu-d " in second
    assert len(lines) == 3 and "trtllm-llmapi-launch" not in files_of("qwen-h800", "trtllm", "bare")["decode.sh"]


def test_stages_that_share_an_odd_batch_are_deployed() -> None:
    """TensorRT-LLM's limit is of one of the batches in flight: 32 for 63 requests over two stages."""
    mixed = {"strategy": "TP=2 [PP=2]", "requests": 63}
    files = files_of(deployed("llama-3.1-70b", "h100", mixed=mixed), "trtllm", "dynamo")
    assert "max_batch_size: 32" in files["mixed-files.yaml"]


def test_a_video_is_sent_by_a_tool_that_has_videos() -> None:
    """SGLang's own sends pictures alone: AIPerf takes its place, as many frames as the plan has."""
    seen = plan("seen-h800")
    shown = seen.workload.model_copy(update={"pictures": ShownPictures(count=1, width=640, height=360, frames=16)})
    files = files_of(seen.model_copy(update={"workload": shown}), "sglang", "lws")
    assert "profile_export_aiperf.json" in files["benchmark.yaml"]
    for flag in ("--endpoint-type chat", "--video-duration 16", "--video-fps 1", "--video-width 640"):
        assert flag in files["benchmark.yaml"]


@pytest.mark.parametrize("kind", ["lws", "statefulset"])
def test_who_takes_embeddings_has_rdma(kind: PlatformKind) -> None:
    """Aggregated instances behind encode instances receive over RDMA as those send."""
    for name, text in files_of("seen-h800", "vllm", kind).items():
        if name in ("encode.yaml", "mixed.yaml"):
            assert "rdma/ib" in text and "IPC_LOCK" in text
    assert "rdma/ib" not in files_of("dense-mixed", "sglang", "bare")["mixed.sh"]
