"""How many random cases are tried: all in `make test-all`, a fifth of them in `make test`."""

from __future__ import annotations

from hypothesis import settings


def share(count: int) -> int:
    """Return how many of so many cases this run tries, at least ten."""
    return max(min(count, 10), count * settings().max_examples // 100)


def examples(count: int) -> settings:
    """Return the decorator for a property that is worth so many examples."""
    return settings(max_examples=share(count))
