"""Serve requests by an engine's own unmodified scheduler on a CPU, with a step of known length: judges planner/serving.

    cd /tmp/engines && PYTHONPATH=vllm==0.33.0 engines/bin/python REPOSITORY/scripts/engine_schedulers.py vllm
    PYTHONPATH=sglang==0.5.23 engines/bin/python REPOSITORY/scripts/engine_schedulers.py sglang MANIFEST

The folder is that of scripts/engine_parsers.py; tests/planner/serving/engines has what it printed. ENGINE is vllm,
sglang, sglang-overlap (the loop that SGLang ships with) or sglang-mixed (``--enable-mixed-chunk``). Without a
manifest a step takes 5 ms, 20 us per prompt token and 0.1 ms per request in decode, and KV is short; with the
manifest of an aggregated plan of one DP rank, limits, mean lengths and the length of a step are the plan's, at 0.8
of its rate. Arrivals are Poisson, lengths log-normal. Prints a row per request: arrival, prompt and answer tokens,
first and last token in seconds. Seconds a case; run all again, and read what changed, when a version of an engine
is added.
"""

import json
import sys
import tempfile
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from planner.manifest.document import read_manifest
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepLoad

STEP_SECONDS, PROMPT_TOKEN_SECONDS, DECODE_SECONDS = 5e-3, 20e-6, 1e-4
LOAD, REQUESTS, PROMPT_CV, ANSWER_CV, LONGEST, BLOCK = 0.8, 400, 1.3, 0.95, 40_000, 16
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "vocab_size": 8192,
    "max_position_embeddings": 65536,
}
Loaded = Callable[[StepLoad], float]


@dataclass
class Case:
    """Limits of one rank, what a step takes, and when requests come and how long they are."""

    budget: int = 2048
    places: int = 96
    kv_tokens: int = 60_000
    rate: float = 20.0
    prompt: float = 1000.0
    answer: float = 200.0
    seconds: Loaded = lambda load: (
        STEP_SECONDS + PROMPT_TOKEN_SECONDS * load.prefill_tokens + DECODE_SECONDS * load.decode_sequences
    )
    requests: list[tuple[float, int, int]] = field(init=False)

    def __post_init__(self) -> None:
        random = np.random.default_rng(1)

        def lengths(mean: float, cv: float, most: int) -> list[int]:
            sigma = np.sqrt(np.log1p(cv**2))
            drawn = random.lognormal(np.log(mean) - sigma**2 / 2, sigma, REQUESTS)
            return np.clip(drawn, 8, most).astype(int).tolist()

        arrivals = np.cumsum(random.exponential(1 / self.rate, REQUESTS)).tolist()
        prompts, answers = lengths(self.prompt, PROMPT_CV, 16_000), lengths(self.answer, ANSWER_CV, 2000)
        self.requests = list(zip(arrivals, prompts, answers, strict=True))


def case_of(path: Path) -> Case:
    """Return the case of an aggregated plan whose instances have one DP rank."""
    manifest = read_manifest(path)
    (pool,) = manifest.pools
    if pool.role != "mixed" or pool.degrees.attention_dp > 1 or pool.mtp.drafts:
        sys.exit("give the manifest of an aggregated plan of one DP rank without drafts")
    cost, load = pool.step_costs["mixed"].to_step_cost(), manifest.workload
    return Case(
        budget=pool.limits.tokens_per_device * pool.degrees.attention_tp * pool.degrees.pp,
        places=pool.limits.requests_per_dp_rank,
        kv_tokens=pool.kv.capacity_tokens_per_rank,
        rate=LOAD * load.requests_per_second / len(pool.instances),
        prompt=load.input_tokens,
        answer=load.output_tokens,
        seconds=lambda step: float(evaluate(cost, step, 1).seconds),
    )


