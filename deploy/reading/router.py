"""Reads back the router: it knows every instance once, by flags that its pinned version has."""

from collections.abc import Mapping
from itertools import takewhile

from deploy.commands.launch import Target
from deploy.reading.flags import table
from deploy.reading.shell import processes

ADDRESSES = {"prefill": "--prefill", "decode": "--decode", "mixed": "--worker-urls"}
NAMES: dict[str, tuple[str | None, dict[str, str]]] = {
    "vllm-router": ("vllm-router-0.1.17", ADDRESSES),
    "sglang_router.launch_router": ("sglang-router-0.3.2", ADDRESSES),
    "load_balance_proxy_server_example.py": (None, {"prefill": "--prefiller-hosts", "decode": "--decoder-hosts"}),
    "xllm_master_serving": ("xllm-service-0.2.0", {}),
    "disaggregated": (None, {}),
    "nginx": (None, {}),
}


def check_router(target: Target, texts: Mapping[str, str]) -> list[str]:
    """Return what of the router is wrong: flags nobody knows, instances missing or named twice."""
    if "router.sh" not in texts:
        return []
    (process,) = processes(texts["router.sh"], {})
    words = list(process.words)
    known, flags = next(found for name, found in NAMES.items() if any(word.endswith(name) for word in words[:3]))
    problems = []
    if known is not None:
        names = table(known)["flags"].keys()
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        problems += [f"the router does not know {name}" for name in sorted(given - names)]
    for role, flag in flags.items():
        wanted = sum(len(held.instances) for held in target.roles if held.role == role)
        held = _values(words, flag)
        repeated = len(set(held)) < len(held) and not flag.endswith(
            "-hosts"
        )  # hosts repeat, their ports tell them apart
        if len(held) < wanted or repeated:
            problems.append(f"the router has {len(set(held))} {role} addresses for {wanted} instances")
    return problems


def _values(words: list[str], flag: str) -> list[str]:
    """Return the addresses behind every occurrence of a flag; ports that stand alone are not addresses."""
    found: list[str] = []
    for position, word in enumerate(words):
        if word == flag:
            values = takewhile(lambda value: not value.startswith("--"), words[position + 1 :])
            found += [value for value in values if not value.isdigit()]
    return found
