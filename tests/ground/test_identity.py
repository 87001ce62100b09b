"""Keys by identity."""

from ground.identity import Same


def test_equal_objects_are_not_the_same():
    """Only the very same object has the same key."""
    one, other = [1], [1]

    assert Same(one) == Same(one) and hash(Same(one)) == hash(Same(one))
    assert Same(one) != Same(other) and Same(one) != one
    assert {Same(one): 1, Same(other): 2}[Same(one)] == 1
