"""Sorted-F (Wang et al., Alg. 1): batches of least F, by local swap or another selection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.policies.base import BatchPolicy
from optsched.solvers.selection.swap import LocalSwap

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.instance import Instance
    from optsched.solvers.selection.batch import BatchMethod


class Selected:
    """Batch selection by `optsched.select` among the requests released so far."""

    def __init__(self, instance: Instance, method: BatchMethod, options: dict[str, Any]) -> None:
        self._instance, self._method, self._options = instance, method, options
        self._waiting = np.zeros(0, dtype=np.int64)

    def release(self, requests: IntArray) -> None:
        """Learn of requests that have arrived, given by index."""
        self._waiting = np.concatenate([self._waiting, requests])

    def next_batch(self) -> IntArray:
        """Take the next batch out of those waiting, by ascending output."""
        from optsched.solvers.selection.batch import select

        waiting = self._waiting
        batch = select(self._instance.take(waiting), self._method, **self._options).requests
        self._waiting = np.delete(waiting, batch)
        return waiting[batch]


def sorted_f(method: BatchMethod, **options: Any) -> BatchPolicy:
    """Make Sorted-F with a selection of batches and options of its own.

    Parameters
    ----------
    method
        As for `optsched.select`: "dp", "scaled-dp", "swap", "quantile" or "mip".
    **options
        As for `optsched.select`, for instance `fit`, `epsilon`, `seed` or `time_limit`.

    Returns
    -------
    BatchPolicy
        Named "sorted-f-method", with "-profile" for that fit.

    Examples
    --------
    >>> from optsched import family, run
    >>> rough = sorted_f("scaled-dp", epsilon=0.5)
    >>> run(family("sorted-f-example-1"), rough).total_latency
    45
    """
    profile = "-profile" if options.get("fit") == "profile" else ""
    fit = "at every step" if profile else "by their peaks"
    title = f"batches of least F that fit {fit}, {_TITLES.get(method, method)}"
    return BatchPolicy(
        f"sorted-f-{method}{profile}", title, lambda instance: Selected(instance, method, options)
    )


_TITLES = {
    "dp": "by exact dynamic program",
    "scaled-dp": "within 10 % by scaled dynamic program",
    "swap": "by local swap",
    "quantile": "by quantiles of a sample",
    "mip": "by integer programs",
}

SORTED_F = BatchPolicy("sorted-f", "batches of least F, by local swap", LocalSwap)
SELECTED = (
    sorted_f("dp"),
    sorted_f("scaled-dp"),
    sorted_f("quantile"),
    sorted_f("mip"),
    sorted_f("mip", fit="profile"),
)
