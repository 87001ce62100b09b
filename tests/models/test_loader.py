"""Names, aliases and paths to specs, and what is said where there is none."""

import shutil
from pathlib import Path

import pytest

from ground.errors import BadInput
from models.loader import catalogue_path, load_model, model_names

# Cached elements per token over all layers: layers x (512 + 64) for latent attention, layers x 2 x KV heads x
# head size for the others, worked out from the technical reports' dimensions.
# DeepSeek-V4-Flash: 21 layers of 512 / 4 and 20 of 512 / 128.
KV_ELEMENTS_PER_TOKEN = {
    "deepseek-r1": 35136, "deepseek-v3": 35136, "deepseek-v3.1": 35136, "deepseek-v2": 34560,
    "deepseek-v2-lite": 15552, "kimi-k2": 35136, "qwen3-235b-a22b": 96256, "qwen3-30b-a3b": 49152,
    "qwen3-coder-480b-a35b": 126976, "qwen3-0.6b": 57344, "qwen3-1.7b": 57344, "qwen3-4b": 73728, "qwen3-8b": 73728,
    "qwen3-14b": 81920, "qwen3-32b": 131072, "qwen2-7b": 28672, "qwen2.5-7b-instruct": 28672,
    "qwen2.5-72b-instruct": 163840, "llama-3.1-8b": 65536, "llama-3.1-70b": 163840, "llama-3.1-405b": 258048,
    "llama-3.3-70b": 163840, "mixtral-8x7b": 65536, "mixtral-8x22b": 114688, "deepseek-r1-distill-qwen-1.5b": 14336,
    "deepseek-r1-distill-qwen-7b": 28672, "deepseek-r1-distill-qwen-14b": 98304,
    "deepseek-r1-distill-qwen-32b": 131072, "dbrx": 81920, "ernie-4.5-300b-a47b": 110592, "glm-4.5": 188416,
    "glm-4.6": 188416, "glm-4.7": 188416, "hunyuan-a13b": 65536, "minimax-m2": 126976, "minimax-m2.5": 126976,
    "olmoe-1b-7b": 65536, "pangu-pro-moe": 98304, "pangu-ultra-moe": 35136, "openpangu-r-72b": 64000,
    "deepseek-v3.2": 35136, "deepseek-v4-flash": 2768, "deepseek-v4-pro": 3964, "glm-5": 44928, "gpt-oss-120b": 36864,
    "gpt-oss-20b": 24576, "kimi-k2.5": 35136, "llama-4-scout": 98304, "llama-4-maverick": 98304,
    "qwen3-next-80b-a3b": 12288, "qwen3.5-397b-a17b": 15360, "qwen3.6-35b-a3b": 10240, "kimi-k2.6": 35136,
    "glm-5.1": 44928, "glm-5.2": 44928, "minimax-m2.7": 126976, "mimo-v2-flash": 61440, "longcat-flash": 32256,
    "qwen2.5-vl-7b-instruct": 28672, "qwen2.5-vl-72b-instruct": 163840, "qwen3-vl-8b-instruct": 73728,
    "qwen3-vl-235b-a22b-instruct": 96256, "gemma-3-27b-it": 253952, "qwen2.5-0.5b-instruct": 6144,
    "qwen2.5-1.5b-instruct": 14336, "qwen2.5-3b-instruct": 18432, "qwen2.5-14b-instruct": 98304,
    "qwen2.5-32b-instruct": 131072, "qwq-32b": 131072, "llama-3.2-1b": 16384, "llama-3.2-3b": 57344,
    "llama-2-7b": 262144, "llama-2-13b": 409600, "llama-2-70b": 163840, "mistral-7b-instruct-v0.3": 65536,
    "mistral-nemo-12b": 81920, "mistral-small-24b": 81920, "mistral-large-123b": 180224, "phi-4": 102400,
    "gemma-3-4b-it": 69632, "gemma-3-12b-it": 196608, "qwen3-235b-a22b-2507": 96256, "qwen3-30b-a3b-2507": 49152,
    "qwen3-4b-2507": 73728, "kimi-k2-0905": 35136, "kimi-k2-thinking": 35136, "glm-4.5-air": 94208,
    "hy3-preview": 163840, "longcat-flash-lite": 16128,
}  # fmt: skip
TRAINED_IN_FP8 = {
    "deepseek-r1", "deepseek-v3", "deepseek-v3.1", "kimi-k2", "kimi-k2-0905", "minimax-m2", "minimax-m2.5",
    "minimax-m2.7", "mimo-v2-flash", "deepseek-v3.2",
}  # fmt: skip
IN_FOUR_BITS = {"gpt-oss-120b": "mxfp4", "gpt-oss-20b": "mxfp4", "kimi-k2.5": "int4", "kimi-k2.6": "int4"}
IN_FOUR_BITS |= {"kimi-k2-thinking": "int4"}
IN_FOUR_BITS |= {"deepseek-v4-flash": "mxfp4", "deepseek-v4-pro": "mxfp4"}
# Described by their reports; no configuration of theirs stands on the hub under one certain name.
FROM_REPORTS = {"pangu-pro-moe", "pangu-ultra-moe"}


def test_every_entry_has_its_kv_cache_stated() -> None:
    """An entry of the catalogue whose cache nobody worked out by hand is not tested."""
    assert sorted(KV_ELEMENTS_PER_TOKEN) == model_names()


@pytest.mark.parametrize("name", model_names())
def test_kv_elements_per_token(name: str) -> None:
    """The cache of one token over all layers is what the model's dimensions say."""
    spec = load_model(name)
    assert spec.kv_elements_per_token == KV_ELEMENTS_PER_TOKEN[name]


