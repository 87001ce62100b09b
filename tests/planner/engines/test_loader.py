"""Engines' profiles: found by name and version, complete, every value with a source that is listed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ground.errors import BadInput
from ground.files import read_yaml
from ground.validation import validate
from hardware.loader import hardware_names, load_hardware
from models.huggingface.families import ADAPTERS
from models.loader import load_model, model_names
from planner.engines.loader import (
    CATALOGUE,
    ORCHESTRATORS,
    Needs,
    accelerator_of,
    all_engines,
    broken_accelerator,
    broken_encoder,
    broken_model,
    engine_names,
    generation_of,
    load_engine,
    load_orchestrator,
)
from planner.engines.spec import EngineProfile, Orchestrator


def test_every_engine_of_the_command_line_has_a_profile() -> None:
    """The names are fixed points of the command line."""
    assert set(engine_names()) == {"reference", "vllm", "vllm-ascend", "sglang", "trtllm", "xllm", "mindie"}


def test_a_version_selects_its_range() -> None:
    """A patch release belongs to its range; a bare name means the newest."""
    assert load_engine("vllm@0.33.2").versions.pinned == "0.33.0"
    assert load_engine("VLLM-Ascend@0.23.0.post1") is load_engine("vllm-ascend")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vlm", "did you mean vllm"),
        ("vllm@0.9.1", "known are 0.33.0 up to (not including) 0.34"),
        ("sglang@latest", "known are 0.5.23"),
    ],
)
def test_an_unknown_engine_or_version_says_which_are_known(text: str, said: str) -> None:
    """One sentence that names the flag."""
    with pytest.raises(BadInput) as error:
        load_engine(text)
    assert str(error.value).startswith("--engine: ")
    assert said in str(error.value)


def _sources(value: object, key: str = "") -> Iterator[str]:
    """Yield every source under ``value``, except the list that explains their short names."""
    if isinstance(value, dict):
        for name, held in value.items():
            if name == "source":
                yield str(held)
            elif name != "sources":
                yield from _sources(held, name)
    elif isinstance(value, list):
        for held in value:
            yield from _sources(held, key)


@pytest.mark.parametrize("path", sorted(CATALOGUE.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_profile_keeps_the_schema_and_explains_its_sources(path: Path) -> None:
    """It is read without pydantic, which gives the same; before a source's colon stands a key of `sources`, or a
    public project's name.
    """
    data, profile = read_yaml(path), load_engine(path.stem)
    assert validate(EngineProfile, data, str(path)) == profile
    assert path.stem == f"{profile.engine}@{profile.versions.first}"
    public = (
        "ai-dynamo ", "llm-d/", "volcano ", "lws ", "slurm:", "vllm-project/", "jd-opensource/", "hiascend.com:",
        "arXiv ", "kubernetes:", "https://",
    )  # fmt: skip
    for source in _sources(data):
        assert source.partition(":")[0] in profile.sources or source.startswith(public), source


@pytest.mark.parametrize("profile", all_engines(), ids=lambda profile: profile.engine)
def test_an_impossible_kind_says_why(profile: EngineProfile) -> None:
    """A kind that is not possible on one of the engine's accelerators has a reason."""
    for name, kind in profile.kinds.items():
        if set(profile.accelerators.value) - set(kind.accelerators):
            assert kind.reason, name


