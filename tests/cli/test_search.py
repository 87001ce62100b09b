"""`plan search`: the shape of its answer, and its exit codes."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from cli import main, search as search_command
from cli.plan_view import interval_text
from ground.errors import ExitCode
from ground.files import write_files
from planner.manifest.document import read_manifest
from planner.plans.plan import DisaggregatedPlan
from podplan.assumptions import assumptions
from podplan.options import QuestionFlags, flags_of
from podplan.plan_data import plan_json
from podplan.question import read_question
from tests.questions import small_answer
from tests.shell import answered, printed, refused

SMALL = ["qwen3-30b-a3b", "--engine", "reference", "--hw", "h800", "--nodes", "1", "--shape", "disaggregated"]
MIXED = ["qwen3-30b-a3b", "--hw", "prefill=910b,decode=h800", "--nodes", "prefill=1,decode=1"]
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
    "2023-11-16 18:15:51.2225670,879,55\n"
)


def test_the_answer_has_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts depend on the keys of the object, of the best plan and of its pools."""
    data = answered(capsys, *SMALL)
    keys = "question assumptions feasible percentile best pareto candidates_evaluated search_seconds bound"
    assert {*keys.split(), "binding_limit", "explanation"} <= data.keys()
    assert data["feasible"] is True
    assert data["percentile"] == 99
    assert data["bound"].keys() == {"objective", "value", "gap", "covers", "queues_solved", "pruned"}
    best = data["best"]
    assert {"nodes", "chips", "devices", "requests_per_second", "output_tokens_per_second"} <= best.keys()
    for key in ("ttft_seconds", "tpot_seconds", "e2e_seconds"):
        assert best[key].keys() == {"mean", "p50", "p90", "p99"}
    assert best["ttft_seconds"]["p99"] <= 2 * (1 + 1e-6)
    assert best["tpot_seconds"]["p99"] <= 0.05 * (1 + 1e-6)
    assert best["tokens_per_second_per_chip"] == pytest.approx(best["output_tokens_per_second"] / best["chips"])
    pools = {pool["role"]: pool for pool in best["pools"]}
    assert "tokens_per_device" in pools["prefill"]
    assert "batch_per_dp_rank" in pools["decode"]
    common = {"hardware", "instances", "devices_per_instance", "strategy", "microbatches", "mtp", "redundant_experts"}
    for pool in pools.values():
        assert common | {"shared_experts", "memory_bytes_per_device", "bottleneck", "utilisation"} <= pool.keys()
    assert best["devices"] == sum(pool["instances"] * pool["devices_per_instance"] for pool in pools.values()) <= 8
    assert all({"pools", "requests_per_second", "ttft_seconds"} <= plan.keys() for plan in data["pareto"])


def test_defaults_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """What was not given and moved the answer stands under assumptions; what was given does not."""
    named = answered(capsys, *SMALL, "--isl", "2048", "--weights", "bf16")["assumptions"]
    known = {"lengths": "fixed", "arrivals": "Poisson", "prefix_reuse": 0, "kv_dtype": "bf16", "osl": 1024}
    known |= {"redundant_experts": "auto", "expert_balance": "measured"}
    assert known.items() <= named.items()
    assert named["expert_load_distribution"]["name"] == "mixed-domains"
    assert not {"isl", "weights", "size", "mtp", "model"} & named.keys()
    flags = {"hw": "h200", "nodes": 1, "rate": "1/s"}
    beams = read_question(flags_of(QuestionFlags, {"model": "qwen/qwen3.6-35b-a3b", "beams": 2} | flags))
    other = read_question(flags_of(QuestionFlags, {"model": "qwen3-coder-30b-a3b-instruct"} | flags))
    assert assumptions(beams, None)["mtp"] == "0, as beams are not drafted" and "model" not in assumptions(beams, None)
    assert "planned as qwen3-30b-a3b-2507, whose shapes it has" in assumptions(other, None)["model"]  # type: ignore[operator]


