"""How many random cases a run tries.

`make test-long` tries all, CI a fifth of them, at least ten; `make test` few of what is marked so.
"""

from hypothesis import settings

_FEW = 3

#: Whether the test that runs is one of which few cases are tried; conftest.py sets it.
few = False


def share(count: int) -> int:
    """Return how many of so many cases this run tries."""
    if few:
        return min(count, _FEW)
    return max(min(count, 10), count * settings().max_examples // 100)


def examples(count: int) -> settings:
    """Return the decorator for a property that is worth so many examples."""
    return settings(max_examples=share(count))


def reduce(test: object) -> None:
    """Let hypothesis try few examples of a test that draws more."""
    drawn = getattr(test, "_hypothesis_internal_use_settings", settings())
    reduced = settings(drawn, max_examples=min(drawn.max_examples, _FEW))
    setattr(test, "_hypothesis_internal_use_settings", reduced)  # noqa: B010
