"""What was rendered is read back: a file that says something else than the manifest is a fault."""

import re

import pytest

from deploy.reading.check import check_round_trip
from deploy.reading.shell import UnknownForm, processes, words
from ground.errors import Fault
from planner.engines.spec import PlatformKind
from tests.deploy.cases import made

TABLE, MOTOR = "ranktable-decode-0.template.json", "user_config.json"
TAMPERED: list[tuple[str, str, PlatformKind, str, str, str, str]] = [
    ("r1-cm384", "vllm-ascend", "bare", "decode.sh", r"--max-num-seqs 48", "--max-num-seqs 49", "sequences is 49"),
    ("r1-cm384", "vllm-ascend", "bare", "decode.sh", r"--max-num-seqs 48", "", "--max-num-seqs is missing"),
    ("r1-cm384", "vllm-ascend", "bare", "decode.sh", r"size-local 16", "size-local 8", "8 x 1 ranks on 16 devices"),
    ("r1-cm384", "vllm-ascend", "bare", "decode.sh", r"RANK \* 16", "RANK * 8", "data-parallel ranks must be 0 to"),
    ("r1-cm384", "vllm-ascend", "bare", "decode.sh", r"kv_consumer", "kv_producer", "kv_role is prefill"),
    ("r1-cm384", "vllm-ascend", "bare", "prefill.sh", r'_tokens":1', '_tokens":2', "drafts is 2"),
    ("r1-cm384", "vllm-ascend", "bare", "decode.sh", r"recompute_s", "recompute_", "--additional-config.recompute_ch"),
    ("r1-cm384", "vllm-ascend", "bare", "decode.sh", r"--enable-expert-parallel", "--trust-remote-code", "moe_ep is 1"),
    ("r1-cm384", "vllm-ascend", "bare", "expert-map-decode.json", r"\[122,186", "[123,186", "expert map"),
    ("r1-cm384", "vllm-ascend", "bare", "expert-map-decode.json", r"\[122,186,", "[186,", "layer 56: devices and"),
    ("r1-cm384", "vllm-ascend", "bare", "expert-map-decode.json", r"count\":58", 'count":57', "57 of 58 layers"),
    ("r1-cm384", "vllm-ascend", "bare", "hosts.tsv", r"\t48-63\t", "\t48-62\t", "16 x 1 ranks on 15 devices"),
    ("r1-cm384", "vllm-ascend", "bare", "router.sh", r"--decoder-hosts \S+ \S+ \S+ \S+", "--decoder-hosts", "router"),
    ("r1-cm384", "sglang", "lws", "decode.yaml", r"--tp-size 64", "--tp-size 32", "forces EP to 32, not 64"),
    ("r1-cm384", "sglang", "lws", "decode.yaml", r"requests 3072", "requests 3071", "does not divide over 64 ranks"),
    ("r1-cm384", "sglang", "lws", "decode.yaml", r"size: 4", "size: 8", "--nnodes is 4 of 8 nodes"),
    ("r1-cm384", "sglang", "lws", "decode.yaml", r"experts 64", "experts 32", "redundant-experts is 32"),
    ("r1-cm384", "sglang", "bare", "decode.sh", r"exec ", "$(curl example.org) ", "cannot be read back: UnknownForm"),
    ("r1-cm384", "sglang", "bare", "expert-location-decode.json", r"map\":\[", 'map":[[0],', "a row for each of its"),
    ("r1-cm384", "xllm", "bare", "decode.sh", r"DEVICE < 16", "DEVICE < 15", "node_rank of the processes"),
    ("r1-cm384", "xllm", "bare", "decode.sh", r"--nnodes=64", "--nnodes=32", "--nnodes is 32 and 64 processes start"),
    ("r1-cm384", "xllm", "bare", "decode.sh", r"degree=2", "degree=1", "replicas need expert_parallel_degree 2"),
    ("r1-cm384", "xllm", "bare", "hosts.tsv", r"\t48-63\t", "\t48-62\t", "starts 16 processes on 15 devices"),
    ("r1-cm384", "xllm", "bare", "decode.sh", r"experts_num=1", "experts_num=64", "redundant is 4096 instead of 64"),
    ("r1-cm384", "xllm", "bare", "decode.sh", r"\(\(26000 \+ DEVICE\)\)", "((26000))", "stands twice on one host"),
    ("r1-cm384", "xllm", "bare", TABLE, r'rank_id": "3"', 'rank_id": "4"', "must hold ranks"),
    ("r1-cm384", "mindie", "motor", MOTOR, r'"d_pod_npu_num": 16', '"d_pod_npu_num": 8', "devices is 32"),
    ("r1-cm384", "mindie", "motor", MOTOR, r'"moe_ep": 64', '"moe_ep": 32', "moe_ep * moe_tp is 32"),
    ("r1-cm384", "mindie", "motor", MOTOR, r'decode_distribute_enable": 1', 'decode_distribute_enable": 0', "differ"),
    ("r1-cm384", "mindie", "motor", MOTOR, r'"worldSize": 16', '"worldSize": 8', "worldSize is 8, npuDeviceIds has 16"),
    ("r1-cm384", "mindie", "motor", MOTOR, r'bute(_e|dE)nable": (0|false)', r'bute\1nable": 1', "must be 1, not 16"),
    ("r1-cm384", "mindie", "motor", MOTOR, r'"level": 1', '"level": 2', "a static map needs eplb.level 1"),
    ("r1-mixed", "mindie", "bare", "mixed.sh", r"WORLD_SIZE=16", "WORLD_SIZE=8", "WORLD_SIZE of mixed is not 16"),
    ("r1-h800", "vllm", "lws", "decode.yaml", r"replicas: 2", "replicas: 32", "has 32 instances instead of 2"),
    ("r1-h800", "vllm", "lws", "decode.yaml", r"gpu: '8'", "gpu: '4'", "8 x 1 ranks on 4 devices"),
    ("r1-h800", "vllm", "lws", "decode.yaml", r"(ests:\s+nv\S+ )'8'", r"\1'4'", "requests equal to limits"),
    ("r1-h800", "vllm", "volcano", "decode.yaml", r"minAvailable: 4", "minAvailable: 2", "a gang of 2 of 4 pods"),
    ("r1-h800", "vllm", "dynamo", "graph.yaml", r"nodeCount: 4", "nodeCount: 2", "32 x 1 ranks on 16 devices"),
    ("r1-h800", "vllm", "dynamo", "graph.yaml", r"name: decode", "name: other", "KeyError: 'other'"),
    ("r1-h800", "vllm", "dynamo", "graph.yaml", r"kv_consumer", "kv_producer", "decode beside a KV role of prefill"),
    ("r1-h800", "vllm", "llm-d", "decode.yaml", r"size: 4", "size: 2", "data-parallel ranks|devices is 16"),
    ("r1-h800", "vllm", "lws", "decode.yaml", r"--enable-dbo", "--enable-bdo", "does not know --enable-bdo"),
    ("seen-h800", "sglang", "bare", "mixed.sh", r"(--encoder-urls \S+) \S+", r"\1", "addresses for 2 encode instances"),
    ("dense-mixed", "vllm", "bare", "mixed.sh", r"--nnodes 2", "--nnodes 3", "--nnodes is 3 of 2 nodes"),
    ("qwen-h800", "trtllm", "bare", "options-decode.yml", r"max_num_tokens", "max_tokens", "take no max_tokens"),
    ("qwen-h800", "trtllm", "bare", "options-decode.yml", r"UCX", "TCP", "take no cache_transceiver_config.backend"),
    ("qwen-h800", "trtllm", "bare", "options-decode.yml", r"moe_tensor.*", "moe_tensor_parallel_size: 2", "16 of 8"),
]


