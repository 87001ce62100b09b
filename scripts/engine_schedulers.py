"""Serve requests by vLLM's own unmodified scheduler, on a CPU, with a step of known length: a judge of planner/serving.

    /tmp/engines/vllm/bin/python scripts/engine_schedulers.py > tests/planner/serving/vllm_scheduler.csv

The environment is that of scripts/engine_parsers.py (vLLM 0.33.0). A step takes 5 ms, 20 us per prompt token and 0.1 ms
per request in decode; arrivals are Poisson, lengths log-normal. A row per request: arrival, prompt and answer tokens,
first and last token in seconds. Run it again, and read what changed, when a version of the engine is added.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

STEP_SECONDS, PROMPT_TOKEN_SECONDS, DECODE_SECONDS = 5e-3, 20e-6, 1e-4
REQUESTS, RATE, BUDGET, KV_TOKENS, PLACES, BLOCK, LONGEST = 400, 20.0, 2048, 60_000, 96, 16, 40_000
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "vocab_size": 128,
    "max_position_embeddings": 65536,
}


def traffic() -> list[tuple[float, int, int]]:
    """Return arrival, prompt and answer tokens of every request."""
    random = np.random.default_rng(1)

    def lengths(mean: float, cv: float, most: int) -> list[int]:
        sigma = np.sqrt(np.log1p(cv**2))
        return np.clip(random.lognormal(np.log(mean) - sigma**2 / 2, sigma, REQUESTS), 8, most).astype(int).tolist()

    arrivals = np.cumsum(random.exponential(1 / RATE, REQUESTS)).tolist()
    return list(zip(arrivals, lengths(1000, 1.3, 16_000), lengths(200, 0.95, 2000), strict=True))


def scheduler():
    """Return vLLM's scheduler, synchronous, without prefix caching."""
    import torch
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(TINY))
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=False)
    limits = {"max_num_batched_tokens": BUDGET, "max_num_seqs": PLACES, "max_model_len": LONGEST}
    config = VllmConfig(
        model_config=ModelConfig(model=str(folder), skip_tokenizer_init=True, max_model_len=LONGEST, dtype="bfloat16"),
        cache_config=cache,
        scheduler_config=SchedulerConfig(**limits, is_encoder_decoder=False, async_scheduling=False),
        device_config=DeviceConfig("cpu"),
    )
    cache.num_gpu_blocks = KV_TOKENS // BLOCK
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    held = KVCacheConfig(num_blocks=cache.num_gpu_blocks, kv_cache_tensors=[], kv_cache_groups=groups)
    return Scheduler(config, held, StructuredOutputManager(config), block_size=BLOCK)


def main() -> None:
    """Serve the traffic and print a row per request."""
    serving, asked = scheduler(), traffic()
    from vllm.sampling_params import SamplingParams
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    now, arrived, first, last = 0.0, 0, {}, {}
    while len(last) < len(asked):
        while arrived < len(asked) and asked[arrived][0] <= now:
            _, prompt, answer = asked[arrived]
            sampling = SamplingParams(max_tokens=answer, ignore_eos=True)
            serving.add_request(Request(str(arrived), [1] * prompt, sampling, None))
            arrived += 1
        if not serving.has_unfinished_requests():
            now = asked[arrived][0]
            continue
        step = serving.schedule()
        counts, decoding, prompts, tokens = step.num_scheduled_tokens, 0, 0, []
        for name, count in counts.items():
            held = serving.requests[name]
            alone = bool(held.num_output_tokens) and count == 1
            decoding, prompts = decoding + alone, prompts + count * (not alone)
            tokens.append([5] if held.num_computed_tokens >= held.num_tokens else [])
        now += STEP_SECONDS + PROMPT_TOKEN_SECONDS * prompts + DECODE_SECONDS * decoding
        places = {name: place for place, name in enumerate(counts)}
        serving.update_from_output(
            step, ModelRunnerOutput(req_ids=list(counts), req_id_to_index=places, sampled_token_ids=tokens)
        )
        for name, told in zip(counts, tokens, strict=True):
            if told:
                first.setdefault(int(name), now)
            if name not in serving.requests or serving.requests[name].is_finished():
                last[int(name)] = now
    rows = [f"{a:.6f},{p},{o},{first[n]:.6f},{last[n]:.6f}" for n, (a, p, o) in enumerate(asked)]
    sys.stdout.write("\n".join(["arrival,prompt,answer,first,last", *rows]) + "\n")


if __name__ == "__main__":
    main()
