"""Write the fact tables of engines' flags in deploy/flags from published wheels, without importing them.

    python scripts/engine_flags.py vllm WHEEL_OR_FOLDER > deploy/flags/vllm-0.33.0.json

The wheels are those of ``pip download --no-deps vllm==0.33.0`` and so on. Parsers are read as syntax trees: an
engine itself needs an accelerator's libraries to be imported. Facts only: names, types, choices, defaults.
"""

import ast
import json
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

Flag = dict[str, Any]
Classes = dict[str, dict[str, tuple[str, Any]]]
Table = dict[str, Flag]


class Sources:
    """The Python files of a wheel or of an unpacked one."""

    def __init__(self, path: Path) -> None:
        """Open ``path``, a .whl file or a folder."""
        if path.is_dir():
            self._files = {str(each.relative_to(path)): each.read_bytes for each in path.rglob("*.py")}
        else:
            archive = zipfile.ZipFile(path)
            self._files = {name: partial(archive.read, name) for name in archive.namelist()}

    def names(self, pattern: str) -> list[str]:
        """Return the files whose path matches ``pattern`` from the start."""
        return sorted(name for name in self._files if re.match(pattern, name))

    def tree(self, name: str) -> ast.Module:
        """Return the syntax tree of a file."""
        return ast.parse(self._files[name]())


def literal(node: ast.expr | None) -> Any:
    """Return a constant expression's value, None for any other."""
    try:
        return ast.literal_eval(node) if node is not None else None
    except (ValueError, TypeError):
        return None


def plain(value: Any) -> bool:
    """Whether a default can stand in the table."""
    return isinstance(value, str | int | float | bool)


def described(annotation: str, aliases: dict[str, list[Any]], default: Any = None) -> Flag:
    """Return what an annotation says of a flag: type, choices and default."""
    flag: Flag = {}
    names = set(re.findall(r"\w+", annotation))
    choices = [value for name in sorted(names & aliases.keys()) for value in aliases[name]]
    for found in re.findall(r"Literal\[([^\]]*)\]", annotation):
        choices += re.findall(r"'([^']*)'", found) or [int(word) for word in re.findall(r"\d+", found)]
    if "bool" in names and "str" not in names and not choices:
        flag["type"] = "switch"
    elif choices and not names & {"str", "dict", "list", "tuple"}:
        flag |= {"type": "str", "choices": [str(choice) for choice in dict.fromkeys(choices) if choice is not None]}
    elif names & {"dict", "Any"} or re.search(r"[A-Z]\w+Config", annotation):
        flag["type"] = "json"
    else:
        flag["type"] = "int" if "int" in names else "float" if "float" in names else "str"
    if plain(default):
        flag["default"] = default
    return flag


def calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    """Yield the calls of a method or function of that name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", None)) == name:
            yield node


def option_names(call: ast.Call) -> list[str]:
    """Return the option strings of an ``add_argument`` call; a formatted prefix counts as empty."""
    names = []
    for argument in call.args:
        if isinstance(argument, ast.JoinedStr):
            names.append("".join(part.value if isinstance(part, ast.Constant) else "" for part in argument.values))
        elif isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            names.append(argument.value)
    return [name for name in names if name.startswith("-")]


def from_keywords(call: ast.Call) -> Flag:
    """Return what the keywords of an ``add_argument`` call say."""
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    action = literal(given.get("action")) or ast.unparse(given["action"]) if "action" in given else ""
    bare = "nargs" not in given and re.fullmatch(r"Deprecated(Store(True|Const))?Action", str(action))
    if bare or "BooleanOptionalAction" in str(action) or str(action).startswith("store_"):
        return {"type": "switch"}
    flag: Flag = {"type": getattr(given.get("type"), "id", "str")}
    choices = literal(given.get("choices"))
    if choices:
        flag["choices"] = [str(choice) for choice in choices]
    if "nargs" in given:
        flag["nargs"] = literal(given["nargs"])
    if action == "append":
        flag["append"] = True
    if plain(literal(given.get("default"))):
        flag["default"] = literal(given.get("default"))
    return flag


def add(table: Table, names: list[str], flag: Flag) -> None:
    """Put a flag under its first long name, the others as aliases."""
    long = [name for name in names if name.startswith("--") and len(name) > 2]
    if long:
        table[long[0]] = flag | ({"aliases": rest} if (rest := [n for n in names if n != long[0]]) else {})


def fields(tree: ast.AST, wanted: str | None = None) -> dict[str, dict[str, tuple[str, Any]]]:
    """Return class -> field -> (annotation, default) of annotated class bodies."""
    found: dict[str, dict[str, tuple[str, Any]]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and (wanted is None or re.match(wanted, node.name)):
            found[node.name] = {
                item.target.id: (ast.unparse(item.annotation), literal(item.value))
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
    return found


def literal_aliases(tree: ast.Module) -> dict[str, list[Any]]:
    """Return names that stand for Literal types -> their values."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = ast.unparse(node.value)
            if text.startswith("Literal["):  # names of other aliases stand in for their values
                held = found | {"None": [None]}
                words = re.findall(r"'[^']*'|\\d+|\\w+", text[len("Literal") :])
                found[node.targets[0].id] = [v for word in words for v in held.get(word, [word.strip("'")])]
    return found


