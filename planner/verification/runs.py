"""Measured runs of a serving engine: rows of a table, and the configuration that each was measured with."""

import math
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import cast, get_args

from ground.errors import BadInput
from ground.files import csv_table, read_text
from ground.units import number_of, parse_rate
from hardware.engines import timed
from hardware.formats import KvDtype
from hardware.loader import load_hardware
from hardware.spec import Dtype
from models.loader import load_model
from planner.balance.imbalance import Balance
from planner.costs.deployment import Host, default_weights
from planner.costs.predict import Configuration
from planner.engines.behaviour import DEFAULT_BUDGET, host_costs
from planner.manifest.drafts import MOST_DRAFTS
from planner.serving.benchmark import MOST_OPEN
from planner.strategy import Strategy, parse_strategy
from planner.verification.residuals import EXPERTS, UNTIMED

METRICS = ("ttft_seconds", "tpot_seconds", "output_tokens_per_second_per_chip")
NEEDED = ("model", "hardware", "strategy", "isl", "osl")
SYNONYMS = {"auto": "", "fp4": "nvfp4", "fp8_block": "fp8", "fp8_e4m3": "fp8", "bfloat16": "bf16", "w8a8": "int8"}
"""Names of number formats in engines' own flags; ``auto`` is the default."""

MOST_TOKENS = 10_000_000
"""Most tokens of a request, as of Llama 4 Scout's context: engines may stretch what a model's configuration states."""
SPARE_TOKENS = 1500
"""generator/rule_plugin/benchmark/trtllm.rule of github.com/ai-dynamo/aiconfigurator, of an aggregated worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run: its place in the file, its configuration, and its measurements."""

    id: str
    where: str
    cells: dict[str, str]  # every column of the row
    measured: dict[str, float]  # measured values by metric: those of ``METRICS`` that the row states or that follow
    configuration: Configuration | None
    reason: str | None = None  # why the run cannot be predicted; None where it can
    labels: dict[str, str] = field(default_factory=dict)
    """Labels by which residuals are pooled: engine, hardware, model, weights, engine version or date."""
    features: tuple[float, ...] = ()  # ``residuals.FEATURES`` where the configuration does not give them


def read_runs(path: Path) -> list[Run]:
    """Return the rows of a CSV file of measured runs.

    Raises BadInput for a file that is no such table; a row that cannot be predicted is returned with its reason.
    """
    rows = csv_table(read_text(path), str(path), NEEDED)
    return [_run(cells, where, number) for number, (where, cells) in enumerate(rows, 1)]


def _run(cells: dict[str, str], where: str, number: int) -> Run:
    known: dict[str, float] = {}
    configuration, reason = None, None
    labels = {name: cells.get(name, "").strip().lower() for name in ("engine", "hardware", "model", "weights")}
    labels["version"] = (cells.get("engine_version", "").strip() or cells.get("measured", "").strip()).lower()
    try:
        known = {name: _positive(cells, name) for name in METRICS if cells.get(name, "").strip()}
        configuration = _configuration(cells)
        known = _with_throughput(known, configuration)
        if configuration.model.moe is not None:
            labels[EXPERTS] = "yes"
        if not timed(configuration.hardware, configuration.host.engine):
            labels[UNTIMED] = "yes"
    except BadInput as error:
        reason = f"{where}: {error}"
    if configuration is not None and not known:
        configuration, reason = None, f"{where}: measures none of {', '.join(METRICS)}"
    name = cells.get("id", "").strip() or str(number)
    return Run(
        id=name, where=where, cells=cells, measured=known, configuration=configuration, reason=reason, labels=labels
    )


def _with_throughput(known: dict[str, float], run: Configuration) -> dict[str, float]:
    """Add the throughput of a closed loop where both latencies are known: Little's law, requests over residence."""
    if METRICS[2] in known or not {"ttft_seconds", "tpot_seconds"} <= known.keys():
        return known
    residence = known["ttft_seconds"] + known["tpot_seconds"] * (run.output_tokens - 1)
    chips = run.strategy.devices / run.hardware.devices_per_chip.value
    return known | {METRICS[2]: run.concurrency * run.output_tokens / residence / chips}


_model, _machine = cache(load_model), cache(load_hardware)


