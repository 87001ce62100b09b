"""The Python API: what it is given, what it returns, and that the command says the same."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import podplan
from cli.main import main
from podplan.options import QuestionFlags, SimulateFlags, flags_of
from tests.plans import small_manifest

ROOT = Path(__file__).parents[2]
SMALL = {"hw": "h100", "devices": 2, "shape": "disaggregated", "isl": 1024, "osl": 64, "engine": "reference"}
TYPED = [
    "--hw", "h100", "--devices", "2", "--shape", "disaggregated", "--isl", "1024", "--osl", "64", "--engine",
    "reference",
]  # fmt: skip
CLOCKED = ("search_seconds", "wall_seconds")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Return what a command prints as JSON, without the seconds that it took."""
    main([*arguments, "--json"])
    return timeless(json.loads(capsys.readouterr().out))


def timeless(data: Any) -> Any:
    """Return JSON without the seconds that making it took."""
    if isinstance(data, dict):
        return {key: timeless(value) for key, value in data.items() if key not in CLOCKED}
    return [timeless(each) for each in data] if isinstance(data, list) else data


def test_importing_it_imports_nothing_more() -> None:
    """Names load when they are used, and all of them do."""
    program = "import sys, podplan; print([name for name in ('numpy', 'planner', 'yaml') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert all(getattr(podplan, name) is getattr(podplan, name) for name in podplan.__all__)
    assert set(podplan.__all__) <= set(dir(podplan))
    with pytest.raises(AttributeError, match="planning_of"):
        podplan.planning_of  # noqa: B018


@pytest.mark.parametrize(("given", "threads"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")])
def test_blas_has_one_thread_where_nobody_asks_for_more(given: dict[str, str], threads: str) -> None:
    """On a busy machine two threads take twenty times as long to solve a queue."""
    program = "import os, podplan; print(os.environ['OPENBLAS_NUM_THREADS'])"
    bare = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=bare | given, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == threads


def test_a_plan_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """``to_dict`` is ``--json``; rows are the Pareto front; a notebook shows them."""
    found = podplan.plan("qwen3-8b", **SMALL)
    assert timeless(json.loads(json.dumps(found.to_dict()))) == printed(capsys, "qwen3-8b", *TYPED)
    assert found.feasible and found.bound is not None
    assert found.rows()[0]["requests_per_second"] == found.best.requests_per_second
    assert found.headline.startswith("qwen3-8b on h100 with reference: 1 node, 2 chips serve ")
    shown = found._repr_html_()
    assert shown.count("<tr>") == len(found.rows()) + 1 and "<th>requests_per_second</th>" in shown


def test_numbers_are_si_and_roles_are_mappings() -> None:
    """A bare number has the unit of its flag; lists are choices; what is typed is as it was."""
    flags = flags_of(
        QuestionFlags,
        {"rate": 12.5, "ttft": 2, "tpot": 5e-05, "nodes": {"prefill": 1, "decode": 2}, "weights": ["fp8", "bf16"]},
    )
    assert (flags.rate, flags.ttft, flags.tpot) == ("12.5/s", "2s", "5e-05s")
    assert (flags.nodes, flags.weights) == ("prefill=1,decode=2", "fp8,bf16")
    assert flags_of(SimulateFlags, {"warmup": "10s", "fail": ["node 3 at 10s"], "cold": True}).cold is True


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: podplan.plan("qwen3-8b", hw="h100", islands=3), "'islands' is no keyword here"),
        (lambda: podplan.plan("qwen3-8b", hw="h100", pareto=1), "--pareto: 1 is not from 2"),
        (lambda: podplan.predict("qwen3-8b", hw="h100", phase="decode", strategy="TP=1"), "--batch is missing"),
        (lambda: podplan.check("qwen3-8b", hw="h100", rat=3), "'rat' is no keyword here; did you mean rate?"),
        (lambda: podplan.check(rate=3), "give a question file, MODEL with --hw HW, or --manifest"),
        (lambda: podplan.sweep("qwen3-8b", hw="h100", over={"islands": [1]}), "no flag to sweep"),
        (lambda: podplan.fleet("nothing.yaml"), "nothing.yaml"),
        (lambda: podplan.explain("qwen3-8b", hw="h100", workers="many"), "--workers: 'many' is neither"),
    ],
)
def test_bad_input_is_raised(call: Any, told: str) -> None:
    """One sentence, as on the command line."""
    with pytest.raises(podplan.BadInput, match=told) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_an_infeasible_question_gives_a_result(tmp_path: Path) -> None:
    """What binds is told; there is nothing to save."""
    found = podplan.plan("qwen3-8b", **SMALL, tpot="1us")
    assert not found.feasible and found.best is None and found.binding_limit == "tpot"
    assert found.rows()[0]["feasible"] is False and "no plan is feasible" in found.headline
    with pytest.raises(podplan.Infeasible):
        found.save(tmp_path / "plan")
    assert not (tmp_path / "plan").exists()