def config_owners(engine: ast.Module) -> dict[str, str]:
    """Return variable -> class of ``variable = get_kwargs(Class)``."""
    owners = {}
    for node in ast.walk(engine):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            target, called = node.targets[0], getattr(node.value.func, "id", "")
            if called == "get_kwargs" and isinstance(target, ast.Name):
                owners[target.id] = ast.unparse(node.value.args[0])
    return owners


def config_field(call: ast.Call, owners: dict[str, str], classes: Classes) -> tuple[str, Any] | None:
    """Return (annotation, default) of the field that a call takes with ``**kwargs["field"]``."""
    for keyword in call.keywords:
        value = keyword.value
        if isinstance(value, ast.Dict):  # **{**kwargs["field"], "default": …}
            value = next((v for k, v in zip(value.keys, value.values, strict=True) if k is None), value)
        if keyword.arg is None and isinstance(value, ast.Subscript):
            owner = owners.get(ast.unparse(value.value), "")
            found = classes.get(owner, {}).get(str(literal(value.slice)))
            if found:
                return found
    return None


def vllm(sources: Sources) -> dict[str, Any]:
    """Read vLLM's EngineArgs, the front end's arguments and the keys of its JSON flags."""
    classes: Classes = {}
    aliases: dict[str, list[Any]] = {}
    for name in sources.names(r"vllm/config/[a-z_]+\.py"):
        tree = sources.tree(name)
        classes |= fields(tree)
        aliases |= literal_aliases(tree)
    table: Table = {}
    engine = sources.tree("vllm/engine/arg_utils.py")
    owners = config_owners(engine)
    for call in calls(engine, "add_argument"):
        found = config_field(call, owners, classes)
        add(table, option_names(call), described(found[0], aliases, found[1]) if found else from_keywords(call))
    front = sources.tree(sources.names(r"vllm/entrypoints/[a-z]+/cli_args\.py")[0])
    for held in fields(front, ".*FrontendArgs").values():
        for field, (annotation, default) in held.items():
            add(table, ["--" + field.replace("_", "-")], described(annotation, aliases, default))
    for call in calls(front, "add_argument"):
        add(table, option_names(call), from_keywords(call))
    nested = {
        "--eplb-config": "EPLBConfig",
        "--kv-transfer-config": "KVTransferConfig",
        "--speculative-config": "SpeculativeConfig",
        "--compilation-config": "CompilationConfig",
    }
    keys = {
        flag: {name: described(*pair[:1], aliases, pair[1]) for name, pair in sorted(classes[owner].items())}
        for flag, owner in nested.items()
    }
    return {"flags": table, "json": keys}


def vllm_ascend(sources: Sources) -> dict[str, Any]:
    """Read the keys of --additional-config; the flags are vLLM's."""
    tree = sources.tree("vllm_ascend/ascend_config.py")
    text = ast.unparse(tree)
    top = sorted(set(re.findall(r"additional_config\.get\('([a-zA-Z0-9_]+)'", text)))
    eplb: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and "_defaults" in ast.unparse(node):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Dict):
                    eplb += [str(literal(key)) for key in inner.keys if key is not None]
    fine = sorted(set(re.findall(r"'([a-z]+_tensor_parallel_size)'", text)))
    keys = {name: {"type": "any"} for name in top}
    return {
        "flags": {},
        "json": {
            "--additional-config": keys,
            "--additional-config.eplb_config": {name: {"type": "any"} for name in sorted(set(eplb))},
            "--additional-config.finegrained_tp_config": {name: {"type": "int"} for name in fine},
        },
    }


