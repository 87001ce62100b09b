"""Caches by the identity of objects, valid while it is the very same object."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Same(Generic[Value]):
    """A key for an unhashable object: two keys are equal only if they hold the very same object, which they keep.

    It serves for results that depend on objects that nobody changes, such as catalogue entries.

    >>> spec = [1]
    >>> {Same(spec): "known"}.get(Same(spec)), {Same(spec): "known"}.get(Same([1]))
    ('known', None)
    """

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        """Keep an object."""
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class Kept(Generic[Value]):
    """The last results that were asked for, by key; threads may ask at once, and may then make one twice.

    >>> kept = Kept[str](most=1)
    >>> kept.of("a", lambda: "made"), kept.of("a", lambda: "made again")
    ('made', 'made')
    """

    def __init__(self, most: int) -> None:
        """Keep so many."""
        self._most, self._known, self._lock = most, OrderedDict[Hashable, Value](), Lock()

    def of(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the result of a key, made now unless it is kept."""
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        made = make()
        with self._lock:
            self._known[key] = made
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        return made
