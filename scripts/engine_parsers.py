"""Let the released packages' own parsers read every command line that ``plan deploy`` writes, without an accelerator.

    python scripts/engine_parsers.py --work /tmp/engines        # 4 GB, some minutes; then two minutes of parsing

The engines' wheels are unpacked without their libraries of kernels, and their dependencies but the accelerator's are
installed once for all of them; torch in whatever build pip finds, for which one of a CPU is enough.

Writes deploy/flags/parsed.json: by parser its packages, the flags and the words that it accepted, and what it refused.
tests/deploy/test_parsed.py holds what is emitted against that file: run this when a flag or a version is added.
xLLM (gflags in C++), TensorRT-LLM (whose package on PyPI holds no source) and MindIE (JSON) have no parser to install.
"""

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "deploy/flags/parsed.json"
DEPENDENCIES = """
regex cachetools psutil sentencepiece numpy requests tqdm blake3 py-cpuinfo transformers==5.19.0 protobuf tiktoken
fastapi[standard]<0.137 aiohttp openai>=2.25 orjson prometheus_client pillow prometheus-fastapi-instrumentator
llguidance partial-json-parser jsonschema pyzmq msgspec mistral_common[image] opencv-python-headless pyyaml
setuptools<81 einops compressed-tensors cloudpickle watchfiles python-json-logger pybase64 cbor2 ijson setproctitle
oss-harmony anthropic model-hosting-container-standards mcp>=2.2 opentelemetry-sdk opentelemetry-exporter-otlp
opentelemetry-semantic-conventions-ai lark gguf interegular IPython openai-harmony python-multipart uvicorn uvloop
xxhash zstandard scipy datasets packaging distro easydict blobfile build soundfile modelscope outlines_core
kernels==0.14.1 astor dill
"""
# Without what they ask for besides, which is the accelerator's.
ALONE = """
vllm-router==0.1.17 sglang-router==0.3.2 ai-dynamo-runtime==1.6.1 xgrammar==0.2.8 apache-tvm-ffi==0.1.11
outlines==0.1.11 depyf==0.20.0 triton torchvision
"""
ENVIRONMENTS = {"engines": DEPENDENCIES.split(), "aiperf": ["aiperf==0.13.0"]}
BESIDE = {"engines": ALONE.split()}
MOST_BYTES = 8_000_000  # of a file that is unpacked: what is larger is compiled
# Parser -> the wheels that are unpacked before its environment; none: its package is in the environment.
PARSERS: dict[str, list[str]] = {
    "vllm": ["vllm==0.33.0"],
    "vllm-bench": ["vllm==0.33.0"],
    "vllm-router": [],
    "vllm-ascend": ["vllm==0.23.0"],
    "dynamo.vllm": ["vllm==0.31.0", "ai-dynamo==1.6.1"],
    "dynamo.trtllm": ["ai-dynamo==1.6.1"],
    "sglang": ["sglang==0.5.23"],
    "sglang-bench": ["sglang==0.5.23"],
    "sglang-router": [],
    "sglang.ascend": ["sglang==0.5.18"],
    "dynamo.sglang": ["sglang==0.5.21", "ai-dynamo==1.6.1"],
    "aiperf": [],
}
Parse = Callable[[list[str]], object]


def without_device() -> None:
    """Let vLLM take the CPU for its platform: it finds none else, and its parser asks for one."""
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()


def vllm() -> Parse:
    """vLLM's own server arguments, and the engine's settings that their JSON flags become."""
    without_device()
    from vllm.engine.arg_utils import AsyncEngineArgs

    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser
    except ImportError:
        from vllm.entrypoints.openai.cli_args import make_arg_parser
    parser = make_arg_parser(FlexibleArgumentParser(allow_abbrev=False))
    return lambda words: AsyncEngineArgs.from_cli_args(parser.parse_args(words))


def vllm_bench() -> Parse:
    """``vllm bench serve``."""
    from vllm.benchmarks.serve import add_cli_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(allow_abbrev=False)
    add_cli_args(parser)
    return parser.parse_args


def router(package: str) -> Parse:
    """Either router's ``launch_router``."""
    return __import__(f"{package}.launch_router", fromlist=["_"]).parse_router_args


def sglang() -> Parse:
    """SGLang's server arguments; an older release registers models that newer transformers have themselves."""
    from transformers import AutoConfig

    whole = AutoConfig.register
    AutoConfig.register = staticmethod(lambda name, config, exist_ok=True: whole(name, config, exist_ok=True))
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    return parser.parse_args


def sglang_bench() -> Parse:
    """``sglang.bench_serving``, whose parser stands in its main block: it is caught there."""
    import runpy

    def parse(words: list[str]) -> None:
        whole, held = argparse.ArgumentParser.parse_args, sys.argv

        class Parsed(Exception):
            pass

        def stop(self: argparse.ArgumentParser, *_: object) -> None:
            whole(self, words)
            raise Parsed

        argparse.ArgumentParser.parse_args = stop
        try:
            runpy.run_module("sglang.bench_serving", run_name="__main__")
        except Parsed:
            pass
        finally:
            argparse.ArgumentParser.parse_args, sys.argv = whole, held

    return parse