def sglang(sources: Sources) -> dict[str, Any]:
    """Read SGLang's declarative fields: ``name: A[type, Arg(help, aliases, choices, cli_name, no_cli)] = default``."""
    table: Table = {}
    for name in sources.names(r"sglang/srt/(server_args|arg_groups/fields/[a-z_]+)\.py"):
        tree = sources.tree(name)
        aliases = literal_aliases(tree)
        for node in ast.walk(tree):
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
                continue
            if not ast.unparse(node.annotation).startswith("A["):
                continue
            kind, *extras = node.annotation.slice.elts  # type: ignore[attr-defined]
            flag = described(ast.unparse(kind), aliases, literal(node.value))
            given: dict[str, Any] = {}
            for extra in (held for held in extras if isinstance(held, ast.Call)):
                given |= {k.arg: literal(k.value) for k in extra.keywords if k.arg}
            if given.get("no_cli"):
                continue
            if given.get("choices"):
                flag["choices"] = [str(choice) for choice in given["choices"]]
            several = "+" if "type_parser" not in given and re.search(r"\b[Ll]ist\[", ast.unparse(kind)) else None
            if nargs := given.get("nargs") or several:  # of lists that say no more: arg_groups/arg_utils.py
                flag["nargs"] = nargs
            first = given.get("cli_name") or "--" + node.target.id.replace("_", "-")
            add(table, [first, *(given.get("aliases") or [])], flag)
    return {"flags": without_fields(sources) | table, "json": {}}


def without_fields(sources: Sources) -> Table:
    """Return SGLang's flags that have no field of their own, but those that are only there to be refused."""
    table: Table = {}
    for call in calls(sources.tree("sglang/srt/server_args.py"), "add_argument"):
        if "error_message" not in {keyword.arg for keyword in call.keywords}:
            add(table, option_names(call), from_keywords(call))
    return table


def argparse_files(*patterns: str) -> Callable[[Sources], dict[str, Any]]:
    """Return a reader of plain ``add_argument`` and Dynamo's ``add_argument(flag_name=…)`` calls."""

    def read(sources: Sources) -> dict[str, Any]:
        table: Table = {}
        for pattern in patterns:
            for name in sources.names(pattern):
                tree = sources.tree(name)
                for call in calls(tree, "add_argument"):
                    given = {keyword.arg: literal(keyword.value) for keyword in call.keywords if keyword.arg}
                    named = [given["flag_name"]] if given.get("flag_name") else []
                    add(table, option_names(call) or named, from_keywords(call))
                for call in calls(tree, "add_negatable_bool_argument"):
                    given = {keyword.arg: literal(keyword.value) for keyword in call.keywords if keyword.arg}
                    if given.get("flag_name"):
                        add(table, [given["flag_name"]], {"type": "switch"})
        return {"flags": table, "json": {}}

    return read


def dynamo(engine: str) -> Callable[[Sources], dict[str, Any]]:
    """Return the reader of a Dynamo worker's own arguments."""
    own = rf"dynamo/{engine}/(backend_args|args)\.py"
    return argparse_files(own, r"dynamo/common/configuration/groups/.*\.py")


READERS: dict[str, tuple[str, str, Callable[[Sources], dict[str, Any]]]] = {
    "vllm": ("vllm", "0.33.0", vllm),
    "vllm-ascend": ("vllm-ascend", "0.23.0", vllm_ascend),
    "sglang": ("sglang", "0.5.23", sglang),
    "sglang-router": ("sglang-router", "0.3.2", argparse_files(r"sglang_router/(router_args|launch_router)\.py")),
    "vllm-router": ("vllm-router", "0.1.17", argparse_files(r"vllm_router/(router_args|launch_router)\.py")),
    **{f"dynamo-{engine}": ("ai-dynamo", "1.6.1", dynamo(engine)) for engine in ("vllm", "sglang", "trtllm")},
    "dynamo-frontend": ("ai-dynamo", "1.6.1", argparse_files(r"dynamo/frontend/.*args\.py")),
}


def main() -> None:
    """Print the table of one engine: one flag a line, so that a new version reads as a diff."""
    name, path = sys.argv[1], Path(sys.argv[2])
    package, version, read = READERS[name]
    version = sys.argv[3] if len(sys.argv) > 3 else version
    facts = read(Sources(path))
    lines = [f'  "{flag}": {json.dumps(held)}' for flag, held in sorted(facts["flags"].items())]
    head = {"name": name, "version": version, "source": f"{package} {version} on PyPI, read without importing it"}
    print("{" + ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()) + ",")
    print('"flags": {\n' + ",\n".join(lines) + "\n},")
    nested = [f'  "{flag}": {json.dumps(keys)}' for flag, keys in sorted(facts["json"].items())]
    print('"json": {\n' + ",\n".join(nested) + "\n}}")


if __name__ == "__main__":
    main()
