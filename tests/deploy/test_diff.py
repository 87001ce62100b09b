"""What changes between two deployments, as an operator would say it."""

import re
from pathlib import Path

import pytest

from deploy.diff import differences, read_files, read_folder
from deploy.render import Deployment, render
from deploy.site import Site
from ground.errors import BadInput
from planner.engines.loader import load_engine
from tests.deploy.cases import DIGEST, PLANS, files_of, made
from tests.deploy.plans import deployed


def compared(old: Deployment, new: Deployment) -> list[str]:
    """Return the differences of two deployments."""
    read = [(each.target.profile.engine, each.target.version, each.target.kind, each.files) for each in (old, new)]
    return differences(*(read_files("a folder", *each) for each in read))


def test_nothing_changes_between_equals() -> None:
    """Another manifest hash alone is no change."""
    old = made("r1-cm384", "sglang", "lws")
    again = render(old_plan(), load_engine("sglang"), "lws", Site(), "f" * 64)
    assert compared(old, again) == []


def old_plan(**decode: object) -> object:
    """Return the plan of the cases with a decode pool that differs."""
    *machine, roles = PLANS["r1-cm384"]
    return deployed(*machine, **roles | {"decode": roles["decode"] | decode})


def test_more_instances_and_larger_batches_are_told_in_words() -> None:
    """Devices first, then each role, then files."""
    new = render(old_plan(instances=2, requests=64), load_engine("vllm-ascend"), "bare", Site(), DIGEST)
    files = ("benchmark.sh", "decode.sh", "hosts.tsv", "router.sh", "site.env", "smoke.sh")
    assert compared(made("r1-cm384", "vllm-ascend", "bare"), new) == [
        "devices in all: 128 -> 192",
        "decode: instances 1 -> 2",
        "decode: requests per DP rank 48 -> 64",
        "decode: tokens a step per DP rank 96 -> 128",
        "decode: every instance restarts",
        *(f"file {name} changes" for name in files),
    ]


def test_another_engine_restarts_everything() -> None:
    """The engine comes first; its flags are not compared with the other's."""
    lines = compared(made("r1-cm384", "sglang", "bare"), made("r1-cm384", "xllm", "bare"))
    assert lines[0] == "engine: sglang 0.5.23 -> xllm 0.9.1"
    assert "decode: every instance restarts" in lines
    assert not any("--" in line for line in lines)


def test_roles_and_flags_come_and_go() -> None:
    """Both ways round: an aggregated deployment becomes separate pools, drafts are given up."""
    mixed, apart = made("r1-mixed", "sglang", "bare"), made("r1-cm384", "sglang", "bare")
    assert {"mixed: goes, 1 instances on 16 devices", "decode: comes, 1 instances on 64 devices"} <= {
        *compared(mixed, apart)
    }
    plain = render(old_plan(drafts=0, weights="bf16"), load_engine("sglang"), "bare", Site(), DIGEST)
    assert "decode: --quantization goes" in compared(apart, plain)
    assert "decode: --quantization comes: modelslim" in compared(plain, apart)


@pytest.mark.parametrize(
    ("engine", "kind", "file", "old", "new"),
    [
        ("sglang", "bare", "decode.sh", "--dp-size 64", "--dp-size 0"),
        ("sglang", "bare", "site.env", "\\Z", "\nLIST=$(seq -s, 0 999999999999)\n"),
        ("xllm", "bare", "decode.sh", r"< \d+; ", "< 999999999999; "),
        ("vllm-ascend", "bare", "decode.sh", r"(-size-local) \d+", r"\1 999999999999"),
        ("vllm-ascend", "bare", "hosts.tsv", r"0-15", "0-999999999999"),
        ("sglang", "lws", "decode.yaml", r"  (replicas|size): \d+", r"  \1: 16384"),
        ("sglang", "lws", "decode.yaml", r"exec ([\s\S]*? env:\n( *))-", r"exec $A \1- {name: A, value: x$A}\n\2-"),
        ("sglang", "bare", "expert-location-decode.json", r"\A", "[" * 9999),
        ("mindie", "motor", "user_config.json", r'"d_instances_num": \d+', '"d_instances_num": 999999999999'),
    ],
)
def test_files_that_count_beyond_a_cluster_are_refused_at_once(engine: str, kind: str, file: str, old: str, new: str):
    """Whatever number, loop, list or variable of a stranger's folder is wrong, one sentence says so."""
    own = made("r1-cm384", engine, kind)
    text = re.sub(old, new, own.files[file])
    assert text != own.files[file]
    with pytest.raises(BadInput, match="cannot be read back"):
        read_files("old", engine, "1", kind, {**own.files, file: text})


def test_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    """One that is none, one without our README.md, a chart, and files that cannot be read back."""
    titles, files = {"SGLang": "sglang"}, files_of("r1-cm384", "sglang")
    for name, text, said in (
        ("none/x", "", "is not a folder"),
        ("README.md", "# a stranger's", "has no README.md of plan deploy"),
        ("README.md", files["README.md"], "cannot be read back: KeyError"),
        ("Chart.yaml", "", "is a Helm chart"),
    ):
        path = tmp_path / name
        if path.parent.is_dir():
            path.write_text(text, encoding="utf-8")
        with pytest.raises(BadInput, match=said):
            read_folder(path.parent, titles)


@pytest.mark.parametrize(("old", "new"), [("replicas: 2", "replicas: 99999999"), ("\ndata:", "\ndata: [1]\ndatum:")])
def test_changed_objects_are_refused(old: str, new: str) -> None:
    """Instances beyond any cluster are not counted one by one, and files that are none are told."""
    files = files_of("r1-h800", "vllm", "lws")
    changed = files["decode.yaml"].replace(old, new, 1)
    assert changed != files["decode.yaml"]
    with pytest.raises(BadInput, match="--diff: here cannot be read back: "):
        read_files("here", "vllm", "0", "lws", files | {"decode.yaml": changed})
