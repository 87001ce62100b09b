"""Anchors, aliases and merge keys of YAML that others wrote: values stand where an alias names them."""

from collections.abc import Iterable, Iterator
from typing import Any

import yaml
from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, NodeEvent

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
