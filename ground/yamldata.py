"""Plain data from YAML and back: strict, without recursion, errors with a line.

A value is built straight from the parser's events. That refuses what a configuration never needs (anchors,
aliases, tags, duplicate keys, several documents) where it stands, survives any nesting, and is faster than
PyYAML's own loaders, which build a graph of nodes first. In YAML that others wrote, anchors, aliases and merge keys
stand, and values stand where an alias names them.
"""

import re
from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    MappingEndEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from ground.errors import BadInput
from ground.units import MEBI

MOST_EVENTS = 1_000_000  # of a document with its aliases spelt out, which may name one another


def spelt_out(events: Iterable[yaml.Event]) -> Iterator[yaml.Event]:
    """Yield events without anchors, and what an alias stands for in its place; YAMLError where that has no end."""
    known: dict[str, list[yaml.Event]] = {}
    kept: list[tuple[str, int, list[yaml.Event]]] = []  # open values with an anchor, and how deep each began
    depth = count = 0
    for event in events:
        aliased = [event]
        if isinstance(event, AliasEvent):
            aliased = known.get(event.anchor or "", [])
            if not aliased:
                raise yaml.YAMLError(f"the alias {event.anchor!r} stands for nothing that ends before it")
        elif isinstance(event, NodeEvent) and event.anchor is not None:
            kept.append((event.anchor, depth, []))
            event.anchor = None
        for each in aliased:
            count += 1
            if count > MOST_EVENTS:
                raise yaml.YAMLError(f"its aliases stand for more than {MOST_EVENTS} values")
            depth += isinstance(each, CollectionStartEvent) - isinstance(each, CollectionEndEvent)
            for _, _, held in kept:
                held.append(each)
            yield each
        while kept and kept[-1][1] == depth:
            name, _, held = kept.pop()
            known[name] = held


def merged_keys(value: Any) -> Any:
    """Return a value with the mappings that ``<<`` names under its own keys (https://yaml.org/type/merge.html).

    >>> merged_keys({"<<": {"a": 1, "b": 2}, "b": 3})
    {'a': 1, 'b': 3}
    """
    if isinstance(value, list):
        return [merged_keys(held) for held in value]
    if not isinstance(value, dict):
        return value
    own = {key: merged_keys(held) for key, held in value.items() if key != "<<"}
    under = value.get("<<", [])
    for held in under if isinstance(under, list) else [under]:
        own = {**merged_keys(held), **own}
    return own


if TYPE_CHECKING:
    from yaml import SafeDumper as _BaseDumper, SafeLoader as _Parser
else:  # libyaml's are about ten times as fast and not in every build of PyYAML
    _BaseDumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    _Parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

DEPTH_LIMIT = 100
SIZE_LIMIT = 8 * MEBI  # characters of a document: some seconds to read. A manifest of a CloudMatrix384 has 0.3 MB

_TOO_DEEP = f"lists and mappings are nested more than {DEPTH_LIMIT} deep"
_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,999})\Z")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?\Z")
_WORDS: dict[str, object] = {
    **dict.fromkeys(["", "~", "null", "Null", "NULL"], None),
    **dict.fromkeys(["true", "True", "TRUE"], True),
    **dict.fromkeys(["false", "False", "FALSE"], False),
    **dict.fromkeys([".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"], float("inf")),
    **dict.fromkeys(["-.inf", "-.Inf", "-.INF"], float("-inf")),
    **dict.fromkeys([".nan", ".NaN", ".NAN"], float("nan")),
}
_NO_KEY = object()


def parse_yaml(text: str, where: str, *, aliases: bool = False) -> object:
    """Return the one YAML document in ``text`` as dicts, lists, text, numbers, booleans and None.

    Anchors are refused, unless ``aliases`` are spelt out and merge keys filled in, as files of others need it.

    Plain scalars follow the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/, section 10.3) in decimal, so
    ``1e-6`` is a number and ``no`` is text. An empty text is None. Raises BadInput naming ``where`` and the line.
    """
    if len(text) > SIZE_LIMIT:
        raise BadInput(f"{where}: YAML of more than {SIZE_LIMIT // MEBI} MiB is not read; leave out what is not needed")
    builder = _Builder()
    try:
        events = yaml.parse(text, Loader=_Parser)
        for event in spelt_out(events) if aliases else events:
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        # On one line what the parser says: the problem, and what it was reading
        context = f" {error.context}" if error.context else ""
        problem = " ".join(f"{error.problem or 'syntax error'}{context}".split())
        told = _TOO_DEEP if "maximum nesting depth" in problem else f"not YAML: {problem}"  # libyaml has a limit, too
        raise BadInput(f"{where}{line}: {told}") from None
    except yaml.YAMLError as error:
        raise BadInput(f"{where}: not YAML: {' '.join(str(error).split())}") from None
    except _Refusal as refusal:
        raise BadInput(f"{where}, line {refusal.line}: {refusal}") from None
    found = builder.documents[0] if builder.documents else None
    return merged_keys(found) if aliases else found


