"""Hugging Face configurations to specs: equal to the catalogue, or refused with file and key."""

import json
from pathlib import Path

import pytest

from ground.errors import BadInput
from ground.validation import plain
from models.loader import load_model
from models.spec import ModelSpec
from tests.models.configurations import Keys, config, without

DESCRIPTION = {"name", "title", "aliases", "source", "published_parameters", "published_active_parameters"}


def load(folder: Path, keys: Keys) -> ModelSpec:
    """Write ``keys`` as a config.json and load it."""
    path = folder / "config.json"
    path.write_text(json.dumps(keys), encoding="utf-8")
    return load_model(str(path))


def refused(folder: Path, keys: Keys) -> str:
    """Return the one sentence with which ``keys`` are refused; it names the file."""
    with pytest.raises(BadInput) as caught:
        load(folder, keys)
    message = str(caught.value)
    assert str(folder / "config.json") in message
    assert "\n" not in message
    return message


def compressed(kind: str, bits: int) -> Keys:
    """Return a compressed-tensors configuration of one group."""
    weights = {"type": kind, "num_bits": bits, "group_size": 32}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


def within(name: str, section: str, **keys: object) -> Keys:
    """Return the configuration of a model with other keys in a section."""
    found = config(name)
    held = found[section]
    return found | {section: held | keys}


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (config("deepseek_v3"), "deepseek-v3"),
        (config("deepseek_v3"), "deepseek-r1"),
        (config("kimi_k2"), "kimi-k2"),
        (config("deepseek_v2_lite"), "deepseek-v2-lite"),
        (config("qwen3_32b"), "qwen3-32b"),
        (config("qwen3_235b"), "qwen3-235b-a22b"),
        (config("qwen2_7b"), "qwen2-7b"),
        (config("llama_8b"), "llama-3.1-8b"),
        (config("mixtral_8x7b"), "mixtral-8x7b"),
        (config("glm_4_6"), "glm-4.6"),
        (config("dbrx"), "dbrx"),
        (config("ernie_300b"), "ernie-4.5-300b-a47b"),
        (config("hunyuan_a13b"), "hunyuan-a13b"),
        (config("minimax_m2"), "minimax-m2"),
        (config("olmoe"), "olmoe-1b-7b"),
        (config("pangu_pro"), "pangu-pro-moe"),
        (config("pangu_ultra"), "pangu-ultra-moe"),
        (config("openpangu_r"), "openpangu-r-72b"),
        (config("deepseek_v32"), "deepseek-v3.2"),
        (config("deepseek_v4_flash"), "deepseek-v4-flash"),
        (config("glm_5"), "glm-5"),
        (config("longcat_flash"), "longcat-flash"),
        (config("longcat_flash_lite"), "longcat-flash-lite"),
        (config("hy3"), "hy3-preview"),
        (config("glm_5") | {"index_topk_freq": 4, "max_position_embeddings": 1048576}, "glm-5.2"),
        (config("gpt_oss_120b"), "gpt-oss-120b"),
        (config("kimi_k25"), "kimi-k2.5"),
        (config("llama_4_maverick"), "llama-4-maverick"),
        (config("qwen3_next"), "qwen3-next-80b-a3b"),
        (config("qwen3_5"), "qwen3.5-397b-a17b"),
        (config("qwen2_5_vl_7b"), "qwen2.5-vl-7b-instruct"),
        (config("qwen3_vl_8b"), "qwen3-vl-8b-instruct"),
        (config("gemma_3_27b"), "gemma-3-27b-it"),
    ],
)
def test_a_configuration_is_the_catalogue_entry(tmp_path: Path, keys: Keys, name: str) -> None:
    """A config.json gives the same dimensions as the entry of the catalogue."""
    assert plain(load(tmp_path, keys), exclude=DESCRIPTION) == plain(load_model(name), exclude=DESCRIPTION)


def test_a_folder_names_the_model(tmp_path: Path) -> None:
    """A config.json takes its folder's name, in the hub's cache the repository's, any other file its own."""
    cached = tmp_path / "models--Qwen--Qwen3-32B" / "snapshots" / "abc"
    for folder, name in ((tmp_path / "My-Model", "my-model"), (cached, "qwen3-32b")):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config("qwen3_32b")), encoding="utf-8")
        assert load_model(str(folder)).name == name
    (tmp_path / "Other.json").write_text(json.dumps(config("qwen3_32b")), encoding="utf-8")
    assert load_model(str(tmp_path / "Other.json")).name == "other"


