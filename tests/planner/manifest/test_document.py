"""Manifest files: what is written is read back, and what is wrong is refused with its path."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from ground.errors import BadInput
from planner.costs.deployment import Phase
from planner.manifest.checks import spec_hash
from planner.manifest.costs import REACH_VARIABLES, VARIABLES, CommunicationTermModel, ComputeTermModel, StepCostModel
from planner.manifest.document import dump_manifest, json_schema, parse_manifest, read_manifest
from planner.manifest.layout import Degrees
from planner.manifest.schema import LinkMapping
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import CommunicationTerm, ComputeTerm, StepCost, StepLoad, variables
from tests.deploy.cases import SEEN
from tests.deploy.plans import deployed
from tests.instances import even_cost, instance
from tests.manifests import cost, manifest, small_model

Plain = dict[str, Any]


def plain() -> Plain:
    """Return a correct manifest as plain data, to be spoiled."""
    return manifest().model_dump(mode="json")


def test_written_manifest_reads_back_equal_with_the_same_bytes(tmp_path: Path) -> None:
    """Reading gives back every value, floats bit for bit, and writing it again the same text."""
    original = manifest(drafts=1)
    text = dump_manifest(original)
    path = tmp_path / "manifest.yaml"
    path.write_text(text, encoding="utf-8")
    again = read_manifest(path)
    assert again == original
    assert dump_manifest(again) == text


@pytest.mark.parametrize("name", ["true", "1e5", "0x10", "~", "a: b", "- x", "é\u0085\u2028\x7f", "#", "ключ", "1:30"])
def test_text_that_yaml_could_misread_survives(name: str) -> None:
    """Names that look like numbers, booleans or syntax stay text."""
    original = manifest()
    question = {name: name, "list": [name, 1e-05, 3, None, True]}
    changed = original.model_copy(update={"made_by": original.made_by.model_copy(update={"question": question})})
    from ground.files import parse_yaml

    assert parse_manifest(parse_yaml(dump_manifest(changed), "text"), "text") == changed


def test_manifest_satisfies_its_published_schema() -> None:
    """The JSON Schema accepts what is written and refuses another version."""
    schema, data = json_schema(), plain()
    validator = jsonschema.Draft202012Validator(schema)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert not list(validator.iter_errors(json.loads(json.dumps(data))))
    assert list(validator.iter_errors(data | {"manifest_version": 2}))


def test_the_schema_is_the_approved_one() -> None:
    """What manifests may hold, and how much of it, changes only where `schema.json` is written anew."""
    approved = json.loads(Path(__file__).with_name("schema.json").read_text(encoding="utf-8"))
    assert json_schema() == approved, "a meant change: `plan manifest schema > tests/planner/manifest/schema.json`"


def test_step_cost_survives_the_round_trip() -> None:
    """A step cost read back is equal and evaluates to the same duration, bit for bit."""
    original = cost(Degrees(attention_tp=1, attention_dp=8, moe_ep=8), 2.0, 2)
    again = StepCostModel.from_step_cost(original).to_step_cost()
    assert again == original
    load = StepLoad(decode_sequences=7.0, decode_kv_tokens=1234.0, mean_tokens=14.0)
    assert evaluate(again, load, 2).seconds == evaluate(original, load, 2).seconds


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("phase", ["prefill", "decode", "mixed"])
def test_step_costs_of_sparse_attention_can_be_written(engine: str, phase: Phase) -> None:
    """No form has a negative coefficient, which manifests refuse."""
    even = even_cost(instance("deepseek-v3.2", "b200", phase, "fp8", attention_tp=8, moe_tp=8, engine=engine))
    load = StepLoad(prefill_tokens=4096.0, prefill_pairs=4096 * 4097 / 2, mean_tokens=4096.0)
    assert evaluate(StepCostModel.from_step_cost(even).to_step_cost(), load).seconds == evaluate(even, load).seconds


def test_step_cost_mirror_has_every_field_and_variable() -> None:
    """A field or a variable added to the cost terms must be added to the manifest; not what no duration depends on."""
    assert set(StepCostModel.model_fields) == {field.name for field in fields(StepCost)}
    for mirror, own in ((ComputeTermModel, ComputeTerm), (CommunicationTermModel, CommunicationTerm)):
        assert set(mirror.model_fields) - {"kind"} == set(own._fields) - {"shape"}
    even = cost(Degrees(attention_tp=1, attention_dp=8, moe_ep=8), 2.0)
    assert set(variables(replace(even, reach_tokens=128), StepLoad(), 1)) == VARIABLES
    assert set(variables(even, StepLoad(), 1)) == VARIABLES - REACH_VARIABLES


def _set(*path: str | int, to: object) -> Callable[[Plain], None]:
    """Return what puts ``to`` at ``path``."""

    def spoil(data: Plain) -> None:
        place: Any = data
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = to

    return spoil


def _kinds(tokens: list[float], reused: list[float], weights: list[float]) -> Callable[[Plain], None]:
    return _set("workload", "prompt_kinds", to={"tokens": tokens, "reused": reused, "weights": weights})


DECODE = ("pools", 1)
COST = (*DECODE, "step_costs", "decode")
SPOILT = {
    "version": (_set("manifest_version", to=2), "manifest_version"),
    "huge": (_set("kv_transfer", "latency_seconds", to=1e308), r"kv_transfer\.latency_seconds: .*1e\+30"),
    "less": (_set("kv_transfer", "latency_seconds", to=-0.5), r"kv_transfer\.latency_seconds"),
    "tiny": (_set("kv_transfer", "bandwidth_bytes_per_second", to=5e-324), r"kv_transfer\.bandwidth_bytes_per_second"),
    "unknown_key": (_set("pools", 0, "colour", to=1), r"pools\[0\]\.colour"),
    "cluster": (_set("pools", 0, "hardware", to="moon"), r"pools\[0\]\.hardware"),
    "hash": (_set("model", "spec", "layers", to=5), r"model\.sha256"),
    "devices": (_set(*DECODE, "devices_per_instance", to=16), r"pools\[1\]\.devices_per_instance"),
    "chips": (_set(*DECODE, "chips_per_instance", to=4.0), r"pools\[1\]\.chips_per_instance"),
    "device_twice": (_set(*DECODE, "rank_table", "rows", 3, 2, to=2), r"pools\[1\]\.rank_table\.rows\[3\]"),
    "coordinate": (_set(*DECODE, "rank_table", "rows", 7, 4, to=8), r"rank_table\.rows\[7\]\[4\]: dp 8 must be 7"),
    "short_row": (_set(*DECODE, "rank_table", "rows", 7, to=[7]), r"rank_table\.rows\[7\]"),
    "group": (_set(*DECODE, "groups", 0, "size", to=4), r"pools\[1\]\.groups\[0\]"),
    "ep": (_set(*DECODE, "rank_table", "rows", 7, 5, to=-1), r"rows\[7\]\[5\]: ep -1 must be 7 as degrees say"),
    "group_missing": (_set(*DECODE, "groups", to=[]), r"groups\[0\]: must be .*'dp', 'size': 8.* as degrees say"),
    "group_more": (lambda data: data["pools"][1]["groups"].append(data["pools"][1]["groups"][0]), "must not be there"),
    "node": (_set(*DECODE, "instances", 0, "nodes", to=[64]), r"pools\[1\]\.instances\[0\]\.nodes"),
    "overlap": (_set(*DECODE, "instances", 0, "nodes", to=[0]), r"pools\[1\]\.instances\[0\]: .*'prefill-0'"),
    "name_twice": (_set(*DECODE, "instances", 0, "name", to="prefill-0"), r"pools\[1\]\.instances\[0\]\.name"),
    "off_node": (_set(*DECODE, "instances", 0, "first_device", to=4), r"pools\[1\]\.instances\[0\]\.nodes"),
    "expert_missing": (_set(*DECODE, "expert_map", "placements", 0, "slots", 0, to=2), r"expert_map\.placements\[0\]"),
    "expert_id": (_set(*DECODE, "expert_map", "placements", 0, "slots", 0, to=16), r"placements\[0\]\.slots"),
    "layer": (_set(*DECODE, "expert_map", "placements", 0, "layers", to=[1, 2]), r"expert_map\.placements: .*3"),
    "no_map": (_set(*DECODE, "expert_map", to=None), r"pools\[1\]\.expert_map"),
    "ep_ranks": (_set(*DECODE, "expert_map", "expert_ranks", to=[0, 1]), r"pools\[1\]\.expert_map"),
    "stages": (_set(*DECODE, "layers_per_stage", to=[5]), r"pools\[1\]\.layers_per_stage"),
    "memory": (_set(*DECODE, "memory_bytes_per_device", "capacity", to=3.19e9), r"memory_bytes_per_device: 3.2e\+09"),
    "nan": (_set(*DECODE, "mtp", "acceptance", to=float("nan")), r"pools\[1\]\.mtp\.acceptance"),
    "shard": (_set(*DECODE, "weight_shards", 0, "degree", to=2), r"pools\[1\]\.weight_shards\[0\]"),
    "phase": (_set(*DECODE, "step_costs", to={}), r"pools\[1\]\.step_costs"),
    "variable": (_set(*DECODE, "step_costs", "decode", "terms", 0, "flops", to={"magic": 1.0}), r"terms\[0\].*magic"),
    "negative": (_set(*DECODE, "step_costs", "decode", "terms", 0, "flops_per_second", to=0), r"flops_per_second"),
    "queries": (_set(*DECODE, "mtp", "drafts", to=1), r"step_costs\.decode\.queries_per_sequence"),
    "plane": (_set("kv_transfer", "plane", to="string"), r"kv_transfer\.plane"),
    "no_transfer": (_set("kv_transfer", to=None), "kv_transfer"),
    "no_decode": (lambda data: data["pools"].pop(), "pools"),
    "fewer_rows": (_set(*DECODE, "rank_table", "rows", to=[[0] * 9]), r"rows: has 1 rows, must have .* 8 ranks"),
    "no_node": (_set(*DECODE, "rank_table", "rows", 7, 1, to=-1), r"rows\[7\]: node -1"),
    "no_device": (_set(*DECODE, "rank_table", "rows", 0, 2, to=-1), r"rows\[0\]: node 0, device -1 .* nodes of 8"),
    "nodes_twice": (_set(*DECODE, "instances", 0, "nodes", to=[1, 1]), r"instances\[0\]\.nodes: .* from 0 to 63"),
    "whose_device": (
        lambda data: [pool["instances"][0].update(nodes=[5]) for pool in data["pools"]],
        "stands on device 0 of node 5, which 'prefill-0' has",
    ),
    "shared_ep_rank": (_set(*DECODE, "expert_map", "shared_expert_ranks", to=[7]), r"each of 8 EP ranks once"),
    "layer_twice": (_set(*DECODE, "expert_map", "placements", 0, "layers", to=[1, 2, 3, 3]), "layers: 3 stands twice"),
    "dense_layer": (_set(*DECODE, "expert_map", "placements", 0, "layers", to=[0, 1, 2, 3]), "layers: 0 stands twice"),
    "axis": (_set(*DECODE, "weight_shards", 0, "axis", to=0), r"weight_shards\[0\]: a cut needs axis"),
    "mixed_phase": (
        lambda data: (data["pools"][1].update(role="mixed"), data["pools"][1]["step_costs"].pop("mixed")),
        r"step_costs: mixed is missing; mixed pools",
    ),
    "no_slots": (_set(*COST, "slots_per_rank", to=0), r"decode: experts need slots_per_rank > 0"),
    "large_top_k": (_set(*COST, "experts_per_token", to=17), r"experts_per_token from 1 to 16"),
    "experts": (_set(*COST, "experts", to=0), r"decode\.moe_layers: must be 0 where experts is 0"),
    "domains": (_set(*COST, "domains", to=1), r"decode\.domains: must be 1 or more with the rule disaggregated"),
    "cores": (
        lambda data: data["pools"][1]["step_costs"]["decode"].update(rule="attention_experts", cores=1),
        r"decode\.cores: two streams need at least 2",
    ),
    "dense": (
        lambda data: data["pools"][1]["step_costs"]["decode"].update(experts=0, moe_layers=0),
        r"terms\[4\]\.bytes: 'hit' exists only with experts",
    ),
    "reach": (_set(*COST, "terms", 0, "bytes", to={"kv_within": 1.0}), r"'kv_within' exists only with reach_tokens"),
    "kinds": (_kinds([512.0], [0.0, 0.0], [1.0]), r"workload\.prompt_kinds: its columns"),
    "no_weight": (_kinds([512.0], [0.0], [0.0]), r"workload\.prompt_kinds\.weights: must sum to more than 0"),
    "reused": (_kinds([512.0, 9.0], [512.0, 10.0], [1.0, 1.0]), r"workload\.prompt_kinds\.reused"),
}
RIGHT = {
    "small_weights": _kinds([512.0], [0.0], [0.1]),
    "all_reused": _kinds([512.0, 9.0], [512.0, 9.0], [1.0, 1.0]),
    "all_experts": _set(*COST, "experts_per_token", to=16),
    "full_memory": _set(*DECODE, "memory_bytes_per_device", "capacity", to=3.2e9),
    "last_node": _set(*DECODE, "instances", 0, "nodes", to=[63]),
    "drafting_layer": _set(*DECODE, "expert_map", "placements", 0, "layers", to=[1, 2, 3, 4]),
    "two_cores": lambda data: data["pools"][1]["step_costs"]["decode"].update(rule="attention_experts", cores=2),
}


@pytest.mark.parametrize("case", RIGHT)
def test_what_just_fits_is_read(case: str) -> None:
    """What stands on a limit keeps it."""
    data = plain()
    RIGHT[case](data)
    assert parse_manifest(data, "m.yaml") is not None


def test_hashes_of_specs_stay() -> None:
    """Manifests that are written keep what their specs hash to, so a field that comes later must have a default."""
    assert spec_hash(small_model()) == "4e2a44ed76d2a920f2cf9d7d80e3f293f4ac742255980e20f0357a6408c04e6b"


@pytest.mark.parametrize("case", SPOILT)
def test_wrong_manifest_is_refused_with_the_path(case: str) -> None:
    """Each contradiction is one BadInput sentence that names file and field."""
    spoil, message = SPOILT[case]
    data = plain()
    spoil(data)
    with pytest.raises(BadInput, match=message) as caught:
        parse_manifest(data, "m.yaml")
    assert str(caught.value).startswith("m.yaml") and "\n" not in str(caught.value)


ENCODES = {
    "no_encoder": (_set("model", "spec", "vision", to=None), r"role: encode is for models with an encoder"),
    "no_embeddings": (_set("embedding_transfer", to=None), "embedding_transfer: must be given"),
    "no_pictures": (_set("workload", "picture_tokens", to=0), r"workload\.picture_tokens: must be given"),
    "layers": (_set("pools", 0, "layers_per_stage", to=[3]), "layers_per_stage"),
    "alone": (lambda data: data["pools"].pop(), "pools: an encode pool needs prefill and decode pools"),
    "beside": (lambda data: data["pools"].pop(0), "embedding_transfer: must be given where a pool has the role encode"),
    "phase": (
        lambda data: data["pools"][0]["step_costs"].update(mixed=data["pools"][0]["step_costs"].pop("prefill")),
        r"step_costs: prefill is missing; encode pools need it",
    ),
}


@pytest.mark.parametrize("case", ENCODES)
def test_wrong_encode_pools_are_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What instances that encode pictures need, and what needs them."""
    spoil, message = ENCODES[case]
    with pytest.raises(BadInput, match=r"pools\[0\]\.role: encode is for models .* on one device an instance"):
        deployed("qwen2.5-vl-7b-instruct", "h800", SEEN, encode={"strategy": "TP=2"}, mixed={"strategy": "TP=1"})
    roles: dict[str, Plain] = {"encode": {"strategy": "TP=1"}, "mixed": {"strategy": "TP=1"}}
    data = deployed("qwen2.5-vl-7b-instruct", "h800", SEEN, **roles).model_dump(mode="json")
    spoil(data)
    monkeypatch.setattr("planner.manifest.checks._check_hashes", lambda _: None)
    with pytest.raises(BadInput, match=message):
        parse_manifest(data, "m.yaml")


def test_a_long_version_is_cut() -> None:
    """A message stays one line that can be read."""
    with pytest.raises(BadInput, match=f"manifest_version: '{'x' * 40}' is not known"):
        parse_manifest({"manifest_version": "x" * 99}, "m.yaml")


@pytest.mark.parametrize("data", [None, [], "text", {}, {"manifest_version": True}])
def test_what_is_no_manifest_is_refused(data: object) -> None:
    """Other documents are refused in one sentence, which never quotes a version that is not there."""
    with pytest.raises(BadInput, match="manifest") as refused:
        parse_manifest(data, "m.yaml")
    assert "None" not in str(refused.value)


def test_links_are_balanced_as_in_cloudmatrix() -> None:
    """CloudMatrix384 section 4.3.3: prefill TP 32, decode TP 1 and DP 320 spread ten decode ranks per prefill rank."""
    mapping = LinkMapping(ratio=32.0, group_size=10.0)
    used = [mapping.prefill_tp_rank(rank, 0, 1) for rank in range(320)]
    assert np.bincount(used).tolist() == [10] * 32