def test_a_plan_is_saved_and_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The files are those of ``--out`` but the report; the runs of plan, manifest and command are one."""
    found = podplan.plan("qwen3-8b", **SMALL)
    found.save(tmp_path / "plan")
    assert sorted(path.name for path in (tmp_path / "plan").iterdir()) == ["manifest.yaml", "plan.json"]
    with pytest.raises(podplan.BadInput, match="plan"):
        found.save(tmp_path / "plan")
    path = tmp_path / "plan" / "manifest.yaml"
    run = found.simulate(requests=200, seed=3)
    assert timeless(run.to_dict()) == timeless(podplan.simulate(path, requests=200, seed=3).to_dict())
    assert timeless(run.to_dict()) == printed(capsys, "simulate", str(path), "--requests", "200", "--seed", "3")
    assert {"figure", "measured", "predicted", "relative_error"} == run.rows()[0].keys()
    checked = podplan.check(manifest=path, rate=1)
    assert checked.feasible and checked.rows()[0]["name"] == str(path)


def test_policies_run_on_the_same_requests() -> None:
    """A row for each, in their order."""
    compared = podplan.simulate_policies(small_manifest(), ["round_robin", "least_load"], concurrency=4, requests=40)
    assert [row["policy"] for row in compared.rows()] == ["round_robin", "least_load"]
    assert compared.to_dict()["differences"]["to"] == "round_robin"


def test_predict_explain_and_catalogues_are_what_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    """Every result's ``to_dict`` is its command's ``--json``."""
    typed = ["--phase", "decode", "--strategy", "TP=2", "--batch", "8"]
    found = podplan.predict("qwen3-8b", hw="h100", phase="decode", strategy="TP=2", batch=8)
    assert found.to_dict() == printed(capsys, "predict", "qwen3-8b", "--hw", "h100", *typed)
    assert found.fits and len(found.rows()) == len(found.to_dict()["operators"])
    explained = podplan.explain("qwen3-8b", **SMALL)
    assert explained.rows() and json.dumps(explained.to_dict()) and explained.headline.startswith("Binding: ")
    assert podplan.models("qwen3-8b").to_dict() == printed(capsys, "models", "qwen3-8b")
    assert podplan.hardware().to_dict() == printed(capsys, "hardware")
    assert len(podplan.models().rows()) == len(podplan.models().specs)
    assert podplan.hardware("cm384").headline.startswith("CloudMatrix384")


def test_questions_are_compared_by_file_by_lists_and_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    """All three ask the same; a sweep takes values or a range."""
    by_list = podplan.compare(["qwen3-8b"], **{**SMALL, "hw": ["h100", "h200"]})
    typed = ["compare", "qwen3-8b", "--hw", "h100,h200", *TYPED[2:]]
    assert by_list.to_dict() == printed(capsys, *typed)
    one_by_one = podplan.compare(
        [{"model": "qwen3-8b", "hw": hw} for hw in ("h100", "h200")], **{**SMALL, "hw": "h100"}
    )
    assert [row["requests_per_second"] for row in one_by_one.rows()] == [
        row["requests_per_second"] for row in by_list.rows()
    ]
    swept = podplan.sweep("qwen3-8b", **SMALL, over={"tpot": [0.02, 0.04]}, workers=1)
    assert [row["tpot"] for row in swept.rows()] == ["0.02s", "0.04s"]
    assert swept.feasible and swept.to_csv().startswith("tpot,model,")


def test_experts_are_placed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same map as the command's, and no imbalance below its bound."""
    path = tmp_path / "loads.csv"
    path.write_text("8,4,2,2\n1,1,1,5\n", encoding="utf-8")
    found = podplan.place(path, devices=2, redundant_experts=2)
    data = printed(capsys, "place", str(path), "--devices", "2", "--redundant-experts", "2")
    told = found.to_dict()
    assert told["placement"] == data["placement"] and told["imbalance"] == data["imbalance"]
    rows = {row["placement"]: row["mean"] for row in found.rows()}
    assert rows["lower bound"] <= told["imbalance"]["mean"] <= rows["as engines start"]


@pytest.mark.skipif(find_spec("pandas") is None, reason="pandas is optional")
def test_rows_are_a_frame() -> None:
    """A column per key, a row per row."""
    found = podplan.models()
    assert list(found.to_frame()["name"]) == [row["name"] for row in found.rows()]


def test_the_notebook_runs() -> None:
    """Its cells, one after the other, as a reader would run them."""
    book = json.loads((ROOT / "examples" / "notebook" / "capacity.ipynb").read_text(encoding="utf-8"))
    known: dict[str, Any] = {}
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            exec(compile(cell["source"], cell["id"], "exec"), known)
    assert known["plan"].feasible


def test_the_page_runs() -> None:
    """The blocks of docs/python.md, one after the other."""
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    known: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "docs/python.md", "exec"), known)
    assert known["checked"].feasible


def test_no_module_stands_in_front_of_a_function() -> None:
    """A module of the same name would take the function's place when something else imports it."""
    homes = set(podplan._HOMES)
    assert not {f"podplan.{name}" for name in podplan.__all__} & homes