@dataclass
class Clock:
    """The time of the play, and when each request had its first and its last token."""

    case: Case
    now: float = 0.0
    arrived: int = 0
    first: dict[int, float] = field(default_factory=dict)
    last: dict[int, float] = field(default_factory=dict)

    def due(self, idle: bool) -> Iterable[tuple[int, int, int]]:
        """Yield number, prompt and answer of what has come; an idle engine waits for the next."""
        asked = self.case.requests
        if idle and self.arrived < len(asked):
            self.now = max(self.now, asked[self.arrived][0])
        while self.arrived < len(asked) and asked[self.arrived][0] <= self.now:
            yield self.arrived, *asked[self.arrived][1:]
            self.arrived += 1

    def step(self, chunks: Iterable[tuple[int, int, bool]], running: Iterable[int]) -> float:
        """Return the seconds of a step of chunks (tokens before, tokens, whether the prompt ends) and of contexts."""
        chunks, running = list(chunks), list(running)
        tokens = sum(count for _, count, _ in chunks)
        load = StepLoad(
            decode_sequences=float(len(running)),
            decode_kv_tokens=float(sum(running)),
            prefill_tokens=float(tokens),
            prefill_context_tokens=float(sum(done for done, _, _ in chunks)),
            prefill_pairs=float(sum(count * done + count * (count + 1) / 2 for done, count, _ in chunks)),
            finishing_prompts=float(sum(ends for _, _, ends in chunks)),
            mean_tokens=float(len(running) + tokens),
        )
        return self.case.seconds(load)

    def told(self, name: str, finished: bool) -> None:
        """A request has a token now."""
        self.first.setdefault(int(name), self.now)
        if finished:
            self.last.setdefault(int(name), self.now)

    @property
    def over(self) -> bool:
        """Whether every request has left."""
        return len(self.last) == len(self.case.requests)


def tiny() -> str:
    """Return a folder with the configuration of a tiny model, which is never run."""
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(TINY))
    return str(folder)


def vllm(clock: Clock) -> None:
    """Play vLLM's scheduler, synchronous, without prefix caching."""
    import torch
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

    case = clock.case
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=False)
    limits = {"max_num_batched_tokens": case.budget, "max_num_seqs": case.places, "max_model_len": LONGEST}
    config = VllmConfig(
        model_config=ModelConfig(model=tiny(), skip_tokenizer_init=True, max_model_len=LONGEST, dtype="bfloat16"),
        cache_config=cache,
        scheduler_config=SchedulerConfig(**limits, is_encoder_decoder=False, async_scheduling=False),
        device_config=DeviceConfig("cpu"),
    )
    cache.num_gpu_blocks = case.kv_tokens // BLOCK
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    held = KVCacheConfig(num_blocks=cache.num_gpu_blocks, kv_cache_tensors=[], kv_cache_groups=groups)
    serving = Scheduler(config, held, StructuredOutputManager(config), block_size=BLOCK)
    while not clock.over:
        for number, prompt, answer in clock.due(not serving.has_unfinished_requests()):
            sampling = SamplingParams(max_tokens=answer, ignore_eos=True)
            serving.add_request(Request(str(number), [1] * prompt, sampling, None))
        step = serving.schedule()
        chunks, running, tokens = [], [], []
        for name, count in step.num_scheduled_tokens.items():
            request = serving.requests[name]
            ends = request.num_computed_tokens >= request.num_tokens
            tokens.append([5] if ends else [])
            if request.num_output_tokens and count == 1:
                running.append(request.num_computed_tokens)
            else:
                chunks.append((request.num_computed_tokens - count, count, ends))
        clock.now += clock.step(chunks, running)
        names = list(step.num_scheduled_tokens)
        places = {name: place for place, name in enumerate(names)}
        serving.update_from_output(
            step, ModelRunnerOutput(req_ids=names, req_id_to_index=places, sampled_token_ids=tokens)
        )
        for name, had in zip(names, tokens, strict=True):
            if had:
                clock.told(name, name not in serving.requests or serving.requests[name].is_finished())


