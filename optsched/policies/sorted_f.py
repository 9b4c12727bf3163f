"""Sorted-F (Wang et al., Alg. 1): batches of least F, by local swap or another selection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.policies.base import BatchPolicy
from optsched.solvers.selection.swap import LocalSwap

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.problem.instance import Instance
    from optsched.solvers.selection.batch import BatchMethod


class Selected:
    """Batch selection among the requests released so far."""

    def __init__(self, instance: Instance, method: BatchMethod, options: dict[str, Any]) -> None:
        self._instance, self._method, self._options = instance, method, options
        self._waiting = np.zeros(0, dtype=np.int64)

    def release(self, requests: IntArray) -> None:
        """Learn of requests that have arrived, given by index."""
        self._waiting = np.concatenate([self._waiting, requests])

    def next_batch(self) -> IntArray:
        """Take the next batch out of those waiting, by ascending output."""
        from optsched.solvers.selection.batch import select_batch

        waiting = self._waiting
        batch = select_batch(self._instance.take(waiting), self._method, **self._options).requests
        self._waiting = np.delete(waiting, batch)
        return waiting[batch]


def sorted_f(method: BatchMethod, **options: Any) -> BatchPolicy:
    """Return Sorted-F with a selection of batches and options of its own."""
    profile = "-profile" if options.get("fit") == "profile" else ""
    fit = "at every step" if profile else "by their peaks"
    how, source = _METHODS.get(method, (method, ""))
    return BatchPolicy(
        f"sorted-f-{method}{profile}",
        f"batches of least F that fit {fit}, {how}",
        lambda instance: Selected(instance, method, options),
        source=source,
    )


_METHODS = {
    "dp": ("by exact dynamic program", "Sorted-F Alg. 2"),
    "scaled-dp": ("within 10 % by scaled dynamic program", "after Sorted-F Alg. 3"),
    "swap": ("by local swap", "Sorted-F Alg. 4"),
    "quantile": ("by quantiles of a sample", "Sorted-F Alg. 5"),
    "mip": ("by integer programs", "Sorted-F Section 5"),
}

SORTED_F = BatchPolicy(
    "sorted-f",
    "batches of least F, by local swap",
    LocalSwap,
    source="Sorted-F Alg. 1 and 4",
)
SELECTED = (
    sorted_f("dp"),
    sorted_f("scaled-dp"),
    sorted_f("quantile"),
    sorted_f("mip"),
    sorted_f("mip", fit="profile"),
)