@pytest.mark.parametrize("name", model_names())
def test_an_entry_names_itself_its_source_and_its_precision(name: str) -> None:
    """An entry is called as its file is, cites the configuration it was taken from and answers to its repository id."""
    spec = load_model(name)
    assert spec.name == name
    assert catalogue_path(name).is_file()
    assert spec.source.startswith("https://arxiv.org/abs/" if name in FROM_REPORTS else "https://huggingface.co/")
    assert spec.native_dtype == IN_FOUR_BITS.get(name, "fp8" if name in TRAINED_IN_FP8 else "bf16")
    if name in FROM_REPORTS:
        return
    repository = spec.source.removeprefix("https://huggingface.co/").removesuffix("/blob/main/config.json")
    assert load_model(repository) is spec


@pytest.mark.parametrize("name", model_names())
def test_every_entry_keeps_the_schema(tmp_path: Path, name: str) -> None:
    """A file of one's own is checked against the schema: as such each entry gives the same, to the types of numbers."""
    checked = load_model(shutil.copy(catalogue_path(name), tmp_path))
    assert repr(checked) == repr(load_model(name))


def test_aliases_lead_to_one_model_each() -> None:
    """No alias stands at two models or is another model's name."""
    aliases = [alias for name in model_names() for alias in load_model(name).aliases]
    assert len(set(aliases)) == len(aliases)
    assert not set(aliases) & set(model_names())
    assert all(alias == alias.lower() for alias in aliases)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("DeepSeek-R1", "deepseek-r1"),
        ("R1", "deepseek-r1"),
        (" kimi-k2-instruct ", "kimi-k2"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3.1"),
        ("qwen2.5-72b", "qwen2.5-72b-instruct"),
        ("Qwen3-Next-80B-A3B-Instruct", "qwen3-next-80b-a3b"),
        ("deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"),
    ],
)
def test_names_are_matched_without_case(given: str, name: str) -> None:
    """Names, aliases and repository ids are found in any case, and whatever they say of how a model was trained."""
    assert load_model(given).name == name


@pytest.mark.parametrize("given", ["deepsek-r1", "qwen3-32b-fp8", "-it", "./r1x", "", " ", "x" * 5000, "a\0b", "~"])
def test_an_unknown_name_is_bad_input(given: str) -> None:
    """What is neither a name nor a file is refused in one line that says what would be accepted."""
    with pytest.raises(BadInput, match=r"neither in the catalogue nor a file; give a catalogue name") as caught:
        load_model(given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("deepseek-v3", "\ndense_layers: 3", "\ndense_layers: 62", "dense_layers is 62 of only 61 layers"),
        ("deepseek-v3", "\ndense_layers: 3", "\ndense_layers: 61", "moe must be null"),
        (
            "deepseek-v3",
            "experts_per_token: 8",
            "experts_per_token: 200",
            "cannot take 200 of the 128 experts it may reach",
        ),
        ("deepseek-v3", "groups: 8", "groups: 7", "256 experts must be a multiple of 7 groups"),
        ("deepseek-v3", "groups_per_token: 4", "groups_per_token: 9", "cannot reach 9 of 8 groups"),
        (
            "deepseek-v3",
            "shared_intermediate_size: 2048",
            "shared_intermediate_size: 0",
            "both be zero or both be positive",
        ),
        (
            "deepseek-v3",
            "dense_intermediate_size: 18432",
            "dense_intermediate_size: null",
            "need a dense_intermediate_size",
        ),
        ("deepseek-v3", "hidden_size: 7168", "hidden_size: '7168'", "hidden_size"),
        ("deepseek-v3", "\nlayers: 61", "\nlayers: true", "layers"),
        ("deepseek-v3", "hidden_size: 7168", "hidden_size: 7168000000000000000000", "hidden_size"),
        (
            "deepseek-v3",
            "hidden_size: 7168",
            "hiden_size: 7168",
            "hiden_size is not a known key; did you mean hidden_size",
        ),
        ("deepseek-v4-flash", "q_lora_rank: 1024", "q_lora_rank: null", "compression needs an indexer"),
        ("deepseek-v4-flash", "layers: 21", "layers: 44", "attention.indexer.layers must be at most the 43 layers"),
        ("gpt-oss-120b", "layers: 18", "layers: 37", "attention.window.layers must be at most the 36 layers"),
        ("qwen3-next-80b-a3b", "layers: 36", "layers: 48", "must leave one of the 48 layers to attention"),
        ("qwen3-vl-8b-instruct", "resolution: native", "resolution: tiles", "image_size is that of resolution fixed"),
        ("qwen3-8b", "dense_layers: 36", "dense_layers: 3", "dense_layers must be 36"),
        ("qwen3-8b", "kv_heads: 8", "kv_heads: 5", "32 heads must be a multiple of 5 kv_heads"),
    ],
)
def test_a_model_that_cannot_be_is_refused(tmp_path: Path, name: str, old: str, new: str, said: str) -> None:
    """A model YAML whose dimensions contradict each other is refused with both; so are layers that are not there."""
    text = catalogue_path(name).read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "model.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(BadInput, match=r"model\.yaml: ") as caught:
        load_model(str(path))
    assert said in str(caught.value)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    """Weights, a folder without a configuration and an unreadable path are named and refused."""
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"\0")
    with pytest.raises(BadInput, match=r"model\.safetensors: a model file ends in \.json"):
        load_model(str(weights))
    with pytest.raises(BadInput, match=r"holds no config\.json"):
        load_model(str(tmp_path))
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(BadInput, match=r"folder\.json: holds no config\.json"):
        load_model(str(tmp_path / "folder.json"))