def sglang(clock: Clock, *, overlap: bool = False, mixed: bool = False) -> None:
    """Play SGLang's scheduler and its event loop: the forward pass, the sockets and the clock are ours."""
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
    from sglang.srt.managers.utils import GenerationBatchResult
    from sglang.srt.sampling.sampling_params import SamplingParams
    from torch import full, int64

    sys.modules["vllm"] = SimpleNamespace(__spec__=None)  # a kernel of the model that is never run
    sys.modules["vllm._custom_ops"] = SimpleNamespace(rotary_embedding=None)
    serving, ends = sglang_scheduler(clock.case, overlap, mixed), deque[float]()
    process = serving.process_batch_result

    def receive(*_: object) -> None:
        idle = not ends and serving.running_batch.is_empty() and not serving.waiting_queue and not serving.last_batch
        for number, prompt, answer in clock.due(idle and serving.chunked_req is None):
            sampling = SamplingParams(max_new_tokens=answer, ignore_eos=True)
            sampling.normalize(None)
            absent = dict.fromkeys(("input_text", "input_embeds", "mm_inputs", "token_type_ids", "token_ids_logprob"))
            request = TokenizedGenerateReqInput(
                **absent,
                rid=str(number),
                input_ids=array("q", [2 + number, *[1] * (prompt - 1)]),  # no two begin alike
                sampling_params=sampling,
                return_logprob=False,
                logprob_start_len=-1,
                top_logprobs_num=0,
                stream=False,
            )
            serving.process_input_requests([request])

    def forward(batch: object, **_: object) -> GenerationBatchResult:
        chunks, running = [], []
        if batch.forward_mode.is_extend():
            decoding = {request.rid for request in batch.decoding_reqs or ()}
            for request, done, count in zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True):
                if request.rid in decoding:
                    running.append(done + count)
                else:
                    held = len(request.origin_input_ids) + len(request.output_ids)
                    chunks.append((done, count, done + count >= held))
        else:
            running = batch.seq_lens_cpu.tolist()
        ends.append(max(clock.now, ends[-1] if ends else 0.0) + clock.step(chunks, running))
        return GenerationBatchResult(
            logits_output=LogitsProcessorOutput(next_token_logits=None),
            next_token_ids=full((len(batch.reqs),), 5, dtype=int64),
        )

    def processed(batch: object, result: object) -> None:
        clock.now = max(clock.now, ends.popleft())
        process(batch, result)
        for request in batch.reqs:
            if request.output_ids:
                clock.told(request.rid, request.finished())
        serving.gracefully_exit = clock.over

    serving.ingest_requests, serving.process_batch_result = receive, processed
    serving.model_worker.forward_batch_generation = forward
    type(serving.output_streamer).stream_output = lambda *_, **__: None
    serving.run_event_loop()


def sglang_scheduler(case: Case, overlap: bool, mixed: bool) -> object:
    """Return SGLang's scheduler as its own process makes it."""
    from sglang.srt.managers.scheduler import Scheduler, SpawnRanks, publish, spawn_world_rank
    from sglang.srt.server_args import PortArgs, ServerArgs

    given = ServerArgs(
        model_path=tiny(),
        load_format="dummy",
        device="cpu",
        skip_tokenizer_init=True,
        attention_backend="torch_native",
        sampling_backend="pytorch",
        max_total_tokens=case.kv_tokens,
        chunked_prefill_size=case.budget,
        max_running_requests=case.places,
        disable_cuda_graph=True,
        context_length=LONGEST,
        disable_radix_cache=True,  # no request begins like another, but one that was put back would like itself
        disable_overlap_schedule=not overlap,
        enable_mixed_chunk=mixed,
        mem_fraction_static=0.9,  # of what other processes leave; max_total_tokens is far less
    )
    rank = SpawnRanks(world_rank=spawn_world_rank(given, tp_rank=0, pp_rank=0), dp_rank=None, gpu_id=0)
    publish(given, role="scheduler", ranks=rank)
    return Scheduler(given, PortArgs.init_new(given))


def main() -> None:
    """Serve the traffic and print a row per request."""
    engine, *manifest = sys.argv[1:]
    clock = Clock(case_of(Path(manifest[0])) if manifest else Case())
    if engine == "vllm":
        vllm(clock)
    else:
        sglang(clock, overlap=engine == "sglang-overlap", mixed=engine == "sglang-mixed")
    rows = [
        f"{arrival:.6f},{prompt},{answer},{clock.first[number]:.6f},{clock.last[number]:.6f}"
        for number, (arrival, prompt, answer) in enumerate(clock.case.requests)
    ]
    sys.stdout.write("\n".join(["arrival,prompt,answer,first,last", *rows]) + "\n")


if __name__ == "__main__":
    main()
