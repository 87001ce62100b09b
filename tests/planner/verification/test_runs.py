"""Rows of measured runs, read as configurations."""

from pathlib import Path

from planner.verification.runs import Run, read_runs
from planner.verification.verify import point

HEAD = "model,hardware,engine,engine_version,weights,kv_dtype,strategy,isl,osl,concurrency,tpot_seconds"


def _read(folder: Path, row: str) -> Run:
    path = folder / "runs.csv"
    path.write_text(f"{HEAD}\n{row}\n", encoding="utf-8")
    return read_runs(path)[0]


def test_versions_and_formats_as_engines_name_them(tmp_path: Path) -> None:
    """The version chooses the engine's behaviour and groups its errors; ``auto`` is the default."""
    run = _read(tmp_path, "qwen3-8b,h200,vllm,0.10.2,fp8_block,auto,TP=1,100,10,1,0.01")
    assert run.labels["version"] == "0.10.2"
    assert run.configuration.host.engine == "vllm@0.10.2"
    assert (run.configuration.weights, run.configuration.kv_dtype) == ("fp8", "bf16")


def test_prompts_wait_as_a_run_or_its_recipe_says(tmp_path: Path) -> None:
    """InferenceX's recipe of Llama 70B under TensorRT-LLM has short prompts wait below TP 8; the default is not to."""
    path, columns = tmp_path / "runs.csv", "source,batch_wait_timeout_iters,batch_wait_max_tokens_ratio"
    told = "InferenceX,,"
    rows = [("TP=4", 922, told), ("TP=8", 922, told), ("TP=4", 7373, told), ("TP=4", 922, ",,")]
    rows.append(("TP=8", 7373, ",5,0.5"))
    text = "".join(f"llama-3.1-70b,h200,trtllm,,fp8,fp8,{tp},{isl},922,8,0.01,{rest}\n" for tp, isl, rest in rows)
    path.write_text(f"{HEAD},{columns}\n{text}", encoding="utf-8")
    found = [run.configuration for run in read_runs(path)]
    waits = [(each.wait_steps, each.wait_share) for each in found if each is not None]
    assert waits == [(20, 0.9), (0, 0), (0, 0), (0, 0), (5, 0.5)]


def test_prompts_wait_for_other_ranks_as_a_run_or_its_recipe_says(tmp_path: Path) -> None:
    """InferenceX's recipes under TensorRT-LLM balance DP attention; then prompts are computed on all ranks at once."""
    path = tmp_path / "runs.csv"
    rows = [("DP=8, EP=8", "InferenceX,"), ("TP=8, EP=8", "InferenceX,"), ("DP=8, EP=8", ","), ("DP=8, EP=8", ",7")]
    text = "".join(f'deepseek-r1,h200,trtllm,,fp8,fp8,"{how}",7373,922,64,0.01,{rest}\n' for how, rest in rows)
    path.write_text(f"{HEAD},source,attention_dp_timeout_iters\n{text}", encoding="utf-8")
    found = [run.configuration for run in read_runs(path)]
    assert [each.balance_steps for each in found if each is not None] == [60, 0, 0, 7]
    balanced, alone = (point(found[place]) for place in (0, 2))  # type: ignore[arg-type]
    assert balanced["ttft_seconds"] > 1.1 * alone["ttft_seconds"]
    assert balanced["tpot_seconds"] < alone["tpot_seconds"]


def test_experts_of_a_dense_model_mean_nothing(tmp_path: Path) -> None:
    """A table with EP in every row is still a table of this model."""
    run = _read(tmp_path, 'qwen3-8b,h200,vllm,,bf16,,"TP=2, EP=2",100,10,1,0.01')
    assert run.configuration.strategy.devices == 2


def test_answers_of_one_token_have_no_tpot(tmp_path: Path) -> None:
    """A benchmark of prompts alone."""
    run = _read(tmp_path, "qwen3-8b,h200,vllm,,bf16,,TP=1,100,1,1,0.01")
    assert run.configuration is not None and "tpot_seconds" not in point(run.configuration)


def test_a_run_too_large_to_play_says_why(tmp_path: Path) -> None:
    """It is skipped, and the others of its table are compared."""
    path, most = tmp_path / "runs.csv", 10**20
    rows = [(100, 10, most), (100, most, 8), (most, 10, 8), (100, 10, 8)]
    text = "".join(f"qwen3-8b,h200,vllm,,bf16,,TP=1,{isl},{osl},{open_},0.01\n" for isl, osl, open_ in rows)
    path.write_text(f"{HEAD}\n{text}", encoding="utf-8")
    runs = read_runs(path)
    assert [run.configuration is None for run in runs] == [True, True, True, False]
    assert "concurrency 1e+20 is more than the 100000" in (runs[0].reason or "")
    assert all("isl and osl make 1e+20 tokens" in (run.reason or "") for run in runs[1:3])


def test_a_budget_that_no_row_states_is_the_default_or_what_the_generator_wrote(tmp_path: Path) -> None:
    """TensorRT-LLM's runs from AIConfigurator were set up by its generator; all others had the engine's default."""
    path = tmp_path / "runs.csv"
    rows = [("trtllm", "AIConfigurator (sweep)"), ("trtllm", ""), ("vllm", "AIConfigurator (sweep)")]
    text = "".join(f"qwen3-8b,h200,{engine},,bf16,,TP=1,4096,10,8,0.01,{source}\n" for engine, source in rows)
    path.write_text(f"{HEAD},source\n{text}", encoding="utf-8")
    budgets = [run.configuration.batched_tokens for run in read_runs(path) if run.configuration is not None]
    assert budgets == [4096 + 8 + 1500, 8192, 8192]


def test_drafts_slots_and_eager_steps_as_a_run_states_them(tmp_path: Path) -> None:
    """Drafts shorten TPOT by what is accepted; requests beyond an instance's slots wait, and eager steps launch."""
    path = tmp_path / "runs.csv"
    rows = [",,,", "3,0.5,,", ",,8,", ",,,off", "9,,,", "1,1.5,,", ",,,never"]
    text = "".join(f"qwen3-8b,910c,sglang,,int8,,TP=2,1024,300,64,0.01,{row}\n" for row in rows)
    path.write_text(f"{HEAD},mtp,mtp_acceptance,max_num_seqs,graphs\n{text}", encoding="utf-8")
    runs = read_runs(path)
    plain, drafted, few, eager = (point(run.configuration) for run in runs[:4] if run.configuration is not None)
    assert drafted["tpot_seconds"] < plain["tpot_seconds"] < 0.8 * eager["tpot_seconds"]
    assert few["tpot_seconds"] < plain["tpot_seconds"] and few["ttft_seconds"] > 4 * plain["ttft_seconds"]
    assert [(run.reason or "").partition(": ")[2] for run in runs[4:]] == [
        "mtp 9 is no count of drafts up to 8",
        "mtp_acceptance 1.5 is no share from 0 to 1",
        "graphs 'never' is not one of on, off",
    ]