def test_engines_have_code_for_what_they_are_told_to_run() -> None:
    """Lists name types that podplan reads; TensorRT-LLM 1.2 has no DeepSeek-V4, and nobody Pangu Pro MoE."""
    known = {*ADAPTERS, *(load_model(name).architecture for name in model_names())}
    for profile in all_engines():
        told = (
            profile.lacks,
            *(part.architectures for part in (profile.redundancy, profile.microbatching, profile.drafting)),
        )
        assert {name for fact in told if fact for name in fact.value} <= known, profile.engine
    blackwell = [load_hardware("b200")]
    assert {each.engine for each in Needs(blackwell, "deepseek_v4").engines()} == {"vllm", "sglang"}
    assert {each.engine for each in Needs(blackwell, "deepseek_v3").engines()} == {"vllm", "sglang", "trtllm"}
    assert not Needs(blackwell, "PanguProMoE").engines()
    assert [(name, rule.rule) for name, rule in Needs(blackwell, "deepseek_v4").lacking()] == [
        ("trtllm@1.2.1", "model")
    ]
    assert not Needs(blackwell, "minimax_m2", drafts=True).engines()
    broken = broken_model(load_engine("trtllm"), "deepseek_v4")
    assert "1.2.1 has no code for models of type 'deepseek_v4'" in broken.sentence


def test_every_machine_of_the_catalogue_with_known_devices_has_an_engine() -> None:
    """cm384 is for Ascend's engines, h800 for those of NVIDIA."""
    assert accelerator_of(load_hardware("cm384")) == "ascend"
    assert accelerator_of(load_hardware("h800")) == "nvidia"
    for name in ("mi300x", "mi325x", "mi355x"):
        assert {each.engine for each in Needs([load_hardware(name)], "qwen3").engines()} == {"vllm", "sglang"}
    apart = [load_hardware("h200"), load_hardware("mi300x")]
    assert not Needs(apart, "qwen3").engines()
    assert [rule.sentence for rule in Needs(apart, "qwen3").missing(load_engine("sglang"))] == [
        "SGLang is not known to move keys and values between AMD and NVIDIA devices"
    ]
    broken = broken_accelerator(load_engine("vllm"), load_hardware("cm384"))
    assert "not on Ascend" in broken.sentence
    for name in hardware_names():
        assert broken_accelerator(load_engine("reference"), load_hardware(name)) is None


@pytest.mark.parametrize("name", ["dynamo", "llm-d"])
def test_an_orchestrator_names_engines_that_mark_it_possible(name: str) -> None:
    """Both sides of the table agree."""
    orchestrator, path = load_orchestrator(name), ORCHESTRATORS / f"{name}.yaml"
    assert validate(Orchestrator, read_yaml(path), str(path)) == orchestrator
    possible = {p.engine for p in all_engines() if name in p.kinds and p.kinds[name].accelerators}
    assert set(orchestrator.engines.value) == possible


def test_one_rule_tells_generations_apart() -> None:
    """By the words of a title; a 910 that says no more by its devices a chip, as costs and files both read it."""
    images = {name: generation_of(load_hardware(name)) for name in ("mi300x", "mi325x", "mi355x")}
    assert images == {"mi300x": "mi30x", "mi325x": "mi30x", "mi355x": "mi35x"}
    told = {name: generation_of(load_hardware(name)) for name in ("910b", "910b4", "910c", "cm384", "950dt", "h800")}
    assert told == {"910b": "a2", "910b4": "a2", "910c": "a3", "cm384": "a3", "950dt": "a5", "h800": None}
    for named, unnamed in (("a2", load_hardware("910b")), ("a3", load_hardware("910c"))):
        device = replace(unnamed.device, title="Ascend 910")
        assert generation_of(replace(unnamed, title="servers", device=device)) == named


def test_encode_instances_are_refused_for_models_that_the_engine_does_not_name() -> None:
    """SGLang checks the architecture when it starts: Gemma's pictures are encoded within prefill alone."""
    sglang = load_engine("sglang")
    assert broken_encoder(sglang, "aggregated", load_model("qwen3-vl-8b-instruct").architecture) is None
    for engine in ("sglang", "vllm"):
        broken = broken_encoder(load_engine(engine), "aggregated", "qwen3_vl_text", "amd")
        assert broken.rule == "encode-pools" and "--encode fused" in broken.sentence
    broken = broken_encoder(sglang, "aggregated", load_model("gemma-3-27b-it").architecture)
    assert broken.rule == "encode-pools" and "gemma3_text" in broken.sentence