def to_yaml(data: object) -> str:
    """Return ``data`` as YAML: the same bytes for the same data, keys in the order given, block style, no aliases.

    ``data`` holds dicts, lists, tuples, text, numbers, booleans and None. ``parse_yaml`` returns an equal value,
    with lists for tuples. Raises BadInput for text that is no Unicode, such as a word typed in another encoding.
    """
    how: dict[str, Any] = {"sort_keys": False, "default_flow_style": False, "width": 120, "allow_unicode": True}
    try:
        text: str = yaml.dump(data, Dumper=_Dumper, **how)
    except UnicodeEncodeError as error:
        raise BadInput(f"{error.object[:40]!r} is no Unicode text, which YAML is; write it in UTF-8") from None
    return text


class _Refusal(Exception):
    """Valid YAML that is not accepted here."""

    def __init__(self, problem: str, event: yaml.Event) -> None:
        super().__init__(problem)
        self.line = event.start_mark.line + 1 if event.start_mark else 1


class _Builder:
    """Values under construction: the open containers, outermost first, each with the key that waits for its value."""

    def __init__(self) -> None:
        self.documents: list[object] = []
        self._open: list[Any] = [self.documents]
        self._keys: list[Any] = [_NO_KEY]

    def take(self, event: yaml.Event) -> None:
        """Add one event; _Refusal names what is not accepted."""
        if isinstance(event, ScalarEvent):
            if event.anchor is not None or event.tag is not None:
                self._refuse_properties(event)
            self._add(_scalar(event.value) if event.implicit[0] else event.value, event)
        elif isinstance(event, SequenceEndEvent | MappingEndEvent):
            self._open.pop()
            self._keys.pop()
        elif isinstance(event, NodeEvent):
            self._refuse_properties(event)
            self._start([] if isinstance(event, SequenceStartEvent) else {}, event)

    def _refuse_properties(self, event: yaml.NodeEvent) -> None:
        if event.anchor is not None:
            raise _Refusal(f"the anchor or alias {event.anchor!r} is not accepted; write the value out", event)
        tag = getattr(event, "tag", None)
        if tag is not None and tag != "!":
            raise _Refusal(f"the tag {tag!r} is not accepted; write the value without it", event)

    def _start(self, container: list[object] | dict[object, object], event: yaml.Event) -> None:
        self._add(container, event)
        if len(self._open) > DEPTH_LIMIT:
            raise _Refusal(_TOO_DEEP, event)
        self._open.append(container)
        self._keys.append(_NO_KEY)

    def _add(self, value: object, event: yaml.Event) -> None:
        parent = self._open[-1]
        if isinstance(parent, list):
            if parent is self.documents and parent:
                raise _Refusal("a second document starts here; a file holds one", event)
            parent.append(value)
        elif self._keys[-1] is not _NO_KEY:
            parent[self._keys[-1]] = value
            self._keys[-1] = _NO_KEY
        elif not isinstance(value, Hashable):
            raise _Refusal("a key must be a name or a number, not a list or a mapping", event)
        elif value in parent:
            raise _Refusal(f"key {value!r} stands twice in one mapping", event)
        else:
            self._keys[-1] = value


def _scalar(text: str) -> object:
    if _INT.match(text):
        return int(text)
    if text in _WORDS:
        return _WORDS[text]
    return float(text) if _FLOAT.match(text) else text


class _Dumper(_BaseDumper):
    """Safe dumper without aliases, which quotes every text that YAML 1.1 or 1.2 would read as something else."""

    def ignore_aliases(self, data: object) -> bool:
        """Write a value that occurs twice out twice: readers refuse aliases."""
        return True


def _represent_text(dumper: Any, text: str) -> Any:
    """Write text of several lines as such; YAML falls back to quotes where a block cannot hold it."""
    return dumper.represent_scalar(_TAG + "str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_implicit_resolver(_TAG + "int", _INT, list("-+0123456789"))
_Dumper.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+.0123456789"))
