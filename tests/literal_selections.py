"""Which batch a policy chooses next among the requests that wait.

What a solver selects is compared with all batches in tests/solvers/selection.
"""

from collections.abc import Callable
from typing import Any

import literal
import literal_orders
import numpy as np

from optsched import Instance
from optsched.bounds.lagrangian import expected_starts
from optsched.solvers import select_batch


class _Expected:
    """Expected starts of the waiting requests, computed when one is new."""

    def __init__(self, instance: Instance) -> None:
        self.instance, self.known = instance, dict[int, float]()

    def __call__(self, waiting: list[int]) -> dict[int, float]:
        if not set(waiting) <= set(self.known):
            y = expected_starts(self.instance.take(waiting)).tolist()
            self.known = dict(zip(waiting, y, strict=True))
        return self.known


def selection(name: str, instance: Instance) -> Callable[[list[int]], list[int]] | None:
    """Return what chooses the next batch among those that wait, by name of the policy."""

    def solved(method: Any, **options: Any) -> Callable[[list[int]], list[int]]:
        def choose(waiting: list[int]) -> list[int]:
            batch = select_batch(instance.take(waiting), method, **options)
            return [waiting[place] for place in batch.requests]

        return choose

    def by_expected_start(waiting: list[int]) -> list[int]:
        """Alg. 6, in batches whose peaks fit together."""
        y = expected(waiting)
        order = sorted(waiting, key=lambda i: (y[i], i))
        held = np.cumsum(instance.peaks[order])
        return order[: int((held <= instance.memory).sum())]

    expected = _Expected(instance)
    made: dict[str, Callable[[], Callable[[list[int]], list[int]]]] = {
        "sorted-f": lambda: literal.SortedF(instance).select,
        "sorted-f-dp": lambda: literal_orders.exact_selection(instance),
        "sorted-f-scaled-dp": lambda: solved("scaled-dp"),
        "sorted-f-quantile": lambda: literal_orders.quantile_selection(instance),
        "sorted-f-mip": lambda: solved("highs"),
        "sorted-f-mip-profile": lambda: solved("highs", fit="profile"),
        "sorted-lp": lambda: by_expected_start,
        "lp-swap": lambda: literal_orders.lp_swap_selection(instance, expected),
    }
    return made[name]() if name in made else None
