"""Data classes that are made quickly behave as those of the standard library do."""

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from functools import cached_property
from typing import Any

import pytest

from podplan import records

Decorator = Callable[..., Any]
MAKERS = [dataclasses.dataclass, records.dataclass]


@records.dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A value with every kind of field."""

    number: int
    label: str = "none"
    items: list[int] = dataclasses.field(default_factory=list)
    note: object = dataclasses.field(default=None, compare=False, repr=False)


@records.dataclass(frozen=True)
class Open:
    """A value that keeps what it has computed."""

    number: int

    @cached_property
    def double(self) -> int:
        """Twice the number."""
        return 2 * self.number


@records.dataclass(frozen=True)
class Wider(Open):
    """One more field than its base."""

    other: int = 3


@records.dataclass(slots=True)
class Mutable:
    """A value that changes, with a field that it makes itself."""

    number: int
    total: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """Sum."""
        self.total = self.number + 1


def _made(maker: Decorator, **how: bool) -> Any:
    @maker(**how)
    class Value:
        first: int
        second: tuple[int, ...] = (1,)
        third: list[int] = dataclasses.field(default_factory=list)

    return Value


@pytest.mark.parametrize("how", [{}, {"frozen": True}, {"slots": True}, {"frozen": True, "slots": True, "eq": False}])
@pytest.mark.parametrize("kw_only", [False, True])
def test_it_takes_compares_hashes_and_shows_what_the_standard_library_does(how: dict[str, bool], kw_only: bool) -> None:
    """The same parameters and defaults; equal where that is equal, hashed where that is, shown alike."""
    theirs, ours = (_made(maker, **how, kw_only=kw_only) for maker in MAKERS)
    signatures = [inspect.signature(kind).parameters for kind in (theirs, ours)]
    assert [(each.name, each.kind) for each in signatures[0].values()] == [
        (each.name, each.kind) for each in signatures[1].values()
    ]
    for kind in (theirs, ours):
        with pytest.raises(TypeError):
            kind()
    pairs = [[kind(first=number, third=[2]) for number in (1, 1, 2)] for kind in (theirs, ours)]
    told = [(one == same, one == other, one != same, repr(one).split(".")[-1]) for one, same, other in pairs]
    assert told[0] == told[1]
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)
    assert ours(first=1) != theirs(first=1)
    assert ours(first=1).third is not ours(first=1).third


def test_equal_values_hash_alike_but_for_fields_that_do_not_count() -> None:
    """Values are keys of dictionaries."""
    one, same = Frozen(number=1, items=(), note="a"), Frozen(number=1, items=(), note="b")  # type: ignore[arg-type]
    assert one == same
    assert {one: 1}[same] == 1
    assert one != Frozen(number=2, items=())  # type: ignore[arg-type]


def test_a_frozen_value_cannot_be_changed() -> None:
    """Neither set nor deleted, and the error is the standard library's."""
    for value in (Frozen(number=1), Open(1)):
        with pytest.raises(dataclasses.FrozenInstanceError, match="number cannot be changed"):
            value.number = 2  # type: ignore[misc]
        with pytest.raises(dataclasses.FrozenInstanceError):
            del value.number  # type: ignore[misc]


def test_replace_copy_and_pickle_keep_a_value() -> None:
    """What other modules do with data classes works."""
    one = Frozen(number=1, items=[4])
    assert dataclasses.replace(one, label="new") == Frozen(number=1, label="new", items=[4])
    assert dataclasses.asdict(one) == {"number": 1, "label": "none", "items": [4], "note": None}
    for again in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert again == one
    assert repr(one) == "Frozen(number=1, label='none', items=[4])"


def test_a_subclass_adds_fields_and_keeps_what_is_computed() -> None:
    """A class without slots has room for cached properties."""
    wide = Wider(1, other=5)
    assert (wide.double, wide.double, wide.other) == (2, 2, 5)
    assert wide != Open(1)
    assert pickle.loads(pickle.dumps(wide)).double == 2


def test_what_a_class_defines_itself_stays() -> None:
    """A method of the class is not replaced, and what it does after its fields are set is done."""

    @records.dataclass(frozen=True)
    class Named:
        """Shown and compared in its own way."""

        number: int

        def __repr__(self) -> str:
            return "named"

        def __eq__(self, other: object) -> bool:
            return True

    assert repr(Named(1)) == "named"
    assert Named(1) == Named(2)
    changing = Mutable(3)
    changing.number = 7
    assert (changing.number, changing.total) == (7, 4)
    with pytest.raises(TypeError, match="unhashable"):
        hash(changing)