def test_a_head_that_drafts_is_searched_with_and_without(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSeek-R1 ships an MTP layer; its weights are INT8 where the chip has no FP8."""
    data = answered(
        capsys, "deepseek-r1", "--engine", "reference", "--hw", "910b", "--rate", "1/s", "--tpot", "100ms",
        "--osl", "256", "--shape", "disaggregated",
    )  # fmt: skip
    assert data["question"]["mtp"] == [0, 1]
    assert data["question"]["objective"] == "chips"
    assert data["assumptions"]["mtp"].endswith("best of 0 and 1")
    assert data["assumptions"]["mtp_acceptance"] == 0.7
    assert data["assumptions"]["weights"].startswith("int8, for deepseek-r1 ships fp8, which 910b does not")
    assert data["best"]["requests_per_second"] == 1


def test_a_range_of_drafts_is_searched(capsys: pytest.CaptureFixture[str]) -> None:
    """Every depth from the first to the last, of which the plan has one."""
    data = answered(
        capsys, "deepseek-r1", "--engine", "reference", "--hw", "h200", "--nodes", "2", "--mtp", "1..2", "--osl", "256",
        "--shape", "disaggregated",
    )  # fmt: skip
    assert data["question"]["mtp"] == [1, 2]
    assert {pool["mtp"] for pool in data["best"]["pools"] if pool["role"] == "decode"} <= {1, 2}


def test_pools_on_different_machines_keep_to_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """`--hw` and `--nodes` per role: neither pool takes devices of the other."""
    data = answered(capsys, *MIXED)
    assert data["question"]["devices"] == {"prefill": 8, "decode": 8}
    assert [pool["hardware"] for pool in data["best"]["pools"]] == ["910b", "h800"]
    assert all(pool["instances"] * pool["devices_per_instance"] <= 8 for pool in data["best"]["pools"])


def test_a_trace_gives_lengths_and_rate(tmp_path, capsys):
    """Moments and mean rate of the rows that the model has positions for; the default objective is then chips."""
    path = tmp_path / "azure.csv"
    path.write_text(AZURE + "2023-11-16 18:15:49.9799600,999999,44\n", encoding="utf-8")
    data = answered(capsys, *SMALL, "--trace", str(path))
    asked = data["question"]
    assert asked["objective"] == "chips" and "lengths" not in data["assumptions"]
    assert asked["input_tokens"]["mean"] == pytest.approx((374 + 396 + 879) / 3)
    assert asked["rate_per_second"] == pytest.approx(2 / 4.541977)
    assert asked["trace"] == {"name": "azure.csv", "format": "azure", "requests": 3}
    assert "1 of 4 requests of azure.csv are longer than the" in data["assumptions"]["requests"]


def test_a_plan_is_played_on_its_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What its own requests meet stands beside the stationary figures; not with a stated reuse."""
    path = tmp_path / "azure.csv"
    rows = (f"2023-11-16 18:17:{second:02d}.9799600,{300 + 40 * second},44\n" for second in range(3, 59))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    apart, mixed_only = SMALL, [*SMALL[:-1], "aggregated"]
    found = answered(capsys, *apart, "--trace", str(path))["on_trace"]
    assert found["played_times"] == pytest.approx(1.0)
    assert (found["requests"], found["keeps_limits"], found["slo_attainment"]) == (56, True, 1.0)
    assert found["ttft_seconds"]["mean"] < found["ttft_seconds"]["p99"] < found["e2e_seconds"]["p99"]
    assert "The trace itself, played as it came" in " ".join(printed(capsys, *apart, "--trace", str(path)).split())
    mixed = answered(capsys, *mixed_only, "--trace", str(path))["on_trace"]
    assert mixed["requests"] == 56 and mixed["keeps_limits"]
    assert main.main([*apart, "--trace", str(path), "--prefix-reuse", "0.5"]) == ExitCode.DONE
    assert "cannot be played (a stated reuse" in " ".join(capsys.readouterr().out.split())


def test_an_aggregated_answer_to_a_trace_is_what_the_runtime_plays(tmp_path, capsys):
    """The manifest of the answer, played on the same trace at the planned rate: mean TTFT and TPOT within 3 %.

    The event engine has the reference order of prompts and decode; engines have orders of their own.
    """
    random, path, out = np.random.default_rng(5), tmp_path / "requests.csv", tmp_path / "plan"
    seconds = np.cumsum(random.exponential(0.05, 700) * np.where(np.arange(700) // 100 % 2, 0.5, 1.5))
    rows = [f"2023-11-16 18:{17 + int(at // 60):02d}:{at % 60:010.7f},1024,128" for at in seconds]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows, ""]))
    asked = ["qwen3-8b", "--hw", "h100", "--devices", "1", "--shape", "aggregated", "--engine", "reference"]
    told = answered(capsys, *asked, "--trace", str(path), "--ttft", "1s", "--out", str(out))["on_trace"]
    scale = f"{told['played_times']:.9g}"
    played = answered(capsys, "simulate", str(out / "manifest.yaml"), "--trace", str(path), "--scale-rate", scale)
    assert told["requests"] == played["completed"] == 700
    for name in ("ttft_seconds", "tpot_seconds", "e2e_seconds"):
        assert told[name]["mean"] == pytest.approx(played[name]["mean"], rel=0.03)
        assert played["predicted"][name]["mean"] == pytest.approx(told[name]["mean"], rel=0.01)


