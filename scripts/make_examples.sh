#!/usr/bin/env bash
# Plans the examples of plan deploy again and writes their files: after a change of predictions or of the manifest.
# Expert maps as JSON files are left out, they are large: README.md has their SHA-256, and the tests compare it.
set -euo pipefail
WHAT="${1:-}"
cd "$(dirname "${BASH_SOURCE[0]}")/../examples/deploy"

# make_examples.sh files: the files alone, from the manifests that are there.
planned() { # FOLDER QUESTION...
  [ "${WHAT:-}" != files ] || return 0
  local folder=$1
  shift
  plan search "$@" --out "$folder" --force > /dev/null
  rm -f "$folder/plan.json" "$folder"/report.*
}

deployed() { # FOLDER ENGINE ARGUMENTS...
  local folder=$1 engine=$2
  shift 2
  rm -rf "${folder:?}/$engine"
  plan deploy "$folder/manifest.yaml" --engine "$engine" "$@" --out "$folder/$engine" > /dev/null
  find "$folder/$engine" -name 'expert-*.json' -delete
}

# One plan that three engines reach: xLLM's rules are the strictest, vLLM-Ascend overlaps no microbatches.
planned deepseek-r1-cm384 deepseek-r1 --hw cm384 --nodes 8 --engine xllm --microbatches 1 --redundant-experts 64 --shape disaggregated
deployed deepseek-r1-cm384 vllm-ascend
deployed deepseek-r1-cm384 sglang --platform kubernetes --kind lws
deployed deepseek-r1-cm384 xllm --platform kubernetes --kind volcano
planned qwen3-235b-h800 qwen3-235b-a22b --hw h800 --nodes 2 --engine vllm --shape disaggregated
deployed qwen3-235b-h800 vllm --platform kubernetes --kind lws
# An aggregated instance: a dense model on one GPU, which takes prompts and answers them.
planned qwen3-8b-h100 qwen3-8b --hw h100 --devices 1 --isl 512 --osl 128 --engine vllm --shape aggregated
deployed qwen3-8b-h100 vllm