@pytest.mark.parametrize("spelling", ["n_routed_experts", "num_experts", "num_local_experts"])
def test_experts_have_three_spellings(tmp_path: Path, spelling: str) -> None:
    """The number of experts is found under each of its keys."""
    spec = load(tmp_path, without(config("deepseek_v3"), "n_routed_experts") | {spelling: 256})
    assert spec.moe.experts == 256


def test_spellings_that_disagree_are_refused(tmp_path: Path) -> None:
    """Two spellings of one key with different values are not decided silently."""
    message = refused(tmp_path, config("deepseek_v3") | {"num_experts": 64})
    assert "n_routed_experts 256 and num_experts 64" in message


@pytest.mark.parametrize("key", sorted(set(config("deepseek_v3")) - {
    "moe_layer_freq", "topk_method", "tie_word_embeddings", "torch_dtype", "quantization_config", "num_key_value_heads",
}))  # fmt: skip
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    """No dimension of DeepSeek-V3 has a default."""
    message = refused(tmp_path, without(config("deepseek_v3"), key))
    assert key in message
    assert "is missing" in message


@pytest.mark.parametrize("value", [True, "61", -1, 0, 61.5, None, [61], 10**30, float("nan"), float("inf")])
def test_a_dimension_must_be_a_whole_number(tmp_path: Path, value: object) -> None:
    """Booleans, strings, fractions, lists and numbers beyond reason are refused with the key."""
    assert "num_hidden_layers" in refused(tmp_path, config("deepseek_v3") | {"num_hidden_layers": value})


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model_type": "deepseek_v9"}, 'model_type is "deepseek_v9": unknown; accepted are PanguProMoE, dbrx'),
        ({"model_type": ["deepseek_v3"]}, "model_type"),
        ({"model_type": "deepseek_v4"}, "compress_ratios is missing"),
        ({"model_type": "deepseek_v32"}, "index_n_heads is missing"),
        ({"index_topk": 2048}, "index_topk is 2048: this model_type attends to all keys"),
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2: must be 1"),
        ({"first_k_dense_replace": 62}, "first_k_dense_replace is 62: must be a whole number from 0 to 60"),
        ({"num_experts_per_tok": 300}, "num_experts_per_tok is 300: must be at most the 256 experts"),
        ({"n_group": 7}, "n_group is 7: must divide the number of experts"),
        ({"topk_group": 9}, "topk_group is 9: must be a whole number from 1 to 8"),
        ({"num_experts_per_tok": 200}, "cannot take 200 of the 128 experts it may reach"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "quant_method must be fp8"),
        ({"quantization_config": "fp8"}, "quantization_config"),
        ({"quantization_config": {"quant_method": ["fp8"]}}, "quantization_config"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}}, "quantization_config"),
        ({"quantization_config": compressed("int", 3)}, "quantization_config"),
        ({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": [4]}}, "quantization_config"),
        ({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"a": 4}}}, "compressed"),
        ({"quantization_config": None, "torch_dtype": "float32"}, "torch_dtype"),
    ],
)
def test_what_is_not_carried_is_refused(tmp_path: Path, keys: Keys, said: str) -> None:
    """An unknown or unsupported structure is refused with its key, never approximated."""
    assert said in refused(tmp_path, config("deepseek_v3") | keys)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            config("qwen3_32b") | {"use_sliding_window": True, "sliding_window": 4096},
            "use_sliding_window is true: must be false",
        ),
        (config("qwen3_32b") | {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        (config("qwen3_32b") | {"layer_types": ["mamba"] * 64}, "must name one of full_attention, sliding_attention"),
        (config("qwen3_32b") | {"layer_types": ["sliding_attention"] * 64}, "use_sliding_window false contradicts"),
        (config("llama_8b") | {"layer_types": ["sliding_attention"] * 32}, "sliding_window must be stated"),
        (without(config("llama_4_maverick"), "text_config"), "the key text_config is missing"),
        (
            config("llama_4_maverick") | {"text_config": {"model_type": "gemma"}},
            'text_config: model_type is "gemma": must be',
        ),
        (
            config("qwen3_next") | {"full_attention_interval": 5},
            "full_attention_interval is 5: must divide the 48 layers",
        ),
        (config("qwen3_next") | {"linear_num_value_heads": 24}, "24 value_heads must be a multiple of 16 key_heads"),
        (config("qwen3_next") | {"mlp_only_layers": [0]}, "mlp_only_layers is [0]: must be empty"),
        (without(config("qwen3_32b"), "head_dim"), "head_dim is missing"),
        (config("llama_8b") | {"model_type": "mistral"}, "sliding_window is missing"),
        (config("llama_8b") | {"num_attention_heads": 31}, "num_attention_heads"),
        (config("llama_8b") | {"num_attention_heads": 24}, "does not divide over 24 num_attention_heads"),
        (without(config("llama_8b"), "torch_dtype"), "torch_dtype (or dtype) is missing"),
        (config("qwen3_235b") | {"decoder_sparse_step": 2}, "decoder_sparse_step is 2: must be 1"),
        (config("qwen3_235b") | {"mlp_only_layers": list(range(94))}, "mlp_only_layers"),
        (config("llama_8b") | {"num_key_value_heads": 7}, "must be a multiple of the 7 num_key_value_heads"),
        (config("qwen3_235b") | {"mlp_only_layers": [3, 5]}, "mlp_only_layers is [3, 5]: must list the first layers"),
        (config("qwen3_235b") | {"shared_expert_intermediate_size": 512}, "shared_expert_intermediate_size is 512"),
        (without(config("dbrx"), "ffn_config"), "the key ffn_config is missing"),
        (config("dbrx") | {"attn_config": 8}, "attn_config is 8: must be an object"),
        (config("dbrx") | {"attn_config": {}}, "config.json: attn_config: the key kv_n_heads is missing"),
        (config("dbrx") | {"n_heads": 7}, "d_model is 6144: does not divide over 7 n_heads"),
        (config("ernie_300b") | {"moe_layer_interval": 2}, "moe_layer_interval is 2: must be 1"),
        (config("ernie_300b") | {"moe_layer_end_index": 40}, "moe_layer_end_index is 40: must be 53"),
        (config("hunyuan_a13b") | {"moe_topk": [8] * 31 + [4]}, "moe_topk"),
        (config("hunyuan_a13b") | {"moe_topk": []}, "moe_topk is []: must be the same number for every layer"),
        (config("hunyuan_a13b") | {"use_cla": True}, "use_cla is true: must be false"),
        (config("minimax_m2") | {"attn_type_list": [0] * 62}, "must be 1 for every layer: others are linear attention"),
        (config("minimax_m2") | {"shared_intermediate_size": 64}, "shared_intermediate_size is 64: must be 0"),
        (config("deepseek_v4_flash") | {"compress_ratios": [4] * 42}, "must state 0, 4 or 128 for each of the 43"),
        (config("deepseek_v4_flash") | {"compress_ratios": ["4"] * 43}, "must state 0, 4 or 128 for each of the 43"),
        (config("deepseek_v4_flash") | {"compress_ratios": [True] * 43}, "must state 0, 4 or 128 for each of the 43"),
        (config("deepseek_v4_flash") | {"o_groups": 7}, "64 heads must be a multiple of the output_groups"),
        (within("llama_4_maverick", "text_config", num_hidden_layers=49), "must be a multiple of 2 and 4, by which"),
        (config("qwen3_next") | {"mamba_ssm_dtype": "float16"}, 'is "float16": must be float32 or bfloat16'),
        (within("qwen2_5_vl_7b", "vision_config", fullatt_block_indexes=7), "is 7: must be a list of layers"),
        (within("qwen2_5_vl_7b", "vision_config", fullatt_block_indexes=[0] * 33), "at most the 32 layers"),
        (within("kimi_k25", "vision_config", merge_kernel_size=[2, 1]), "must be two equal numbers"),
        (within("kimi_k25", "vision_config", vt_num_attention_heads=7), "1152 must be a multiple of 7 heads"),
        (within("gemma_3_27b", "vision_config", image_size=897), "must be a multiple of 4 patches"),
        (config("gemma_3_27b") | {"mm_tokens_per_image": 250}, "must be the square of a divisor of 64 patches"),
        (config("gemma_3_27b") | {"mm_tokens_per_image": 81}, "must be the square of a divisor of 64 patches"),
    ],
)
def test_other_families_refuse_too(tmp_path: Path, keys: Keys, said: str) -> None:
    """Windows that are on, uneven heads and experts in some layers only are refused."""
    assert said in refused(tmp_path, keys)


