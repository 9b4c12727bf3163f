"""Sorted-LP and LP-Swap (Wang et al., Alg. 6 and 7): the linear relaxation gives the order.

Both order requests by their expected starts in Relax-LP (`solvers.selection.expected_starts`).
LP-Swap fills batches in this order, passing over what does not fit, and improves them by Alg. 4.

With arrivals the relaxation of all requests would know the future. Here it is solved for those
that wait, as if the worker were empty, whenever a batch is formed and requests have arrived since.
A batch of Sorted-LP is what comes first in the order and fits together by peaks; offline the
batches strung together are the paper's order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.compiled import compiled
from optsched.policies.base import BatchPolicy
from optsched.solvers.selection.swap import LocalSwap

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.instance import Instance


class _ExpectedOrder:
    """Waiting requests, by expected start."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._waiting = np.zeros(0, dtype=np.int64)
        self._sorted = True

    def release(self, requests: IntArray) -> None:
        self._waiting = np.concatenate([self._waiting, requests])
        self._sorted = False

    def get(self) -> IntArray:
        """Return the waiting requests in order; new ones make the relaxation be solved again."""
        if not self._sorted:
            from optsched.solvers.selection.expected_starts import expected_starts

            waiting = np.sort(self._waiting)
            starts: FloatArray = expected_starts(self._instance.take(waiting))
            self._waiting = waiting[np.argsort(starts, kind="stable")]
            self._sorted = True
        return self._waiting

    def keep(self, remaining: IntArray) -> None:
        self._waiting = remaining


class SortedLP:
    """Batches by ascending expected start among the requests released so far."""

    def __init__(self, instance: Instance) -> None:
        self._order = _ExpectedOrder(instance)
        self._peaks, self._memory = instance.peaks, instance.memory

    def release(self, requests: IntArray) -> None:
        """Learn of requests that have arrived, given by index."""
        self._order.release(requests)

    def next_batch(self) -> IntArray:
        """Take the next batch out of those waiting, by ascending expected start."""
        order = self._order.get()
        held = np.cumsum(self._peaks[order[: self._memory]])
        size = int(np.searchsorted(held, self._memory, side="right"))
        self._order.keep(order[size:])
        return order[:size]


class LPSwap(LocalSwap):
    """Batches filled by ascending expected start and improved by Alg. 4."""

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance)
        self._order = _ExpectedOrder(instance)

    def release(self, requests: IntArray) -> None:
        """Learn of requests that have arrived, given by index."""
        super().release(requests)
        self._order.release(requests)

    def next_batch(self) -> IntArray:
        """Take the next batch out of those waiting, by ascending output."""
        order = self._order.get()
        members = self._rank[order[_fitting(self._peaks[self._rank[order]], self._memory)]]
        batch = self.improve(self.take(np.sort(members)))
        self._order.keep(order[~np.isin(order, batch)])
        return batch


SORTED_LP = (
    BatchPolicy(
        "sorted-lp",
        "smallest expected start in the linear relaxation first",
        SortedLP,
        source="Sorted-F Alg. 6",
    ),
    BatchPolicy(
        "lp-swap",
        "batches by expected start, improved by local swap",
        LPSwap,
        source="Sorted-F Alg. 7",
    ),
)


@compiled
def _fitting(peaks: IntArray, memory: int) -> IntArray:
    """Find those that fit, taken one after another, passing over what does not."""
    chosen = np.empty(len(peaks), dtype=np.int64)
    count = 0
    for place in range(len(peaks)):
        if peaks[place] <= memory:
            memory -= peaks[place]
            chosen[count] = place
            count += 1
    return chosen[:count]