def test_no_limit_is_told_that_does_not_apply(capsys: pytest.CaptureFixture[str]) -> None:
    """Requests with a single token have no TPOT."""
    text = printed(capsys, "explain", *SMALL[:-1], "aggregated", "--osl", "1", "--rate", "5/s")
    assert "Answers end with their first token" in text
    assert " 0 s" not in text and "TPOT" not in text


def test_an_idle_plan_of_answers_of_one_token_reads_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    """Large figures have suffixes, answers of one token have no TPOT, no limit of it and no KV transfers."""
    text = printed(capsys, *SMALL, "--osl", "1", "--rate", "0.001/s", "--objective", "latency")
    (does,) = (line for line in text.splitlines() if line.startswith("Does"))
    assert " within TTFT 2 s at p99" in does and "USD" in text and "e+0" not in text
    assert "\nTPOT " not in text and "KV transfer" not in text
    assert "confidence 0.9. A step at the plan's load" in " ".join(text.split())


def test_what_binds_the_quickest_plan_are_its_devices() -> None:
    """The headline, JSON and the printed line agree: no rate but the devices keep it from being quicker."""
    assert small_answer(rate_per_second=1.0, objective="latency").binding_limit == "devices"


def test_text_says_what_the_plan_does(capsys: pytest.CaptureFixture[str]) -> None:
    """One screen: pools, latencies against limits, what binds, what is assumed, the bound."""
    assert main.main(SMALL) == ExitCode.DONE
    shown = capsys.readouterr().out
    first = shown.splitlines()[:5]
    assert [line.split()[0] for line in first] == ["Deploy", "On", "Does", "Sure", "Limits"]
    assert "qwen3-30b-a3b with the reference runtime, " in first[0]
    assert "h800: 1 node, 8 chips" in first[1] and "within TTFT 2 s" in first[2]
    told = ["prefill", "decode", "TTFT, with waiting", "2 s at p99", "Why:", "Assumed:", "Bound:", "candidates costed"]
    assert all(each in shown for each in told)
    assert shown.count("\n") <= 50


def test_what_was_played_is_told() -> None:
    """Beside the intervals of service times and in the JSON; nothing where closed forms tell TTFT."""
    plan = small_answer().best
    assert isinstance(plan, DisaggregatedPlan) and plan.played is None
    assert "Played" not in interval_text(plan) and "played" not in plan_json(plan)
    varied = small_answer(model="qwen3-8b", devices=4, squared_cv=1.0).best
    assert f"Played over {varied.played.requests:,} requests: TTFT at p99" in interval_text(varied)
    found = plan_json(varied)["played"]
    assert isinstance(found, dict) and found["requests"] == varied.played.requests
    low, high = found["interval"]
    assert low <= varied.requests_per_second <= high


def test_no_plan_is_told_with_the_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, the JSON with best null, one sentence with the nearest change, and nothing written."""
    folder = tmp_path / "plan"
    assert main.main([*SMALL, "--tpot", "1us", "--json", "--out", str(folder)]) == ExitCode.INFEASIBLE
    shown = capsys.readouterr()
    data = json.loads(shown.out)
    assert data["feasible"] is False
    assert data["best"] is None
    assert data["binding_limit"] == "tpot"
    assert "nearest change: --tpot" in shown.err
    assert shown.err.count("\n") == 1
    assert not folder.exists()


def test_a_broken_trace_is_told_with_line_and_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first wrong field is named; lengths may not come from two places."""
    path = tmp_path / "azure.csv"
    path.write_text(AZURE.replace("396", "many"), encoding="utf-8")
    refused(capsys, f"{path}, line 3: ContextTokens: 'many'", *SMALL, "--trace", str(path))
    refused(capsys, "--isl and --trace both give lengths", *SMALL, "--trace", str(path), "--isl", "9")