@pytest.mark.parametrize(("name", "engine", "kind", "file", "pattern", "instead", "said"), TAMPERED)
def test_a_changed_file_is_a_fault(name, engine, kind, file, pattern, instead, said):
    """Devices, ranks, degrees, limits, drafts, replicas, roles and flags are each counted."""
    deployment = made(name, engine, kind)
    changed = re.sub(pattern, instead, deployment.files[file])
    assert changed != deployment.files[file]
    with pytest.raises(Fault) as error:
        check_round_trip(deployment.target, deployment.files | {file: changed})
    assert re.search(said if "|" in said else re.escape(said), str(error.value)), str(error.value)


def test_words_follow_bash() -> None:
    """Quotes, variables, arithmetic and lists, as bash splits them."""
    scope = {"A": "x y", "N": "3", "LIST": ["a", "b c"], "HOSTNAME": "set-0-12"}
    text = """one 'two $A' "$A" $((N * 16 + 2)) --j='{"k":'$((N + 1))'}' "${LIST[@]}" "${LIST[$((N + -2))]}" """
    told = words(text.replace("+ -2", "* 0 + 1"), scope)
    assert told == ["one", "two $A", "x y", "50", '--j={"k":4}', "a", "b c", "b c"]
    assert words('"${HOSTNAME%-*}-0" "${HOSTNAME##*-}" "${B:-$N}"', scope) == ["set-0-0", "12", "3"]
    assert words("$((N * 4 / 2 - 1)) ${N}", scope) == ["5", "3"]
    for unknown in ("$(date)", "$(seq -s, 1 2", "${N", "$((N % 2))", "${N[0]}", "$NONE"):
        with pytest.raises(UnknownForm):
            words(unknown, scope)


def test_loops_and_branches_are_followed() -> None:
    """One process per device; flags of the first node only where it is the first."""
    text = "for ((DEVICE = 0; DEVICE < 2; DEVICE++)); do\n  run --rank=$((NODE_RANK * 2 + DEVICE)) &\ndone\nwait -n\n"
    assert [p.words for p in processes(text, {"NODE_RANK": "3"})] == [("run", "--rank=6"), ("run", "--rank=7")]
    text = 'if [ "$NODE_RANK" -eq 0 ]; then EXTRA=(); else EXTRA=(--headless); fi\nexec run "${EXTRA[@]}"\n'
    assert processes(text, {"NODE_RANK": "0"})[0].words == ("run",)
    assert processes(text, {"NODE_RANK": "1"})[0].words == ("run", "--headless")
