"""The best batch of Sorted-F (Alg. 1 line 4), exactly, against one knapsack per size by HiGHS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alternatives.batches import least_ratio
from timing import Row, measure

from optsched import family
from optsched.solvers import select_batch

if TYPE_CHECKING:
    from collections.abc import Iterator


def rows(quick: bool) -> Iterator[Row]:
    """The smallest memory has few requests in a batch, the largest many."""
    for name, count in (("uniform", 20),) if quick else (("uniform", 40), ("uniform", 200)):
        instance = family(name, n=count, seed=1)
        ours, batch = measure(lambda i=instance: select_batch(i, "dp"), 3)
        theirs, ratio = measure(lambda i=instance: least_ratio(i), 1)
        assert ratio == batch.ratio
        size = f"n = {count}, M = {instance.memory}"
        yield Row("best batch", size, "scipy.optimize.milp", ours, theirs, "same ratio")