def _configuration(cells: dict[str, str]) -> Configuration:
    for name in NEEDED:
        if not cells.get(name, "").strip():
            raise BadInput(f"{name} is empty; it is needed")
    model, hardware = _model(cells["model"].strip()), _machine(cells["hardware"].strip())
    engine = _engine(cells)
    spread = float(_number(cells, "length_spread", 0.0))
    if not 0 <= spread < 1:
        raise BadInput(f"length_spread {spread:g} must be at least 0 and below 1")
    if cells.get("rate", "").strip() and not cells.get("concurrency", "").strip():
        parse_rate(cells["rate"], "rate")
        raise BadInput("a run at a rate is compared with its manifest: give --manifest, or a concurrency")
    concurrency, prompt, answer = (_positive(cells, name) for name in ("concurrency", "isl", "osl"))
    if concurrency > MOST_OPEN:
        raise BadInput(f"concurrency {concurrency:g} is more than the {MOST_OPEN} requests that are played one by one")
    if (longest := (prompt + answer) * (1 + spread)) > MOST_TOKENS:
        raise BadInput(f"isl and osl make {longest:g} tokens, more than the {MOST_TOKENS} of any model's context")
    # For a dense model the expert degrees are ignored
    text = cells["strategy"]
    strategy = parse_strategy(text if model.moe is not None else text.partition(",")[0], moe=model.moe is not None)
    wait_steps, wait_share = _waits(cells, strategy)
    return Configuration(
        model=model,
        hardware=hardware,
        phase="mixed",
        strategy=strategy,
        weights=cast(Dtype, _choice(cells, "weights", get_args(Dtype), default_weights(hardware, model))),
        kv_dtype=cast(KvDtype, _choice(cells, "kv_dtype", get_args(KvDtype), "bf16")),
        balance=Balance(kind="measured"),
        prompt_tokens=prompt,
        output_tokens=answer,
        length_spread=spread,
        wait_steps=int(wait_steps),
        wait_share=wait_share,
        balance_steps=int(_number(cells, "attention_dp_timeout_iters", _usual_balance(cells, strategy))),
        concurrency=concurrency,
        sequences=math.ceil(most) if (most := _number(cells, "max_num_seqs", 0.0)) > 0 else None,
        drafts=_drafts(cells),
        acceptance=_number(cells, "mtp_acceptance", 0.7),
        driven=Host(graphs=_choice(cells, "graphs", ("on", "off"), "on") == "on"),
        batched_tokens=_number(cells, "max_batched_tokens", _usual_budget(cells, spread, concurrency)),
        host=host_costs(engine),
    )


def _usual_budget(cells: dict[str, str], spread: float, concurrency: float) -> float:
    """The tokens of a step where the row states none: the engine's default.

    Runs of TensorRT-LLM from NVIDIA's AIConfigurator (``source``) were set up by its generator: max_num_tokens is the
    longest prompt, the open requests and ``SPARE_TOKENS``.
    """
    if cells.get("engine", "").strip().lower() != "trtllm" or "aiconfigurator" not in cells.get("source", "").lower():
        return DEFAULT_BUDGET
    return _positive(cells, "isl") * (1 + spread) + concurrency + SPARE_TOKENS


def _recipe(cells: dict[str, str]) -> bool:
    """Whether InferenceX's TensorRT-LLM recipes configured the run, so that missing settings are the recipes'."""
    return "inferencex" in cells.get("source", "").lower() and cells.get("engine", "").strip().lower() == "trtllm"


def _waits(cells: dict[str, str], strategy: Strategy) -> tuple[float, float]:
    """Return the steps for which prompts wait for more prompts, and the share of the budget that ends the wait.

    By default the engine does not wait. Recipes of Llama 70B (such as 70b_fp8_h200_trt_slurm.sh) let 1K prompts with
    answers of 1K wait on fewer than eight GPUs.
    """
    short = max(_positive(cells, "isl"), _positive(cells, "osl")) <= 1024 and strategy.devices < 8
    waiting = _recipe(cells) and short and cells["model"].strip().lower() == "llama-3.1-70b"
    steps, share = (20.0, 0.9) if waiting else (0.0, 0.0)
    return _number(cells, "batch_wait_timeout_iters", steps), _number(cells, "batch_wait_max_tokens_ratio", share)


def _usual_balance(cells: dict[str, str], strategy: Strategy) -> float:
    """Return the steps for which prompts wait until every DP rank has one, where the row does not state them.

    By default the engine does not wait. Recipes (such as dsr1_fp8_h200_trt_slurm.sh) set enable_balance and
    timeout_iters 60 wherever attention is DP.
    """
    return 60.0 if _recipe(cells) and strategy.attention_dp > 1 else 0.0


def _drafts(cells: dict[str, str]) -> int:
    """Tokens drafted per iteration, by layers of the model or by a head beside it (``costs.operators``)."""
    drafts, accepted = _number(cells, "mtp", 0.0), _number(cells, "mtp_acceptance", 0.0)
    if drafts not in range(MOST_DRAFTS + 1):
        raise BadInput(f"mtp {drafts:g} is no count of drafts up to {MOST_DRAFTS}")
    if not 0 <= accepted <= 1:
        raise BadInput(f"mtp_acceptance {accepted:g} is no share from 0 to 1")
    return int(drafts)


def _engine(cells: dict[str, str]) -> str | None:
    """The engine with its version, or the day it was measured, where the row states one: ``NAME@VERSION``."""
    name, version, day = (cells.get(key, "").strip().lower() for key in ("engine", "engine_version", "measured"))
    version = version or day
    return f"{name}@{version}" if name and version else name or None


def _choice(cells: dict[str, str], name: str, known: tuple[str, ...], default: str) -> str:
    text = cells.get(name, "").strip().lower()
    text = SYNONYMS.get(text, text) or default
    if text not in known:
        raise BadInput(f"{name} {text[:40]!r} is not one of {', '.join(known)}")
    return text


def _positive(cells: dict[str, str], name: str) -> float:
    value = _number(cells, name, math.nan)
    if not 0 < value < math.inf:
        raise BadInput(f"{name} {cells.get(name, '')[:40]!r} must be a positive number")
    return value


def _number(cells: dict[str, str], name: str, default: float) -> float:
    text = cells.get(name, "").strip()
    if not text:
        return default
    value = number_of(text)
    if math.isnan(value):
        raise BadInput(f"{name} {text[:40]!r} is not a number")
    return value