def test_out_writes_its_files_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The manifest, the JSON and the reports; a second time only with --force."""
    folder = tmp_path / "plans" / "one"
    shown = printed(capsys, *SMALL, "--out", str(folder))
    assert sorted(path.name for path in folder.iterdir()) == sorted(search_command.FILES)
    assert json.loads((folder / "plan.json").read_text(encoding="utf-8"))["feasible"] is True
    assert read_manifest(folder / "manifest.yaml").made_by.question["model"] == "qwen3-30b-a3b"
    report = (folder / "report.txt").read_text(encoding="utf-8")
    assert report.splitlines()[0].split() == shown.splitlines()[0].split()
    assert "\x1b" not in report
    refused(capsys, "give --force to replace it", *SMALL, "--out", str(folder))
    assert main.main([*SMALL, "--out", str(folder), "--force"]) == ExitCode.DONE
    write_files({tmp_path / "file": ""}, force=False)
    refused(capsys, "is a file, or a link to nothing; give a folder", *SMALL, "--out", str(tmp_path / "file"))


def test_a_wide_front_goes_to_a_table_and_to_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same plans as rows in SI units, with cost, power and energy; the best plan first."""
    path = tmp_path / "front.csv"
    shape = ["--shape", "disaggregated"]
    asked = ["qwen3-8b", "--engine", "reference", "--hw", "h100", "--nodes", "1", *shape, "--pareto", "2"]
    asked += ["--csv", str(path)]
    data = answered(capsys, *asked)
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))

    assert len(rows) == len(data["pareto"]) > 2
    assert float(rows[0]["requests_per_second"]) == pytest.approx(data["best"]["requests_per_second"])
    for row in rows:
        watts, tokens = float(row["power_watts"]), float(row["output_tokens_per_second"])
        assert watts == 1730.0 * float(row["chips"])
        assert float(row["energy_joules_per_million_tokens"]) == pytest.approx(watts / tokens * 1e6)
    refused(capsys, "give --force", *asked)
    assert "Pareto front" in printed(capsys, *asked, "--force")


def test_prices_and_power_of_the_user_replace_the_catalogues(capsys: pytest.CaptureFixture[str]) -> None:
    """Cost and energy follow; the catalogue's note on what was assumed goes with its figures."""
    asked = ["qwen3-8b", "--engine", "reference", "--hw", "h100", "--nodes", "1", "--shape", "disaggregated"]
    answers = [answered(capsys, *asked, *more) for more in ([], ["--price", "2.6", "--power", "3.46kW"])]
    stated, given = (answer["best"] for answer in answers)
    assert given["cost_per_million_tokens"] == pytest.approx(2 * stated["cost_per_million_tokens"])
    assert given["energy_joules_per_million_tokens"] == pytest.approx(2 * stated["energy_joules_per_million_tokens"])
    assert {"price", "power"} <= answers[0]["assumptions"].keys()
    assert not {"price", "power"} & answers[1]["assumptions"].keys()
    unpriced = answered(capsys, *SMALL[:4], "910b4", *SMALL[5:], "--rate", "1/s", "--objective", "cost")
    assert (unpriced["bound"]["objective"], unpriced["bound"]["value"]) == ("chips", unpriced["best"]["chips"])


def test_a_refusal_over_all_engines_tells_the_one_that_lacks_least(capsys: pytest.CaptureFixture[str]) -> None:
    """The nearest change is a size that some engine's smallest instance fits, and that is the one the reason names."""
    told = answered(capsys, "deepseek-r1", "--hw", "a100", "--nodes", "1", code=ExitCode.INFEASIBLE)
    assert told["binding_limit"] == "memory"
    assert "an aggregated instance is 16; nearest change: --devices 16" in told["explanation"]


def test_the_table_of_engines_says_where_they_gather_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    """Without NVLink no engine exchanges tokens between expert ranks, which can be ten times slower."""
    lengths = ["--isl", "500", "--osl", "200"]
    shape = ["--shape", "disaggregated"]
    text = " ".join(printed(capsys, "qwen3-30b-a3b", "--hw", "l40s", "--nodes", "1", *shape, *lengths).split())
    assert "and exchanges where trtllm 1.2.1 gathers all tokens at every expert rank, carries" in text


def test_equal_engines_tell_which_was_taken(capsys: pytest.CaptureFixture[str]) -> None:
    """Engines that need as many chips for the rate stand in one order; the answer says that names decide."""
    asked = ("qwen3-8b", "--hw", "h100", "--nodes", "1", "--rate", "5/s", "--shape", "disaggregated")
    told = "With the same chips and rate as trtllm 1.2.1 and vllm 0.33.0, sglang 0.5.23 is taken, the first by name."
    assert told in " ".join(printed(capsys, *asked).split())
    tied = {row["engine"] for row in json.loads(printed(capsys, *asked, "--json"))["engines"] if row["tied"]}
    assert tied == {"trtllm@1.2.1", "vllm@0.33.0"}
