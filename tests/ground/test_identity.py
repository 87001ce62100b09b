"""Keys by identity."""

from concurrent.futures import ThreadPoolExecutor

from ground.identity import Kept, Same


def test_equal_objects_are_not_the_same():
    """Only the very same object has the same key."""
    one, other = [1], [1]

    assert Same(one) == Same(one) and hash(Same(one)) == hash(Same(one))
    assert Same(one) != Same(other) and Same(one) != one
    assert {Same(one): 1, Same(other): 2}[Same(one)] == 1


def test_threads_may_ask_at_once() -> None:
    """A result that another thread pushes out in the meantime is still returned."""
    kept = Kept[int](most=1)
    with ThreadPoolExecutor(8) as threads:
        asked = list(range(4)) * 2000
        assert list(threads.map(lambda key: kept.of(key, lambda: key), asked)) == asked