def test_windows_are_carried(tmp_path: Path) -> None:
    """A window without layer types is every layer's; with them it is that of the layers that slide."""
    every = load(tmp_path, config("mixtral_8x7b") | {"sliding_window": 4096})
    assert (every.windowed_layers, every.reach_tokens) == (32, 4096)
    kinds = {"sliding_window": 1024, "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 16}
    some = load(tmp_path, without(config("qwen3_32b"), "use_sliding_window") | kinds)
    assert (some.windowed_layers, some.reach_tokens) == (48, 1024)


def test_experts_of_every_second_layer(tmp_path: Path) -> None:
    """Llama-4-Maverick has experts in layers 1, 3, … 47, Scout's step of one in all."""
    assert load(tmp_path, config("llama_4_maverick")).moe_layer_numbers == list(range(1, 48, 2))
    scout = load(tmp_path, within("llama_4_maverick", "text_config", interleave_moe_layer_step=1))
    assert (scout.dense_layers, scout.interleaved, scout.moe_layer_numbers) == (0, False, list(range(48)))


def test_harmless_keys_are_harmless(tmp_path: Path) -> None:
    """A window as long as the context, full attention spelt out, null options and newer spellings load."""
    spelt_out = {"layer_types": ["full_attention"] * 64, "dtype": "bfloat16", "quantization_config": None}
    assert load(tmp_path, config("qwen3_32b") | spelt_out).layers == 64
    assert load(tmp_path, config("mixtral_8x7b") | {"sliding_window": 32768}).layers == 32
    assert load(tmp_path, config("llama_8b") | {"model_type": "mistral", "sliding_window": None}).layers == 32
    assert load(tmp_path, config("deepseek_v3") | {"head_dim": 64, "num_key_value_heads": 3}).attention.kind == "mla"
    assert load(tmp_path, config("qwen3_32b") | {"num_hidden_layers": 64.0}).layers == 64
    assert load(tmp_path, config("hunyuan_a13b") | {"moe_topk": 8}) == load(tmp_path, config("hunyuan_a13b"))
    assert load(tmp_path, config("minimax_m2") | {"use_mtp": False}).mtp_layers == 0
    assert load(tmp_path, without(config("qwen3_vl_8b"), "vision_config")).vision is None


def test_llama_without_kv_heads_has_one_per_head(tmp_path: Path) -> None:
    """Llama's configuration class defines num_key_value_heads as num_attention_heads where it is absent."""
    spec = load(tmp_path, without(config("llama_8b"), "num_key_value_heads"))
    assert spec.attention.kv_elements_per_token == 2 * 32 * 128


def test_leading_dense_layers_of_qwen3_moe(tmp_path: Path) -> None:
    """Layers in mlp_only_layers that lead are dense ones of intermediate_size."""
    spec = load(tmp_path, config("qwen3_235b") | {"mlp_only_layers": [0, 1]})
    assert (spec.dense_layers, spec.moe_layers, spec.dense_intermediate_size) == (2, 92, 12288)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{\n  "model_type": "qwen3",\n  "hidden_size": ,\n}', "line 3"),
        ("", "line 1"),
        ("[1, 2]", "must hold one JSON object"),
        ('{"hidden_size": 1, "hidden_size": 2}', "the key hidden_size stands twice"),
        ("[" * 100_000, "not an acceptable JSON file"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "not an acceptable JSON file"),
        ("{}", "model_type is missing"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    """What is not a JSON object is refused with the file and, where there is one, the line."""
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        load_model(str(path))
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_a_binary_and_a_huge_file_are_refused(tmp_path: Path) -> None:
    """Weights under the name of a configuration are not read."""
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x80")
    with pytest.raises(BadInput, match="not UTF-8"):
        load_model(str(path))
    path.write_bytes(b" " * 5_000_000)
    with pytest.raises(BadInput, match="larger than 4 MiB"):
        load_model(str(path))


def test_a_quantisation_beside_the_configuration_is_read(tmp_path: Path) -> None:
    """Releases that state their quantisation in hf_quant_config.json would otherwise load as bf16."""
    beside, keys = tmp_path / "hf_quant_config.json", without(config("deepseek_v3"), "quantization_config")
    beside.write_text('{"quantization": {"quant_algo": "NVFP4"}}', encoding="utf-8")
    assert load(tmp_path, keys).native_dtype == "nvfp4"
    for text in ("{}", '{"quantization": 4}', '{"quantization": {"quant_algo": "W4A8_AWQ"}}', '{"quantization": {}}'):
        beside.write_text(text, encoding="utf-8")
        with pytest.raises(BadInput, match=r"hf_quant_config\.json: "):
            load(tmp_path, keys)


@pytest.mark.parametrize(
    ("settings", "native"),
    [
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        (compressed("int", 4), "int4"),
        (compressed("int", 8), "int8"),
        (compressed("float", 8), "fp8"),
        (compressed("float", 4), "nvfp4"),
    ],
)
def test_quantised_checkpoints_say_their_type(tmp_path: Path, settings: Keys, native: str) -> None:
    """The formats that serving engines read, by what their configurations state."""
    assert load(tmp_path, config("deepseek_v3") | {"quantization_config": settings}).native_dtype == native
