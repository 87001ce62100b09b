"""One role of a deployment that others wrote: its flags, and the names that each engine gives its settings.

Limits that a command leaves out are the engine's own defaults, and are told as assumed.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from deploy.reading.engines import READERS, Counted, configured, trtllm
from deploy.reading.flags import Flags
from deploy.reading.nodes import Node
from deploy.reading.shell import Process
from ground.errors import BadInput
from ground.files import to_yaml
from planner.engines.spec import RoleName

# vllm/engine/arg_utils.py 0.33.0 on devices of 70 to 160 GB; sglang srt/arg_groups/memory_hook.py 0.5.23;
# xllm/core/framework/config 0.9.1.
DEFAULTS = {
    "vllm": {"--max-num-seqs": "1024", "--max-num-batched-tokens": "8192", "--gpu-memory-utilization": "0.92"},
    "sglang": {"--max-running-requests": "256", "--chunked-prefill-size": "8192", "--mem-fraction-static": "0.85"},
    "xllm": {"--max_seqs_per_batch": "1024", "--max_tokens_per_batch": "10240", "--max_memory_utilization": "0.8"},
    "trtllm": {},
}
STATED = {
    "vllm": {"--tensor-parallel-size": "tp", "--data-parallel-size": "dp", "--pipeline-parallel-size": "pp"},
    "sglang": {"--tp-size": "tp", "--pp-size": "pp", "--ep-size": "ep"},
}
LENGTH = {"vllm": "--max-model-len", "sglang": "--context-length", "trtllm": "max_seq_len", "mindie": "maxSeqLen"}
BATCH = {"vllm": "--max-num-seqs", "sglang": "--max-running-requests", "trtllm": "max_batch_size"}
BATCH |= {"xllm": "--max_seqs_per_batch", "mindie": "maxBatchSize"}
SHARE = {"vllm": "--gpu-memory-utilization", "sglang": "--mem-fraction-static"}
SHARE |= {"trtllm": "kv_cache_config.free_gpu_memory_fraction", "xllm": "--max_memory_utilization"}
SHARE |= {"mindie": "NPU_MEMORY_FRACTION"}
MINDIE_SHARE = 0.8  # docs/zh/user_guide of MindIE-LLM 8b4871a, environment variables
# TensorRT-LLM's LLM arguments, with the flags that say the same, and its own defaults (llmapi/llm_args.py 1.2.1).
OPTIONS: dict[str, tuple[str, int | None]] = {
    "tensor_parallel_size": ("--tp-size --tensor-parallel-size", 1),
    "pipeline_parallel_size": ("--pp-size --pipeline-parallel-size", 1),
    "moe_expert_parallel_size": ("--ep-size --expert-parallel-size", None),
    "max_batch_size": ("--max-batch-size", 2048),
    "max_num_tokens": ("--max-num-tokens", 8192),
    "max_seq_len": ("--max-seq-len", None),
}
DEGREES = {
    "vllm": "--tensor-parallel-size --pipeline-parallel-size --data-parallel-size",
    "sglang": "--tp-size --pp-size",
    "xllm": "--nnodes",
    "trtllm": "tensor_parallel_size pipeline_parallel_size",
}


def family_of(engine: str) -> str:
    """Return the engine whose flags an engine has."""
    return "vllm" if engine == "vllm-ascend" else engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One role of a deployment as its files say it; ``devices`` of one instance, ``replicas`` of its expert map."""

    name: str
    role: RoleName
    engine: str
    model: str
    instances: int
    nodes: int
    devices: int
    flags: Flags
    environment: Mapping[str, str]
    limits: Mapping[str, str]
    capabilities: tuple[str, ...]
    assumed: tuple[str, ...]
    unknown: tuple[str, ...]
    kubernetes: bool
    release: str = ""  # of the engine, whose flags ``unknown`` is not among
    replicas: int | None = None

    def counted(self, experts: int, longest: int) -> Counted:
        """Return what an instance is; ``longest`` where the command states no length. BadInput if it cannot be."""
        if self.engine == "mindie":
            config = json.loads(self.flags["config"] or "")
            share = float(self.environment.get(SHARE["mindie"], MINDIE_SHARE))
            own = _added_up(
                self.name, lambda: replace(configured(config, self.role, self.devices, {}), memory_frac=share)
            )
            return replace(own, redundant=self.replicas or 0)
        if self.engine == "trtllm":
            options = {"max_seq_len": longest} | json.loads(self.flags["options"] or "")
            node = self._node(("--extra_llm_api_options", "options"))
            return _added_up(self.name, lambda: trtllm([node], experts, {"options": to_yaml(options)}))
        words = [word for name, value in self.flags.items() for word in ([name] if value is None else [name, value])]
        length = LENGTH.get(family_of(self.engine))
        if length and length not in self.flags:
            words += [length, str(longest)]
        runs = [words]
        if self.engine == "xllm":  # a process for every device
            world = ["--nnodes", str(self.devices)]
            runs = [[*words, *world, "--node_rank", str(rank)] for rank in range(self.devices)]
        return _added_up(self.name, lambda: READERS[self.engine]([self._node(*runs)], experts, self.replicas))

    def _node(self, *runs: Sequence[str]) -> Node:
        """Return all devices of an instance as one node that runs some processes."""
        return Node(self.name, 0, 0, self.devices, tuple(Process(tuple(words), self.environment) for words in runs))


LEAST = {"sequences": 1, "tokens": 1, "longest": 1, "drafts": 0, "redundant": 0}
"""Of what an instance counts, where its engine has such a setting."""


def _added_up(name: str, read: Callable[[], Counted]) -> Counted:
    """Return what a reader counts; BadInput naming the role where its command does not add up."""
    try:
        found = read()
        for what, least in LEAST.items():
            number = getattr(found, what)
            if number is not None and not (type(number) is int and least <= number < 2**31):
                raise ValueError(f"{what} is {str(number)[:20]!r}, not a whole number from {least}")
        if not 0 < found.memory_frac <= 1:
            raise ValueError(f"the share of memory is {found.memory_frac}, not above 0 and at most 1")
        return found
    except (ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise BadInput(f"{name}: its command does not add up: {error}") from None