def dynamo(engine: str) -> Parse:
    """A Dynamo worker's own arguments, and behind them its engine's: as dynamo.ENGINE.args splits them."""
    from dynamo.common.configuration.groups.runtime_args import DynamoRuntimeArgGroup

    if engine == "trtllm":  # defaults of four flags come from the engine, which is not on PyPI
        fields = dict.fromkeys(
            ("max_batch_size", "max_num_tokens", "max_seq_len", "max_beam_width"), SimpleNamespace(default=1)
        )
        sys.modules["tensorrt_llm"] = ModuleType("tensorrt_llm")
        sys.modules["tensorrt_llm.llmapi"] = SimpleNamespace(BuildConfig=SimpleNamespace(model_fields=fields))
    backend = __import__(f"dynamo.{engine}.backend_args", fromlist=["_"])
    group = {"vllm": "DynamoVllmArgGroup", "sglang": "DynamoSGLangArgGroup", "trtllm": "DynamoTrtllmArgGroup"}[engine]
    own = argparse.ArgumentParser(allow_abbrev=False)
    DynamoRuntimeArgGroup().add_arguments(own)
    getattr(backend, group)().add_arguments(own)
    rest: Parse = argparse.ArgumentParser(allow_abbrev=False).parse_args
    if engine == "sglang":
        rest = sglang()
    if engine == "vllm":
        without_device()
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        parser = FlexibleArgumentParser(add_help=False, allow_abbrev=False)
        AsyncEngineArgs.add_cli_args(parser, async_args_only=False)

        def rest(words: list[str]) -> object:
            return AsyncEngineArgs.from_cli_args(parser.parse_args(words))

    return lambda words: rest(own.parse_known_args(words)[1])


def aiperf() -> Parse:
    """AIPerf's command line, up to the point where it would start."""
    from aiperf.cli import app

    return lambda words: app.parse_args(["profile", *words], exit_on_error=False, print_error=False)


def parser_of(name: str) -> Parse:
    """Return the parser; the packages are imported here and nowhere else."""
    made: dict[str, Callable[[], Parse]] = {
        "vllm": vllm,
        "vllm-ascend": vllm,
        "vllm-bench": vllm_bench,
        "sglang": sglang,
        "sglang.ascend": sglang,
        "sglang-bench": sglang_bench,
        "aiperf": aiperf,
    }
    if name.endswith("-router"):
        return router(name.replace("-", "_"))
    return dynamo(name.partition(".")[2]) if name.startswith("dynamo.") else made[name]()


def parsed(name: str, commands: list[list[str]]) -> dict[str, object]:
    """Return what a parser accepted: flags, words that are no numbers or paths behind them, and refusals."""
    parse, flags, refused = parser_of(name), {}, []
    for words in commands:
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                parse(list(words))
        except (SystemExit, Exception) as why:  # noqa: BLE001
            refused.append({"words": words, "why": (said.getvalue() or str(why)).strip()[-400:]})
            continue
        for flag, value in told(words):
            flags.setdefault(flag, set()).update(value)
    return {"flags": {flag: sorted(flags[flag]) for flag in sorted(flags)}, "refused": refused}


def told(words: list[str]) -> list[tuple[str, set[str]]]:
    """Return (flag, the plain words behind it): what a parser may choose among, no numbers, names or addresses."""
    found: list[tuple[str, set[str]]] = []
    for word in words:
        if word.startswith("--"):
            found.append((word, set()))
        elif found and word.replace("_", "").replace("-", "").isalpha() and word.islower():
            found[-1][1].add(word)
    return found


def run(*words: object, **kwargs: object) -> str:
    """Run a command and return what it printed."""
    return subprocess.run([str(word) for word in words], check=True, text=True, stdout=subprocess.PIPE, **kwargs).stdout


def installed(work: Path) -> None:
    """Make the environments and unpack the engines, where they are not there yet."""
    for name, packages in ENVIRONMENTS.items():
        if (python := work / name / "bin/python").exists():
            continue
        run(sys.executable, "-m", "venv", work / name)
        pip = [python, "-m", "pip", "install", "--quiet"]
        run(*pip, *(["torch"] if name == "engines" else []), *packages)
        if name in BESIDE:
            run(*pip, "--no-deps", *BESIDE[name])
            # The shapes of operators that its build has for another device alone.
            (site,) = (work / name).glob("lib/python*/site-packages/torchvision")
            (site / "_meta_registrations.py").write_text("")
    for package in {each for wheels in PARSERS.values() for each in wheels}:
        if (folder := work / package).exists():
            continue
        run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work / "wheels", package)
        (wheel,) = (work / "wheels").glob(f"{package.replace('-', '_').replace('==', '-')}*.whl")
        with ZipFile(wheel) as held:
            held.extractall(folder, [each for each in held.infolist() if each.file_size < MOST_BYTES])


def environment_of(name: str) -> str:
    """Return the environment of a parser."""
    return name if name in ENVIRONMENTS else "engines"


def main() -> None:
    """Parse everything in every environment; with ``--one NAME`` only there, from stdin to stdout."""
    if sys.argv[1] == "--one":
        print("\n" + json.dumps(parsed(sys.argv[2], json.load(sys.stdin))))
        return
    work = Path(sys.argv[2]).resolve()
    work.mkdir(parents=True, exist_ok=True)
    installed(work)
    sys.path.insert(0, str(ROOT))
    from tests.deploy.emitted import emitted

    commands, result = emitted(), {}
    for name, wheels in PARSERS.items():
        given = os.environ | {"PYTHONPATH": ":".join(str(work / package) for package in wheels)}
        python = work / environment_of(name) / "bin/python"
        said = run(python, __file__, "--one", name, input=json.dumps(commands[name]), env=given)
        found = json.loads(said.rpartition("\n{")[1].strip() + said.rpartition("\n{")[2])
        asked = [*ENVIRONMENTS[environment_of(name)], *BESIDE.get(environment_of(name), [])]
        result[name] = {"packages": wheels or [each for each in asked if each.startswith(f"{name}==")], **found}
        print(f"{name}: {len(found['flags'])} flags accepted, {len(found['refused'])} of {len(commands[name])} refused")
    lines = [f"{json.dumps(name)}: {json.dumps(held)}" for name, held in result.items()]
    RESULT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
