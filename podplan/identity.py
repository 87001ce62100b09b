"""What is known of an object for as long as it is the same object."""

from typing import Generic, TypeVar

Value = TypeVar("Value")


class Same(Generic[Value]):
    """A key for what cannot be hashed: equal to another one only if both are of the very same object, which it keeps.

    For results that follow from objects that nobody changes, such as catalogue entries.

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
